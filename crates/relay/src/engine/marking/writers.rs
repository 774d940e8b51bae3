//! Which connection writes the next marks: one is always there, a second while it cannot keep up.

use std::time::Duration;

use super::queue::{MARKS_AT_ONCE, Marks};
use crate::engine::effect::{Effect, Effects, MarkingEffect, Statement, Writer};

/// Marks that wait when they are called late: PostgreSQL writes marks on one core more slowly than it
/// sends its log from another.
const MARKS_LATE: usize = 10_000;

/// So many make a second connection help whatever it costs: there is room for twice as many.
const MARKS_TOO_LATE: usize = 100_000;

/// After so long without an answer the first connection is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// How long no second connection is tried after one failed.
const HELP_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Statements handed over at a time to the first connection: PostgreSQL begins the second when it ends
/// the first, instead of waiting until the relay has heard of that.
const STATEMENTS_AHEAD: usize = 2;

/// How many marks make a statement, and how long they wait for company.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    pub(crate) marks: usize,
    pub(crate) interval: Duration,
    /// More marks than this do not wait: their rows are the sweeper's.
    pub(crate) waiting_max: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Writers {
    batching: Batching,
    pub(super) marks: Marks,
    waiting_since: Duration,
    running_on_first: usize,
    /// When a statement last ended on the first connection, or began there alone.
    first_moved_at: Duration,
    second: Second,
}

/// The second connection has one statement at a time: they take memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    Closed { not_before: Duration },
    Opening,
    Idle,
    Writing,
}

impl Writers {
    pub(super) fn new(batching: Batching) -> Self {
        Self {
            batching,
            marks: Marks::new(batching.waiting_max),
            waiting_since: Duration::ZERO,
            running_on_first: 0,
            first_moved_at: Duration::ZERO,
            second: Second::Closed { not_before: Duration::ZERO },
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.marks.waiting() == 0 && !self.marks.is_running()
    }

    /// Whether more marks wait than one connection should have before it.
    pub(super) fn are_late(&self) -> bool {
        self.marks.waiting() >= MARKS_LATE.max(2 * self.batching.marks)
    }

    /// The next marks to be queued are the first that wait.
    pub(super) fn note_first(&mut self, now: Duration) {
        if self.marks.waiting() == 0 {
            self.waiting_since = now;
        }
    }

    /// Hands over the statements that are due; opens and closes the second connection. `is_backlog`
    /// says that events are late anyway, `hurry` that the marks are waited for.
    pub(super) fn flush(
        &mut self,
        now: Duration,
        is_backlog: bool,
        hurry: bool,
        effects: &mut Effects,
    ) {
        self.close_help(self.wants_help(now, is_backlog || hurry), effects);
        while self.is_due(now, hurry)
            && let Some(writer) = self.take_writer(now)
        {
            let Some((number, marks)) = self.marks.take() else { break };
            self.waiting_since = now;
            let statement = Statement { writer, marks: marks.len(), number };
            effects.push_back(Effect::Marking(MarkingEffect::Mark { statement, marks }));
        }
        self.open_help(now, self.wants_help(now, is_backlog || hurry), effects);
    }

    fn is_due(&self, now: Duration, hurry: bool) -> bool {
        let waiting = self.marks.waiting();
        // A statement costs the less per row the more rows it has: only a full one goes ahead.
        let is_early = self.marks.is_running() && waiting < MARKS_AT_ONCE;
        let has_waited = now.saturating_sub(self.waiting_since) >= self.batching.interval;
        waiting > 0 && (waiting >= self.batching.marks || has_waited || hurry) && !is_early
    }

    fn take_writer(&mut self, now: Duration) -> Option<Writer> {
        if self.second == Second::Idle && self.running_on_first > 0 {
            self.second = Second::Writing;
            return Some(Writer::Second);
        }
        if self.running_on_first >= STATEMENTS_AHEAD {
            return None;
        }
        if self.running_on_first == 0 {
            self.first_moved_at = now;
        }
        self.running_on_first += 1;
        Some(Writer::First)
    }

    /// Two backends that write marks take the processors from the stream. So a second one is there for
    /// a backlog, and for a first one that is stuck; live events do not wait for marks.
    fn wants_help(&self, now: Duration, is_backlog: bool) -> bool {
        let has_moved = now.saturating_sub(self.first_moved_at) < STUCK_AFTER;
        is_backlog || self.running_on_first > 0 && !has_moved
    }

    fn open_help(&mut self, now: Duration, is_wanted: bool, effects: &mut Effects) {
        let is_due = self.marks.waiting() >= MARKS_TOO_LATE || is_wanted && self.are_late();
        if is_due && matches!(self.second, Second::Closed { not_before } if not_before <= now) {
            self.second = Second::Opening;
            effects.push_back(Effect::Marking(MarkingEffect::OpenSecondWriter));
        }
    }

    /// What is left of a backlog is the first one's.
    fn close_help(&mut self, is_wanted: bool, effects: &mut Effects) {
        let waiting = self.marks.waiting();
        let is_over = waiting == 0 || !is_wanted && waiting < MARKS_TOO_LATE / 2;
        if is_over && self.second == Second::Idle {
            self.second = Second::Closed { not_before: Duration::ZERO };
            effects.push_back(Effect::Marking(MarkingEffect::CloseSecondWriter));
        }
    }

    /// The second connection is there, or could not be had.
    pub(super) fn second_opened(&mut self, now: Duration, is_open: bool) {
        self.second = match is_open {
            true => Second::Idle,
            false => Second::Closed { not_before: now + HELP_AGAIN_AFTER },
        };
    }

    /// The second connection broke. Its statement, if there is one, is told by itself.
    pub(super) fn second_broke(&mut self, now: Duration) {
        if self.second == Second::Idle {
            self.second = Second::Closed { not_before: now + HELP_AGAIN_AFTER };
        }
    }

    pub(super) fn assert_holds(&self) {
        let on_second = usize::from(self.second == Second::Writing);
        let (running, handed) = (self.marks.running(), self.running_on_first + on_second);
        assert_eq!(running, handed, "batches of marks, and the statements that write them");
        assert!(self.running_on_first <= STATEMENTS_AHEAD, "too many statements are handed over");
        assert!(self.marks.waiting() <= self.batching.waiting_max, "too many marks wait");
    }

    /// A statement was executed, or has failed.
    pub(super) fn ended(&mut self, now: Duration, statement: Statement) {
        self.marks.ended(statement.number);
        match statement.writer {
            Writer::Second => self.second = Second::Idle,
            Writer::First => {
                self.running_on_first -= 1;
                self.first_moved_at = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pgoutput::Lsn;
    use uuid::Uuid;

    use super::*;
    use crate::engine::marking::MARKS_WAITING_MAX;
    use crate::engine::{Origin, Resolved};

    const START: Duration = Duration::from_secs(100);

    fn writers(waiting: usize) -> Writers {
        let batching = Batching {
            marks: 1_000,
            interval: Duration::from_millis(50),
            waiting_max: MARKS_WAITING_MAX,
        };
        let mut writers = Writers::new(batching);
        queue(&mut writers, waiting);
        writers
    }

    fn queue(writers: &mut Writers, count: usize) {
        writers.note_first(START);
        for n in 0..count {
            let resolved = Resolved {
                id: Uuid::from_u128(n as u128),
                seq: None,
                origin: Origin::Log,
                commit_lsn: Lsn::ZERO,
                commit_time_micros: 0,
                acked: true,
            };
            assert!(writers.marks.push(&resolved), "there is room");
        }
    }

    fn flush(writers: &mut Writers, now: Duration, is_backlog: bool) -> Effects {
        let mut effects = Effects::new();
        writers.flush(now, is_backlog, false, &mut effects);
        effects
    }

    fn opens(effects: &Effects) -> bool {
        effects.iter().any(|it| matches!(it, Effect::Marking(MarkingEffect::OpenSecondWriter)))
    }

    fn statements(effects: &Effects) -> Vec<Statement> {
        let statement = |it: &Effect| {
            let Effect::Marking(MarkingEffect::Mark { statement, .. }) = it else { return None };
            Some(*statement)
        };
        effects.iter().filter_map(statement).collect()
    }

    #[test]
    fn marks_wait_for_company_and_not_for_long() {
        let mut writers = writers(999);
        assert!(statements(&flush(&mut writers, START, false)).is_empty());
        let later = START + Duration::from_millis(50);
        assert_eq!(statements(&flush(&mut writers, later, false))[0].marks, 999);
    }

    #[test]
    fn marks_of_live_events_give_way_to_the_stream() {
        let full = 2 * MARKS_AT_ONCE; // on the first connection
        let mut late = writers(full + MARKS_TOO_LATE - 1);
        assert!(!opens(&flush(&mut late, START, false)), "late, and nobody waits");
        assert!(opens(&flush(&mut late, START + STUCK_AFTER, false)), "the first one is stuck");
        assert!(opens(&flush(&mut writers(full + MARKS_TOO_LATE), START, false)), "no room soon");
        assert!(opens(&flush(&mut writers(full + MARKS_LATE), START, true)), "a backlog");
        assert!(!opens(&flush(&mut writers(full + 1), START, true)), "they are not late");
    }

    #[test]
    fn help_is_not_opened_and_closed_by_turns() {
        let mut writers = writers(2 * MARKS_AT_ONCE + MARKS_TOO_LATE);
        let effects = flush(&mut writers, START, false);
        assert!(opens(&effects));
        for statement in statements(&effects) {
            writers.ended(START, statement);
        }
        writers.second_opened(START, true);
        let mut now = START;
        let mut closed_at = None;
        while closed_at.is_none() {
            now += Duration::from_millis(100);
            let effects = flush(&mut writers, now, false);
            if effects
                .iter()
                .any(|it| matches!(it, Effect::Marking(MarkingEffect::CloseSecondWriter)))
            {
                closed_at = Some(writers.marks.waiting());
            }
            for statement in statements(&effects) {
                writers.ended(now, statement);
            }
            assert!(now < START + Duration::from_mins(1), "it is never closed");
        }
        let left = closed_at.unwrap_or_default();
        assert!((1..MARKS_TOO_LATE / 2).contains(&left), "{left} are left to the first one");
    }

    #[test]
    fn a_second_connection_that_breaks_is_not_tried_at_once() {
        let mut writers = writers(2 * MARKS_AT_ONCE + MARKS_TOO_LATE);
        assert!(opens(&flush(&mut writers, START, false)));
        writers.second_opened(START, true);
        let effects = flush(&mut writers, START, false);
        let second: Vec<_> =
            statements(&effects).into_iter().filter(|it| it.writer == Writer::Second).collect();
        assert_eq!(second.len(), 1, "one at a time");
        writers.second_broke(START);
        writers.ended(START, second[0]);
        writers.second_broke(START);
        queue(&mut writers, MARKS_AT_ONCE);
        assert!(!opens(&flush(&mut writers, START, true)));
        assert!(opens(&flush(&mut writers, START + HELP_AGAIN_AFTER, true)));
    }
}
