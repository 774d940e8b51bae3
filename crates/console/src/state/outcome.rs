//! What came of a decision about one event.

use jiff::Timestamp;

use super::answers::{Letter, LetterDetail};
use super::figures::{ABSENT, clock, first_line};
use super::story_answers::ConsumerStory;

/// A sentence, and whether nothing else comes of the decision.
pub(crate) type Outcome = (String, bool);

fn time(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| ABSENT.into(), |at| clock(at, now))
}

fn dead_again(it: &Letter, now: Timestamp) -> Outcome {
    (format!("Dead again at {}: {}", time(it.dead_at, now), first_line(&it.reason)), true)
}

/// Of a dead letter of the outbox. A decision ends it, so one that is there came after it.
pub(crate) fn of_letter(it: &LetterDetail, now: Timestamp) -> Outcome {
    match (&*it.state, &it.dead_letter) {
        ("dead", Some(letter)) => dead_again(letter, now),
        ("published", _) => (format!("Published at {}.", time(it.published_at, now)), true),
        ("pending", _) => ("Not published yet.".into(), false),
        (state, _) => (format!("It is {state}."), true),
    }
}

/// Of an event at a consumer, since the last decision about it there.
pub(crate) fn of_consumer(it: &ConsumerStory, now: Timestamp) -> Outcome {
    let Some(record) = &it.record else { return ("The inbox has no record of it.".into(), true) };
    let decided_at = it.decisions.last().and_then(|it| it.at);
    let failed = it.failed_attempts.last().filter(|it| it.failed_at > decided_at);
    match (&*record.status, &it.dead_letter, failed) {
        ("PROCESSED", ..) => (format!("Handled at {}.", time(record.processed_at, now)), true),
        ("DEAD", Some(letter), _) => dead_again(letter, now),
        (status @ ("DEAD" | "REJECTED"), ..) => (format!("It is {}.", status.to_lowercase()), true),
        (_, _, Some(it)) => {
            let (at, reason) = (time(it.failed_at, now), first_line(&it.reason));
            (format!("Tried at {at}, and still fails: {reason}"), false)
        }
        ("FAILED", ..) => ("It waits for its turn.".into(), false),
        _ => ("A worker is at it.".into(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn so_far(said: &str) -> Outcome {
        (said.into(), false)
    }

    fn finally(said: &str) -> Outcome {
        (said.into(), true)
    }

    fn now() -> Timestamp {
        "2026-11-26T16:50:00Z".parse().expect("a time")
    }

    #[test]
    fn a_letter_that_was_requeued_is_published_or_dead_again() {
        let of = |json: &str| of_letter(&serde_json::from_str(json).expect("readable"), now());
        let published = r#"{"state": "published", "published_at": "2026-11-26T16:48:07Z"}"#;
        assert_eq!(of(published), finally("Published at 16:48:07."));
        let dead = r#"{"state": "dead", "dead_letter": {"reason": "too large\nby far",
            "dead_at": "2026-11-26T16:48:07Z"}}"#;
        assert_eq!(of(dead), finally("Dead again at 16:48:07: too large"));
        assert_eq!(of(r#"{"state": "pending"}"#), so_far("Not published yet."));
    }

    #[test]
    fn what_failed_before_the_decision_is_not_its_outcome() {
        let of = |status: &str, failed: &str, more: &str| {
            let story = format!(
                r#"{{"record": {{"status": "{status}", "processed_at": "2026-11-26T16:48:09Z"}},
                    "decisions": [{{"action": "requeue", "at": "2026-11-26T16:48:07Z"}}],
                    "failed_attempts": [{{"failed_at": "2026-11-26T16:48:{failed}Z",
                        "reason": "503: down"}}]{more}}}"#
            );
            of_consumer(&serde_json::from_str(&story).expect("readable"), now())
        };
        let letter =
            r#", "dead_letter": {"reason": "503: down", "dead_at": "2026-11-26T16:48:08Z"}"#;
        assert_eq!(of("FAILED", "06", letter), so_far("It waits for its turn."));
        assert_eq!(of("PROCESSING", "06", letter), so_far("A worker is at it."));
        let fails = so_far("Tried at 16:48:08, and still fails: 503: down");
        assert_eq!(of("FAILED", "08", ""), fails);
        assert_eq!(of("DEAD", "08", letter), finally("Dead again at 16:48:08: 503: down"));
        assert_eq!(of("PROCESSED", "06", ""), finally("Handled at 16:48:09."));
    }
}
