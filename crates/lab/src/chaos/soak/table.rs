//! Somebody changes the outbox's schema while relays work, and an operator does what relays say then:
//! run `tailpost setup`, and start anew the relay that ended. The table is not swapped, and keeps its
//! `seq`, which set-up would number anew: the ledger reads one table, and judges order by that column.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;
use crate::chaos::wait::until;
use crate::pauses::Pauses;

/// What a migration tool drops, and what a person does who looks after a table; `{n}` is a number
/// that was not there before.
const CHANGES: &[&str] = &[
    "ALTER TABLE outbox_events DROP COLUMN IF EXISTS stream_seq CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN IF EXISTS commit_lsn CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN IF EXISTS next_attempt_at CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN IF EXISTS txid CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN IF EXISTS correlation_id CASCADE,
         DROP COLUMN IF EXISTS event_version CASCADE",
    "ALTER TABLE outbox_events ADD COLUMN other{n} INT DEFAULT (random() * 9)::int;
     ALTER TABLE outbox_events ALTER COLUMN other{n} TYPE BIGINT;
     ALTER TABLE outbox_events RENAME COLUMN other{n} TO another{n}",
    "CREATE DOMAIN short{n} AS TEXT CHECK (length(VALUE) < 9);
     ALTER TABLE outbox_events ADD COLUMN other{n} short{n}",
    "ALTER TABLE outbox_events ADD COLUMN other{n} TEXT DEFAULT 'x';
     ALTER TABLE outbox_events DROP COLUMN other{n}",
    "CREATE OR REPLACE FUNCTION passes() RETURNS trigger LANGUAGE plpgsql
         AS 'BEGIN RETURN NEW; END';
     CREATE TRIGGER passes{n} BEFORE INSERT OR UPDATE ON outbox_events
         FOR EACH ROW EXECUTE FUNCTION passes()",
    "VACUUM FULL outbox_events",
    "CLUSTER outbox_events USING outbox_events_pkey",
    "REINDEX TABLE outbox_events",
    "DROP INDEX IF EXISTS idx_outbox_unpublished",
    "ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY",
    "DROP TABLE IF EXISTS tailpost_owed",
    "DROP TABLE IF EXISTS tailpost_published, tailpost_retention CASCADE",
    "DROP VIEW IF EXISTS outbox_status; DROP FUNCTION IF EXISTS tailpost_jsonb",
];

/// How often nobody reads the log while the table changes.
const WITHOUT_RELAYS: f64 = 0.2;

/// How often a relay begins while the table is not as it should be.
const WITH_KILL: f64 = 0.3;

/// As for a relay that recovers from anything.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

/// The generator's own lines of the ledger.
#[derive(Default)]
pub(super) struct Changed {
    changes: usize,
    ended_by_name: usize,
}

impl Display for Changed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { changes, ended_by_name } = self;
        write!(f, "{changes} changes of the table, {ended_by_name} relays ended by name")
    }
}

impl Soak {
    pub(super) async fn change_table(&mut self) -> Result<()> {
        if self.random.random_bool(WITHOUT_RELAYS) {
            self.tell("kill both relays, and:");
            while let Some(relay) = self.relays.pop() {
                relay.kill().await?;
            }
        }
        for _ in 0..self.random.random_range(1..=3) {
            self.change_table_once().await?;
            tokio::time::sleep(self.up_to(1_000)).await;
        }
        if !self.relays.is_empty() && self.random.random_bool(WITH_KILL) {
            self.start_ended()?;
            self.kill_relay().await?;
        }
        tokio::time::sleep(self.up_to(2_000)).await;
        self.mend_table().await
    }

    async fn change_table_once(&mut self) -> Result<()> {
        let n: u32 = self.random.random();
        let change = CHANGES.choose(&mut self.random).context("a change")?;
        let change = change.replace("{n}", &n.to_string());
        self.tell(&change);
        self.changed.changes += 1;
        // PostgreSQL may end it for a deadlock with a statement of somebody else.
        let lab = &self.lab;
        until("the table is changed", async || lab.execute(&change).await.map(|()| true)).await
    }

    async fn mend_table(&mut self) -> Result<()> {
        // It needs an answer of NATS.
        self.mend_network().await?;
        self.lab.setup().await?;
        while self.relays.len() < 2 {
            self.relays.push(self.lab.start_relay()?);
        }
        let (goal, began, mut pauses) = (self.lab.committed(), Instant::now(), Pauses::default());
        while self.start_ended()? || !self.lab.has_published(goal).await? {
            ensure!(began.elapsed() < RECOVERY_MAX, "after `tailpost setup` the relays go not on");
            pauses.pass().await;
        }
        self.tell(&format!("  so far {}", self.changed));
        Ok(())
    }

    /// Starts anew the relays that ended by themselves and said what to do, and says whether any did.
    fn start_ended(&mut self) -> Result<bool> {
        let mut found = false;
        for place in 0..self.relays.len() {
            let Some(last) = self.relays[place].ended()? else { continue };
            let name = self.relays[place].name().to_owned();
            if !last.contains("hint: ") {
                bail!("{name} ended and named no way on:\n{last}");
            }
            self.tell(&format!("  {name} ended by name: {last}"));
            self.changed.ended_by_name += 1;
            self.relays[place] = self.lab.start_relay()?;
            found = true;
        }
        Ok(found)
    }
}
