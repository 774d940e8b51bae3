//! The service that the inbox calls fails, in any manner, for a while.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;
use crate::chaos::front::Manner;

/// An outage of this length is followed by a probe within the same time.
const MILLISECONDS_MAX: u64 = 15_000;

/// What a proxy or a service says when it cannot.
const STATUSES: &[u16] = &[500, 502, 503, 504, 429, 408];

/// Of the first line of an answer.
const HALF_MAX: usize = 20;

impl Soak {
    pub(super) async fn fail_handler(&mut self) -> Result<()> {
        let manner = self.manner();
        let lasting = self.up_to(MILLISECONDS_MAX);
        self.tell(&format!("the handler's manner is {manner:?} for {lasting:?}"));
        self.lab.shipping()?.behave(manner);
        tokio::time::sleep(lasting).await;
        self.lab.shipping()?.behave(Manner::Well);
        Ok(())
    }

    fn manner(&mut self) -> Manner {
        match self.random.random_range(0..10) {
            0 | 1 => Manner::Away,
            2 => Manner::Hang,
            3 => Manner::Slow(self.up_to(6_000)),
            4 => Manner::Drip(Duration::from_millis(self.random.random_range(5..500))),
            5 => Manner::Reset,
            6 => Manner::Half(self.random.random_range(0..=HALF_MAX)),
            7 => Manner::Redirect,
            8 => Manner::Garbage,
            _ => Manner::Status(*STATUSES.choose(&mut self.random).unwrap_or(&503)),
        }
    }
}
