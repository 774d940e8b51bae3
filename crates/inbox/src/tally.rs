//! What the jobs of a consumer count, for its status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Error;
use crate::record::{Cause, ClaimReply};
use crate::status::{
    Attempts, Claims, DeadLetterCounts, Handler, LeaseCounts, State, Status, Summary,
};

/// Counted since the process began, by jobs that run side by side.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    claims: [AtomicU64; 8],
    dead_letters: [AtomicU64; 8],
    renewed: AtomicU64,
    lost: AtomicU64,
    markers: AtomicU64,
    attempts: Attempts,
    /// Events of which something is to be written that a trigger keeps out, and what.
    pub(crate) kept_out: watch::Sender<BTreeMap<Uuid, String>>,
    /// In seconds since 1970; 0 if it never did.
    went_back_at: AtomicU64,
}

fn read(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn add(number: &AtomicU64, more: usize) {
    number.fetch_add(more as u64, Ordering::Relaxed);
}

impl Tally {
    pub(crate) fn claimed(&self, reply: &ClaimReply) {
        let place = match reply {
            ClaimReply::Claimed { unfinished, .. } if *unfinished > 1 => 1,
            ClaimReply::Claimed { .. } => 0,
            ClaimReply::Leased { .. } => 2,
            ClaimReply::Resolved => 3,
            ClaimReply::Early { .. } => 4,
            ClaimReply::Crashed { .. } => 5,
            ClaimReply::Forgotten => 6,
            ClaimReply::Contended => 7,
        };
        add(&self.claims[place], 1);
    }

    pub(crate) fn parked(&self, cause: Cause) {
        add(&self.dead_letters[cause as usize], 1);
    }

    pub(crate) fn renewed(&self, leases: usize) {
        add(&self.renewed, leases);
    }

    pub(crate) fn lost(&self) {
        add(&self.lost, 1);
    }

    /// Says whether it is the only event of which something is kept out.
    pub(crate) fn keep_out(&self, id: Uuid, what: &Error) -> bool {
        let mut is_first = false;
        self.kept_out.send_if_modified(|it| {
            is_first = it.is_empty();
            it.insert(id, what.to_string()).is_none()
        });
        is_first
    }

    /// What there was to write of it is written, or is not ours to write any more.
    pub(crate) fn let_in(&self, id: Uuid) {
        if !self.kept_out.borrow().is_empty() {
            self.kept_out.send_if_modified(|it| it.remove(&id).is_some());
        }
    }

    /// What is kept out, if anything is.
    pub(crate) fn keeps_out(&self) -> Option<String> {
        let all = self.kept_out.borrow();
        all.first_key_value().map(|(_, what)| format!("records are kept out: {what}"))
    }

    /// Handlers took so long, those of a group at a time.
    pub(crate) fn took(&self, durations: impl IntoIterator<Item = Duration>) {
        self.attempts.record(durations);
    }

    pub(crate) fn passed_marker(&self) {
        add(&self.markers, 1);
    }

    /// The consumer goes back by itself.
    pub(crate) fn went_back(&self) {
        let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        self.went_back_at.store(now, Ordering::Relaxed);
    }

    pub(crate) fn went_back_at(&self) -> Option<Timestamp> {
        let seconds = i64::try_from(read(&self.went_back_at)).ok().filter(|it| *it > 0)?;
        Timestamp::from_second(seconds).ok()
    }

    /// What of the status is counted here.
    pub(crate) fn status(&self) -> Status {
        Status {
            claims: Claims::of(self.claims.each_ref().map(read)),
            leases: LeaseCounts { renewed: read(&self.renewed), lost: read(&self.lost) },
            dead_letters: DeadLetterCounts::of(self.dead_letters.each_ref().map(read)),
            markers: read(&self.markers),
            attempts: self.attempts.clone(),
            went_back_at: self.went_back_at(),
            // Each turn asks for it: not the default, which makes other `Attempts`.
            state: State::default(),
            paused: None,
            paused_by: None,
            handler: Handler::default(),
            busy: 0,
            lanes: 0,
            held: 0,
            left: 0,
            counts: Summary::default(),
            held_up: Arc::default(),
            parts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_to_a_claim_is_counted_as_itself() {
        let tally = Tally::default();
        let remaining = Duration::ZERO;
        for (times, reply) in [
            (1, ClaimReply::Claimed { attempts: 1, unfinished: 1, age: None }),
            (2, ClaimReply::Claimed { attempts: 2, unfinished: 2, age: None }),
            (3, ClaimReply::Leased { remaining }),
            (4, ClaimReply::Resolved),
            (5, ClaimReply::Early { remaining }),
            (6, ClaimReply::Crashed { attempts: 3 }),
            (7, ClaimReply::Forgotten),
            (8, ClaimReply::Contended),
        ] {
            for _ in 0..times {
                tally.claimed(&reply);
            }
        }
        let counted = tally.status().claims.by_result().map(|(_, count)| count);
        assert_eq!(counted, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn each_cause_of_a_dead_letter_is_counted_under_its_name() {
        let tally = Tally::default();
        let causes = [
            Cause::Dead,
            Cause::MaxAttempts,
            Cause::Expired,
            Cause::Crashes,
            Cause::Unreadable,
            Cause::Forgotten,
            Cause::Unrecordable,
            Cause::Gone,
        ];
        for (times, cause) in causes.into_iter().enumerate() {
            for _ in 0..=times {
                tally.parked(cause);
            }
        }
        let counted = tally.status().dead_letters.by_reason();
        for ((times, cause), (name, count)) in causes.into_iter().enumerate().zip(counted) {
            assert_eq!((name, count), (cause.name(), times as u64 + 1));
        }
    }
}
