//! What an action would do, in words, before it is done.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::settings::Kind;

use super::answers::{Letters, ReplayPlan};
use super::figures::{count, counted, rounded, span};

/// What stands for itself in every part of an address (RFC 3986).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A value for a path or a query.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The longest part of a fingerprint that each reason of its group has: between `<n>` and `<id>`, on one
/// line, since a field of a form would change what separates two.
pub(crate) fn literal(fingerprint: &str) -> &str {
    let lines = fingerprint.split(['\n', '\r']);
    let parts = lines.flat_map(|it| it.split("<id>")).flat_map(|it| it.split("<n>"));
    parts.fold("", |longest, it| if it.len() > longest.len() { it } else { longest })
}

/// Whether it can be the id of an event.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|it| it.is_ascii_hexdigit() || it == b'-')
}

/// Whether it is an aggregate with its type, as `order:o-17`.
pub(crate) fn is_aggregate(text: &str) -> bool {
    text.trim().split_once(':').is_some_and(|(kind, id)| !kind.is_empty() && !id.is_empty())
}

/// A fingerprint as people read it.
pub(crate) fn cause(fingerprint: &str) -> String {
    fingerprint.replace("<n>", "…").replace("<id>", "…")
}

/// Whether parking wrote these reasons: the events wait for an earlier one of their aggregate.
pub(crate) fn is_of_followers(fingerprint: &str) -> bool {
    fingerprint.starts_with("waits for <id>")
}

/// What is decided about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Requeue,
    Discard,
    Reject,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Discard => "discard",
            Self::Reject => "reject",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Requeue => "Requeue",
            Self::Discard => "Discard",
            Self::Reject => "Reject",
        }
    }

    /// What came of it.
    pub(crate) fn done(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::Requeue, Kind::Relay) => "requeued: the relay publishes what it can",
            (Self::Requeue, Kind::Inbox) => "requeued: a worker tries again",
            (Self::Discard, Kind::Relay) => "discarded: never published",
            (Self::Discard, Kind::Inbox) => "discarded: never handled",
            (Self::Reject, _) => "rejected: answered, and never handled",
        }
    }

    /// It cannot be undone: a reason is needed.
    pub(crate) fn is_final(self) -> bool {
        self != Self::Requeue
    }
}

/// More than so many are discarded only by somebody who typed how many.
const UNTYPED_MAX: u64 = 10;

/// What an action on many dead letters would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LetterPlan {
    pub(crate) total: u64,
    /// Sentences, the most important first.
    pub(crate) lines: Vec<String>,
    /// How many has to be typed.
    pub(crate) typed: bool,
}

/// Of a page of the API that has only what the filter matches.
pub(crate) fn letters(
    verb: Verb,
    letters: &Letters,
    (first, rate): (Option<u32>, Option<u32>),
    kind: Kind,
) -> LetterPlan {
    let total = first.map_or(letters.total, |it| letters.total.min(it.into()));
    let aggregates: u64 = letters.groups.iter().map(|it| it.aggregates).sum();
    let mut lines = Vec::new();
    let causes = counted(letters.groups.len() as u64, "cause", "causes");
    let at_most = if letters.groups.len() > 1 { "at most " } else { "" };
    let of = counted(aggregates, "aggregate", "aggregates");
    let all = counted(letters.total, "dead letter", "dead letters");
    lines.push(format!("{all}, of {causes} and {at_most}{of}."));
    match total {
        it if it == letters.total => {}
        1 => lines.push("The oldest is meant.".into()),
        some => lines.push(format!("The {} oldest are meant.", count(some))),
    }
    match (verb, kind) {
        (Verb::Requeue, Kind::Inbox) => {
            lines.push(
                "Each gets a new set of attempts. What an attempt did before may repeat.".into(),
            );
            lines.push("What still cannot be handled becomes a dead letter again.".into());
        }
        (Verb::Requeue, Kind::Relay) => {
            lines.push(
                "Events of one aggregate are published in the order of their commits. What was \
                 published of it since then stays before them."
                    .into(),
            );
            lines.push("What still cannot be published becomes a dead letter again.".into());
        }
        (Verb::Discard, Kind::Inbox) => {
            lines.push("They are never handled. This cannot be undone.".into())
        }
        (Verb::Discard, Kind::Relay) => lines.push(
            "They are never published. Later events of their aggregates no longer wait for them. \
             This cannot be undone."
                .into(),
        ),
        (Verb::Reject, _) => {
            lines.push("They are answered and never handled. This cannot be undone.".into())
        }
    }
    if let Some(rate) = rate.filter(|_| total > 0) {
        let seconds = total.div_ceil(u64::from(rate.max(1)));
        lines.push(format!("At {} a second it takes {}.", count(u64::from(rate)), span(seconds)));
    }
    let who = if kind == Kind::Relay { "relay" } else { "inbox" };
    lines.push(format!("The {who} does it: you may close this page."));
    LetterPlan { total, lines, typed: verb.is_final() && total > UNTYPED_MAX }
}

/// What a replay would do: of some events among others, `of` says which.
pub(crate) fn replay(plan: &ReplayPlan, of: Option<&str>, per_second: Option<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    let chosen = plan.sources.iter().find(|it| Some(&it.source) == plan.chosen.as_ref());
    match chosen.map(|it| (&it.source, it.events)) {
        Some((source, Some(events))) => {
            let is_exact = chosen.is_some_and(|it| it.is_exact);
            let about = if is_exact { "" } else { "at most " };
            let events_text = counted(events, "event", "events");
            lines.push(match of.filter(|_| !is_exact) {
                Some(of) => format!(
                    "Reads {events_text} of the {source}, and publishes those of {of} again."
                ),
                None => format!("Publishes {about}{events_text} again, from the {source}."),
            });
            if let Some(rate) = per_second {
                let seconds = events.div_ceil(u64::from(rate.max(1)));
                lines.push(format!("At {rate} a second it takes {about}{}.", span(seconds)));
            }
        }
        Some((source, None)) => lines.push(format!("Publishes events again, from the {source}.")),
        None => lines.push("No source has these events.".into()),
    }
    match &*plan.consumers {
        [] => lines.push(
            "No consumer has an inbox beside this outbox: consumers that do not deduplicate repeat \
             their effects."
                .into(),
        ),
        names => lines.push(format!(
            "{} skip{} what {} processed. Other consumers repeat their effects.",
            names.join(", "),
            if names.len() == 1 { "s" } else { "" },
            if names.len() == 1 { "it has" } else { "they have" },
        )),
    }
    lines.extend(plan.warnings.iter().cloned());
    lines
}

/// Of a hundred parts, how many are done.
pub(crate) fn percent(done: u64, total: u64) -> u64 {
    use super::figures::as_f64;
    if total == 0 { 0 } else { rounded(as_f64(done) * 100.0 / as_f64(total)).min(100) }
}

#[cfg(test)]
mod tests {
    use super::super::answers::{Group, PlanSource};
    use super::*;

    #[test]
    fn the_part_that_each_reason_has_is_the_longest_literal() {
        let check = |fingerprint: &str, expected: &str| assert_eq!(literal(fingerprint), expected);
        check("payload exceeds <n> bytes", "payload exceeds ");
        check("<n> Unprocessable Entity: down", " Unprocessable Entity: down");
        check("waits for <id>, an earlier event", ", an earlier event");
        check("no number", "no number");
        check("violates a check\nDETAIL: <n>", "violates a check");
        check("<n>", "");
    }

    fn of(total: u64) -> Letters {
        let group = |count| Group { count, aggregates: count, ..Group::default() };
        Letters { total, groups: vec![group(total)], ..Letters::default() }
    }

    #[test]
    fn a_plan_says_how_many_and_how_long() {
        let plan = letters(Verb::Requeue, &of(1000), (None, Some(50)), Kind::Relay);
        assert_eq!(plan.lines[0], "1,000 dead letters, of 1 cause and 1,000 aggregates.");
        assert!(plan.lines.iter().any(|it| it == "At 50 a second it takes 20 s."), "{plan:?}");
        assert!(!plan.typed);
    }

    #[test]
    fn what_is_for_good_is_typed_if_it_is_much() {
        assert!(letters(Verb::Discard, &of(11), (None, None), Kind::Relay).typed);
        assert!(!letters(Verb::Discard, &of(11), (Some(10), None), Kind::Inbox).typed);
        assert!(!letters(Verb::Discard, &of(10), (None, None), Kind::Relay).typed);
    }

    #[test]
    fn a_replay_says_whose_effects_repeat() {
        let source =
            PlanSource { source: "stream".into(), events: Some(4210), ..PlanSource::default() };
        let mut plan = ReplayPlan {
            sources: vec![source],
            chosen: Some("stream".into()),
            consumers: vec!["billing".into()],
            ..ReplayPlan::default()
        };
        let of = replay(&plan, Some("order:o-1"), None);
        let among = "Reads 4,210 events of the stream, and publishes those of order:o-1 again.";
        assert_eq!(of[0], among);
        let lines = replay(&plan, None, Some(50));
        assert_eq!(lines[0], "Publishes at most 4,210 events again, from the stream.");
        assert_eq!(lines[1], "At 50 a second it takes at most 85 s.");
        assert!(lines[2].starts_with("billing skips what it has processed."), "{lines:?}");
        plan.consumers.clear();
        assert!(replay(&plan, None, None)[1].contains("repeat"));
    }

    #[test]
    fn progress_is_a_share() {
        assert_eq!((percent(0, 0), percent(1200, 4210), percent(9, 3)), (0, 29, 100));
    }
}
