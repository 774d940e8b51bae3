//! Carries out what the engine decides about replays.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::Replication;
use super::jobs::{job, long_job, tolerate};
use super::replay_source::{OpenReplay, Page};
use crate::describe;
use crate::engine::{
    ReplayEffect, ReplayInput, ReplayNote, ReplayPage, ReplayRow, ReplayStart, ReplayUnread,
    ReplayWish, SCANS_UNMARKED_MAX,
};
use crate::error::Error;
use crate::postgres::Store;
use crate::postgres::sql::{ReplayedRow, TakenReplay};
use crate::reporter::Reporter;
use crate::source::{Done, Job, unless_contended};

/// How long a replay's statements wait for others' locks.
const WAITS: &str = "1s";

impl Replication {
    pub(in crate::source) fn replay_job(
        &mut self,
        effect: ReplayEffect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job>, Error> {
        Ok(Some(match effect {
            ReplayEffect::LookFor => {
                let (books, config) = (Arc::clone(&self.books), Arc::clone(&self.config));
                job(async move {
                    // A replay is not urgent: a lock is met again later.
                    let found = books.next_replay(&config.slot, &config.stream.name).await;
                    let found = unless_contended(found, "cannot look for a replay")?;
                    Ok(ReplayInput::Found(found.flatten()).into())
                })
            }
            ReplayEffect::Begin(id) => self.begin_replay(id),
            ReplayEffect::Read { id, after } => self.read_replay(id, after)?,
            ReplayEffect::Note(note) => self.note_replay(note)?,
            ReplayEffect::End => {
                // What it holds on either server is let go.
                if let Some(replay) = self.replay.take() {
                    replay.over.cancel();
                }
                reporter.replay_over();
                return Ok(None);
            }
        }))
    }

    fn begin_replay(&self, id: Uuid) -> Job {
        let (config, tail, reader) = (Arc::clone(&self.config), self.tail.clone(), self.reader());
        let history = self.slot.history;
        long_job(async move {
            let begun = async {
                // A connection of its own: an error there delays the replay alone.
                let store = Store::connect(&config, "tailpost replay").await?;
                store.wait_for_locks(Some(WAITS)).await?;
                store.read_lists_in_order().await?;
                let last_sequence = tail.last_sequence().await?;
                let Some(taken) = store.take_replay(&reader, id, last_sequence).await? else {
                    return Ok(None);
                };
                let stored = tail.replayed(taken.stream_seq + 1, id).await?;
                Ok::<_, Error>(Some((store, taken, stored)))
            };
            let (store, taken, stored) = match begun.await {
                Ok(Some(begun)) => begun,
                Ok(None) => return Ok(ReplayInput::Begun(None).into()),
                Err(error) => {
                    warn!(error = describe(&error), "cannot begin a replay now, trying again");
                    return Ok(ReplayInput::Begun(None).into());
                }
            };
            info!(replay = %id, place = taken.place, already_stored = stored.len(), "replaying");
            let start = ReplayStart {
                id,
                place: taken.place,
                published: taken.published,
                seq: taken.stream_seq,
                stored,
                per_second: taken.per_second,
            };
            let bytes_max = config.window.bytes / SCANS_UNMARKED_MAX;
            let source = OpenReplay {
                store: Arc::new(store),
                taken: Arc::new(taken),
                transforms: tail.limits().borrow().transforms,
                tail,
                wal: Arc::default(),
                over: CancellationToken::new(),
                is_failing: Arc::default(),
                config,
                history,
                bytes_max,
            };
            Ok(Done::Replaying(Box::new((start, source))))
        })
    }

    /// Keeps what a replay reads.
    pub(in crate::source) fn replaying(
        &mut self,
        (start, source): (ReplayStart, OpenReplay),
    ) -> ReplayInput {
        self.replay = Some(source);
        ReplayInput::Begun(Some(start))
    }

    fn read_replay(&self, id: Uuid, after: i64) -> Result<Job, Error> {
        let source = self.open_replay(id)?;
        // Reading the log up to the first event that is meant takes as long as there is log.
        Ok(long_job(async move {
            // A page that comes too late must not be taken for one of whoever takes the replay up
            // again.
            let page = tokio::select! {
                biased;
                () = source.over.cancelled() => return Ok(Done::Nothing),
                page = source.read(after) => source.tolerate(page),
            };
            Ok(Done::ReplayRead((id, after), page))
        }))
    }

    fn open_replay(&self, id: Uuid) -> Result<OpenReplay, Error> {
        let open = self.replay.clone().filter(|it| it.taken.id == id);
        open.ok_or_else(|| Error::bug("a replay goes on that is not open"))
    }

    fn note_replay(&self, note: ReplayNote) -> Result<Job, Error> {
        let (OpenReplay { store, .. }, reader) = (self.open_replay(note.id)?, self.reader());
        Ok(job(async move {
            let (problems, wish) = match store.note_replay(&reader, &note).await {
                Ok(wish) => (note.problems.len(), Some(wish)),
                // The next session finds in the stream what was not noted.
                Err(_) if store.client().is_closed() => (0, Some(ReplayWish::Rest)),
                Err(error) => (0, tolerate(Err(error))),
            };
            if note.is_done && wish.is_some() {
                info!(replay = %note.id, published = note.published, "replayed");
            }
            Ok(ReplayInput::Noted { problems, wish }.into())
        }))
    }

    /// Makes events of what was read.
    pub(in crate::source) fn replay_page(
        &self,
        of: (Uuid, i64),
        page: Result<Page, ReplayUnread>,
    ) -> ReplayInput {
        let source = self.replay.as_ref().filter(|it| it.taken.id == of.0);
        let page = match (source, page) {
            (None, _) => Err(ReplayUnread::Waits("the replay is over".to_owned())),
            (_, Err(why)) => Err(why),
            (_, Ok(Page::Messages(page))) => Ok(page),
            (Some(source), Ok(Page::Rows(rows, is_end))) => {
                let rows: Result<Vec<_>, _> =
                    rows.iter().map(|row| self.replayed_row(row, &source.taken)).collect();
                source.tolerate(rows).map(|rows| {
                    let read_to = rows.last().map_or(of.1, |it| it.place);
                    ReplayPage { rows, read_to, is_end, is_gone: None }
                })
            }
        };
        ReplayInput::Read { of, page }
    }

    fn replayed_row(&self, row: &ReplayedRow, replay: &TakenReplay) -> Result<ReplayRow, Error> {
        let (place, event) = (row.place()?, row.event()?);
        let position = row.position(self.slot.history)?;
        let outgoing = match row.scanned()? {
            None => Err("its row is gone".to_owned()),
            Some(scanned) => Ok(replay.readdressed(self.log.rows().scanned(scanned)?, position)),
        };
        Ok(ReplayRow { place, event, outgoing })
    }
}
