//! What others do to the tables, the stream, the network and the service.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::{After, Messages, OutboxShape, Proxy, Rows};

use super::{Daemons, Stage};
use crate::chaos::front::Manner;
use crate::chaos::wait::until;

pub(super) async fn locked_row(stage: &mut Stage) -> Result<Daemons> {
    const OLDER: u64 = 12_000;
    const LOCKED: &str = "SELECT FROM outbox_events ORDER BY seq LIMIT 50 FOR UPDATE";
    // More than a scan publishes before it has marked them.
    stage.execute(&older(OLDER)).await?;
    stage.wrote(OLDER);
    let mut somebody = stage.database().await?;
    let relay = {
        let transaction = somebody.transaction().await.context("begin to lock")?;
        transaction.batch_execute(LOCKED).await.context("lock rows")?;
        stage.say("somebody locks 50 rows that are older than the slot");
        let relay = stage.start_relay()?;
        stage.wait_committed(600).await?;
        let took = stage.recover().await?;
        stage.say(&format!("they are still locked; all is published, after {took:.2?}"));
        transaction.rollback().await.context("release the lock")?;
        relay
    };
    stage.fault_is_over();
    Ok(vec![relay])
}

fn older(count: u64) -> String {
    format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT gen_random_uuid(), 'older', 'o-' || n % 97, 'Older', '{{}}' \
         FROM generate_series(1, {count}) AS n"
    )
}

pub(super) async fn silent_peer(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    for to_nats in [false, true] {
        // Into the middle of opening a session, and into a running one.
        for messages in [12, 60] {
            let proxy = if to_nats { &mut stage.to_nats } else { &mut stage.to_postgres };
            fall_silent(proxy, messages).await?;
            let name = if to_nats { "NATS" } else { "PostgreSQL" };
            stage.say(&format!("{name} is silent after {messages} messages, for good"));
            stage.fault_is_over();
            stage.wait_committed(30).await?;
            let took = stage.recover().await?;
            stage.say(&format!("the relay found out and went on, after {took:.2?}"));
        }
    }
    stage.to_nats.restore().await?;
    stage.to_postgres.restore().await?;
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

pub(super) async fn hostile_rows(stage: &mut Stage) -> Result<Daemons> {
    let mut rows = Rows::new(OutboxShape::Documented, stage.seed);
    let all = rows.every();
    let (older, newer) = all.split_at(all.len() / 2);
    for row in older {
        stage.insert_odd(row).await?;
    }
    stage.say(&format!("{} odd rows are older than the slot", older.len()));
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    for row in newer {
        stage.insert_odd(row).await?;
    }
    stage.say(&format!("{} odd rows come through the log", newer.len()));
    let took = stage.recover().await?;
    stage.say(&format!("each is published or parked, after {took:.2?}"));
    Ok(vec![relay])
}

pub(super) async fn hostile_messages(stage: &mut Stage) -> Result<Daemons> {
    // More of them, and the relay would take their writer for another relay.
    const MESSAGES: usize = 6;
    let mut messages = Messages::new(stage.seed);
    let mut relay = stage.start_relay()?;
    relay.wait_active().await?;
    for _ in 0..MESSAGES {
        let message = messages.draw();
        stage.publish_odd(&message).await?;
        stage.say(&format!("another client published {}", message.about));
        stage.fault_is_over();
        stage.wait_committed(60).await?;
        stage.recover().await?;
        relay.kill().await?;
        // It has to read the message, wherever the tail begins.
        relay = stage.start_relay()?;
        stage.recover().await?;
    }
    Ok(vec![relay])
}

pub(super) async fn handler_away(stage: &mut Stage) -> Result<Daemons> {
    const AWAY: &[Manner] = &[
        Manner::Away,
        Manner::Hang,
        Manner::Reset,
        Manner::Status(503),
        Manner::Half(9),
        Manner::Drip(Duration::from_millis(300)),
    ];
    stage.set("TAILPOST_INBOX__TIMEOUT", "2s");
    stage.open_shipping().await?;
    let (relay, inbox) = (stage.start_relay()?, stage.start_inbox()?);
    for manner in AWAY {
        stage.wait_committed(300).await?;
        stage.shipping()?.behave(*manner);
        stage.say(&format!("the service's manner is {manner:?}"));
        tokio::time::sleep(Duration::from_secs(5)).await;
        stage.shipping()?.behave(Manner::Well);
        stage.wait_acknowledged().await?;
        stage.say("it is well, and all of its events are handled");
    }
    let dead: i64 = stage.query("SELECT count(*) FROM inbox_dead_letter").await?;
    ensure!(dead == 0, "{dead} events are dead letters, because the service was away");
    Ok(vec![relay, inbox])
}

pub(super) async fn stopped_worker(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_INBOX__LEASE", "5s");
    stage.set("TAILPOST_INBOX__TIMEOUT", "4s");
    stage.open_shipping().await?;
    let (relay, first) = (stage.start_relay()?, stage.start_inbox()?);
    first.wait_active().await?;
    let second = stage.start_inbox()?;
    second.wait_standby().await?;
    stage.wait_committed(300).await?;
    first.pause()?;
    stage.say("the active worker is stopped, and stays so");
    second.wait_active().await?;
    stage.say("the other one took over");
    stage.wait_committed(300).await?;
    stage.wait_acknowledged().await?;
    first.resume()?;
    stage.say("all is handled; the first one wakes up");
    stage.wait_committed(300).await?;
    Ok(vec![relay, first, second])
}
