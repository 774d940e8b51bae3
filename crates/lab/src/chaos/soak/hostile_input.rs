//! Rows that PostgreSQL takes and messages that NATS takes, and that nobody writes on purpose.

use std::time::{Duration, Instant};

use anyhow::Result;
use rand::RngExt;

use super::Soak;

/// At a time.
const ROWS_MAX: usize = 20;

/// At a time. Each may cost a fenced relay a resync.
const MESSAGES_MAX: usize = 3;

/// Foreign messages more often than that, for long, are another writer: fenced mode ends then.
const FOREIGN_INTERVAL: Duration = Duration::from_secs(65);

impl Soak {
    pub(super) async fn hostile_rows(&mut self) -> Result<()> {
        let count = self.random.random_range(1..=ROWS_MAX);
        for _ in 0..count {
            let row = self.rows.draw();
            self.tell(&format!("a row with {}", row.describe()));
            self.lab.insert_odd(&row).await?;
        }
        Ok(())
    }

    pub(super) async fn hostile_messages(&mut self) -> Result<()> {
        if self.foreign.is_some_and(|it| it.elapsed() < FOREIGN_INTERVAL) {
            return self.hostile_rows().await;
        }
        for _ in 0..self.random.random_range(1..=MESSAGES_MAX) {
            let message = self.messages.draw();
            self.tell(&format!("another client publishes {}", message.about));
            self.lab.publish_odd(&message).await?;
        }
        self.foreign = Some(Instant::now());
        Ok(())
    }
}
