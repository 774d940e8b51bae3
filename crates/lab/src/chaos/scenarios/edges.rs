//! What others do to the tables, the stream, the network and the service.

use std::time::Duration;

use crate::hostile::{Messages, Rows, Shape};
use crate::proxy::{After, Proxy};
use anyhow::{Context, Result, ensure};

use super::{Daemons, Lab};
use crate::chaos::front::Manner;
use crate::chaos::wait::until;

pub(super) async fn locked_row(lab: &mut Lab) -> Result<Daemons> {
    const OLDER: u64 = 12_000;
    const LOCKED: &str = "SELECT FROM outbox_events ORDER BY seq LIMIT 50 FOR UPDATE";
    // More than a scan publishes before it has marked them.
    lab.execute(&older(OLDER)).await?;
    lab.wrote(OLDER);
    let mut somebody = lab.database().await?;
    let relay = {
        let transaction = somebody.transaction().await.context("begin to lock")?;
        transaction.batch_execute(LOCKED).await.context("lock rows")?;
        lab.say("somebody locks 50 rows that are older than the slot");
        let relay = lab.start_relay()?;
        lab.wait_committed(600).await?;
        lab.recovers("they are still locked; all is published").await?;
        transaction.rollback().await.context("release the lock")?;
        relay
    };
    lab.fault_is_over();
    Ok(vec![relay])
}

fn older(count: u64) -> String {
    format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT gen_random_uuid(), 'older', 'o-' || n % 97, 'Older', '{{}}' \
         FROM generate_series(1, {count}) AS n"
    )
}

pub(super) async fn silent_peer(lab: &mut Lab) -> Result<Daemons> {
    let relay = lab.start_relay()?;
    relay.wait_active().await?;
    for to_nats in [false, true] {
        // Into the middle of opening a session, and into a running one.
        for messages in [12, 60] {
            let proxy = if to_nats { &mut lab.to_nats } else { &mut lab.to_postgres };
            fall_silent(proxy, messages).await?;
            let name = if to_nats { "NATS" } else { "PostgreSQL" };
            lab.say(&format!("{name} is silent after {messages} messages, for good"));
            lab.fault_is_over();
            lab.wait_committed(30).await?;
            lab.recovers("the relay found out and went on").await?;
        }
    }
    lab.to_nats.restore().await?;
    lab.to_postgres.restore().await?;
    Ok(vec![relay])
}

/// New connections are well once one of those that are opened now is silent.
async fn fall_silent(proxy: &mut Proxy, messages: u64) -> Result<()> {
    proxy.cut().await;
    proxy.restore().await?;
    let before = proxy.limited();
    proxy.after(messages, After::Silence);
    until("a connection is silent", async || Ok(proxy.limited() > before)).await?;
    proxy.lift_limit();
    Ok(())
}

pub(super) async fn hostile_rows(lab: &mut Lab) -> Result<Daemons> {
    let mut rows = Rows::new(Shape::Documented, lab.seed).with_bookkeeping();
    let all = rows.every();
    let (older, newer) = all.split_at(all.len() / 2);
    for row in older {
        lab.insert_odd(row).await?;
    }
    lab.say(&format!("{} odd rows are older than the slot", older.len()));
    let relay = lab.start_relay()?;
    relay.wait_active().await?;
    for row in newer {
        lab.insert_odd(row).await?;
    }
    lab.say(&format!("{} odd rows come through the log", newer.len()));
    lab.recovers("each is published or parked").await?;
    Ok(vec![relay])
}

pub(super) async fn hostile_messages(lab: &mut Lab) -> Result<Daemons> {
    // More of them, and the relay would take their writer for another relay.
    const MESSAGES: usize = 6;
    let mut messages = Messages::new(lab.seed);
    let mut relay = lab.start_relay()?;
    relay.wait_active().await?;
    for _ in 0..MESSAGES {
        let message = messages.draw();
        lab.publish_odd(&message).await?;
        lab.say(&format!("another client published {}", message.about));
        lab.fault_is_over();
        lab.wait_committed(60).await?;
        lab.recover().await?;
        relay.kill().await?;
        // It has to read the message, wherever the tail begins.
        relay = lab.start_relay()?;
        lab.recover().await?;
    }
    Ok(vec![relay])
}

pub(super) async fn handler_away(lab: &mut Lab) -> Result<Daemons> {
    const AWAY: &[Manner] = &[
        Manner::Away,
        Manner::Hang,
        Manner::Reset,
        Manner::Status(503),
        Manner::Half(9),
        Manner::Drip(Duration::from_millis(300)),
    ];
    lab.set("TAILPOST_INBOX__TIMEOUT", "2s");
    lab.open_shipping().await?;
    let (relay, inbox) = (lab.start_relay()?, lab.start_inbox()?);
    for manner in AWAY {
        lab.wait_committed(300).await?;
        lab.shipping()?.behave(*manner);
        lab.say(&format!("the service's manner is {manner:?}"));
        tokio::time::sleep(Duration::from_secs(5)).await;
        lab.shipping()?.behave(Manner::Well);
        lab.wait_acknowledged().await?;
        lab.say("it is well, and all of its events are handled");
    }
    let dead: i64 = lab.query("SELECT count(*) FROM inbox_dead_letter").await?;
    ensure!(dead == 0, "{dead} events are dead letters, because the service was away");
    Ok(vec![relay, inbox])
}

pub(super) async fn stopped_worker(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_INBOX__LEASE", "5s");
    lab.set("TAILPOST_INBOX__TIMEOUT", "4s");
    lab.open_shipping().await?;
    let (relay, first) = (lab.start_relay()?, lab.start_inbox()?);
    first.wait_active().await?;
    let second = lab.start_inbox()?;
    second.wait_standby().await?;
    lab.wait_committed(300).await?;
    first.pause()?;
    lab.say("the active worker is stopped, and stays so");
    second.wait_active().await?;
    lab.say("the other one took over");
    lab.wait_committed(300).await?;
    lab.wait_acknowledged().await?;
    first.resume()?;
    lab.say("all is handled; the first one wakes up");
    lab.wait_committed(300).await?;
    Ok(vec![relay, first, second])
}
