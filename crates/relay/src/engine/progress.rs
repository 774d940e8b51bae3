//! How much of the log PostgreSQL may discard.

use std::collections::VecDeque;

use pgoutput::Lsn;

/// Tracks which LSN may be confirmed.
///
/// Events are numbered in the order in which they entered the window. A transaction's end may be
/// confirmed once every event numbered below its boundary is resolved; a keepalive's only while
/// nothing is in flight and no transaction is partly received, because `wal_end` says what the
/// walsender has *sent*, not what anybody has stored.
#[derive(Debug, Default, Clone)]
pub(crate) struct Progress {
    /// Invariant: both fields strictly increase from front to back.
    boundaries: VecDeque<Boundary>,
    in_transaction: bool,
    received: Lsn,
    confirmed: Lsn,
}

#[derive(Debug, Clone)]
struct Boundary {
    /// Every event numbered below this one belongs to this transaction or an earlier one.
    events_end: u64,
    end_lsn: Lsn,
}

impl Progress {
    pub(crate) fn begin(&mut self) {
        self.in_transaction = true;
    }

    /// The transaction that ends at `end_lsn` is received whole; its events are numbered below
    /// `events_end`.
    pub(crate) fn commit(&mut self, end_lsn: Lsn, events_end: u64) {
        self.in_transaction = false;
        self.received = self.received.max(end_lsn);
        match self.boundaries.back_mut() {
            // A transaction without events of ours: its end replaces the last boundary's, so that
            // there are never more boundaries than events in the window.
            Some(last) if last.events_end >= events_end => last.end_lsn = last.end_lsn.max(end_lsn),
            _ => self.boundaries.push_back(Boundary { events_end, end_lsn }),
        }
    }

    /// The walsender has sent everything up to `wal_end`. `idle` says that no event is unresolved.
    pub(crate) fn keepalive(&mut self, wal_end: Lsn, idle: bool) {
        if idle && !self.in_transaction && self.boundaries.is_empty() {
            self.received = self.received.max(wal_end);
            self.confirmed = self.confirmed.max(wal_end);
        }
    }

    /// Every event numbered below `first_unresolved` is resolved.
    pub(crate) fn resolved_below(&mut self, first_unresolved: u64) {
        while let Some(oldest) = self.boundaries.front()
            && oldest.events_end <= first_unresolved
        {
            self.confirmed = self.confirmed.max(oldest.end_lsn);
            self.boundaries.pop_front();
        }
    }

    /// The events that are unresolved, and those that are still to come, are numbered from `first` and
    /// from `end`.
    pub(crate) fn assert_holds(&self, first: u64, end: u64) {
        assert!(self.confirmed <= self.received, "more is resolved than was received");
        let ascend = |one: &&Boundary, next: &&Boundary| {
            one.events_end < next.events_end && one.end_lsn < next.end_lsn
        };
        assert!(self.boundaries.iter().is_sorted_by(ascend), "transactions out of order");
        if let (Some(oldest), Some(latest)) = (self.boundaries.front(), self.boundaries.back()) {
            assert!(first < oldest.events_end, "a transaction is resolved and not confirmed");
            assert!(latest.events_end <= end, "a transaction ends with events that are to come");
            assert!(latest.end_lsn <= self.received, "a transaction was not received");
        }
    }

    /// The end of the last transaction received whole, or the last idle keepalive.
    pub(crate) fn received(&self) -> Lsn {
        self.received
    }

    /// The position to report to PostgreSQL as flushed. Never decreases.
    pub(crate) fn confirmed(&self) -> Lsn {
        self.confirmed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Transaction { events: u64 },
        HalfTransaction { events: u64 },
        Resolve { nth_unresolved: usize },
        Keepalive,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u64).prop_map(|events| Step::Transaction { events }),
            (0..4u64).prop_map(|events| Step::HalfTransaction { events }),
            (0..8usize).prop_map(|nth_unresolved| Step::Resolve { nth_unresolved }),
            Just(Step::Keepalive),
        ]
    }

    /// Everything ever received, kept for ever: (transaction end if complete, event numbers).
    #[derive(Default)]
    struct Naive {
        transactions: Vec<(Option<Lsn>, Vec<u64>)>,
        resolved: std::collections::BTreeSet<u64>,
        keepalives: Vec<Lsn>,
    }

    impl Naive {
        fn unresolved(&self) -> Vec<u64> {
            let all = self.transactions.iter().flat_map(|(_, events)| events.iter().copied());
            all.filter(|event| !self.resolved.contains(event)).collect()
        }

        fn half_received(&self) -> bool {
            self.transactions.last().is_some_and(|(end, _)| end.is_none())
        }

        fn confirmed(&self) -> Lsn {
            let prefix = self.transactions.iter().take_while(|(end, events)| {
                end.is_some() && events.iter().all(|event| self.resolved.contains(event))
            });
            let committed = prefix.filter_map(|(end, _)| *end).max().unwrap_or_default();
            committed.max(self.keepalives.last().copied().unwrap_or_default())
        }
    }

    proptest! {
        #[test]
        fn confirms_exactly_what_a_naive_model_confirms(steps in proptest::collection::vec(step(), 0..60)) {
            let (mut progress, mut naive) = (Progress::default(), Naive::default());
            let (mut lsn, mut next_event) = (100u64, 0u64);
            for step in steps {
                lsn += 10;
                match step {
                    Step::Transaction { events } | Step::HalfTransaction { events } => {
                        let ends = matches!(step, Step::Transaction { .. });
                        if !naive.half_received() {
                            progress.begin();
                            naive.transactions.push((None, Vec::new()));
                        }
                        let open = naive.transactions.last_mut().expect("just begun");
                        open.1.extend(next_event..next_event + events);
                        next_event += events;
                        if ends {
                            open.0 = Some(Lsn(lsn));
                            progress.commit(Lsn(lsn), next_event);
                        }
                    }
                    Step::Resolve { nth_unresolved } => {
                        if let Some(event) = naive.unresolved().get(nth_unresolved) {
                            naive.resolved.insert(*event);
                        }
                    }
                    Step::Keepalive => {
                        let idle = naive.unresolved().is_empty();
                        progress.keepalive(Lsn(lsn), idle);
                        if idle && !naive.half_received() {
                            naive.keepalives.push(Lsn(lsn));
                        }
                    }
                }
                progress.resolved_below(naive.unresolved().first().copied().unwrap_or(next_event));
                prop_assert_eq!(progress.confirmed(), naive.confirmed());
            }
        }
    }

    #[test]
    fn keepalive_does_not_overtake_an_unresolved_event() {
        let mut progress = Progress::default();
        progress.begin();
        progress.commit(Lsn(10), 1);
        progress.keepalive(Lsn(50), false);
        assert_eq!(progress.confirmed(), Lsn::ZERO);
        progress.resolved_below(1);
        assert_eq!(progress.confirmed(), Lsn(10));
        progress.keepalive(Lsn(50), true);
        assert_eq!(progress.confirmed(), Lsn(50));
    }

    #[test]
    fn keepalive_within_a_transaction_confirms_nothing() {
        let mut progress = Progress::default();
        progress.begin();
        progress.keepalive(Lsn(50), true);
        assert_eq!(progress.confirmed(), Lsn::ZERO);
    }
}
