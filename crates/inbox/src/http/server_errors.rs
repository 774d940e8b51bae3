//! A service that fails whatever it is sent.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;
use uuid::Uuid;

use crate::Verdict;

/// So many different events that get a 5xx, and none that gets another answer in between, are the
/// service's fault.
const OUTAGE_MIN: usize = 5;

/// Events that got a 5xx since the service last gave another answer; at most [`OUTAGE_MIN`].
#[derive(Debug, Default)]
pub(super) struct Failing(Mutex<HashSet<Uuid>>);

impl Failing {
    /// What an answer means beside the answers to other events: one 500 may be about its event, many
    /// in a row are not.
    pub(super) fn judge(&self, event: Uuid, status: StatusCode, verdict: Verdict) -> Verdict {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !status.is_server_error() {
            events.clear();
            return verdict;
        }
        if events.len() < OUTAGE_MIN {
            events.insert(event);
        }
        match verdict {
            Verdict::Retry { reason, after } if events.len() == OUTAGE_MIN => {
                Verdict::Outage { reason, after }
            }
            verdict => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(failing: &Failing, event: u128, status: u16) -> bool {
        let status = StatusCode::from_u16(status).expect("a status");
        let retry = Verdict::Retry { reason: "it failed".into(), after: None };
        let verdict = failing.judge(Uuid::from_u128(event), status, retry);
        matches!(verdict, Verdict::Outage { .. })
    }

    #[test]
    fn five_events_in_a_row_that_fail_are_an_outage_until_another_answer() {
        let failing = Failing::default();
        for event in [1, 1, 1, 2, 3, 4, 2] {
            assert!(!judge(&failing, event, 500), "event {event}");
        }
        assert!(judge(&failing, 5, 500));
        assert!(judge(&failing, 1, 507), "its attempts count no more");
        assert!(!judge(&failing, 6, 400), "an answer about the event");
        assert!(!judge(&failing, 1, 500));
    }
}
