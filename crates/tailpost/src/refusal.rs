//! What a command found and will not do, for reasons that are nobody's failure.

use std::path::Path;

use inbox::{DeadLetterDetail, RewindState};
use uuid::Uuid;

/// Why nothing was done, and what can be done instead.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Refusal {
    problem: String,
    hint: Option<String>,
    /// Whether what was asked for is not there; otherwise something stands against it.
    pub(crate) not_found: bool,
}

/// The only dead letter of an event.
pub(crate) fn only(
    event: Uuid,
    mut found: Vec<DeadLetterDetail>,
) -> Result<DeadLetterDetail, Refusal> {
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(Refusal::no_dead_letter(event)),
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            found.push(last);
            let consumers = found.into_iter().filter_map(|it| Some(it.dead_letter?.consumer));
            Err(Refusal::several_consumers(&consumers.collect::<Vec<_>>()))
        }
    }
}

impl Refusal {
    fn not_found(problem: String, hint: Option<String>) -> Self {
        Self { problem, hint, not_found: true }
    }

    fn conflict(problem: impl Into<String>, hint: Option<String>) -> Self {
        Self { problem: problem.into(), hint, not_found: false }
    }

    pub(crate) fn no_dead_letter(event: Uuid) -> Self {
        let hint = "`tailpost inbox dlq list` shows all there are".into();
        Self::not_found(format!("there is no dead letter of event {event}"), Some(hint))
    }

    pub(crate) fn no_event(event: Uuid) -> Self {
        let hint = "neither a row, a dead letter, a decision nor a consumer's record is left of it, or it \
                    is not committed; an event of outbox_emit_wal never has a row";
        Self::not_found(format!("nobody knows event {event}"), Some(hint.into()))
    }

    pub(crate) fn is_looked_after() -> Self {
        let hint = "wait until it is done: pg_stat_activity shows it as `tailpost inbox`".into();
        Self::conflict("another process looks after the inbox's tables", Some(hint))
    }

    fn several_consumers(consumers: &[String]) -> Self {
        let hint = format!("name one with --consumer: {}", consumers.join(", "));
        Self::conflict("several consumers have this dead letter", Some(hint))
    }

    pub(crate) fn not_dead(decision: &str) -> Self {
        let hint = "it is requeued, or has no record any more, or cannot be handled whatever changes: \
                    see `inbox dlq show`";
        Self::conflict(format!("nothing there is to {decision}"), Some(hint.into()))
    }

    pub(crate) fn file_exists(path: &Path) -> Self {
        Self::conflict(format!("{} exists", path.display()), Some("name another file".into()))
    }

    pub(crate) fn leased(consumer: &str, event: Uuid) -> Self {
        let hint = "try again when its lease is over, or stop the consumer first".into();
        Self::conflict(format!("a worker of {consumer} has event {event} right now"), Some(hint))
    }

    pub(crate) fn forgotten(event: Uuid) -> Self {
        let hint = "it is not handled any more: if it comes again it becomes a dead letter";
        let problem = format!("event {event} is older than the inbox remembers");
        Self::conflict(problem, Some(hint.into()))
    }

    pub(crate) fn unknown_event(event: Uuid) -> Self {
        let hint = "name the time in its Occurred-At header with --occurred-at".into();
        Self::not_found(format!("neither inbox nor outbox know event {event}"), Some(hint))
    }

    pub(crate) fn rewind_pending(consumer: &str, state: &RewindState) -> Self {
        let (from, again) = (state.from_sequence, if state.again { " --again" } else { "" });
        let hint = format!(
            "follow it with --to-sequence {from}{again}, or withdraw it with --cancel while no \
             worker has begun"
        );
        let (at, by) = (state.requested_at, &state.requested_by);
        let problem = format!(
            "{consumer} is to be rewound to sequence {from} already, as {by} asked at {at}"
        );
        Self::conflict(problem, Some(hint))
    }

    pub(crate) fn rewind_given_up(consumer: &str, why: &str) -> Self {
        Self::conflict(format!("the rewind of {consumer} was given up: {why}"), None)
    }

    pub(crate) fn no_rewind(consumer: &str) -> Self {
        let problem = format!("no rewind of {consumer} is requested and not begun");
        Self::not_found(problem, None)
    }

    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}
