//! What an earlier session wrote down, and what of it holds for the stream that is found.

use jiff::{SignedDuration, Timestamp};
use pgoutput::Lsn;

use super::last_event::LastEvent;
use super::tail_messages::Tail;

/// PostgreSQL's clock, which rows are marked by, and the broker's may differ by so much.
const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_mins(1);

/// How far the log was worked through, and the stream filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Every event of the log is resolved that committed before this,
    pub(crate) commit_lsn: Lsn,
    /// or there, and is one of the first so many of its transaction.
    pub(crate) ordinal: u32,
    /// The sequence that the next event of the log was to follow in the stream, if nothing but
    /// the log's events comes in between.
    pub(crate) seq: Option<u64>,
}

/// How far a relay had got, as it wrote down beside the checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResolvedPlace {
    pub(crate) place: Place,
    /// When that was, in microseconds from 2000 on, by the database's clock.
    pub(crate) at_micros: i64,
    /// What decided which events take a sequence, if that was written down.
    pub(crate) rules: Option<i64>,
}

/// What an earlier session wrote down, and how much of it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrittenDown {
    pub(crate) place: Option<Place>,
    /// When, as PostgreSQL counts time.
    pub(crate) at_micros: i64,
    /// By the same rules as now, and of the same stream: what takes a sequence takes one still.
    pub(crate) is_same: bool,
    /// The stream has all that it ever had of what the log may bring again.
    pub(crate) stream_is_whole: bool,
    /// Nobody can have published an event that committed there or later. Zero while that is not known.
    pub(crate) before: Lsn,
}

impl WrittenDown {
    /// There is none, and none is needed.
    pub(crate) fn nothing() -> Self {
        let (place, at_micros, before) = (None, 0, Lsn::ZERO);
        Self { place, at_micros, is_same: true, stream_is_whole: true, before }
    }

    /// What holds of `resolved` by the `rules` of this session.
    pub(crate) fn of(resolved: Option<ResolvedPlace>, rules: i64, stream_is_whole: bool) -> Self {
        Self {
            place: resolved.map(|it| it.place),
            at_micros: resolved.map_or(0, |it| it.at_micros),
            is_same: resolved.is_some_and(|it| it.rules == Some(rules)),
            stream_is_whole,
            before: Lsn::ZERO,
        }
    }

    /// The stream ends before the place: it lacks what was written down as published.
    pub(crate) fn is_beyond(&self, tail: &Tail) -> bool {
        self.place.and_then(|it| it.seq).is_some_and(|it| tail.last_seq < it)
    }

    /// Whether something has to be counted, or may come a second time: up to where the log ends now,
    /// before anything is sent.
    pub(crate) fn needs_end(&self, tail: &Tail) -> bool {
        !self.stream_is_whole || self.is_beyond(tail)
    }
}

/// Sequences that were acknowledged, and that the stream has not given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostEnd {
    /// When the stream was created.
    pub(crate) created: Timestamp,
    /// The highest one that was acknowledged.
    pub(crate) acknowledged: u64,
    /// Where the stream ends.
    pub(crate) last_seq: u64,
    /// When it got the last message that it has.
    pub(crate) last_at: Timestamp,
    /// It was longer, and has grown again: others have the sequences of lost messages.
    pub(crate) has_grown: bool,
}

impl LostEnd {
    /// The stream is not shorter than it was, and has another message in the place of a known event.
    pub(crate) fn grown(self) -> Self {
        Self { acknowledged: self.last_seq, has_grown: true, ..self }
    }

    /// How many messages it lacks, of which others are stored in the places of `displaced` rows.
    pub(crate) fn messages(&self, displaced: usize) -> u64 {
        let at_least = u64::from(self.has_grown); // whose row may be gone
        (self.acknowledged - self.last_seq + displaced as u64).max(at_least)
    }

    /// What was marked before is another stream's of that name.
    pub(crate) fn marked_since(&self) -> Timestamp {
        self.created.checked_sub(CLOCKS_DIFFER_MAX).unwrap_or(Timestamp::MIN)
    }

    /// A row that was marked before, and names no message, has one that the stream did not lose.
    pub(crate) fn doubted_since(&self) -> Timestamp {
        if self.has_grown {
            return self.marked_since(); // it got its last message after the loss
        }
        let last_at = self.last_at.checked_sub(CLOCKS_DIFFER_MAX).unwrap_or(Timestamp::MIN);
        last_at.max(self.marked_since())
    }
}

/// What the stream is beside what was written down of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) lost: Option<LostEnd>,
    /// It is another stream, and ends before the former one did.
    pub(crate) is_made_anew: bool,
    /// It had lost something since the whole table was last swept.
    pub(crate) unswept: bool,
    /// If it has another message there, it has lost its end although it is not shorter.
    pub(crate) event: Option<LastEvent>,
}

impl Compared {
    /// Of the stream of that name it is written down what it had `acknowledged`; `is_same` says that it
    /// was created when this one was. Another stream need not have what the former one had.
    pub(crate) fn of(
        found: LostEnd,
        is_same: bool,
        unswept: bool,
        event: Option<LastEvent>,
    ) -> Self {
        let is_shorter = found.acknowledged > found.last_seq;
        Self {
            lost: Some(found).filter(|_| is_same && is_shorter),
            is_made_anew: !is_same && is_shorter,
            unswept,
            event: event.filter(|_| is_same && !is_shorter),
        }
    }
}

/// The highest position of this cluster's log that the stream has, if the log ends before it: events
/// are published that the database does not have, or has again under other positions.
pub(crate) fn beyond_the_log(tail: &Tail, log_end: Lsn) -> Option<Lsn> {
    tail.position.map(|it| it.commit_lsn).filter(|it| *it >= log_end)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::engine::window::LastPosition;

    fn found(acknowledged: u64) -> LostEnd {
        let (created, last_at) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + CLOCKS_DIFFER_MAX);
        LostEnd { created, acknowledged, last_seq: 10, last_at, has_grown: false }
    }

    #[test]
    fn a_stream_has_lost_what_it_acknowledged_and_another_one_has_not() {
        for (acknowledged, is_same, lost, is_made_anew) in [
            (10, true, false, false),
            (11, true, true, false),
            (11, false, false, true),
            (10, false, false, false),
        ] {
            let event = Some(LastEvent { seq: acknowledged, id: Uuid::nil() });
            let compared = Compared::of(found(acknowledged), is_same, false, event);
            assert_eq!((compared.lost.is_some(), compared.is_made_anew), (lost, is_made_anew));
            assert_eq!(compared.event.is_some(), is_same && !lost, "there it is to be looked");
        }
    }

    #[test]
    fn what_was_marked_a_minute_before_the_stream_was_made_may_be_its() {
        assert_eq!(found(11).marked_since(), Timestamp::UNIX_EPOCH - CLOCKS_DIFFER_MAX);
        assert_eq!(found(11).doubted_since(), Timestamp::UNIX_EPOCH);
        let empty = LostEnd { last_at: Timestamp::MIN, ..found(11) };
        assert_eq!(empty.doubted_since(), empty.marked_since());
        assert_eq!(found(11).grown().doubted_since(), found(11).marked_since());
    }

    #[test]
    fn the_logs_end_is_asked_for_where_the_stream_lacks_something() {
        let place = Place { commit_lsn: Lsn(5), ordinal: 0, seq: Some(10) };
        let resolved = ResolvedPlace { place, at_micros: 3, rules: Some(1) };
        let written = |is_whole| WrittenDown::of(Some(resolved), 1, is_whole);
        assert!(!written(true).needs_end(&Tail::ending_at(10)));
        assert!(written(true).needs_end(&Tail::ending_at(9)));
        assert!(written(false).needs_end(&Tail::ending_at(10)));
        assert!(written(true).is_same && !WrittenDown::of(Some(resolved), 2, true).is_same);
        assert!(!WrittenDown::of(None, 1, true).is_same);
    }

    #[test]
    fn a_log_that_went_back_ends_before_what_the_stream_has() {
        let event = uuid::Uuid::nil();
        let mut tail = Tail::ending_at(1);
        assert_eq!(beyond_the_log(&tail, Lsn(5)), None);
        tail.position = Some(LastPosition { commit_lsn: Lsn(7), ordinal: 0, event });
        assert_eq!(beyond_the_log(&tail, Lsn(8)), None);
        assert_eq!(beyond_the_log(&tail, Lsn(7)), Some(Lsn(7)));
    }
}
