//! What a command found and will not do, or did not get to, for reasons that are nobody's failure.

use inbox::RewindState;
use operate::dead_letters::inbox_letters::DeadLetterDetail;
use uuid::Uuid;

/// What scripts can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Failed = 1,
    NotFound = 3,
    Refused = 4,
    Unreachable = 5,
    TimedOut = 6,
    BadConfiguration = 78,
}

/// What an error says of itself when it ends a command or a request, as far as it tells: what it
/// was caused by may tell the rest.
pub(crate) trait Ending {
    /// What scripts are told.
    fn kind(&self) -> Option<Kind>;
    /// What can be done about it.
    fn hint(&self) -> Option<String>;
}

/// Why nothing was done, and what can be done instead.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Refusal {
    kind: Kind,
    problem: String,
    hint: Option<String>,
}

impl Ending for Refusal {
    fn kind(&self) -> Option<Kind> {
        Some(self.kind)
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
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
            let consumers = consumers.collect::<Vec<_>>().join(", ");
            let refusal = Refusal::conflict("several consumers have this dead letter");
            Err(refusal.with_hint(format!("name one with --consumer: {consumers}")))
        }
    }
}

impl Refusal {
    pub(crate) fn new(kind: Kind, problem: impl Into<String>) -> Self {
        Self { kind, problem: problem.into(), hint: None }
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(problem: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, problem)
    }

    /// Something stands against it.
    pub(crate) fn conflict(problem: impl Into<String>) -> Self {
        Self::new(Kind::Refused, problem)
    }

    /// It did not happen in time.
    pub(crate) fn timed_out(problem: impl Into<String>) -> Self {
        Self::new(Kind::TimedOut, problem)
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn no_dead_letter(event: Uuid) -> Self {
        Self::not_found(format!("there is no dead letter of event {event}"))
            .with_hint("`tailpost inbox dlq list` shows all there are")
    }

    pub(crate) fn not_dead(decision: &str) -> Self {
        Self::conflict(format!("nothing there is to {decision}")).with_hint(
            "it is requeued, or has no record any more, or cannot be handled whatever changes: \
             see `inbox dlq show`",
        )
    }

    pub(crate) fn rewind_pending(consumer: &str, state: &RewindState) -> Self {
        let (from, again) = (state.from_sequence, if state.again { " --again" } else { "" });
        let (at, by) = (state.requested_at, &state.requested_by);
        Self::conflict(format!(
            "{consumer} is to be rewound to sequence {from} already, as {by} asked at {at}"
        ))
        .with_hint(format!(
            "follow it with --to-sequence {from}{again}, or withdraw it with --cancel while no \
             worker has begun"
        ))
    }
}
