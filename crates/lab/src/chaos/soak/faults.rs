//! What a soak does to its servers and relays. Each fault mends what it broke.

use std::time::Duration;

use crate::proxy::Direction;
use anyhow::Result;
use futures_util::future::LocalBoxFuture;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;
use crate::chaos::scenarios::{DROP_SLOT, POISON};
use crate::chaos::wait::until;
use crate::strangers::{Forger, Stranger};

type Fault = for<'a> fn(&'a mut Soak) -> LocalBoxFuture<'a, Result<()>>;

/// What can be drawn: how often, by which generator, and what it does.
const FAULTS: &[(u32, &str, Fault)] = &[
    (6, "crashes", |it| Box::pin(it.kill_relay())),
    (2, "crashes", |it| Box::pin(it.kill_both_relays())),
    (3, "crashes", |it| Box::pin(it.kill_inbox())),
    (3, "crashes", |it| Box::pin(it.kill_broker())),
    (3, "crashes", |it| Box::pin(it.kill_postgres())),
    (2, "crashes", |it| Box::pin(it.restart_postgres())),
    (3, "network", |it| Box::pin(it.cut_network())),
    (3, "network", |it| Box::pin(it.swallow())),
    (3, "slot", |it| Box::pin(it.drop_slot())),
    (2, "data", |it| Box::pin(it.change_columns())),
    (2, "data", |it| Box::pin(it.poison())),
    (1, "data", |it| Box::pin(it.commit_many())),
    (1, "data", |it| Box::pin(it.roll_back_many())),
    (4, "stream", |it| Box::pin(it.change_stream())),
    (5, "rows", |it| Box::pin(it.hostile_rows())),
    (3, "messages", |it| Box::pin(it.hostile_messages())),
    (3, "strangers", |it| Box::pin(it.strangers())),
    (6, "silence", |it| Box::pin(it.fall_silent())),
    (4, "locks", |it| Box::pin(it.lock_rows())),
    (3, "locks", |it| Box::pin(it.lock_table())),
    (4, "stopped", |it| Box::pin(it.pause_relay())),
    (3, "stopped", |it| Box::pin(it.pause_inbox())),
    (3, "stopped", |it| Box::pin(it.pause_broker())),
    (2, "stopped", |it| Box::pin(it.pause_postgres())),
    (7, "handler", |it| Box::pin(it.fail_handler())),
    (2, "history", |it| Box::pin(it.put_stream_back())),
    (2, "history", |it| Box::pin(it.put_consumer_back())),
    (2, "history", |it| Box::pin(it.put_inbox_back())),
    (3, "table", |it| Box::pin(it.change_table())),
    (3, "settings", |it| Box::pin(it.set_postgres())),
    (2, "settings", |it| Box::pin(it.set_broker())),
];

/// What `--only` can name.
pub(in crate::chaos) const GENERATORS: &[&str] = &[
    "crashes",
    "network",
    "slot",
    "data",
    "stream",
    "rows",
    "messages",
    "strangers",
    "silence",
    "locks",
    "stopped",
    "handler",
    "history",
    "table",
    "settings",
];

/// Events at once: more than a window, and than what a session reads back.
const MANY: u64 = 10_000;

/// How often much is under way to the broker when a fault happens.
const SLOWED: f64 = 0.35;

/// How often the relays do not hear what became of that.
const UNANSWERED: f64 = 0.2;

impl Soak {
    /// One fault, drawn by weight; sometimes while the network to the broker is bad as well.
    pub(super) async fn fault(&mut self) -> Result<()> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|it| it == name);
        let faults: Vec<_> = FAULTS.iter().filter(|it| wanted(it.1)).collect();
        let (_, _, fault) = *faults.choose_weighted(&mut self.random, |it| it.0)?;
        let network: f64 = self.random.random();
        if network < SLOWED {
            let delay = Duration::from_millis(self.random.random_range(1..50));
            self.tell(&format!("a network to NATS with {delay:?} each way, and:"));
            self.lab.to_nats.set_delay(delay);
        } else if network < SLOWED + UNANSWERED {
            let before = self.up_to(500);
            self.tell(&format!("no answer comes from NATS, and after {before:?}:"));
            self.lab.to_nats.blackhole(Direction::ToClient);
            self.unanswered = true;
            tokio::time::sleep(before).await;
        }
        fault(self).await?;
        self.unanswered = false;
        self.mend_network().await
    }

    pub(super) fn up_to(&mut self, milliseconds: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..=milliseconds))
    }

    pub(super) fn any_relay(&mut self) -> usize {
        self.random.random_range(0..self.relays.len())
    }

    pub(super) async fn kill_relay(&mut self) -> Result<()> {
        let relay = self.any_relay();
        let relay = self.relays.remove(relay);
        let with_network = self.random.random_bool(0.3);
        if with_network {
            self.tell(&format!("kill {} and what it has on its way to NATS", relay.name()));
            self.lab.to_nats.cut().await;
        } else {
            self.tell(&format!("kill {}", relay.name()));
        }
        relay.kill().await?;
        if with_network {
            self.lab.to_nats.restore().await?;
        }
        self.relays.push(self.lab.start_relay()?);
        Ok(())
    }

    /// Somebody answers in the stream's place, while a relay may be killed.
    async fn strangers(&mut self) -> Result<()> {
        let (seed, pause) = (self.random.random(), self.up_to(4_000));
        // In fenced mode not even an answer that nobody can tell from the stream's costs an event.
        let plausible = self.random.random_bool(0.5);
        self.tell(&format!("a stranger answers for {pause:?}, plausible: {plausible}"));
        let mut forger = Forger::new(seed, "OUTBOX", plausible);
        let client = self.lab.nats.client().await?;
        let forge = move |reply: &str| forger.forge(reply);
        let _stranger = Stranger::start(client, "outbox.>", forge).await?;
        tokio::time::sleep(pause).await;
        match self.random.random_bool(0.4) {
            true => self.kill_relay().await,
            false => Ok(()),
        }
    }

    async fn kill_both_relays(&mut self) -> Result<()> {
        let pause = self.up_to(1_500);
        self.tell(&format!("kill both relays; others come after {pause:?}"));
        while let Some(relay) = self.relays.pop() {
            relay.kill().await?;
        }
        tokio::time::sleep(pause).await;
        self.relays = vec![self.lab.start_relay()?, self.lab.start_relay()?];
        Ok(())
    }

    pub(super) async fn kill_inbox(&mut self) -> Result<()> {
        let inbox = self.random.random_range(0..self.inboxes.len());
        let inbox = self.inboxes.remove(inbox);
        self.tell(&format!("kill {}", inbox.name()));
        inbox.kill().await?;
        self.inboxes.push(self.lab.start_inbox()?);
        Ok(())
    }

    async fn kill_broker(&mut self) -> Result<()> {
        let pause = self.up_to(2_000);
        self.tell(&format!("kill NATS for {pause:?}"));
        self.lab.nats.kill().await?;
        tokio::time::sleep(pause).await;
        self.lab.nats.start_again().await
    }

    async fn cut_network(&mut self) -> Result<()> {
        let (to_nats, pause) = (self.random.random_bool(0.5), self.up_to(1_500));
        let (name, proxy) = self.lab.network(to_nats);
        proxy.cut().await;
        self.tell(&format!("cut the network to {name} for {pause:?}"));
        tokio::time::sleep(pause).await;
        self.mend_network().await
    }

    async fn swallow(&mut self) -> Result<()> {
        let (to_nats, pause) = (self.random.random_bool(0.6), self.up_to(6_000));
        let directions = [Direction::ToClient, Direction::ToServer, Direction::Both];
        let direction = directions[self.random.random_range(0..directions.len())];
        let (name, proxy) = self.lab.network(to_nats);
        proxy.blackhole(direction);
        self.tell(&format!("the network to {name} swallows {direction:?} for {pause:?}"));
        tokio::time::sleep(pause).await;
        self.mend_network().await
    }

    pub(super) async fn mend_network(&mut self) -> Result<()> {
        self.lab.to_nats.restore().await?;
        self.lab.to_postgres.restore().await
    }

    async fn kill_postgres(&mut self) -> Result<()> {
        let pause = self.up_to(1_000);
        self.tell(&format!("kill PostgreSQL for {pause:?}"));
        self.lab.postgres.kill().await?;
        tokio::time::sleep(pause).await;
        self.lab.postgres.start_again().await
    }

    async fn restart_postgres(&mut self) -> Result<()> {
        self.tell("restart PostgreSQL in good order");
        let took = self.lab.postgres.stop_fast().await?;
        self.tell(&format!("  it stopped after {took:.2?}"));
        self.lab.postgres.start_again().await
    }

    async fn commit_many(&mut self) -> Result<()> {
        self.tell(&format!("{MANY} events in one transaction"));
        self.lab.execute(&insert(MANY)).await?;
        self.lab.wrote(MANY);
        Ok(())
    }

    async fn roll_back_many(&mut self) -> Result<()> {
        self.tell(&format!("{MANY} events rolled back"));
        self.lab.execute(&format!("BEGIN; {}; ROLLBACK", insert(MANY))).await
    }

    pub(super) async fn drop_slot(&mut self) -> Result<()> {
        self.tell("drop the slot");
        let lab = &self.lab;
        until("the slot is dropped", async || lab.execute(DROP_SLOT).await.map(|()| true)).await
    }

    async fn change_columns(&mut self) -> Result<()> {
        let change = if self.has_note { "DROP COLUMN note" } else { "ADD COLUMN note TEXT" };
        self.tell(&format!("ALTER TABLE outbox_events {change}"));
        self.has_note = !self.has_note;
        self.lab.execute(&format!("ALTER TABLE outbox_events {change}")).await
    }

    async fn poison(&mut self) -> Result<()> {
        self.tell("three events that the broker will never take");
        for _ in 0..3 {
            self.lab.execute(POISON).await?;
        }
        Ok(())
    }
}

/// Events of other aggregates than the load's.
fn insert(count: u64) -> String {
    format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'many', 'm-' || n % 7, 'Placed', '{{}}'
         FROM generate_series(1, {count}) AS n"
    )
}
