//! The outbox table: rows, what is visible of them, marks, and what the sweeper is told.

use std::collections::{BTreeMap, HashSet};

use pgoutput::Lsn;
use uuid::Uuid;

use crate::engine::{Age, Found, Pass, ScanRange, Settled, SweepRange, Unmarked, Watermark};

/// Rows of this transaction came back to the outbox, for the scanner.
const CAME_BACK: u64 = 3;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) transaction: u64,
    pub(super) is_visible: bool,
    pub(super) is_marked: bool,
    /// Somebody has it locked.
    pub(super) is_locked: bool,
    /// Its mark, or its removal, is owed: nobody looks at it.
    pub(super) is_owed: bool,
    /// A route drops its event.
    pub(super) is_dropped: bool,
}

/// What a snapshot saw, by the text that stands for it.
#[derive(Debug, Clone)]
struct Snapshot {
    /// Every transaction before had ended, and none from `end` on had begun.
    oldest_running: u64,
    end: u64,
    visible: HashSet<u128>,
}

#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<u128, Row>,
    pub(super) next_transaction: u64,
    snapshots: Vec<Snapshot>,
    /// What the slot does not bring.
    start: usize,
    /// What a next session goes by.
    pub(super) watermark: Option<Watermark>,
    pub(super) swept: Option<Watermark>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            rows: BTreeMap::new(),
            next_transaction: 10,
            snapshots: Vec::new(),
            start: 0,
            watermark: None,
            swept: None,
        }
    }

    /// A transaction's number.
    pub(super) fn begin(&mut self) -> u64 {
        self.next_transaction += 1;
        self.next_transaction - 1
    }

    pub(super) fn insert(&mut self, id: u128, transaction: u64, is_visible: bool, dropped: bool) {
        let row = Row {
            transaction,
            is_visible,
            is_marked: false,
            is_locked: false,
            is_owed: false,
            is_dropped: dropped,
        };
        self.rows.insert(id, row);
    }

    /// A row comes back to the outbox.
    pub(super) fn come_back(&mut self, id: u128, is_dropped: bool) {
        self.insert(id, CAME_BACK, true, is_dropped);
    }

    /// The slot is created where the log ends: it brings nothing that `is_logged` does not hold for.
    /// What is hidden has committed all the same, as the slot goes by the log.
    pub(super) fn begin_epoch(&mut self, log_end: Lsn) {
        let visible = self.rows.keys().copied().collect();
        let (oldest_running, end) = (self.next_transaction, self.next_transaction);
        self.snapshots.push(Snapshot { oldest_running, end, visible });
        self.start = self.snapshots.len() - 1;
        self.watermark = None;
        self.swept = Some(Watermark { snapshot: self.start.to_string(), lsn: log_end });
    }

    /// All that was hidden becomes visible, of one transaction or of all.
    pub(super) fn show(&mut self, transaction: Option<u64>) {
        for row in self.rows.values_mut() {
            row.is_visible |= transaction.is_none_or(|it| it == row.transaction);
        }
    }

    pub(super) fn hidden(&self) -> Option<u64> {
        self.rows.values().filter(|it| !it.is_visible).map(|it| it.transaction).next()
    }

    pub(super) fn has_hidden_before_slot(&self) -> bool {
        let start = &self.snapshots[self.start];
        self.rows.iter().any(|(id, it)| !it.is_visible && start.visible.contains(id))
    }

    pub(super) fn take_watermark(&mut self, log_end: u64) -> Watermark {
        let hidden = self.rows.values().filter(|it| !it.is_visible).map(|it| it.transaction);
        let snapshot = Snapshot {
            oldest_running: hidden.min().unwrap_or(self.next_transaction),
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
    pub(super) fn store(&mut self, pass: &Pass) -> Found {
        let transaction = self.begin();
        self.watermark = Some(pass.watermark.clone());
        self.swept.clone_from(&pass.swept);
        let oldest_running = self.seen_by(&pass.watermark).oldest_running;
        Found { rows: self.unmarked(pass), transaction, oldest_running }
    }

    /// Rows of the log that the watermark covers and that are not marked.
    pub(super) fn unmarked(&self, pass: &Pass) -> Vec<Unmarked> {
        let (start, snapshot) = (&self.snapshots[self.start], self.seen_by(&pass.watermark));
        let swept = pass.swept.as_ref().map(|it| self.seen_by(it));
        let age = |row: &Row, id: &u128| match swept {
            Some(it) if it.visible.contains(id) && row.transaction < it.oldest_running => {
                Age::Swept
            }
            Some(it) if row.transaction >= it.end => Age::Later,
            _ => Age::Unknown,
        };
        let is_open = |(id, it): &(&u128, &Row)| {
            let is_young = swept.is_none_or(|swept| it.transaction >= swept.oldest_running);
            let is_in_range = pass.range == SweepRange::Whole || is_young;
            let is_of_log = it.transaction != CAME_BACK && !start.visible.contains(id);
            let is_open = is_of_log && !it.is_marked && !it.is_owed && it.is_visible;
            is_open && is_in_range && snapshot.visible.contains(id)
        };
        let unmarked = |(id, row): (&u128, &Row)| Unmarked {
            id: Uuid::from_u128(*id),
            is_dropped: row.is_dropped,
            age: age(row, id),
        };
        self.rows.iter().filter(is_open).map(unmarked).collect()
    }

    /// What the log does not bring and is not marked, in the order of insertion.
    pub(super) fn unpublished(&self, range: ScanRange) -> Vec<u128> {
        let start = &self.snapshots[self.start];
        let is_old = |id: &u128, it: &Row| match range {
            ScanRange::Whole => it.transaction == CAME_BACK || start.visible.contains(id),
            ScanRange::CameBack => it.transaction == CAME_BACK,
        };
        let is_wanted = |(id, it): &(&u128, &Row)| {
            it.is_visible && !it.is_marked && !it.is_owed && is_old(id, it)
        };
        self.rows.iter().filter(is_wanted).map(|(id, _)| *id).collect()
    }

    /// Marks rows, and owes the marks of those that are locked: returns how many were marked, how
    /// many are owed, and of which events no row is to be seen.
    pub(super) fn mark(&mut self, published: &[Settled]) -> (u64, u64, Vec<Settled>) {
        let (mut marked, mut owed, mut without_row) = (0, 0, Vec::new());
        for settled in published {
            match self.rows.get_mut(&settled.id.as_u128()).filter(|it| it.is_visible) {
                None => without_row.push(*settled),
                Some(row) if row.is_marked => {}
                Some(row) if row.is_locked => {
                    owed += u64::from(!row.is_owed);
                    row.is_owed = true;
                }
                Some(row) => {
                    marked += 1;
                    row.is_marked = true;
                }
            }
        }
        (marked, owed, without_row)
    }

    /// Marks what was locked and is not any more, or removes it. Returns how much is left.
    pub(super) fn make_up(&mut self, dead: impl Fn(u128) -> bool) -> u64 {
        self.rows.retain(|id, it| !(it.is_owed && !it.is_locked && dead(*id)));
        for row in self.rows.values_mut().filter(|it| it.is_owed && !it.is_locked) {
            (row.is_marked, row.is_owed) = (true, false);
        }
        self.rows.values().filter(|it| it.is_owed).count() as u64
    }

    pub(super) fn leave_to_scanner(&mut self, id: u128) -> bool {
        let row = self.rows.get_mut(&id).filter(|it| !it.is_marked);
        row.map(|it| it.transaction = CAME_BACK).is_some()
    }
}
