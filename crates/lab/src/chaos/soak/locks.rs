//! Somebody locks rows or a table, as a person at a prompt does, and somebody else changes it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use rand::seq::IndexedRandom;
use tokio_postgres::Client;

use super::Soak;

/// Every table that relays and inboxes use, whatever tables there come to be.
const TABLES: &str = "
    SELECT format('%I.%I', nspname, relname), NOT relispartition FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND nspname = 'public'
        AND relname NOT IN ('orders', 'shipments', 'shipping_keys')
    ORDER BY relname";

const TABLE_MODES: &[&str] = &[
    "ACCESS SHARE",
    "ROW SHARE",
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "EXCLUSIVE",
    "ACCESS EXCLUSIVE",
];

const ROW_MODES: &[&str] = &["KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"];

/// Which rows: old ones, new ones, any.
const ORDERS: &[&str] = &["ctid", "ctid DESC", "random()"];

const ROWS_MAX: u32 = 200;

/// How often a change of the table waits behind the lock.
const WITH_CHANGE: f64 = 0.3;

/// How often the slot is lost before.
const WITH_GAP: f64 = 0.2;

/// While rows are locked for longer than that, all others are to be published.
const HELD_UP_MAX: Duration = Duration::from_secs(20);

/// Who locks gives up if somebody else has the lock for longer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

impl Soak {
    pub(super) async fn lock_rows(&mut self) -> Result<()> {
        let (table, alone) = self.any_table().await?;
        let mode = ROW_MODES.choose(&mut self.random).context("a mode")?;
        let order = ORDERS.choose(&mut self.random).context("an order")?;
        let count = self.random.random_range(1..=ROWS_MAX);
        // Rows of a table with partitions have no place in it.
        let order =
            if order.starts_with("ctid") { format!("tableoid, {order}") } else { (*order).into() };
        let lock = format!("SELECT FROM {table} ORDER BY {order} LIMIT {count} FOR {mode}");
        self.hold(&table, alone, &lock, true).await
    }

    pub(super) async fn lock_table(&mut self) -> Result<()> {
        let (table, alone) = self.any_table().await?;
        let mode = TABLE_MODES.choose(&mut self.random).context("a mode")?;
        let lock = format!("LOCK TABLE {table} IN {mode} MODE");
        self.hold(&table, alone, &lock, false).await
    }

    /// A table, and whether it can be changed by itself.
    async fn any_table(&mut self) -> Result<(String, bool)> {
        let rows = self.lab.database().await?.query(TABLES, &[]).await?;
        let tables: Vec<_> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        Ok(tables.choose(&mut self.random).context("there are tables")?.clone())
    }

    async fn hold(&mut self, table: &str, alone: bool, lock: &str, rows: bool) -> Result<()> {
        let most = match self.random.random_range(0..20) {
            0 | 1 => 60_000,
            2..5 => 15_000,
            _ => 3_000,
        };
        let (hold, changes) = (self.up_to(most), alone && self.random.random_bool(WITH_CHANGE));
        let gap = rows && self.random.random_bool(WITH_GAP);
        let beside = if changes { ", and a change of the table behind it" } else { "" };
        self.tell(&format!("{lock}, for {hold:?}{beside}"));
        let mut holder = self.lab.database().await?;
        let Some(transaction) = locked(&mut holder, lock).await? else {
            self.tell("  somebody else has it for longer");
            return Ok(());
        };
        if gap {
            // Then rows may be locked that only a scan can bring.
            self.drop_slot().await?;
        }
        let changer = self.lab.database().await?;
        let change = format!(
            "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS soaked INT; \
             ALTER TABLE {table} DROP COLUMN IF EXISTS soaked"
        );
        let goal = self.lab.committed();
        // PostgreSQL makes a slot once every older transaction is over, this one too.
        let looks = rows && !changes && !gap && !self.unanswered && hold > HELD_UP_MAX;
        let release = async {
            tokio::time::sleep(hold.min(HELD_UP_MAX)).await;
            if looks {
                let goes_on = self.lab.has_published(goal).await?;
                ensure!(goes_on, "rows are locked, and after {HELD_UP_MAX:?} others wait for them");
            }
            tokio::time::sleep(hold.saturating_sub(HELD_UP_MAX)).await;
            transaction.rollback().await.context("release a lock")
        };
        if changes {
            let change = async { changer.batch_execute(&change).await.context("change a table") };
            tokio::try_join!(release, change)?;
            return Ok(());
        }
        release.await
    }
}

/// A transaction that has the lock, unless it cannot have it within [`LOCK_TIMEOUT`].
async fn locked<'a>(
    client: &'a mut Client,
    lock: &str,
) -> Result<Option<tokio_postgres::Transaction<'a>>> {
    let patience = format!("SET lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    client.batch_execute(&patience).await.context("set how long to wait for a lock")?;
    let transaction = client.transaction().await.context("begin to lock")?;
    match transaction.batch_execute(lock).await {
        Ok(()) => Ok(Some(transaction)),
        Err(error) if error.code().is_some_and(|it| it.code() == "55P03") => Ok(None),
        Err(error) => Err(error).with_context(|| lock.to_owned()),
    }
}
