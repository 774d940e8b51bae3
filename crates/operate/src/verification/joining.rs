//! From files of records, joined by id, to findings.

use relay::Error;

use super::looking_again::LookingAgain;
use super::table_reading::Names;
use super::{Read, Run, VerifyReport};
use crate::spill_files::{Division, Parts};
use crate::verify_rules::aggregate_order::disorder;
use crate::verify_rules::cut::Cut;
use crate::verify_rules::judge::{Candidate, Counts, Judge};
use crate::verify_rules::spilled::{OrderRecord, OrphanRecord};
use crate::verify_rules::{Finding, Findings, Kind, Unjudged};

const BEFORE_ALL_ROWS: &str = "messages before the first one that has a row: their rows were deleted, \
                               or they never had any";
const ELSEWHERE: &str = "rows that name another stream than the configured ones";
const MARKED_BY_OTHERS: &str = "rows that somebody else marked as published: they name no stream, and \
                                no message has their ids";
const TRANSFORMED: &str = "messages whose subjects the stream transforms: these are not compared";
const EMITTED: &str = "messages of events that never had a row (outbox_emit_wal): whether one is \
                       missing, and what it held, cannot be told";
const YOUNGER: &str = "messages of events that committed after the table was read";
const REPLAYED: &str = "messages that replays stored of events that are there without them, or whose \
                        rows are gone";

/// Messages without a row that are looked at again at a time.
const ORPHANS_AT_ONCE: usize = 10_000;

const NO_ROW: &str = "no row and no dead letter has the message's id";
const NO_ID: &str = "the message has the headers of a relay, and no id";

/// Compares what was read.
pub(super) struct Joining<'a> {
    run: &'a Run<'a>,
    cut: &'a Cut,
    looking: LookingAgain<'a>,
    names: &'a Names,
    findings: Findings,
}

/// What is known of messages without a row.
#[derive(Default)]
struct Orphans {
    /// Before any that has one.
    before_all_rows: u64,
    /// Where rows are deleted once they are published.
    expected: u64,
    /// Published so long ago that their rows are deleted by retention.
    retained: u64,
}

impl<'a> Joining<'a> {
    pub(super) fn new(run: &'a Run<'a>, cut: &'a Cut, names: &'a Names, read: &Read) -> Self {
        let looking = LookingAgain::new(run, names, read);
        Self { run, cut, looking, names, findings: Findings::default() }
    }

    pub(super) async fn run(mut self, read: Read, parts: usize) -> Result<VerifyReport, Error> {
        let folder = &self.run.folder;
        let mut orders = Division::<OrderRecord>::new(folder, "orders", parts)?;
        let mut orphans = Division::<OrphanRecord>::new(folder, "orphans", parts)?;
        let mut judge = Judge::new(self.cut);
        for part in 0..read.rows.count() {
            judge.partition(read.rows.take(part)?, read.streams.messages.take(part)?);
            for record in judge.orders.drain(..) {
                orders.write(record.aggregate, &record)?;
            }
            for record in judge.orphans.drain(..) {
                orphans.write(record.at.sequence, &record)?;
            }
            self.look_at(std::mem::take(&mut judge.candidates)).await?;
        }
        let orders = orders.finish()?;
        for part in 0..orders.count() {
            self.look_at(disorder(orders.take(part)?)).await?;
        }
        let (mut counts, lowest) = (judge.counts, judge.lowest_with_row);
        let mut unrowed = Orphans::default();
        self.orphans(&orphans.finish()?, &lowest, &mut unrowed).await?;
        self.orphans(&read.streams.nameless, &lowest, &mut unrowed).await?;
        for candidate in self.looking.finish().await? {
            self.add(candidate);
        }
        counts.foreign += read.streams.foreign;
        counts.out_of_reach += read.rows_left_out;
        Ok(self.report(read, counts, &unrowed))
    }

    /// Adds those that still are findings when their events are looked at again.
    async fn look_at(&mut self, candidates: Vec<Candidate>) -> Result<(), Error> {
        for candidate in self.looking.look(candidates).await? {
            self.add(candidate);
        }
        Ok(())
    }

    fn add(&mut self, candidate: Candidate) {
        let Candidate { kind, id, at, other, why, .. } = candidate;
        let sequence = |sequence: u64| (sequence > 0).then_some(sequence);
        let is_elsewhere = other.zip(at).is_some_and(|(other, at)| other.stream != at.stream);
        self.findings.add(Finding {
            kind,
            id,
            stream: at.and_then(|it| self.names.name(it.stream)),
            sequence: at.and_then(|it| sequence(it.sequence)),
            other_stream: other.filter(|_| is_elsewhere).and_then(|it| self.names.name(it.stream)),
            other_sequence: other.and_then(|it| sequence(it.sequence)),
            why,
        });
    }

    /// Messages without a row, where rows are not deleted as a matter of course.
    async fn orphans(
        &mut self,
        records: &Parts<OrphanRecord>,
        lowest: &[Option<u64>],
        unrowed: &mut Orphans,
    ) -> Result<(), Error> {
        for part in 0..records.count() {
            let mut candidates = Vec::new();
            for OrphanRecord { at, id } in records.take(part)? {
                let stream = usize::from(at.stream);
                let has_rows_before =
                    lowest.get(stream).copied().flatten().is_some_and(|it| it < at.sequence);
                if self.cut.marking.deletes && id.is_some() {
                    unrowed.expected += 1;
                } else if self.cut.may_be_deleted(at.stream, at.sequence) && id.is_some() {
                    unrowed.retained += 1;
                } else if has_rows_before || id.is_none() {
                    let (kind, why) = (Kind::Phantom, if id.is_some() { NO_ROW } else { NO_ID });
                    let at = Some(at);
                    candidates.push(Candidate { kind, id, at, other: None, named: None, why });
                } else {
                    unrowed.before_all_rows += 1;
                }
                if candidates.len() >= ORPHANS_AT_ONCE {
                    self.look_at(std::mem::take(&mut candidates)).await?;
                }
            }
            self.look_at(candidates).await?;
        }
        Ok(())
    }

    fn report(self, read: Read, counts: Counts, unrowed: &Orphans) -> VerifyReport {
        let unjudged = self.unjudged(&counts, unrowed);
        let (findings, kinds) = self.findings.finish();
        let age = |micros: i64| read.table.at_micros.saturating_sub(micros).max(0) as f64 / 1e6;
        VerifyReport {
            table: self.run.config.table.to_string(),
            sample: self.run.options.sample,
            rows: counts.rows,
            dead_letters: counts.dead_letters,
            streams: read.streams.reads,
            matched: counts.matched,
            pending: counts.pending,
            oldest_pending_seconds: counts.oldest_pending_micros.map(age),
            counts: kinds,
            findings,
            unjudged,
            seconds: 0.0,
        }
    }

    /// What cannot be told, or is none of the relay's.
    fn unjudged(&self, counts: &Counts, unrowed: &Orphans) -> Vec<Unjudged> {
        let is_limited = self.run.options.since.is_some() || self.run.options.from_lsn.is_some();
        let range = if is_limited { " or before the range" } else { "" };
        let out_of_reach = format!(
            "rows whose messages the stream has purged or forgotten{range}, or cannot be told to \
             have kept"
        );
        let is_unknown = "whether they ever had one, and what it held, cannot be told";
        let deleted = format!("messages without a row, with relay.mark = \"delete\": {is_unknown}");
        let retained = format!(
            "messages without a row from before the time up to which retention deletes rows: \
             {is_unknown}"
        );
        [
            ("out_of_reach", counts.out_of_reach, &*out_of_reach),
            ("without_row", unrowed.before_all_rows, BEFORE_ALL_ROWS),
            ("deleted", unrowed.expected, &deleted),
            ("retention", unrowed.retained, &retained),
            ("elsewhere", counts.elsewhere, ELSEWHERE),
            ("marked_by_others", counts.marked_by_others, MARKED_BY_OTHERS),
            ("dropped", counts.dropped, "rows that a route dropped"),
            ("routed_away", counts.routed_away, "events that the present routes would drop"),
            ("transformed", counts.transformed, TRANSFORMED),
            ("emitted", counts.emitted, EMITTED),
            ("younger", counts.younger, YOUNGER),
            ("replayed", counts.replayed, REPLAYED),
            ("foreign", counts.foreign, "messages of other writers"),
        ]
        .into_iter()
        .filter(|it| it.1 > 0)
        .map(|(what, count, why)| Unjudged { what, count, why: why.to_owned() })
        .collect()
    }
}
