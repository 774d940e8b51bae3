//! What to make of rows that the log owns, that a watermark covers, and that no mark has reached.
//!
//! Almost always their marks were lost with a connection, a crash or a full queue. But a row may also
//! have come into the outbox without passing the log, and such a row must not be taken for
//! published. So a row is marked on trust only where that cannot be told; otherwise the stream
//! decides, and what the stream does not have is published.

use std::collections::{HashMap, HashSet};

use pgoutput::Lsn;
use uuid::Uuid;

use crate::engine::effect::{Age, Unmarked, Verdict};
use crate::engine::messages::Resolved;
use crate::engine::tail_messages::Stored;

/// Events that are remembered because the stream has them and no row was visible.
pub(crate) const SWEEPER_STORED_MAX: usize = 200_000;

#[derive(Debug, Clone)]
pub(crate) enum Judgement {
    /// The stream has to be read back to the last complete sweep, and the rows judged again.
    AskTheStream,
    Done(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Unread,
    /// Every message since the last complete sweep is known: by having been read, or because this
    /// session wrote them and marked their rows.
    Known,
    /// Some are gone, or there was no such sweep.
    Gaps,
}

/// Remembers from one sweep to the next.
#[derive(Debug, Clone)]
pub(crate) struct Sweeper {
    stored: HashMap<Uuid, (Option<u64>, Lsn)>,
    /// Those that were judged last: needed until the statement about them has succeeded.
    judged: Vec<Uuid>,
    stream: Stream,
    suspects: HashSet<Uuid>,
    /// The stream has lost messages that were acknowledged. No row is marked on trust until the
    /// whole table is swept, and with it every row of a transaction that was open then.
    distrusts: bool,
}

impl Sweeper {
    pub(crate) fn new() -> Self {
        let (stored, judged) = (HashMap::new(), Vec::new());
        let (stream, suspects, distrusts) = (Stream::Unread, HashSet::new(), false);
        Self { stored, judged, stream, suspects, distrusts }
    }

    pub(super) fn distrust(&mut self, distrusts: bool) {
        self.distrusts = distrusts;
    }

    pub(super) fn distrusts(&self) -> bool {
        self.distrusts
    }

    /// The stream's messages since the last complete sweep; `whole` says that none is missing.
    pub(crate) fn read(&mut self, stored: &[Stored], whole: bool) {
        let whole = whole && stored.len() <= SWEEPER_STORED_MAX;
        self.stream = if whole { Stream::Known } else { Stream::Gaps };
        for it in stored.iter().take(SWEEPER_STORED_MAX) {
            self.stored.insert(it.id, (Some(it.seq), it.commit_lsn));
        }
    }

    /// The event is stored, but its row was not to be seen when it was to be marked. False if
    /// there is no room to remember it: then its row cannot be told from one that was never logged.
    #[must_use]
    pub(crate) fn remember(&mut self, resolved: &Resolved) -> bool {
        if self.stored.len() >= SWEEPER_STORED_MAX {
            return false;
        }
        self.stored.insert(resolved.id, (resolved.seq, resolved.commit_lsn));
        true
    }

    /// What was judged last is carried out.
    pub(crate) fn carried_out(&mut self) {
        for id in std::mem::take(&mut self.judged) {
            self.stored.remove(&id);
        }
    }

    /// Nothing was left unmarked. From here on the session's own marks are all there is to know.
    pub(crate) fn completed(&mut self) {
        self.stream = Stream::Known;
        self.suspects.clear();
    }

    /// Events of which the row was not to be seen.
    pub(super) fn remembered(&self) -> usize {
        self.stored.len()
    }

    /// No transaction is left that could have hidden a row.
    pub(crate) fn forget(&mut self) {
        self.stored = HashMap::new();
    }

    /// Judges what a watermark covers. `marks_were_lost` says that this session dropped marks of
    /// rows that may be among these.
    pub(crate) fn judge(&mut self, rows: &[Unmarked], marks_were_lost: bool) -> Judgement {
        let marks_were_lost = marks_were_lost && !self.distrusts;
        let is_open = |row: &Unmarked| !row.is_dropped && !self.stored.contains_key(&row.id);
        // Where marks were lost the watermark is trusted, whatever the stream says.
        if self.stream == Stream::Unread && !marks_were_lost && rows.iter().any(is_open) {
            return Judgement::AskTheStream;
        }
        self.judged = Vec::new();
        let suspects = std::mem::take(&mut self.suspects);
        let mut verdict = Verdict::default();
        for row in rows {
            match self.opinion(row) {
                Opinion::Resolved(resolved) => verdict.resolved.push(resolved),
                Opinion::Unlogged if marks_were_lost => verdict.trusted.push(row.id),
                Opinion::Unlogged if suspects.contains(&row.id) => verdict.unlogged.push(row.id),
                Opinion::Unlogged => _ = self.suspects.insert(row.id),
                Opinion::None => verdict.trusted.push(row.id),
            }
        }
        verdict.suspected = self.suspects.len();
        Judgement::Done(verdict)
    }

    /// Judges what the last watermark of a slot covers that is gone: the log brings nothing more.
    pub(crate) fn judge_finally(&mut self, rows: &[Unmarked]) -> Verdict {
        let mut verdict = Verdict::default();
        for row in rows {
            match self.opinion(row) {
                Opinion::Resolved(resolved) => verdict.resolved.push(resolved),
                Opinion::Unlogged => verdict.unlogged.push(row.id),
                Opinion::None => verdict.trusted.push(row.id),
            }
        }
        verdict
    }

    fn opinion(&mut self, row: &Unmarked) -> Opinion {
        let place = self.stored.get(&row.id).copied();
        if place.is_some() || row.is_dropped {
            self.judged.push(row.id);
            let (seq, commit_lsn) = place.unwrap_or_default();
            let resolved = Resolved { seq, commit_lsn, ..Resolved::somewhere(row.id) };
            return Opinion::Resolved(resolved);
        }
        match row.age {
            Age::Swept => Opinion::Unlogged,
            Age::Later if self.stream == Stream::Known => Opinion::Unlogged,
            Age::Later | Age::Unknown if self.distrusts => Opinion::Unlogged,
            Age::Later | Age::Unknown => Opinion::None,
        }
    }
}

enum Opinion {
    Resolved(Resolved),
    Unlogged,
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::window::Origin;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn row(n: u128, age: Age) -> Unmarked {
        Unmarked { id: id(n), is_dropped: false, age }
    }

    fn message(n: u128) -> Stored {
        let seq = u64::try_from(n).unwrap();
        Stored { id: id(n), seq, commit_lsn: Lsn::ZERO }
    }

    fn verdict(judgement: Judgement) -> Verdict {
        match judgement {
            Judgement::Done(verdict) => verdict,
            Judgement::AskTheStream => panic!("asks the stream"),
        }
    }

    #[test]
    fn what_the_stream_has_is_marked_with_its_place_whatever_its_age() {
        let mut sweeper = Sweeper::new();
        let rows = [row(1, Age::Later), row(2, Age::Unknown), row(3, Age::Swept)];
        assert!(matches!(sweeper.judge(&rows, false), Judgement::AskTheStream));
        sweeper.read(&[message(1), message(2), message(3)], false);
        let verdict = verdict(sweeper.judge(&rows, false));
        let seqs: Vec<Option<u64>> = verdict.resolved.iter().map(|it| it.seq).collect();
        assert_eq!(seqs, [Some(1), Some(2), Some(3)]);
        assert!(verdict.trusted.is_empty() && verdict.unlogged.is_empty());
    }

    #[test]
    fn what_the_stream_lacks_is_published_if_it_is_still_there_a_watermark_later() {
        let mut sweeper = Sweeper::new();
        sweeper.read(&[message(1)], true);
        let rows = [row(7, Age::Later), row(8, Age::Swept), row(9, Age::Unknown)];
        let first = verdict(sweeper.judge(&rows, false));
        assert_eq!((first.suspected, first.trusted), (2, vec![id(9)]));
        assert!(first.unlogged.is_empty());
        let second = verdict(sweeper.judge(&rows[..2], false));
        assert_eq!((second.suspected, second.unlogged), (0, vec![id(7), id(8)]));
    }

    #[test]
    fn nothing_is_published_that_may_be_in_a_part_of_the_stream_that_is_gone() {
        let mut sweeper = Sweeper::new();
        sweeper.read(&[message(1)], false);
        for _ in 0..2 {
            let verdict = verdict(sweeper.judge(&[row(7, Age::Later)], false));
            assert_eq!((verdict.suspected, verdict.trusted), (0, vec![id(7)]));
        }
    }

    /// Their messages may be among the lost ones: the whole stream decides.
    #[test]
    fn after_a_loss_no_row_is_marked_on_trust() {
        let mut sweeper = Sweeper::new();
        sweeper.distrust(true);
        sweeper.read(&[], false);
        let rows = [row(7, Age::Later), row(8, Age::Unknown)];
        let first = verdict(sweeper.judge(&rows, true));
        assert_eq!((first.suspected, first.trusted.len()), (2, 0));
        let second = verdict(sweeper.judge(&rows, true));
        assert_eq!((second.unlogged, second.trusted.len()), (vec![id(7), id(8)], 0));
    }

    #[test]
    fn where_marks_were_dropped_the_watermark_is_trusted() {
        let mut sweeper = Sweeper::new();
        sweeper.read(&[], true);
        let rows = [row(7, Age::Later), row(8, Age::Swept)];
        verdict(sweeper.judge(&rows, false));
        let unasked = verdict(Sweeper::new().judge(&rows, true));
        for verdict in [verdict(sweeper.judge(&rows, true)), unasked] {
            assert_eq!((verdict.unlogged.len(), verdict.trusted.len()), (0, 2));
        }
    }

    #[test]
    fn after_a_complete_sweep_the_stream_need_not_be_read() {
        let mut sweeper = Sweeper::new();
        sweeper.completed();
        let rows = [row(7, Age::Later)];
        assert_eq!(verdict(sweeper.judge(&rows, false)).suspected, 1);
        let hidden = Resolved {
            id: id(7),
            seq: Some(70),
            origin: Origin::Log,
            commit_lsn: Lsn(5),
            commit_time_micros: 0,
            acked: true,
        };
        assert!(sweeper.remember(&hidden));
        let verdict = verdict(sweeper.judge(&rows, false));
        assert_eq!((verdict.resolved[0].seq, verdict.resolved[0].commit_lsn), (Some(70), Lsn(5)));
        assert!(verdict.unlogged.is_empty());
    }
}
