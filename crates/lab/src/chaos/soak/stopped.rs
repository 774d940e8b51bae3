//! A process is stopped, not killed: it believes that no time passes, and its connections stay.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;

use super::Soak;

/// How often a pause is long enough that others have to take over.
const LONG: f64 = 0.3;

impl Soak {
    /// Long pauses make PostgreSQL give its slot to the other one.
    pub(super) async fn pause_relay(&mut self) -> Result<()> {
        let (relay, pause) = (self.any_relay(), self.pause(9_000, 20_000));
        self.tell(&format!("pause {} for {pause:?}", self.relays[relay].name()));
        self.relays[relay].pause()?;
        tokio::time::sleep(pause).await;
        self.relays[relay].resume()
    }

    /// Long pauses make the other one take the role.
    pub(super) async fn pause_inbox(&mut self) -> Result<()> {
        let inbox = self.random.random_range(0..self.inboxes.len());
        let pause = self.pause(9_000, 25_000);
        self.tell(&format!("pause {} for {pause:?}", self.inboxes[inbox].name()));
        self.inboxes[inbox].pause()?;
        tokio::time::sleep(pause).await;
        self.inboxes[inbox].resume()
    }

    pub(super) async fn pause_broker(&mut self) -> Result<()> {
        let pause = self.pause(3_000, 15_000);
        self.tell(&format!("pause NATS for {pause:?}"));
        self.lab.nats.pause()?;
        tokio::time::sleep(pause).await;
        self.lab.nats.resume()
    }

    pub(super) async fn pause_postgres(&mut self) -> Result<()> {
        let pause = self.pause(3_000, 15_000);
        self.tell(&format!("pause PostgreSQL for {pause:?}"));
        self.lab.postgres.pause()?;
        tokio::time::sleep(pause).await;
        self.lab.postgres.resume()
    }

    /// Up to so many milliseconds, mostly.
    fn pause(&mut self, mostly: u64, at_times: u64) -> Duration {
        let most = if self.random.random_bool(LONG) { at_times } else { mostly };
        self.up_to(most)
    }
}
