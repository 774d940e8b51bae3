//! What workers leave behind when they die, and what operators do by hand.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Daemons, Lab};
use crate::chaos::lab::CONSUMER;
use crate::chaos::shipping::Conduct;
use crate::chaos::wait::until;

/// Orders of these aggregates are not like the load's.
const STUCK: &str = "stuck";
const MARKED: &str = "marked";
const DELETED: &str = "deleted";

pub(super) async fn stuck_claim(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_INBOX__LEASE", "10s");
    lab.set("TAILPOST_INBOX__TIMEOUT", "9s");
    lab.open_shipping().await?;
    let (relay, first) = (lab.start_relay()?, lab.start_inbox()?);
    lab.wait_committed(300).await?;
    lab.shipping()?.conduct(STUCK, Some(Conduct::Hang));
    let id = lab.place_order(STUCK).await?;
    wait_calls(lab, id, 1).await?;
    first.kill().await?;
    lab.shipping()?.conduct(STUCK, None);
    let expires_at: Timestamp = lab.query(&expiry_of(id)).await?;
    let left = Duration::try_from(expires_at.duration_since(Timestamp::now())).unwrap_or_default();
    // The lease is renewed every second at least.
    ensure!(left > Duration::from_secs(5), "the lease was to outlive the worker: {left:?} left");
    lab.say(&format!("killed the worker while the service has {id}; leased for {left:.1?} more"));

    let second = lab.start_inbox()?;
    wait_calls(lab, id, 2).await?;
    let began = lab.shipping()?.calls_of(id);
    ensure!(
        began[1] >= expires_at,
        "the second call began at {}, and the lease expired at {expires_at}",
        began[1]
    );
    lab.say("the lease expired, and the next worker calls the service");
    lab.wait_acknowledged().await?;
    ensure!(lab.shipping()?.calls_of(id).len() == 2, "the service was called once more");
    let ended: i32 = lab.query(&ended_calls_of(id)).await?;
    ensure!(ended == 1, "{ended} calls ran to their end, one was to");
    Ok(vec![relay, second])
}

pub(super) async fn manual_fix(lab: &mut Lab) -> Result<Daemons> {
    lab.open_shipping().await?;
    let (relay, inbox) = (lab.start_relay()?, lab.start_inbox()?);
    lab.wait_committed(300).await?;
    let mut events = Vec::new();
    for aggregate_id in [MARKED, DELETED] {
        lab.shipping()?.conduct(aggregate_id, Some(Conduct::Refuse));
        events.push(lab.place_order(aggregate_id).await?);
    }
    let (marked, deleted) = (events[0], events[1]);
    let dead = "SELECT count(*) FROM inbox_messages WHERE status = 'DEAD'";
    until("both are dead letters", async || Ok(lab.query::<i64>(dead).await? == 2)).await?;
    lab.say("the service refused two events for good: dead letters");
    for event in [marked, deleted] {
        lab.mend_by_hand(event).await?;
    }
    lab.say("an operator makes both effects by hand");
    mark_processed(lab, marked).await?;
    // What people do instead. Its second effect is wanted, and counted apart.
    lab.execute(&format!("DELETE FROM inbox_messages WHERE message_id = '{deleted}'")).await?;
    lab.shipping()?.wants_twice(deleted);
    lab.say("marks the one as processed, and deletes the inbox's record of the other");
    for aggregate_id in [MARKED, DELETED] {
        lab.shipping()?.conduct(aggregate_id, None);
    }
    refuses_to_requeue(lab, marked, "there is no dead letter").await?;
    refuses_to_requeue(lab, deleted, "nothing there is to requeue").await?;
    lab.say("neither can be requeued: the one is no dead letter any more, the other has no record");

    inbox.stop().await?;
    lab.redeliver().await?;
    let inbox = lab.start_inbox()?;
    lab.say("the service is mended, and the stream is delivered once more from its beginning");
    wait_calls(lab, deleted, 2).await?;
    lab.wait_committed(300).await?;
    lab.wait_acknowledged().await?;
    let effects = lab.effects_of(deleted).await?;
    ensure!(effects == 2, "the event without a record was to have two effects: {effects}");
    let (calls, effects) = (lab.shipping()?.calls_of(marked).len(), lab.effects_of(marked).await?);
    ensure!(calls == 1, "the event that was marked was handled again");
    ensure!(effects == 1, "the event that was marked has {effects} effects");
    lab.say("the one was not handled again; the other was, and has had its effect twice");
    Ok(vec![relay, inbox])
}

async fn mark_processed(lab: &Lab, event: Uuid) -> Result<()> {
    let id = event.to_string();
    let args = ["inbox", "mark-processed", "--consumer", CONSUMER, "--event-id", &id];
    lab.operate(&[&args[..], &["--why", "made by hand"]].concat()).await
}

async fn refuses_to_requeue(lab: &Lab, event: Uuid, reason: &str) -> Result<()> {
    let told = lab.operate(&["inbox", "dlq", "requeue", &event.to_string()]).await;
    let told = told.err().map_or("it was requeued".to_owned(), |it| it.to_string());
    ensure!(told.contains(reason), "{event} was not to be requeued: {told}");
    Ok(())
}

async fn wait_calls(lab: &mut Lab, id: Uuid, count: usize) -> Result<()> {
    let shipping = lab.shipping()?;
    let what = format!("call {count} with {id} has begun");
    until(&what, async || Ok(shipping.calls_of(id).len() >= count)).await
}

fn expiry_of(id: Uuid) -> String {
    format!("SELECT expires_at FROM inbox_messages WHERE message_id = '{id}'")
}

fn ended_calls_of(id: Uuid) -> String {
    format!("SELECT calls FROM shipping_keys WHERE key = '{id}'")
}
