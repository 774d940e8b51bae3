//! The service that the inbox calls fails, in any manner, for a while.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;
use crate::chaos::shipping::Manner;

/// An outage of this length is followed by a probe within the same time.
const MILLISECONDS_MAX: u64 = 15_000;

/// What a proxy or a service says when it cannot, or is another one.
const STATUSES: &[u16] = &[500, 502, 503, 504, 429, 408, 307];

impl Soak {
    pub(super) async fn fail_handler(&mut self) -> Result<()> {
        let manner = self.manner();
        let lasting = self.up_to(MILLISECONDS_MAX);
        self.tell(&format!("the handler's manner is {manner:?} for {lasting:?}"));
        self.lab.shipping()?.behave(manner).await?;
        tokio::time::sleep(lasting).await;
        self.lab.shipping()?.behave(Manner::Well).await
    }

    fn manner(&mut self) -> Manner {
        let status = *STATUSES.choose(&mut self.random).unwrap_or(&503);
        match self.random.random_range(0..8) {
            0 | 1 => Manner::Away,
            2 => Manner::Hang,
            3 | 4 => Manner::Unanswered,
            5 => Manner::Answer(503, self.up_to(6_000)),
            _ => Manner::Answer(status, Duration::ZERO),
        }
    }
}
