//! Events at a steady pace, whatever becomes of those before.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;

/// How many events are due, and when.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Pace {
    pub(crate) events_per_second: u32,
    pub(crate) events_per_transaction: u32,
    pub(crate) seconds: u32,
}

/// The events of one transaction, and when they are due.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) events: Range<u32>,
    pub(crate) at: Instant,
}

impl Pace {
    /// All events of the run.
    pub(crate) fn events(self) -> u32 {
        self.transactions() * self.events_per_transaction
    }

    fn transactions(self) -> u32 {
        self.events_per_second * self.seconds / self.events_per_transaction
    }

    /// Hands out the events at their times, the lanes taking turns. Ends with the lanes' ends.
    pub(crate) fn start(self, lanes: u32) -> Vec<mpsc::Receiver<Due>> {
        let transactions = self.transactions();
        // A lane holds its whole schedule: the pace never waits for who follows it.
        let lane = |_| mpsc::channel((transactions / lanes + 1) as usize);
        let (paces, schedules): (Vec<_>, Vec<_>) = (0..lanes).map(lane).unzip();
        std::thread::spawn(move || {
            let started = Instant::now();
            for (n, pace) in (0..transactions).zip(paces.iter().cycle()) {
                let first = n * self.events_per_transaction;
                let at = started + self.offset(first);
                // The runtime's timers count in milliseconds; a sleeping thread is more exact.
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                let events = first..first + self.events_per_transaction;
                if pace.try_send(Due { events, at }).is_err() {
                    return; // who follows has failed and says why
                }
            }
        });
        schedules
    }

    fn offset(self, event: u32) -> Duration {
        Duration::from_secs_f64(f64::from(event) / f64::from(self.events_per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_lanes_take_turns_and_nothing_is_left_out() {
        let pace = Pace { events_per_second: 60_000, events_per_transaction: 20, seconds: 1 };
        let mut seen = Vec::new();
        let mut lanes = Pace { seconds: 1, ..pace }.start(3);
        let (mut due, mut lane) = (Vec::new(), 0);
        while let Some(next) = lanes[lane].recv().await {
            seen.extend(next.events.clone());
            due.push(next.at);
            lane = (lane + 1) % 3;
        }
        assert_eq!(seen, (0..pace.events()).collect::<Vec<_>>());
        assert!(due.is_sorted());
        let time = due[due.len() - 1] - due[0];
        assert_eq!(time, pace.offset(pace.events() - 20));
    }
}
