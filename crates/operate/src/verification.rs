//! Compares the table with the streams while everything goes on: see [`crate::verify_rules`].

mod joining;
mod looking_again;
mod removals;
mod stream_reading;
mod table_reading;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pgoutput::Lsn;
use relay::access::StateRow;
use relay::{Config, Error, MarkBy, Mode};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::joining::Joining;
use self::stream_reading::{FiledStreams, StreamRecords, StreamSource};
use self::table_reading::Names;
use crate::spill_files::{Parts, RECORD_BYTES, SpillFolder, parts_for};
use crate::sql::{ReadRange, Store, TableCut};
use crate::verify_rules::cut::{Cut, Marking, ShardCut};
use crate::verify_rules::snapshot::Snapshot;
use crate::verify_rules::spilled::RowRecord;
use crate::verify_rules::{Finding, KindCount, Unjudged};

/// How long a relay may take to be done with what the snapshot shows. What it is not done with then
/// is pending.
const PASSING_MAX: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What is compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Only what was stored from this time on.
    pub since: Option<Timestamp>,
    /// Only what was stored from the first message on whose position is not before this.
    pub from_lsn: Option<Lsn>,
    /// One event of so many, chosen by its id. 0 and 1 mean all.
    pub sample: u32,
}

/// How far a comparison has come.
#[derive(Debug, Clone, Default)]
pub struct VerifyProgress {
    /// Rows and messages that are expected, about; 0 before it is known.
    pub expected: u64,
    /// Those that were read.
    pub read: u64,
    /// Whether all is read and is being compared.
    pub compares: bool,
    /// At most so many bytes of temporary files are needed.
    pub disk_bytes: u64,
    /// Where they are.
    pub folder: PathBuf,
}

/// What of a stream was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamRead {
    /// Its name.
    pub name: String,
    /// The first and the last sequence that count.
    pub first_sequence: u64,
    /// See `first_sequence`.
    pub last_sequence: u64,
    /// Messages read.
    pub messages: u64,
}

/// What a comparison found.
#[derive(Debug, Default, Serialize)]
pub struct VerifyReport {
    /// The table, as `schema.name`.
    pub table: String,
    /// One event of so many was compared.
    pub sample: u32,
    /// Rows read.
    pub rows: u64,
    /// Dead letters read.
    pub dead_letters: u64,
    /// What was read of each stream.
    pub streams: Vec<StreamRead>,
    /// Rows whose message is there.
    pub matched: u64,
    /// Rows that are not published yet, by their marks and watermarks.
    pub pending: u64,
    /// The age of the oldest of them.
    pub oldest_pending_seconds: Option<f64>,
    /// How many findings there are of each kind; none if there are no findings.
    pub counts: Vec<KindCount>,
    /// The findings, by kind and sequence, at most [`LISTED_MAX`](crate::verify_rules::LISTED_MAX) of each.
    pub findings: Vec<Finding>,
    /// What cannot be told, and why.
    pub unjudged: Vec<Unjudged>,
    /// How long it took.
    pub seconds: f64,
}

/// Compares rows, dead letters, slots and streams, and changes nothing.
///
/// # Errors
///
/// If a server cannot be reached, something is not set up, or temporary files cannot be written.
pub async fn verify(
    config: &Config,
    options: &VerifyOptions,
    progress: &watch::Sender<VerifyProgress>,
) -> Result<VerifyReport, Error> {
    let started = Instant::now();
    let run = Box::pin(Run::start(config, options, progress)).await?;
    let mut report = Box::pin(run.compare()).await?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// One comparison.
struct Run<'a> {
    config: &'a Config,
    shards: Vec<Config>,
    options: VerifyOptions,
    progress: &'a watch::Sender<VerifyProgress>,
    /// Has the snapshot that is compared.
    snapshot: Store,
    /// Sees what is true now.
    present: Store,
    streams: Vec<StreamSource>,
    folder: SpillFolder,
}

/// What was read, in files.
struct Read {
    rows: Parts<RowRecord>,
    /// Rows that name a place before what is read.
    rows_left_out: u64,
    streams: FiledStreams,
    table: TableCut,
    /// What was written down of each slot when the ends of the streams were asked for.
    present: Vec<Option<StateRow>>,
    /// Whether each slot had passed the table's snapshot by then.
    passed: Vec<bool>,
    /// A relay reads a slot, or may poll.
    has_relay: bool,
}

impl<'a> Run<'a> {
    async fn start(
        config: &'a Config,
        options: &VerifyOptions,
        progress: &'a watch::Sender<VerifyProgress>,
    ) -> Result<Self, Error> {
        let name = "tailpost verify";
        let shards = config.each_shard();
        let snapshot = Store::connect(config, name).await?;
        let present = Store::connect(config, name).await?;
        present.check_tables().await?;
        let nats = config.nats.connect(name).await?;
        let mut streams = Vec::new();
        for shard in &shards {
            streams.push(StreamSource::open(&nats, &shard.stream.name).await?);
        }
        let folder = SpillFolder::new()?;
        let options = VerifyOptions { sample: options.sample.max(1), ..*options };
        let mut run =
            Self { config, shards, options, progress, snapshot, present, streams, folder };
        for shard in 0..run.shards.len() {
            run.begin_at(shard).await?;
        }
        Ok(run)
    }

    /// Finds the first message that counts.
    async fn begin_at(&mut self, shard: usize) -> Result<(), Error> {
        let (config, stream) = (&self.shards[shard], &self.streams[shard]);
        let range = (stream.range.first, stream.range.before);
        let mut begins = range.0;
        if let Some(since) = self.options.since {
            begins = begins.max(stream.reader.first_since(range, since).await?);
        }
        if let Some(lsn) = self.options.from_lsn {
            if config.mode == Mode::Poll {
                let problem = "messages have no positions in the log with relay.mode = \"poll\": \
                               use --since";
                return Err(Error::Conflict(problem.into()));
            }
            let state = self.present.load_state(&config.slot).await?;
            let from = stream.reader.first_at(range, lsn, state.as_ref(), config);
            begins = begins.max(from.await?);
        }
        self.streams[shard].begin(begins).await
    }

    async fn compare(self) -> Result<VerifyReport, Error> {
        let names = Names::new(self.streams.iter().map(|it| it.name.clone()).collect());
        let table = self.snapshot.open_comparison().await?;
        let messages = self.streams.iter().map(StreamSource::messages).sum::<u64>();
        let sample = u64::from(self.options.sample);
        let expected = table.rows_estimated.max(messages);
        // Files go as others come, which are no larger.
        let disk = (expected + messages) * RECORD_BYTES / sample;
        self.progress.send_modify(|it| {
            it.expected = (expected / sample).max(1) + messages;
            it.disk_bytes = disk;
            it.folder = self.folder.path().to_owned();
        });
        let states = states(&self.snapshot, &self.shards).await?;
        let parts = parts_for(expected / sample);
        let read = Box::pin(self.read(&names, table, parts)).await?;
        let cut = self.cut(states, &read).await?;
        self.progress.send_modify(|it| it.compares = true);
        Box::pin(Joining::new(&self, &cut, &names, &read).run(read, parts)).await
    }

    /// Reads the table and the streams side by side, then the streams up to where everything is that
    /// the table shows.
    async fn read(&self, names: &Names, table: TableCut, parts: usize) -> Result<Read, Error> {
        let sources = self.streams.clone();
        let sample = self.options.sample;
        let mut records = StreamRecords::new(&self.folder, parts, sample, sources, self.progress)?;
        let mut reading = JoinSet::new();
        reading.spawn(async move { records.read_before().await.map(|()| records) });
        // A row that names a message which is gone may have a copy that a replay stored.
        let left_out = match self.present.has_replayed().await? {
            true => Vec::new(),
            false => self.streams.iter().map(StreamSource::left_out).collect(),
        };
        let range = ReadRange { left_out, sample };
        let rows_left_out = self.snapshot.rows_left_out(&range).await?;
        let rows = self.table_records(names, &range, parts).await?;
        self.snapshot.close_comparison().await?;
        let records = reading.join_next().await.and_then(Result::ok);
        let records = records.ok_or(Error::Stalled("the reading of the streams was cut short"))?;
        let mut records = records?;
        let slots = self.wait_until_passed(table.lsn).await?;
        let present = states(&self.present, &self.shards).await?;
        records.read_on().await?;
        let passed = slots.iter().map(|it| it.passed).collect();
        let has_relay = self.config.mode == Mode::Poll || slots.iter().any(|it| it.is_read);
        let streams = records.finish()?;
        Ok(Read { rows, rows_left_out, streams, table, present, passed, has_relay })
    }

    /// Whether the slot of each shard has passed `lsn`, and was not moved by hand.
    async fn slots(&self, lsn: Lsn) -> Result<Vec<SlotNow>, Error> {
        let mut slots = Vec::new();
        for shard in &self.shards {
            let slot = self.present.slot_progress(&shard.slot).await?;
            // The checkpoint is written before the slot is confirmed.
            let state = self.present.load_state(&shard.slot).await?;
            let checkpoint = state.and_then(|it| it.checkpoint);
            let is_ours = |confirmed: Lsn| checkpoint.is_some_and(|it| confirmed <= it);
            slots.push(SlotNow {
                passed: slot.is_some_and(|it| it.confirmed >= lsn && is_ours(it.confirmed)),
                is_read: slot.is_some_and(|it| it.is_read),
            });
        }
        Ok(slots)
    }

    /// Waits for the relays that run to be done with what the snapshot shows.
    async fn wait_until_passed(&self, lsn: Lsn) -> Result<Vec<SlotNow>, Error> {
        let began = Instant::now();
        loop {
            let slots = self.slots(lsn).await?;
            let waits = slots.iter().any(|it| it.is_read && !it.passed);
            if !waits || began.elapsed() > PASSING_MAX {
                return Ok(slots);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// A slot, when it was looked at.
#[derive(Debug, Clone, Copy)]
struct SlotNow {
    /// The relay is done with what was to be passed.
    passed: bool,
    is_read: bool,
}

/// What is written down of each slot. On the snapshot's connection, that of the same moment.
async fn states(store: &Store, shards: &[Config]) -> Result<Vec<Option<StateRow>>, Error> {
    let mut states = Vec::new();
    for shard in shards {
        states.push(store.load_state(&shard.slot).await?);
    }
    Ok(states)
}

impl Run<'_> {
    /// What has to be true of all that was read.
    async fn cut(&self, before: Vec<Option<StateRow>>, read: &Read) -> Result<Cut, Error> {
        let mut shards = Vec::new();
        for ((before, present), passed) in before.iter().zip(&read.present).zip(&read.passed) {
            shards.push(shard_cut(before.as_ref(), present.as_ref(), *passed)?);
        }
        let mut published = Vec::new();
        for (start, end) in self.present.published_ranges().await? {
            published.push((snapshot(&start)?, snapshot(&end)?));
        }
        let marking = Marking {
            polls: self.config.mode == Mode::Poll,
            by_watermark: self.config.mark.by == MarkBy::Lean,
            deletes: self.config.mark.by == MarkBy::Delete,
        };
        let mut streams = read.streams.ranges.clone();
        // Written down before the first row goes, so before the table was read.
        let retention = self.present.retention_row().await?;
        if let Some(before) = retention.and_then(|it| it.deleted_before) {
            for (range, source) in streams.iter_mut().zip(&self.streams) {
                range.rows_deleted_below = source.stored_before(before, range.last).await?;
            }
        }
        Ok(Cut { streams, shards, published, marking })
    }
}

fn shard_cut(
    before: Option<&StateRow>,
    present: Option<&StateRow>,
    passed: bool,
) -> Result<ShardCut, Error> {
    let (Some(before), Some(present)) = (before, present) else { return Ok(ShardCut::default()) };
    let is_same = before.epoch == present.epoch && before.start_snapshot == present.start_snapshot;
    let Some(started) = before.start_snapshot.as_deref().filter(|_| is_same) else {
        return Ok(ShardCut::default());
    };
    let taken = |it: Option<&relay::access::Watermark>| {
        it.filter(|_| present.is_trusted).map(|it| snapshot(&it.snapshot)).transpose()
    };
    Ok(ShardCut {
        started: Some(snapshot(started)?),
        swept: taken(before.swept.as_ref())?,
        watermark: taken(present.watermark.as_ref())?,
        passed: passed && present.is_trusted,
        gap_filled: before.is_gap_filled,
    })
}

fn snapshot(text: &str) -> Result<Snapshot, Error> {
    text.parse().map_err(|_| Error::Stalled("the server's answer is no snapshot"))
}
