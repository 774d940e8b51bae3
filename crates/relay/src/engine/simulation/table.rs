//! The outbox table: rows, what is visible of them, marks, and what the sweeper is told.

use std::collections::BTreeMap;

use pgoutput::Lsn;
use uuid::Uuid;

use crate::engine::{
    Age, Found, Pass, Resolved, ScanRange, SweepRange, Swept, Unmarked, Verdict, Watermark,
};

/// Rows of this transaction came back to the outbox, for the scanner.
const CAME_BACK: u64 = 3;

#[derive(Debug, Clone)]
pub(in crate::engine) struct Row {
    pub(in crate::engine) transaction: u64,
    pub(in crate::engine) is_visible: bool,
    pub(in crate::engine) is_marked: bool,
    /// Somebody has it locked.
    pub(in crate::engine) is_locked: bool,
    /// Its mark, or its removal, is owed: nobody looks at it.
    pub(in crate::engine) is_owed: bool,
    /// A route drops its event.
    pub(in crate::engine) is_dropped: bool,
    /// The sequence that its mark names, or the one that it is owed.
    pub(in crate::engine) seq: Option<u64>,
}

impl Row {
    pub(in crate::engine) fn is_left_to_scanner(&self) -> bool {
        self.transaction == CAME_BACK
    }
}

/// What a snapshot saw, by the text that stands for it.
#[derive(Debug, Clone)]
struct Snapshot {
    /// Every transaction before had ended, and none from `end` on had begun.
    oldest_running: u64,
    end: u64,
    /// In their order.
    visible: Vec<u128>,
}

impl Snapshot {
    fn sees(&self, id: u128) -> bool {
        self.visible.binary_search(&id).is_ok()
    }
}

#[derive(Debug, Clone)]
pub(in crate::engine) struct Table {
    pub(in crate::engine) rows: BTreeMap<u128, Row>,
    pub(in crate::engine) next_transaction: u64,
    /// The watermark is the only mark: rows stay as they are.
    by_watermark: bool,
    /// A transaction that is open, and has written something.
    pub(in crate::engine) running: Option<u64>,
    snapshots: Vec<Snapshot>,
    /// What the slot does not bring.
    start: usize,
    /// What a next session goes by.
    pub(in crate::engine) watermark: Option<Watermark>,
    pub(in crate::engine) swept: Option<Watermark>,
}

impl Table {
    pub(in crate::engine) fn new(by_watermark: bool) -> Self {
        Self {
            rows: BTreeMap::new(),
            next_transaction: 10,
            by_watermark,
            running: None,
            snapshots: Vec::new(),
            start: 0,
            watermark: None,
            swept: None,
        }
    }

    /// A transaction's number.
    pub(in crate::engine) fn begin(&mut self) -> u64 {
        self.next_transaction += 1;
        self.next_transaction - 1
    }

    pub(in crate::engine) fn insert(
        &mut self,
        id: u128,
        transaction: u64,
        is_visible: bool,
        dropped: bool,
    ) {
        let row = Row {
            transaction,
            is_visible,
            is_marked: false,
            is_locked: false,
            is_owed: false,
            is_dropped: dropped,
            seq: None,
        };
        self.rows.insert(id, row);
    }

    /// A row comes back to the outbox.
    pub(in crate::engine) fn come_back(&mut self, id: u128, is_dropped: bool) {
        self.insert(id, CAME_BACK, true, is_dropped);
    }

    /// The slot is created where the log ends: it brings nothing that `is_logged` does not hold for.
    /// What is hidden has committed all the same, as the slot goes by the log.
    pub(in crate::engine) fn begin_epoch(&mut self, log_end: Lsn) {
        let visible = self.rows.keys().copied().collect();
        let end = self.next_transaction;
        let oldest_running = self.running.unwrap_or(end);
        self.snapshots.push(Snapshot { oldest_running, end, visible });
        self.start = self.snapshots.len() - 1;
        self.watermark = None;
        self.swept = Some(Watermark { snapshot: self.start.to_string(), lsn: log_end });
    }

    /// All that was hidden becomes visible, of one transaction or of all.
    pub(in crate::engine) fn show(&mut self, transaction: Option<u64>) {
        for row in self.rows.values_mut() {
            row.is_visible |= transaction.is_none_or(|it| it == row.transaction);
        }
    }

    /// Transactions that are not visible yet, by row.
    pub(in crate::engine) fn hidden(&self) -> impl Iterator<Item = u64> {
        self.rows.values().filter(|it| !it.is_visible).map(|it| it.transaction)
    }

    pub(in crate::engine) fn has_hidden_before_slot(&self) -> bool {
        let start = &self.snapshots[self.start];
        self.rows.iter().any(|(id, it)| !it.is_visible && start.sees(*id))
    }

    pub(in crate::engine) fn take_watermark(&mut self, log_end: u64) -> Watermark {
        let snapshot = Snapshot {
            oldest_running: self
                .hidden()
                .chain(self.running)
                .min()
                .unwrap_or(self.next_transaction),
            end: self.next_transaction,
            visible: self.rows.iter().filter(|(_, it)| it.is_visible).map(|(id, _)| *id).collect(),
        };
        self.snapshots.push(snapshot);
        Watermark { snapshot: (self.snapshots.len() - 1).to_string(), lsn: Lsn(log_end) }
    }

    fn seen_by(&self, watermark: &Watermark) -> &Snapshot {
        &self.snapshots[watermark.snapshot.parse::<usize>().expect("a number")]
    }

    /// Stores a watermark.
    pub(in crate::engine) fn store(&mut self, pass: &Pass) -> Found {
        let transaction = self.begin();
        self.watermark = Some(pass.watermark.clone());
        self.swept.clone_from(&pass.swept);
        let oldest_running = self.seen_by(&pass.watermark).oldest_running;
        Found { rows: self.unmarked(pass), transaction, oldest_running }
    }

    /// Rows of the log that the watermark covers and that are not marked.
    pub(in crate::engine) fn unmarked(&self, pass: &Pass) -> Vec<Unmarked> {
        let (start, snapshot) = (&self.snapshots[self.start], self.seen_by(&pass.watermark));
        let swept = pass.swept.as_ref().map(|it| self.seen_by(it));
        let age = |row: &Row, id: &u128| match swept {
            Some(it) if it.sees(*id) && row.transaction < it.oldest_running => Age::Swept,
            Some(it) if row.transaction >= it.end => Age::Later,
            _ => Age::Unknown,
        };
        let is_open = |(id, it): &(&u128, &Row)| {
            let is_young = swept.is_none_or(|swept| it.transaction >= swept.oldest_running);
            let is_in_range = pass.range == SweepRange::Whole || is_young;
            let is_open = !self.by_watermark && !it.is_marked && !it.is_owed && it.is_visible;
            let is_of_log = || it.transaction != CAME_BACK && !start.sees(**id);
            is_open && is_in_range && is_of_log() && snapshot.sees(**id)
        };
        let unmarked = |(id, row): (&u128, &Row)| Unmarked {
            id: Uuid::from_u128(*id),
            is_dropped: row.is_dropped,
            age: age(row, id),
        };
        self.rows.iter().filter(is_open).map(unmarked).collect()
    }

    /// What the log does not bring and is not marked, in the order of insertion.
    pub(in crate::engine) fn unpublished(&self, range: ScanRange) -> Vec<u128> {
        let start = &self.snapshots[self.start];
        let is_old = |id: &u128, it: &Row| match range {
            ScanRange::Whole => it.transaction == CAME_BACK || start.sees(*id),
            ScanRange::CameBack => it.transaction == CAME_BACK,
        };
        let is_wanted = |(id, it): &(&u128, &Row)| {
            it.is_visible && !it.is_marked && !it.is_owed && is_old(id, it)
        };
        self.rows.iter().filter(is_wanted).map(|(id, _)| *id).collect()
    }

    /// What is visible and not marked, in the order of insertion.
    pub(in crate::engine) fn visible(&self) -> Vec<u128> {
        let is_open = |it: &Row| it.is_visible && !it.is_marked && !it.is_owed;
        self.rows.iter().filter(|(_, it)| is_open(it)).map(|(id, _)| *id).collect()
    }

    /// Marks rows, and owes the marks of those that are locked: returns how many were marked, how
    /// many are owed, and of which events no row is to be seen.
    pub(in crate::engine) fn mark(&mut self, published: &[Resolved]) -> (u64, u64, Vec<Resolved>) {
        let (mut marked, mut owed, mut without_row) = (0, 0, Vec::new());
        for resolved in published {
            match self.rows.get_mut(&resolved.id.as_u128()).filter(|it| it.is_visible) {
                None => without_row.push(*resolved),
                Some(row) if row.is_marked => {}
                Some(row) if row.is_locked => {
                    owed += u64::from(!row.is_owed);
                    (row.is_owed, row.seq) = (true, resolved.seq);
                }
                Some(row) => {
                    marked += 1;
                    (row.is_marked, row.seq) = (true, resolved.seq);
                }
            }
        }
        (marked, owed, without_row)
    }

    /// Marks what was locked and is not any more, or removes it. Returns how much is left.
    pub(in crate::engine) fn make_up(&mut self, dead: impl Fn(u128) -> bool) -> u64 {
        self.rows.retain(|id, it| !(it.is_owed && !it.is_locked && dead(*id)));
        for row in self.rows.values_mut().filter(|it| it.is_owed && !it.is_locked) {
            (row.is_marked, row.is_owed) = (true, false);
        }
        self.rows.values().filter(|it| it.is_owed).count() as u64
    }

    /// Does what a verdict says: marks what is in the stream, and leaves the rest to the scanner.
    pub(in crate::engine) fn carry_out(
        &mut self,
        found: Found,
        verdict: &Verdict,
        is_published: impl Fn(u128) -> bool,
        is_in_stream: impl Fn(u128) -> bool,
    ) -> Swept {
        let (mut marked, mut unlogged) = (0, 0);
        let resolved = verdict.resolved.iter().map(|it| (it.id, it.seq));
        for (id, seq) in resolved.chain(verdict.trusted.iter().map(|id| (*id, None))) {
            assert!(is_published(id.as_u128()), "row {id} is marked and not published");
            marked += self.mark_one(id.as_u128(), seq);
        }
        for id in verdict.unlogged.iter().map(Uuid::as_u128) {
            match is_in_stream(id) {
                true => marked += self.mark_one(id, None),
                false => unlogged += u64::from(self.leave_to_scanner(id)),
            }
        }
        Swept { found, marked, unlogged, suspected: verdict.suspected }
    }

    fn mark_one(&mut self, id: u128, seq: Option<u64>) -> u64 {
        let Some(row) = self.rows.get_mut(&id).filter(|it| !it.is_marked) else { return 0 };
        (row.is_marked, row.seq) = (true, seq);
        1
    }

    /// The rows that say where their events are stored.
    pub(in crate::engine) fn named(&self) -> impl Iterator<Item = (u64, u128)> {
        self.rows.iter().filter_map(|(id, it)| Some((it.seq?, *id)))
    }

    /// Takes the marks of what the stream lacks.
    pub(in crate::engine) fn take_back(&mut self, lost: &[u128]) {
        for (_, row) in self.rows.iter_mut().filter(|(id, _)| lost.contains(id)) {
            (row.is_marked, row.is_owed, row.seq) = (false, false, None);
        }
    }

    /// Takes their marks from rows of the log that name no message: any of them may be lost.
    pub(in crate::engine) fn doubt_trusted(&mut self) {
        let start = &self.snapshots[self.start];
        let is_of_log = |id: &u128, it: &Row| it.transaction != CAME_BACK && !start.sees(*id);
        for (id, row) in &mut self.rows {
            if row.seq.is_none() && !row.is_dropped && is_of_log(id, row) {
                (row.is_marked, row.is_owed) = (false, false);
            }
        }
    }

    /// Whether the slot brings the row.
    pub(in crate::engine) fn is_logged(&self, id: u128) -> bool {
        let is_of_log = |it: &Row| it.transaction != CAME_BACK;
        self.rows.get(&id).is_some_and(is_of_log) && !self.snapshots[self.start].sees(id)
    }

    pub(in crate::engine) fn leave_to_scanner(&mut self, id: u128) -> bool {
        let row = self.rows.get_mut(&id).filter(|it| !it.is_marked);
        row.map(|it| it.transaction = CAME_BACK).is_some()
    }
}
