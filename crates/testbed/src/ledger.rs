//! What was committed beside what was stored.
//!
//! The ledger believes nobody: it reads the table, the dead letters and the stream, and compares.

mod read;

use std::collections::{HashMap, HashSet};
use std::fmt;

use anyhow::{Result, bail};
use outbox::wire::Position;
use serde::Serialize;
use uuid::Uuid;

/// How many findings an error message tells.
const TOLD_MAX: usize = 10;

/// Everything in the outbox and in the stream at one time.
///
/// Collect it when nothing is under way any more: an event not yet published counts as lost.
#[derive(Debug, Default)]
pub struct Ledger {
    rows: Vec<Row>,
    dead: HashSet<Uuid>,
    committed_elsewhere: HashSet<Uuid>,
    /// In the stream's order.
    messages: Vec<Message>,
    foreign: usize,
}

/// A row of the outbox.
#[derive(Debug)]
struct Row {
    id: Uuid,
    aggregate: Aggregate,
    seq: i64,
    marked: bool,
    stream_seq: Option<u64>,
}

/// Type and id.
type Aggregate = (String, String);

/// A message of the stream that carries an event's id.
#[derive(Debug)]
struct Message {
    sequence: u64,
    id: Uuid,
    /// Where the log had the event; `None` if the log did not bring it.
    position: Option<Position>,
}

/// How many events went which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Events whose transaction committed.
    pub committed: usize,
    /// Messages in the stream that carry an event's id.
    pub stored: usize,
    /// Rows with `published_at`.
    pub marked: usize,
    /// Events in the dead-letter table.
    pub dead: usize,
    /// Messages in the stream that carry no event's id.
    pub foreign: usize,
    /// Committed events that are neither in the stream nor dead.
    pub lost: usize,
    /// Messages beyond the first with the same event's id.
    pub duplicates: usize,
    /// Messages behind a later one of their aggregate, or of the log.
    pub out_of_order: usize,
    /// Messages whose event was never committed.
    pub phantoms: usize,
    /// Marks on rows whose event is not in the stream, or not where the mark says.
    pub mismarked: usize,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A committed event that is neither in the stream nor dead.
    Lost(Uuid),
    /// A message whose event an earlier message brought already.
    Duplicate {
        /// The event.
        id: Uuid,
        /// The earlier message's sequence.
        first: u64,
        /// This message's sequence.
        again: u64,
    },
    /// A message behind a later event of its aggregate, or behind a later position in the log.
    OutOfOrder {
        /// The event that comes too late.
        id: Uuid,
        /// Its message's sequence.
        sequence: u64,
        /// What it should come before.
        behind: Uuid,
    },
    /// A message whose event was never committed.
    Phantom {
        /// The event.
        id: Uuid,
        /// The message's sequence.
        sequence: u64,
    },
    /// A mark that does not tell the truth.
    Mismarked {
        /// The event.
        id: Uuid,
        /// The sequence that the mark tells, if any.
        told: Option<u64>,
        /// The sequence in the stream, if any.
        actual: Option<u64>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(id) => write!(f, "event {id} is lost"),
            Self::Duplicate { id, first, again } => {
                write!(f, "event {id} is in the stream at {first} and again at {again}")
            }
            Self::OutOfOrder { id, sequence, behind } => {
                write!(f, "event {id} at {sequence} comes after {behind}, and should not")
            }
            Self::Phantom { id, sequence } => {
                write!(f, "event {id} at {sequence} was never committed")
            }
            Self::Mismarked { id, told, actual } => {
                write!(f, "event {id} is marked as stored at {told:?}, and is at {actual:?}")
            }
        }
    }
}

impl Ledger {
    /// Adds events that are known to have committed although their rows are gone, for instance because publishing deletes them.
    pub fn also_committed(&mut self, ids: impl IntoIterator<Item = Uuid>) {
        self.committed_elsewhere.extend(ids);
    }

    /// Counts what happened, and what must not have.
    pub fn report(&self) -> Tally {
        let mut tally = Tally {
            committed: self.committed().len(),
            stored: self.messages.len(),
            marked: self.rows.iter().filter(|it| it.marked).count(),
            dead: self.dead.len(),
            foreign: self.foreign,
            ..Tally::default()
        };
        for finding in self.findings() {
            let count = match finding {
                Finding::Lost(_) => &mut tally.lost,
                Finding::Duplicate { .. } => &mut tally.duplicates,
                Finding::OutOfOrder { .. } => &mut tally.out_of_order,
                Finding::Phantom { .. } => &mut tally.phantoms,
                Finding::Mismarked { .. } => &mut tally.mismarked,
            };
            *count += 1;
        }
        tally
    }

    /// Counts what happened, if nothing happened that must not.
    ///
    /// # Errors
    ///
    /// When there are findings; the message tells the first ones.
    pub fn check(&self) -> Result<Tally> {
        let (tally, findings) = (self.report(), self.findings());
        if findings.is_empty() {
            return Ok(tally);
        }
        let told: Vec<String> = findings.iter().take(TOLD_MAX).map(Finding::to_string).collect();
        bail!("{} findings, {tally:?}:\n  {}", findings.len(), told.join("\n  "))
    }

    /// Everything that must not be.
    pub fn findings(&self) -> Vec<Finding> {
        let committed = self.committed();
        let mut first: HashMap<Uuid, u64> = HashMap::with_capacity(self.messages.len());
        let mut findings = Vec::new();
        for &Message { id, sequence, .. } in &self.messages {
            if let Some(&first) = first.get(&id) {
                findings.push(Finding::Duplicate { id, first, again: sequence });
                continue;
            }
            first.insert(id, sequence);
            if !committed.contains(&id) {
                findings.push(Finding::Phantom { id, sequence });
            }
        }
        let gone = |id: &&Uuid| !first.contains_key(*id) && !self.dead.contains(*id);
        findings.extend(committed.iter().filter(gone).map(|&id| Finding::Lost(id)));
        findings.extend(self.out_of_order(&first));
        findings.extend(self.mismarked(&first));
        findings
    }

    fn committed(&self) -> HashSet<Uuid> {
        let rows = self.rows.iter().map(|it| it.id);
        rows.chain(self.dead.iter().copied())
            .chain(self.committed_elsewhere.iter().copied())
            .collect()
    }

    /// Two rules: an aggregate's events come in the order of insertion, the log's events in the order of the log.
    ///
    /// Only the first message of an event counts: a duplicate is a finding of its own.
    fn out_of_order(&self, first: &HashMap<Uuid, u64>) -> Vec<Finding> {
        let rows: HashMap<Uuid, &Row> = self.rows.iter().map(|it| (it.id, it)).collect();
        let mut latest_of: HashMap<&Aggregate, (i64, Uuid)> = HashMap::new();
        let mut latest_live: Option<(Position, Uuid)> = None;
        let mut findings = Vec::new();
        for &Message { id, sequence, position } in &self.messages {
            if first.get(&id) != Some(&sequence) {
                continue;
            }
            let mut behind = None;
            if let Some(row) = rows.get(&id) {
                let latest = latest_of.entry(&row.aggregate).or_insert((row.seq, id));
                if row.seq < latest.0 {
                    behind = Some(latest.1);
                } else {
                    *latest = (row.seq, id);
                }
            }
            if let Some(position) = position {
                match latest_live {
                    Some((latest, other)) if is_before(position, latest) => behind = Some(other),
                    _ => latest_live = Some((position, id)),
                }
            }
            findings.extend(behind.map(|behind| Finding::OutOfOrder { id, sequence, behind }));
        }
        findings
    }

    fn mismarked(&self, first: &HashMap<Uuid, u64>) -> Vec<Finding> {
        let marked = self.rows.iter().filter(|it| it.marked && !self.dead.contains(&it.id));
        let findings = marked.filter_map(|row| {
            let actual = first.get(&row.id).copied();
            let truthful =
                actual.is_some() && (row.stream_seq.is_none() || row.stream_seq == actual);
            let finding = Finding::Mismarked { id: row.id, told: row.stream_seq, actual };
            (!truthful).then_some(finding)
        });
        findings.collect()
    }
}

/// Positions can be compared only within one history.
fn is_before(a: Position, b: Position) -> bool {
    (a.system_id, a.timeline) == (b.system_id, b.timeline)
        && (a.lsn, a.ordinal) < (b.lsn, b.ordinal)
}

#[cfg(test)]
mod tests;
