//! Mends what a comparison found, as far as it can be mended without a doubt.
//!
//! A gap is given to the scanner, exactly as a requeued dead letter is: the relay publishes it
//! through the same window, tail and mark as all else. A row whose message is there gets the mark
//! that it lacks. Each batch is one statement whose `WHERE` is its precondition, so a row that has
//! changed since the comparison is left alone, and an interrupted repair is just run again.

use std::time::{Duration, Instant};

use relay::access::{Stored, stream_check};
use relay::{Config, Error};
use serde::Serialize;
use tokio::sync::watch;
use uuid::Uuid;

use crate::sql::Store;
use crate::verification::VerifyReport;
use crate::verify_rules::{Finding, Kind, KindCount};

/// Rows of one statement.
const AT_ONCE: usize = 500;

/// The broker forgets ids a little later than it says.
const MARGIN: Duration = Duration::from_secs(5);

/// How long a repair waits for the broker to forget ids.
const WAIT_MAX: Duration = Duration::from_mins(10);

/// A gap, and the place that its row named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) id: Uuid,
    pub(crate) stream: Option<String>,
    pub(crate) sequence: Option<u64>,
}

/// How long the broker remembers ids, and how long ago all that is asked about was stored at least,
/// where its row does not say it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remembering {
    pub(crate) window: Duration,
    pub(crate) elapsed: Duration,
}

/// How many gaps can be given to the scanner, and when the rest can.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct GapCounts {
    pub(crate) ready: u64,
    /// The broker may still know their ids, and would take their messages for stored.
    pub(crate) young: u64,
    /// How long it may know the youngest of them.
    pub(crate) ready_in_seconds: f64,
}

/// What a repair does, or did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Repair {
    /// Whether it was done; it is a plan otherwise.
    pub executed: bool,
    /// Gaps that the relay is to publish.
    pub gaps: u64,
    /// Gaps that are too young: the broker may still know their ids, and would store nothing.
    pub young: u64,
    /// In how many seconds it has forgotten all of these.
    pub young_for_seconds: f64,
    /// How long the repair waits now for the broker to forget them.
    #[serde(skip)]
    pub waits: Option<Duration>,
    /// Rows that are to be marked.
    pub unmarked: u64,
    /// Gaps that were given to the relay.
    pub given: u64,
    /// Rows that were marked.
    pub marked: u64,
    /// Findings that were left alone: their rows have changed since, or are locked.
    pub changed: u64,
    /// Findings that cannot be repaired from what is known.
    pub unrepaired: Vec<KindCount>,
}

impl Repair {
    /// Findings that are not repaired.
    pub fn left(&self) -> u64 {
        let others = self.unrepaired.iter().map(|it| it.count).sum::<u64>();
        if self.executed { others + self.young + self.changed } else { others }
    }
}

/// Repairs what `report` found, or with `execute` unset only says what can be repaired. `began` is
/// when the comparison did. Waits for up to 10 minutes for the broker to forget ids.
///
/// # Errors
///
/// If a server refuses or cannot be reached. What was repaired by then stays so.
///
/// # Cancel safety
///
/// May be dropped at any time, and run again.
pub async fn repair(
    config: &Config,
    report: &VerifyReport,
    began: Instant,
    execute: bool,
    progress: &watch::Sender<Repair>,
) -> Result<Repair, Error> {
    let of_kind = |kind: Kind| report.findings.iter().filter(move |it| it.kind == kind);
    let gaps: Vec<Gap> = of_kind(Kind::Gap).filter_map(Gap::of).collect();
    let unmarked = in_streams(of_kind(Kind::Unmarked));
    let store = Store::brief(config, "tailpost verify").await?;
    let window = remembered_for(config).await? + MARGIN;
    let counts = count(&store, &gaps, window, began).await?;
    let mut repair = Repair {
        executed: execute,
        gaps: counts.ready + counts.young,
        young: counts.young,
        young_for_seconds: counts.ready_in_seconds,
        unmarked: unmarked.iter().map(|it| it.1.len() as u64).sum(),
        unrepaired: unrepaired(report),
        ..Repair::default()
    };
    progress.send_replace(repair.clone());
    if !execute {
        return Ok(repair);
    }
    for (stream, stored) in &unmarked {
        for some in stored.chunks(AT_ONCE) {
            repair.marked += store.mark_stored(stream, some).await?;
            progress.send_replace(repair.clone());
        }
    }
    let waits = Duration::try_from_secs_f64(counts.ready_in_seconds).unwrap_or(Duration::MAX);
    if counts.young > 0 && waits <= WAIT_MAX {
        progress.send_replace(Repair { waits: Some(waits), ..repair.clone() });
        tokio::time::sleep(waits).await;
    }
    for some in gaps.chunks(AT_ONCE) {
        let remembering = Remembering { window, elapsed: began.elapsed() };
        repair.given += store.give_to_the_scanner(some, remembering).await?;
        progress.send_replace(repair.clone());
    }
    let rest = count(&store, &gaps, window, began).await?;
    (repair.young, repair.young_for_seconds) = (rest.young, rest.ready_in_seconds);
    let found = gaps.len() as u64 + repair.unmarked;
    repair.changed = found.saturating_sub(repair.given + repair.marked + repair.young);
    progress.send_replace(repair.clone());
    Ok(repair)
}

async fn count(
    store: &Store,
    gaps: &[Gap],
    window: Duration,
    began: Instant,
) -> Result<GapCounts, Error> {
    let mut all = GapCounts::default();
    for some in gaps.chunks(AT_ONCE) {
        let remembering = Remembering { window, elapsed: began.elapsed() };
        let counts = store.count_gaps(some, remembering).await?;
        all.ready += counts.ready;
        all.young += counts.young;
        all.ready_in_seconds = all.ready_in_seconds.max(counts.ready_in_seconds);
    }
    Ok(all)
}

/// For how long the broker takes a message with a known id for stored.
async fn remembered_for(config: &Config) -> Result<Duration, Error> {
    let nats = config.nats.connect("tailpost verify").await?;
    let mut longest = Duration::ZERO;
    for shard in config.each_shard() {
        let stream = stream_check::look(&nats, &shard.stream.name).await?;
        longest = longest.max(stream.cached_info().config.duplicate_window);
    }
    Ok(longest)
}

impl Gap {
    fn of(finding: &Finding) -> Option<Self> {
        let (stream, sequence) = (finding.stream.clone(), finding.sequence);
        Some(Self { id: finding.id?, stream, sequence })
    }
}

/// Rows with their messages, by stream. What a route drops has none, and is the relay's to mark.
fn in_streams<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<(String, Vec<Stored>)> {
    let mut streams: Vec<(String, Vec<Stored>)> = Vec::new();
    for finding in findings {
        let (Some(id), Some(stream), Some(seq)) = (finding.id, &finding.stream, finding.sequence)
        else {
            continue;
        };
        let stored = Stored { id, seq, commit_lsn: pgoutput::Lsn::ZERO };
        match streams.iter_mut().find(|it| it.0 == *stream) {
            Some((_, all)) => all.push(stored),
            None => streams.push((stream.clone(), vec![stored])),
        }
    }
    streams
}

/// What is not listed cannot be repaired in this run, either.
fn unrepaired(report: &VerifyReport) -> Vec<KindCount> {
    let is_repaired = |it: &&Finding| match it.kind {
        Kind::Gap => it.id.is_some(),
        Kind::Unmarked => it.id.is_some() && it.sequence.is_some(),
        _ => false,
    };
    let left = |it: &KindCount| {
        let of_kind = report.findings.iter().filter(|finding| finding.kind == it.kind);
        let repaired = of_kind.filter(is_repaired).count() as u64;
        KindCount { kind: it.kind, count: it.count.saturating_sub(repaired) }
    };
    report.counts.iter().map(left).filter(|it| it.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gaps_and_rows_with_messages_are_repaired() {
        let finding = |kind, sequence| Finding {
            kind,
            id: Some(Uuid::from_u128(1)),
            stream: Some("OUTBOX".into()),
            sequence,
            other_stream: None,
            other_sequence: None,
            why: "",
        };
        let count = |kind, count| KindCount { kind, count };
        let report = VerifyReport {
            counts: vec![count(Kind::Gap, 3), count(Kind::Duplicate, 1), count(Kind::Unmarked, 2)],
            findings: vec![
                finding(Kind::Gap, Some(7)),
                finding(Kind::Gap, None),
                finding(Kind::Duplicate, Some(8)),
                finding(Kind::Unmarked, Some(9)),
                finding(Kind::Unmarked, None),
            ],
            ..VerifyReport::default()
        };
        let left = unrepaired(&report);
        // One gap is counted and not listed; one row was dropped by a route.
        let expected = [count(Kind::Gap, 1), count(Kind::Duplicate, 1), count(Kind::Unmarked, 1)];
        assert_eq!(left, expected);
        let of_kind = report.findings.iter().filter(|it| it.kind == Kind::Unmarked);
        assert_eq!(in_streams(of_kind)[0].1.len(), 1);
    }
}
