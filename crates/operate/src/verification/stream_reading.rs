//! Messages, from the streams to files.

use std::collections::HashMap;

use async_nats::Client;
use async_nats::jetstream::stream::{Info, RetentionPolicy};
use jiff::Timestamp;
use outbox::wire::Position;
use relay::Error;
use relay::access::{TailReader, stream_check};
use tokio::sync::watch;
use uuid::Uuid;

use super::removals::Removals;
use super::table_reading::{is_sampled, key_of};
use super::{StreamRead, VerifyProgress};
use crate::spill_files::{Division, Parts, SpillFolder};
use crate::sql::LeftOut;
use crate::verify_rules::cut::{CLOCKS_DIFFER_MICROS, StreamRange};
use crate::verify_rules::fingerprint::ReadMessage;
use crate::verify_rules::spilled::{MessageRecord, OrphanRecord, OwnPosition, Place};
use crate::whole_stream::{Sink, WholeStream};

/// The progress is told after so many.
const TOLD_EVERY: u64 = 1_000;

/// A stream, and where its reading begins.
#[derive(Clone)]
pub(super) struct StreamSource {
    pub(super) name: String,
    pub(super) reader: WholeStream,
    tail: TailReader,
    /// What is read, as far as that is known.
    pub(super) range: StreamRange,
    messages: u64,
    read: u64,
    /// `None` where only a part of the stream is compared.
    pub(super) removals: Option<Removals>,
}

impl StreamSource {
    pub(super) async fn open(client: &Client, name: &str) -> Result<Self, Error> {
        let stream = stream_check::look(client, name).await?;
        let tail = TailReader::new(client, name).await?;
        let info = tail.info().await?;
        let keeps = info.config.retention == RetentionPolicy::Limits;
        let reader = WholeStream::new(client, name, keeps).await?;
        Ok(Self {
            name: name.to_owned(),
            reader,
            tail,
            range: StreamRange {
                first: info.state.first_sequence.max(1),
                before: info.state.last_sequence,
                last: 0,
                is_from_the_beginning: info.state.first_sequence <= 1,
                first_at_micros: first_at_micros(&info),
                forgets: forgets(&info),
                transforms: info.config.subject_transform.is_some(),
                rows_deleted_below: 0,
            },
            messages: info.state.messages,
            read: 0,
            removals: Some(Removals::of(&stream, &info).await),
        })
    }

    /// Rows that name a place before what is read, and of which nothing can be said.
    pub(super) fn left_out(&self) -> LeftOut {
        let removals = self.removals.as_ref();
        LeftOut {
            stream: self.name.clone(),
            below: removals.map_or(u64::MAX, Removals::unread_from).min(self.range.first),
            until_micros: removals.map_or(i64::MAX, |it| it.until_micros),
        }
    }

    /// Leaves out what lies before a sequence.
    pub(super) async fn begin(&mut self, first: u64) -> Result<(), Error> {
        if first <= self.range.first {
            return Ok(());
        }
        self.messages = self.messages.saturating_sub(first - self.range.first);
        self.removals = None;
        self.range.is_from_the_beginning = false;
        self.range.first = first;
        // Nothing is there yet: what happens from now on is within reach.
        let at = self.reader.stored_at_micros(first).await?;
        self.range.first_at_micros = at.unwrap_or(i64::MAX / 2);
        Ok(())
    }

    /// The first sequence up to `last` whose row cannot have been published before that time.
    pub(super) async fn stored_before(&self, before: Timestamp, last: u64) -> Result<u64, Error> {
        let micros = before.as_microsecond().saturating_add(CLOCKS_DIFFER_MICROS);
        let before = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
        self.reader.first_since((self.range.first, last), before).await
    }

    /// How many messages there are to read, at most.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }
}

/// Whether a stream removes messages from within.
fn forgets(info: &Info) -> bool {
    let config = &info.config;
    config.retention != RetentionPolicy::Limits
        || config.max_messages_per_subject > 0
        || config.allow_message_ttl
}

fn first_at_micros(info: &Info) -> i64 {
    if info.state.messages == 0 {
        return i64::MAX / 2;
    }
    let nanos = info.state.first_timestamp.unix_timestamp_nanos();
    i64::try_from(nanos / 1_000).unwrap_or(i64::MAX / 2)
}

/// Messages in files, and what was learnt of the streams.
pub(super) struct StreamRecords {
    sources: Vec<StreamSource>,
    filing: Filing,
}

/// What was read of the streams.
pub(super) struct FiledStreams {
    pub(super) messages: Parts<MessageRecord>,
    /// Messages of a relay that name no event.
    pub(super) nameless: Parts<OrphanRecord>,
    pub(super) ranges: Vec<StreamRange>,
    pub(super) reads: Vec<StreamRead>,
    /// Messages that are no event.
    pub(super) foreign: u64,
}

/// Turns messages into records.
struct Filing {
    sample: u32,
    stream: u16,
    messages: Division<MessageRecord>,
    nameless: Division<OrphanRecord>,
    /// What each replay stored is in an order of its own.
    histories: HashMap<(u64, u32, Option<Uuid>), u16>,
    replays: HashMap<Uuid, u16>,
    /// The highest position of each stream and history that a message with an expected last sequence
    /// has, and its own sequence.
    highest: HashMap<(u16, u16), (OwnPosition, u64)>,
    foreign: u64,
    read: u64,
    progress: watch::Sender<VerifyProgress>,
}

impl StreamRecords {
    pub(super) fn new(
        folder: &SpillFolder,
        parts: usize,
        sample: u32,
        sources: Vec<StreamSource>,
        progress: &watch::Sender<VerifyProgress>,
    ) -> Result<Self, Error> {
        let filing = Filing {
            sample,
            stream: 0,
            messages: Division::new(folder, "messages", parts)?,
            nameless: Division::new(folder, "nameless", 1)?,
            histories: HashMap::new(),
            replays: HashMap::new(),
            highest: HashMap::new(),
            foreign: 0,
            read: 0,
            progress: progress.clone(),
        };
        Ok(Self { sources, filing })
    }

    /// Reads what was there before the table's snapshot.
    pub(super) async fn read_before(&mut self) -> Result<(), Error> {
        for (at, source) in self.sources.iter_mut().enumerate() {
            self.filing.read(at, source, source.range.first, source.range.before).await?;
        }
        Ok(())
    }

    /// Reads on to the present ends.
    pub(super) async fn read_on(&mut self) -> Result<(), Error> {
        for (at, source) in self.sources.iter_mut().enumerate() {
            let from = source.range.first.max(source.range.before + 1);
            let last = source.tail.info().await?.state.last_sequence;
            self.filing.read(at, source, from, last).await?;
            // What the stream forgot meanwhile may have been missed.
            let first = source.tail.info().await?.state.first_sequence;
            source.range.first = first.max(source.range.first);
            source.range.is_from_the_beginning &= source.range.first <= 1;
            source.range.last = last;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<FiledStreams, Error> {
        let read = |it: &StreamSource| StreamRead {
            name: it.name.clone(),
            first_sequence: it.range.first,
            last_sequence: it.range.last,
            messages: it.read,
        };
        Ok(FiledStreams {
            reads: self.sources.iter().map(read).collect(),
            ranges: self.sources.into_iter().map(|it| it.range).collect(),
            messages: self.filing.messages.finish()?,
            nameless: self.filing.nameless.finish()?,
            foreign: self.filing.foreign,
        })
    }
}

impl Filing {
    /// Reads a part of the stream with the number `at`.
    async fn read(
        &mut self,
        at: usize,
        source: &mut StreamSource,
        from: u64,
        to: u64,
    ) -> Result<(), Error> {
        self.stream = u16::try_from(at).unwrap_or(u16::MAX);
        let before = self.read;
        source.reader.read(from, to, self).await?;
        source.read += self.read - before;
        Ok(())
    }

    fn position(&mut self, position: Position, replay: Option<Uuid>) -> OwnPosition {
        let Position { system_id, timeline, lsn, ordinal } = position;
        let next = u16::try_from(self.histories.len() + 1).unwrap_or(u16::MAX);
        let history = *self.histories.entry((system_id, timeline, replay)).or_insert(next);
        OwnPosition { history, lsn, ordinal }
    }

    /// The sequence of an earlier message behind which this one must not be, or 0. In fenced mode
    /// the positions of a stream never go back.
    fn behind(&mut self, position: OwnPosition, sequence: u64) -> u64 {
        let of_history = (self.stream, position.history);
        let highest = self.highest.entry(of_history).or_insert((position, sequence));
        if position < highest.0 {
            return highest.1;
        }
        *highest = (position, sequence);
        0
    }
}

impl Sink for Filing {
    fn take(&mut self, sequence: u64, message: ReadMessage) -> Result<(), Error> {
        self.read += 1;
        if self.read.is_multiple_of(TOLD_EVERY) {
            self.progress.send_modify(|it| it.read += TOLD_EVERY);
        }
        if message.is_marker {
            return Ok(());
        }
        let at = Place { stream: self.stream, sequence };
        let position = message.position.map(|it| self.position(it, message.replay));
        let behind = match position {
            Some(position) if message.is_fenced => self.behind(position, sequence),
            _ => 0,
        };
        let Some(id) = message.id else {
            if message.is_ours {
                return self.nameless.write(0, &OrphanRecord { at, id: None });
            }
            self.foreign += 1;
            return Ok(());
        };
        if !is_sampled(id, self.sample) {
            return Ok(());
        }
        let mut flags = if message.is_ours { MessageRecord::OURS } else { 0 };
        if message.is_emitted {
            flags |= MessageRecord::EMITTED;
        }
        if let Some(replay) = message.replay {
            let next = u16::try_from(self.replays.len() + 1).unwrap_or(u16::MAX);
            flags |= MessageRecord::of_replay(*self.replays.entry(replay).or_insert(next));
        }
        let record = MessageRecord { id, at, flags, print: message.print, position, behind };
        self.messages.write(key_of(id), &record)
    }
}
