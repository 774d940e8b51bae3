//! The life of one event: a trunk from its row to the stream, and a branch for each consumer.

use jiff::Timestamp;

use super::answers::{Decision, FailedAttempt, Letter, process};
use super::figures::{counted, latency};
use super::story_answers::{ConsumerStory, EventRecord, Story};

/// PostgreSQL gives transactions greater numbers.
const FROZEN: u64 = 2;

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Done,
    Open,
    Trouble,
}

impl Mark {
    /// As the page's styles call it.
    pub(crate) fn class(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Open => "open",
            Self::Trouble => "trouble",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) mark: Mark,
    pub(crate) title: String,
    pub(crate) at: Option<Timestamp>,
    pub(crate) facts: Vec<String>,
}

impl Step {
    fn new(mark: Mark, title: impl Into<String>, at: Option<Timestamp>) -> Self {
        Self { mark, title: title.into(), at, facts: Vec::new() }
    }

    fn fact(mut self, fact: Option<String>) -> Self {
        self.facts.extend(fact);
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) consumer: String,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) trunk: Vec<Step>,
    pub(crate) branches: Vec<Branch>,
}

/// PostgreSQL prints a time with a blank and a short offset.
fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

pub(crate) fn life(story: &Story) -> Life {
    let mut trunk = Vec::new();
    inserted(story, &mut trunk);
    stored(story, &mut trunk);
    for replay in &story.replays {
        let step = Step::new(Mark::Done, format!("replay {}", replay.status), None);
        trunk.push(step.fact(Some(format!("asked for by {}: {}", replay.asked_by, replay.reason))));
    }
    let branches = story.consumers.iter().map(|(name, story)| branch(name, story));
    Life { trunk, branches: branches.collect() }
}

fn inserted(story: &Story, trunk: &mut Vec<Step>) {
    if let Some(row) = &story.row {
        let step = Step::new(Mark::Done, "inserted", time(row.occurred_at.as_deref()));
        // Requeueing writes a number there that is older than all transactions.
        let is_real = |it: &&String| it.parse().is_ok_and(|it: u64| it > FROZEN);
        let transaction = row.transaction.as_ref().filter(is_real);
        let transaction = transaction.map(|it| format!("by transaction {it}"));
        trunk.push(step.fact(transaction));
        if let Some(lsn) = &row.commit_lsn {
            let step = Step::new(Mark::Done, "committed", None);
            trunk.push(step.fact(Some(format!("in the log at {lsn}"))));
        }
    } else if story.dead_letter.is_none() {
        trunk.push(Step::new(Mark::Open, "no row is left", None));
    }
    let mut decided = decided(&story.decisions, story.dead_letter.as_ref(), &[]);
    decided.sort_by_key(|(at, _)| *at);
    trunk.extend(decided.into_iter().map(|(_, it)| it));
}

fn stored(story: &Story, trunk: &mut Vec<Step>) {
    let row = story.row.as_ref();
    let published = row.is_some_and(|it| it.status == "PUBLISHED");
    match &story.message {
        Some(message) => {
            let stored_at = time(Some(&message.stored_at));
            let took = row.and_then(|it| time(it.occurred_at.as_deref())).zip(stored_at).map(
                |(from, to)| {
                    format!(
                        "{} after it happened",
                        latency(to.duration_since(from).as_secs_f64().max(0.0))
                    )
                },
            );
            let step = Step::new(Mark::Done, "published", stored_at);
            let place = format!("in {} as {}", message.stream, message.seq);
            trunk.push(step.fact(Some(place)).fact(Some(message.subject.clone())).fact(took));
        }
        None if published => {
            let place = row
                .and_then(|it| Some(format!("in {} as {}", it.stream.as_ref()?, it.stream_seq?)));
            let step = Step::new(Mark::Done, "published", None).fact(place);
            trunk.push(step.fact(Some("the stream does not have it any more".into())));
        }
        None => {}
    }
    let Some(row) = row else { return };
    if published {
        trunk.push(Step::new(Mark::Done, "marked in the table", time(row.published_at.as_deref())));
    } else {
        let mark = if row.error.is_some() { Mark::Trouble } else { Mark::Open };
        let step = Step::new(mark, "not published yet", None).fact(row.error.clone());
        trunk.push(step.fact(attempts(row.attempts)));
        let next = time(row.next_attempt_at.as_deref());
        trunk.extend(next.map(|it| Step::new(Mark::Open, "next attempt", Some(it))));
    }
}

/// What became of the event at a consumer, in a few words, and how that is meant, if it has a record.
pub(crate) fn end_at(story: Option<&ConsumerStory>) -> Option<(Mark, String)> {
    let story = story.filter(|it| it.record.is_some() || it.dead_letter.is_some())?;
    let Some(record) = &story.record else { return Some((Mark::Trouble, "a dead letter".into())) };
    Some(match &*record.status {
        "PROCESSED" => (Mark::Done, record.outcome.clone().unwrap_or_else(|| "processed".into())),
        "REJECTED" => (Mark::Trouble, "rejected".into()),
        "DEAD" if story.dead_letter.is_some() => (Mark::Trouble, "a dead letter".into()),
        "DEAD" => (Mark::Trouble, "discarded".into()),
        "FAILED" => {
            let attempts = counted(record.attempts, "attempt", "attempts");
            (Mark::Trouble, format!("fails, {attempts}"))
        }
        _ if has_failed(story, record) => (Mark::Trouble, "fails, and waits for its turn".into()),
        _ => (Mark::Open, "at work".into()),
    })
}

/// Whether the attempt that it was claimed for has ended.
fn has_failed(story: &ConsumerStory, record: &EventRecord) -> bool {
    let last = story.failed_attempts.last().and_then(|it| it.failed_at);
    last.is_some_and(|last| record.claimed_at.is_none_or(|claimed| claimed <= last))
}

/// The same of the outbox and its stream.
pub(crate) fn end_of_outbox(story: &Story) -> (Mark, String) {
    let place = |stream: &str, seq: u64| (Mark::Done, format!("published in {stream} as {seq}"));
    let row = story.row.as_ref();
    match (&story.message, row) {
        (Some(message), _) => place(&message.stream, message.seq),
        (None, Some(row)) if row.status == "PUBLISHED" => {
            let of = row.stream.as_ref().zip(row.stream_seq);
            of.map_or_else(|| (Mark::Done, "published".into()), |(stream, seq)| place(stream, seq))
        }
        _ => match &story.dead_letter {
            Some(letter) if letter.discarded_at.is_some() => (Mark::Trouble, "discarded".into()),
            Some(_) => (Mark::Trouble, "a dead letter, not published".into()),
            None if row.is_some_and(|it| it.error.is_some()) => {
                (Mark::Trouble, "not published: it fails".into())
            }
            None if row.is_some() => (Mark::Open, "not published yet".into()),
            None => (Mark::Open, "no row is left".into()),
        },
    }
}

fn attempts(number: u64) -> Option<String> {
    (number > 0).then(|| counted(number, "attempt", "attempts"))
}

fn decision(it: &Decision) -> Step {
    let step = Step::new(Mark::Done, format!("{} by {}", it.action, it.person()), it.at);
    step.fact(it.why.clone()).fact(it.payload_replaced.then(|| "the payload was replaced".into()))
}

/// When what happened. What goes on has no time.
type Timed = (Timestamp, Step);

/// The dead letter, those that were one before, and what was decided about them. Of one that is gone
/// the audit has the reason, and the attempt that led to it has the time.
fn decided(
    decisions: &[Decision],
    letter: Option<&Letter>,
    failures: &[FailedAttempt],
) -> Vec<Timed> {
    let dead = |reason: &str, at| {
        Step::new(Mark::Trouble, "dead letter", at).fact(Some(reason.to_owned()))
    };
    let dead_at = letter.and_then(|it| it.dead_at);
    let mut steps: Vec<Timed> = Vec::new();
    // Where those begin that read the letter before it was decided about.
    let mut begins = 0;
    for it in decisions {
        let at = it.at.unwrap_or(Timestamp::MAX);
        if let Some(reason) = it.ended().filter(|_| dead_at.is_none_or(|dead_at| at < dead_at)) {
            let led = |made: &&FailedAttempt| made.failed_at < it.at && made.reason == reason;
            let led = failures.iter().rev().find(led).and_then(|made| made.failed_at);
            let before = steps.get(begins).map_or(at, |(at, _)| *at);
            steps.insert(begins, (led.unwrap_or(before), dead(reason, led)));
        }
        steps.push((at, decision(it)));
        if it.action != "read" {
            begins = steps.len();
        }
    }
    steps.extend(letter.map(|it| {
        let step = dead(&it.reason, dead_at).fact(attempts(it.attempts.unwrap_or(0)));
        (dead_at.unwrap_or(Timestamp::MAX), step)
    }));
    steps
}

/// Attempts begin anew with each requeue. One that was made among other events, and then alone, has
/// its number twice.
fn failed(story: &ConsumerStory, place: usize) -> Step {
    let requeues = |it: &FailedAttempt| {
        let requeues = story.decisions.iter().filter(|it| it.action == "requeue");
        requeues.filter(|of| of.at < it.failed_at).count()
    };
    let it = &story.failed_attempts[place];
    let number = |it: &FailedAttempt| (requeues(it), it.attempt);
    let before = place.checked_sub(1).map(|before| number(&story.failed_attempts[before]));
    let again = if before == Some(number(it)) { " again" } else { "" };
    let since = if requeues(it) > 0 { " after the requeue" } else { "" };
    let title = format!("attempt {}{since} failed{again}", it.attempt);
    let step = Step::new(Mark::Trouble, title, it.failed_at);
    let took = Some(format!("took {}", it.took()));
    step.fact(Some(it.reason.clone())).fact(took).fact(it.by().map(|it| format!("by {it}")))
}

pub(crate) fn branch(name: &str, story: &ConsumerStory) -> Branch {
    let places = 0..story.failed_attempts.len();
    let mut steps: Vec<_> = places.map(|place| failed(story, place)).collect();
    if let Some(record) = &story.record {
        steps.push(Step::new(Mark::Done, "received", record.received_at));
        let worker = record.worker.as_deref().map(|it| format!("by process {}", process(it)));
        // The attempts of a dead letter say it, and its last claim may be younger than the letter.
        let is_told = record.status == "DEAD" && !story.failed_attempts.is_empty();
        if record.claimed_at.is_some() && !is_told {
            let step = Step::new(Mark::Done, "claimed", record.claimed_at);
            steps.push(step.fact(attempts(record.attempts)).fact(worker));
        }
        // The attempt says it.
        let error = record.last_error.clone().filter(|_| story.failed_attempts.is_empty());
        match &*record.status {
            "PROCESSED" => {
                let took = record.claimed_at.zip(record.processed_at).map(|(from, to)| {
                    format!("took {}", latency(to.duration_since(from).as_secs_f64().max(0.0)))
                });
                steps.push(Step::new(Mark::Done, "processed", record.processed_at).fact(took));
            }
            "REJECTED" => {
                let step = Step::new(Mark::Trouble, "rejected", record.processed_at);
                steps.push(step.fact(record.outcome.clone()));
            }
            "DEAD" => {}
            "FAILED" => {
                if story.failed_attempts.is_empty() {
                    let step = Step::new(Mark::Trouble, "failed", record.claimed_at);
                    steps.push(step.fact(error));
                }
                steps.push(Step::new(Mark::Open, "next attempt", record.next_attempt_at));
            }
            _ if has_failed(story, record) => {
                steps.push(Step::new(Mark::Open, "waits for another attempt", None));
            }
            _ => steps.push(Step::new(Mark::Open, "at work", None).fact(error)),
        }
    }
    let is_dead = story.record.as_ref().is_some_and(|it| it.status == "DEAD");
    // The transaction of a letter begins before the attempt is noted that led to it.
    let ended = story.dead_letter.as_ref().filter(|_| is_dead).and_then(|it| it.dead_at);
    let mut steps: Vec<Timed> = steps
        .into_iter()
        .enumerate()
        .map(|(place, it)| {
            let is_attempt = place < story.failed_attempts.len();
            let at = it.at.unwrap_or(Timestamp::MAX);
            (ended.filter(|_| is_attempt).map_or(at, |ended| at.min(ended)), it)
        })
        .collect();
    let letter = story.dead_letter.as_ref();
    steps.extend(decided(&story.decisions, letter, &story.failed_attempts));
    steps.sort_by_key(|(at, _)| *at);
    Branch { consumer: name.to_owned(), steps: steps.into_iter().map(|it| it.1).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Life {
        life(&serde_json::from_str(json).expect("readable"))
    }

    fn titles(steps: &[Step]) -> Vec<&str> {
        steps.iter().map(|it| &*it.title).collect()
    }

    #[test]
    fn an_event_goes_from_its_row_to_each_consumer() {
        let life = of(r#"{
            "row": {"status": "PUBLISHED", "aggregate_type": "order", "aggregate_id": "o-1",
                "event_type": "OrderPaid", "occurred_at": "2026-11-26 16:48:10.311791+00",
                "transaction": "3022", "published_at": "2026-11-26 16:48:10.38+00",
                "commit_lsn": "0/21EC700", "stream": "PLAY", "stream_seq": 998},
            "message": {"stream": "PLAY", "seq": 998, "subject": "play.order.OrderPaid",
                "stored_at": "2026-11-26T16:48:10.364469141Z"},
            "consumers": {
                "billing": {"record": {"status": "PROCESSED", "attempts": 1,
                    "received_at": "2026-11-26T16:48:10.39Z", "claimed_at": "2026-11-26T16:48:10.40Z",
                    "processed_at": "2026-11-26T16:48:10.43Z", "worker": "877:a"}},
                "mailer": {"record": {"status": "DEAD", "attempts": 1,
                    "received_at": "2026-11-26T16:48:10.5Z"},
                    "failed_attempts": [{"attempt": 1, "failed_at": "2026-11-26T16:48:10.7Z"}],
                    "dead_letter": {"reason": "422", "dead_at": "2026-11-26T16:48:10.6Z"}}}}"#);
        let expected = ["inserted", "committed", "published", "marked in the table"];
        assert_eq!(titles(&life.trunk), expected);
        assert!(life.trunk[0].at.is_some(), "PostgreSQL's form of a time is read");
        assert_eq!(life.trunk[2].facts[2], "53 ms after it happened");
        assert_eq!(titles(&life.branches[0].steps), ["received", "claimed", "processed"]);
        assert_eq!(life.branches[0].steps[2].facts, ["took 30 ms"]);
        let expected = ["received", "attempt 1 failed", "dead letter"];
        assert_eq!(titles(&life.branches[1].steps), expected);
        assert_eq!(life.branches[1].steps[2].mark, Mark::Trouble);
    }

    /// A decision is between the attempts before and after it.
    #[test]
    fn attempts_that_failed_are_in_their_place() {
        let attempt = |number: u32, second: u32| {
            format!(
                r#"{{"attempt": {number}, "failed_at": "2026-11-26T16:48:{second}Z", "code": 503,
                    "took_ms": 1500, "reason": "503: down", "worker": "877:a"}}"#
            )
        };
        let life = of(&format!(
            r#"{{"consumers": {{"billing": {{"failed_attempts": [{}, {}],
                "record": {{"status": "FAILED", "attempts": 1, "last_error": "503: down",
                    "received_at": "2026-11-26T16:48:10Z", "next_attempt_at": "2026-11-26T16:49:10Z"}},
                "decisions": [
                    {{"action": "read", "actor": "postgres (bob)", "at": "2026-11-26T16:48:11.5Z",
                        "reason": "503: down"}},
                    {{"action": "requeue", "actor": "postgres (ada)", "at": "2026-11-26T16:48:12Z",
                        "reason": "503: down", "why": "it is up"}}]}}}}}}"#,
            attempt(1, 11),
            attempt(1, 13)
        ));
        let steps = &life.branches[0].steps;
        let expected = [
            "received",
            "attempt 1 failed",
            "dead letter",
            "read by bob",
            "requeue by ada",
            "attempt 1 after the requeue failed",
            "next attempt",
        ];
        assert_eq!(titles(steps), expected);
        assert_eq!((&*steps[2].facts, steps[2].at), (&["503: down".to_owned()][..], steps[1].at));
        assert_eq!(steps[1].facts, ["503: down", "took 1.5 s", "by process 877"]);
        assert!(steps[6].at > steps[5].at && steps[6].facts.is_empty(), "{:?}", steps[6]);
    }

    #[test]
    fn a_claim_is_not_behind_its_dead_letter_and_a_marker_is_no_transaction() {
        let life = of(r#"{"row": {"status": "PENDING", "transaction": "2"},
            "consumers": {"billing": {"record": {"status": "DEAD", "attempts": 1,
                "received_at": "2026-11-26T16:48:10Z", "claimed_at": "2026-11-26T16:48:19Z"},
            "failed_attempts": [
                {"attempt": 1, "failed_at": "2026-11-26T16:48:11Z", "reason": "400"},
                {"attempt": 1, "failed_at": "2026-11-26T16:48:12Z", "reason": "400"}],
            "decisions": [{"action": "discard", "at": "2026-11-26T16:50:00Z",
                "reason": "400"}]}}}"#);
        assert!(life.trunk[0].facts.is_empty(), "{:?}", life.trunk);
        let expected = [
            "received",
            "attempt 1 failed",
            "attempt 1 failed again",
            "dead letter",
            "discard by ",
        ];
        assert_eq!(titles(&life.branches[0].steps), expected);
    }

    #[test]
    fn a_dead_letter_says_why() {
        let life = of(r#"{"dead_letter": {"id": "a", "reason": "too large", "attempts": 2}}"#);
        assert_eq!(titles(&life.trunk), ["dead letter"]);
        assert_eq!(life.trunk[0].facts, ["too large", "2 attempts"]);
        let life =
            of(r#"{"dead_letter": {"dead_at": "2026-11-26T16:50:00Z", "reason": "too large"},
            "decisions": [
                {"action": "requeue", "at": "2026-11-26T16:48:00Z", "reason": "no such stream"},
                {"action": "discard", "at": "2026-11-26T16:51:00Z", "reason": "too large"}]}"#);
        let expected = ["dead letter", "requeue by ", "dead letter", "discard by "];
        assert_eq!(titles(&life.trunk), expected);
        assert_eq!(life.trunk[0].facts, ["no such stream"]);
    }
}
