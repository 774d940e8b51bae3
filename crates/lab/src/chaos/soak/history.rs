//! History goes back: the stream, a consumer's place in it, or the inbox's database is as it was before.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::Soak;
use crate::chaos::lab::{CONSUMER, STREAM};
use crate::chaos::shipping::Manner;
use crate::chaos::wait::until;

/// What an inbox and its service write, as one database would have it.
const WRITTEN: [&str; 6] = [
    "inbox_messages",
    "inbox_roles",
    "inbox_dead_letter",
    "inbox_attempts",
    "shipping_keys",
    "shipments",
];

/// What a call that was cut off may need to end.
const CALL_ENDS: Duration = Duration::from_millis(300);

impl Soak {
    /// As by a power cut: the relays publish what it has lost once more, and the inboxes handle none of
    /// it again.
    pub(super) async fn put_stream_back(&mut self) -> Result<()> {
        let copied = self.age_store("stream").await?;
        self.lab.nats.put_store_back(&copied)?;
        self.lab.nats.start_again().await
    }

    /// The broker delivers again what was acknowledged: it has no second effect.
    pub(super) async fn put_consumer_back(&mut self) -> Result<()> {
        let copied = self.age_store("consumer").await?;
        self.lab.nats.put_consumer_back(&copied, STREAM, CONSUMER)?;
        self.lab.nats.start_again().await
    }

    /// A copy of the store from some time before the broker was killed.
    async fn age_store(&mut self, what: &str) -> Result<PathBuf> {
        let pause = self.up_to(3_000);
        self.tell(&format!("the {what} goes back by {pause:?}"));
        self.lab.nats.stop().await?;
        let copied = self.lab.nats.copy_store()?;
        self.lab.nats.start_again().await?;
        tokio::time::sleep(pause).await;
        self.lab.nats.kill().await?;
        Ok(copied)
    }

    /// As from an earlier backup, effects included: the broker takes events for acknowledged of which
    /// nothing is known any more.
    pub(super) async fn put_inbox_back(&mut self) -> Result<()> {
        // An inbox that begins needs an answer of NATS.
        self.mend_network().await?;
        // Where none was written down a copy is of a database that is new to the consumer.
        let begun = "SELECT bool_and(handled_to IS NOT NULL) FROM inbox_roles";
        let lab = &self.lab;
        until("an inbox is at work", async || lab.query(begun).await).await?;
        let pause = self.up_to(3_000);
        self.tell(&format!("the inbox's database goes back by {pause:?}"));
        let copies = WRITTEN.map(|it| format!("CREATE TABLE earlier.{it} AS TABLE {it};")).concat();
        let of_one_moment = "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE SCHEMA earlier;";
        self.lab.execute(&format!("{of_one_moment} {copies} COMMIT")).await?;
        tokio::time::sleep(pause).await;

        self.lab.shipping()?.behave(Manner::Away).await?;
        let workers = self.inboxes.len();
        while let Some(inbox) = self.inboxes.pop() {
            inbox.kill().await?;
        }
        tokio::time::sleep(CALL_ENDS).await;
        let back = WRITTEN
            .map(|it| format!("INSERT INTO {it} OVERRIDING SYSTEM VALUE TABLE earlier.{it};"));
        let (all, back) = (WRITTEN.join(", "), back.concat());
        self.lab.execute(&format!("TRUNCATE {all}; {back} DROP SCHEMA earlier CASCADE")).await?;
        self.lab.shipping()?.behave(Manner::Well).await?;
        for _ in 0..workers {
            self.inboxes.push(self.lab.start_inbox()?);
        }
        Ok(())
    }
}
