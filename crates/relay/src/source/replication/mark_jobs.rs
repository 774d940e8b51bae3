//! Carries out what the engine decides about marks: statements, and reads of the stream.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgoutput::Lsn;
use tracing::{debug, info};
use uuid::Uuid;

use super::Replication;
use super::jobs::{job, long_job, note, tolerate};
use crate::config::{Config, MarkBy};
use crate::describe;
use crate::engine::{
    Age, Found, Marked, MarkingEffect, MarkingInput, Pass, Resolved, SWEEPER_STORED_MAX,
    SWEPT_AT_ONCE, Statement, Swept, Unmarked, Verdict,
};
use crate::error::Error;
use crate::nats::{SOUGHT_AT_ONCE, TailReader, WayBack};
use crate::postgres::Store;
use crate::postgres::sql::{Marks, SweepCursor, oldest_running};
use crate::source::{Done, Job};

/// How long a second connection may take to open.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How long marks wait for a table that is locked. Then the rows are the sweeper's.
const TABLE_LOCKED_MAX: Duration = Duration::from_secs(10);

/// What marks are written over.
pub(super) struct MarkStores {
    /// Always there. What is executed on it after marks have ended is behind them in PostgreSQL's
    /// log, whichever connection they were written over: it survives no crash that they do not
    /// survive.
    pub(super) first: Arc<Marks>,
    pub(super) second: Option<Arc<Marks>>,
    /// Brings more of what the present sweep looks for.
    pub(super) look: Option<Box<SweepCursor>>,
}

impl MarkStores {
    pub(super) fn new(first: Arc<Marks>) -> Self {
        Self { first, second: None, look: None }
    }
}

impl Replication {
    /// Keeps another connection for marks, of which so many wait.
    pub(in crate::source) fn second_opened(
        &mut self,
        store: Option<Arc<Marks>>,
        waiting: usize,
    ) -> MarkingInput {
        self.marks.second = store;
        let is_open = self.marks.second.is_some();
        if is_open {
            info!(waiting, "marks are late: writing them over a second connection too");
        }
        MarkingInput::SecondWriter(is_open)
    }

    /// Keeps what brings more of what a sweep looks for.
    pub(in crate::source) fn unmarked(
        &mut self,
        found: Option<(Found, Option<Box<SweepCursor>>)>,
    ) -> MarkingInput {
        MarkingInput::Unmarked(found.map(|(found, look)| {
            self.marks.look = look;
            found
        }))
    }

    pub(in crate::source) fn marking_job(&mut self, effect: MarkingEffect) -> Option<Job> {
        Some(match effect {
            MarkingEffect::Mark { statement, marks } => {
                let second = self.marks.second.as_ref().filter(|_| statement.is_on_second());
                let store = Arc::clone(second.unwrap_or(&self.marks.first));
                mark(store, self.config.stream.name.clone(), marks, statement)
            }
            MarkingEffect::OpenSecondWriter => open_second(Arc::clone(&self.config)),
            MarkingEffect::CloseSecondWriter => {
                debug!("marks keep up again");
                self.marks.second = None;
                return None;
            }
            MarkingEffect::TakeWatermark => self.take_watermark(),
            MarkingEffect::StoreWatermark(pass) => {
                self.marks.look = None;
                self.store_watermark(pass)
            }
            MarkingEffect::SweepOn { pass, found } => self.sweep_on(pass, found),
            MarkingEffect::ReadStreamBack { found, resolved_before } => {
                self.read_stream_back(found, resolved_before)
            }
            MarkingEffect::Seek { pass, found, verdict } => self.seek(pass, found, verdict),
            MarkingEffect::MarkSwept { found, verdict } => self.mark_swept(found, verdict),
            MarkingEffect::NoteSweep => {
                let (marks, slot) = (Arc::clone(&self.marks.first), self.config.slot.clone());
                note(async move { marks.note_sweep(&slot).await })
            }
        })
    }

    fn take_watermark(&self) -> Job {
        let (store, config) = (Arc::clone(&self.marks.first), Arc::clone(&self.config));
        job(async move {
            let observed = async {
                let watermark = store.observe().await?;
                // It must not cover a row that the log was not to bring.
                store.check_publication(&config).await.map(|()| watermark)
            };
            let watermark = match observed.await {
                Err(error) if error.is_contention() => None,
                observed => Some(observed?),
            };
            Ok(MarkingInput::Watermark(watermark).into())
        })
    }

    /// On the marks' own connection: their commits and the watermark's survive a crash in order.
    fn store_watermark(&self, pass: Pass) -> Job {
        let (store, config) = (Arc::clone(&self.marks.first), Arc::clone(&self.config));
        let (start, takes_long) = (self.slot.start_snapshot.clone(), pass.takes_long);
        let looked = async move {
            let Pass { watermark, swept, range, stream_end, .. } = &pass;
            let (slot, swept) = (&config.slot, swept.as_ref());
            let oldest_running = oldest_running(watermark)?;
            store.note_stream_end(&config.stream.name, *stream_end).await?;
            let is_mark = config.mark.by == MarkBy::Lean;
            let transaction = store.store_watermark(slot, &start, watermark, swept).await?;
            if pass.sweeps_dead {
                store.sweep_dead(&start, watermark).await?;
            }
            let (rows, look) = if is_mark {
                // Every row that the log owns and that is visible in the watermark is resolved, by
                // what a watermark is. That is all that is ever said of such a row: there is none
                // to be looked for.
                (Vec::new(), None)
            } else if takes_long {
                let mut look = open_look(&config, &start, &pass).await?;
                (look.batch().await?, Some(look))
            } else {
                (store.unmarked(&start, watermark, swept, *range).await?, None)
            };
            Ok((Found { rows, transaction, oldest_running }, look))
        };
        let looked = async move { Ok(Done::Unmarked(tolerate(looked.await))) };
        // Once in a while it may take its time to look at the whole of a large table, or at what
        // was published while no sweep ran.
        if takes_long { long_job(looked) } else { job(looked) }
    }

    /// There is more than one look brings: all of it is read as it is marked.
    fn sweep_on(&mut self, pass: Pass, found: Found) -> Job {
        let (config, start) = (Arc::clone(&self.config), self.slot.start_snapshot.clone());
        let look = self.marks.look.take();
        long_job(async move {
            let looked = async {
                let mut look = match look {
                    Some(look) => look,
                    None => open_look(&config, &start, &pass).await?,
                };
                let rows = look.batch().await?;
                Ok((Found { rows, ..found }, Some(look)))
            };
            Ok(Done::Unmarked(tolerate(looked.await)))
        })
    }

    fn read_stream_back(&self, found: Found, resolved_before: Option<Lsn>) -> Job {
        let tail = self.tail.clone();
        let way = WayBack {
            resolved_before: resolved_before.unwrap_or(Lsn(u64::MAX)),
            system_id: self.slot.history.system_id,
            overtaken_max: self.config.window.events,
            at_least: 1,
            // Of more the sweeper remembers nothing; and it has to be a window behind what it looks
            // for to know that it has everything.
            at_most: (SWEEPER_STORED_MAX + self.config.window.events) as u64,
        };
        long_job(async move {
            let Some((tail, reached)) = tolerate(tail.all_back_to(way).await) else {
                return Ok(MarkingInput::Unmarked(None).into());
            };
            let (stored, is_whole) = (tail.stored, reached && resolved_before.is_some());
            Ok(MarkingInput::StreamBack { found, stored, is_whole }.into())
        })
    }

    fn seek(&self, pass: Pass, found: Found, verdict: Verdict) -> Job {
        let seek = Seek {
            config: Arc::clone(&self.config),
            start_snapshot: self.slot.start_snapshot.clone(),
            store: Arc::clone(&self.marks.first),
            tail: self.tail.clone(),
            pass,
        };
        long_job(async move {
            Ok(MarkingInput::Swept(tolerate(seek.carry_out(found, verdict).await)).into())
        })
    }

    fn mark_swept(&self, found: Found, verdict: Verdict) -> Job {
        let (store, stream) = (Arc::clone(&self.marks.first), self.config.stream.name.clone());
        job(async move {
            let swept = async {
                let marked = store.mark_verdict(&stream, &verdict).await?;
                Ok(Swept { found, marked, unlogged: 0, suspected: verdict.suspected })
            };
            Ok(MarkingInput::Swept(tolerate(swept.await)).into())
        })
    }
}

fn mark(store: Arc<Marks>, stream: String, batch: Vec<Resolved>, statement: Statement) -> Job {
    job(async move {
        let begun = Instant::now();
        let marked = loop {
            match store.mark_and_miss(&stream, &batch).await {
                // The table is locked: it was waited for, and may be free by now.
                Err(error) if error.is_contention() && begun.elapsed() < TABLE_LOCKED_MAX => {}
                marked => break marked.map(|(rows, without_row)| Marked { rows, without_row }),
            }
        };
        let failed = marked.as_ref().err().map(describe);
        let input = MarkingInput::Marked { statement, marked: tolerate(marked) }.into();
        Ok(Done::Marked(input, failed))
    })
}

fn open_second(config: Arc<Config>) -> Job {
    job(async move {
        let opened = async { Marks::connect(&config, "tailpost marks 2").await.map(Arc::new) };
        let late = Error::Stalled("a second connection for marks took too long");
        let opened = tokio::time::timeout(OPEN_MAX, opened).await;
        Ok(Done::SecondWriter(tolerate(opened.unwrap_or(Err(late)))))
    })
}

async fn open_look(
    config: &Config,
    start_snapshot: &str,
    pass: &Pass,
) -> Result<Box<SweepCursor>, Error> {
    let store = Store::connect(config, "tailpost sweeper").await?;
    let look = store.look(start_snapshot, &pass.watermark, pass.swept.as_ref(), pass.range);
    look.await.map(Box::new)
}

/// A search of the whole stream for rows that the log did not bring.
struct Seek {
    config: Arc<Config>,
    start_snapshot: String,
    store: Arc<Marks>,
    tail: TailReader,
    pass: Pass,
}

impl Seek {
    /// So that the stream is read once for many, other unmarked rows of that age are looked for as
    /// well.
    async fn carry_out(&self, found: Found, mut verdict: Verdict) -> Result<Swept, Error> {
        let (store, stream) = (&self.store, &self.config.stream.name);
        let mut sought: HashSet<Uuid> = verdict.unlogged.iter().copied().collect();
        if found.rows.len() == SWEPT_AT_ONCE {
            self.seek_more(&mut sought).await?;
        }
        let places = self.tail.find(sought).await?;
        let marked = store.mark_verdict(stream, &verdict).await?;
        let back = store.mark_stored(stream, &places).await?;
        let places: HashSet<Uuid> = places.iter().map(|it| it.id).collect();
        verdict.unlogged.retain(|id| !places.contains(id));
        let unlogged = store.leave_to_the_scanner(&verdict.unlogged).await?;
        if back > 0 {
            info!(
                rows = back,
                "rows had lost their marks, and the stream has them all the same: marked them"
            );
        }
        let suspected = verdict.suspected;
        Ok(Swept { found, marked: marked + back, unlogged, suspected })
    }

    async fn seek_more(&self, sought: &mut HashSet<Uuid>) -> Result<(), Error> {
        let mut look = open_look(&self.config, &self.start_snapshot, &self.pass).await?;
        while sought.len() < SOUGHT_AT_ONCE {
            let rows = look.batch().await?;
            let is_sought = |it: &&Unmarked| it.age == Age::Swept && !it.is_dropped;
            sought.extend(rows.iter().filter(is_sought).map(|it| it.id));
            if rows.len() < SWEPT_AT_ONCE {
                break;
            }
        }
        Ok(())
    }
}
