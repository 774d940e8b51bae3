//! The last two answers of a relay and of an inbox, and what they say together.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::dlq::client::is_away;
use crate::commands::status::shards;
use crate::errors;

/// What is known.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The first line of the screen.
    pub(super) head: String,
    pub(super) relay: Side,
    /// An inbox need not be there, unless its address was given or it has answered before.
    pub(super) inbox: Side,
    pub(super) is_inbox_expected: bool,
    /// The outbox's dead letters, and when they were last counted.
    pub(super) letters: Option<Value>,
    pub(super) counted_at: Option<Instant>,
}

/// What one process said of itself, and why it says no more.
#[derive(Debug, Clone, Default)]
pub(super) struct Side {
    pub(super) status: Value,
    at: Option<Instant>,
    /// The status before, and how long before, if both answers came from one process.
    before: Option<(Value, Duration)>,
    pub(super) failed: Option<Failure>,
}

#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) since: Instant,
    pub(super) error: String,
    pub(super) hint: String,
}

impl Seen {
    pub(super) fn new(head: String, is_inbox_expected: bool) -> Self {
        let (relay, inbox) = (Side::default(), Side::default());
        Self { head, relay, inbox, is_inbox_expected, letters: None, counted_at: None }
    }
}

impl Side {
    /// `hint` says what helps if the process does not answer.
    pub(super) fn see(&mut self, now: Instant, answer: anyhow::Result<Value>, hint: &str) {
        match answer {
            Ok(status) => {
                let before = std::mem::replace(&mut self.status, status);
                let took = self.at.replace(now).map(|at| now.saturating_duration_since(at));
                // The totals of another process begin anew.
                let is_same = processes(&before) == processes(&self.status);
                self.before = took.filter(|it| is_same && !it.is_zero()).map(|it| (before, it));
                self.failed = None;
            }
            Err(error) => {
                let said = errors::hint(&error).filter(|_| !is_away(&error));
                let hint = said.unwrap_or_else(|| hint.into());
                let since = self.failed.as_ref().map_or(now, |it| it.since);
                self.failed = Some(Failure { since, error: errors::chain(&error), hint });
                self.before = None;
            }
        }
    }

    pub(super) fn has_answered(&self) -> bool {
        self.at.is_some()
    }

    /// By how much a total grew each second between the two answers.
    pub(super) fn rate(&self, total: impl Fn(&Value) -> Option<u64>) -> Option<f64> {
        let (before, took) = self.before.as_ref()?;
        let grown = total(&self.status)?.checked_sub(total(before)?)?;
        #[allow(clippy::cast_precision_loss, reason = "what a person reads is rounded anyway")]
        Some(grown as f64 / took.as_secs_f64())
    }
}

fn processes(status: &Value) -> Vec<&Value> {
    shards(status).iter().map(|it| &it["process_id"]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn published(process: u32, total: u64) -> anyhow::Result<Value> {
        Ok(json!({ "process_id": process, "published_total": total }))
    }

    fn rate(side: &Side) -> Option<f64> {
        side.rate(|it| it["published_total"].as_u64())
    }

    #[test]
    fn a_rate_is_of_what_was_stored_between_two_answers() {
        let start = Instant::now();
        let mut side = Side::default();
        side.see(start, published(1, 100), "");
        assert_eq!(rate(&side), None);
        side.see(start + 2 * SECOND, published(1, 150), "");
        assert_eq!(rate(&side), Some(25.0));
        side.see(start + 3 * SECOND, published(1, 150), "");
        assert_eq!(rate(&side), Some(0.0));
    }

    /// A process that starts anew counts from zero, and may have passed the old total before it is
    /// seen.
    #[test]
    fn a_restart_makes_no_rate_that_is_wrong() {
        let start = Instant::now();
        for after in [3, 1_000] {
            let mut side = Side::default();
            side.see(start, published(1, 100), "");
            side.see(start + SECOND, published(2, after), "");
            assert_eq!(rate(&side), None);
            side.see(start + 2 * SECOND, published(2, after + 5), "");
            assert_eq!(rate(&side), Some(5.0));
        }
    }

    #[test]
    fn a_process_that_does_not_answer_is_away_since_the_first_time_and_what_was_known_stays() {
        let start = Instant::now();
        let away = || Err(anyhow::anyhow!("refused"));
        let mut side = Side::default();
        side.see(start, published(1, 100), "");
        side.see(start + SECOND, away(), "start it");
        side.see(start + 5 * SECOND, away(), "start it");
        let failed = side.failed.as_ref().expect("it is away");
        assert_eq!((failed.since, &*failed.hint), (start + SECOND, "start it"));
        assert_eq!((&side.status["published_total"], rate(&side)), (&json!(100), None));
        side.see(start + 6 * SECOND, published(1, 160), "");
        assert!(side.failed.is_none());
        assert_eq!(rate(&side), Some(10.0), "since the answer before");
    }
}
