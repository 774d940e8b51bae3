//! The sweeper: what a watermark covers and is not marked is marked, or published after all.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use tracing::{error, info};
use uuid::Uuid;

use super::{Missed, Settling, Step};
use crate::broker::{SOUGHT_AT_ONCE, WayBack};
use crate::config::{Config, MarkBy};
use crate::core::{Age, Judgement, SWEEPER_STORED_MAX, Tail, Unmarked, Verdict};
use crate::database::store::{Look, Looker, SWEPT_AT_ONCE, Swath};
use crate::database::{Store, Watermark};
use crate::error::Error;
use crate::session::WHOLE_EVERY;
use crate::session::jobs::{self, Done, Found, Job, Swept, job, long_job, note_look};

async fn open_look(
    config: &Config,
    start_snapshot: &str,
    watermark: &Watermark,
    swept: Option<&Watermark>,
    swath: Swath,
) -> Result<Box<Look>, Error> {
    let store = Store::connect(config, "tailpost sweeper").await?;
    store.look(start_snapshot, watermark, swept, swath).await.map(Box::new)
}

impl Settling {
    /// On the marks' own connection: their commits and the watermark's survive a crash in order.
    pub(super) fn store_and_look(&self, watermark: Watermark, swath: Swath) -> Job {
        let (store, config) = (Arc::clone(self.markers.store()), Arc::clone(&self.config));
        let (start, swept) = (self.known.start_snapshot.clone(), self.known.swept.clone());
        // A row can only be left there by who parked it while it was not visible.
        let sweeps_dead = self.parked_unseen != Missed::Nothing;
        let is_first = self.covered.is_none();
        let takes_long = self.known.is_indexed && (is_first || matches!(swath, Swath::Whole));
        let looked = async move {
            let slot = &config.slot;
            let oldest_running = watermark.oldest_running()?;
            if config.mark.by == MarkBy::Watermark {
                // Every row that the log owns and that is visible in the watermark is resolved, by
                // what a watermark is. That is all that is ever said of such a row: there is none
                // to be looked for.
                let transaction = store.store_published_to(slot, &start, &watermark).await?;
                if sweeps_dead {
                    store.sweep_dead(&start, &watermark).await?;
                }
                let (rows, look) = (Vec::new(), None);
                return Ok(Found { rows, transaction, oldest_running, swath, look });
            }
            let transaction = store.store_watermark(slot, &watermark, swept.as_ref()).await?;
            if sweeps_dead {
                store.sweep_dead(&start, &watermark).await?;
            }
            let (rows, look) = if takes_long {
                // The marks must not wait for it.
                let mut look =
                    open_look(&config, &start, &watermark, swept.as_ref(), swath).await?;
                (look.batch().await?, Some(look))
            } else {
                (store.unmarked(&start, &watermark, swept.as_ref(), swath).await?, None)
            };
            Ok(Found { rows, transaction, oldest_running, swath, look })
        };
        let looked = async move { Ok(Done::Unmarked(jobs::tolerate(looked.await))) };
        // Once in a while it may take its time to look at the whole of a large table, or at what
        // was published while nobody swept.
        if takes_long { long_job(looked) } else { job(looked) }
    }

    /// Where the next sweep looks.
    pub(super) fn swath(&self) -> Swath {
        let is_due = self.whole_at.is_none_or(|at| at.elapsed() >= WHOLE_EVERY);
        if self.known.is_indexed && !is_due { Swath::SinceSwept } else { Swath::Whole }
    }

    /// There is more than one look brings: all of it is read as it is marked.
    fn look_on(&self, watermark: Watermark, found: Found) -> Job {
        let (config, start) = (Arc::clone(&self.config), self.known.start_snapshot.clone());
        let swept = self.known.swept.clone();
        long_job(async move {
            let looked = async {
                let mut look = match found.look {
                    Some(look) => look,
                    None => {
                        open_look(&config, &start, &watermark, swept.as_ref(), found.swath).await?
                    }
                };
                let rows = look.batch().await?;
                Ok(Found { rows, look: Some(look), ..found })
            };
            Ok(Done::Unmarked(jobs::tolerate(looked.await)))
        })
    }

    /// Judges what was found. `None` if it could not be found out.
    pub(in crate::session) fn found(
        &mut self,
        found: Option<Found>,
        jobs: &mut FuturesUnordered<Job>,
    ) {
        let Some(found) = found else { return self.swept(None, jobs) };
        let marks_were_lost = self.marks_lost || self.marks_lost_before;
        match self.sweeper.judge(&found.rows, marks_were_lost) {
            Judgement::AskTheStream => jobs.push(self.read_tail(found)),
            Judgement::Done(verdict) if found.rows.is_empty() => {
                let Verdict { suspected, .. } = verdict;
                self.swept(Some(Swept { found, marked: 0, unlogged: 0, suspected }), jobs);
            }
            Judgement::Done(verdict) if verdict.unlogged.is_empty() => {
                jobs.push(self.carry_out(found, verdict));
            }
            Judgement::Done(verdict) => jobs.push(self.seek(found, verdict)),
        }
    }

    /// What the stream has since the last complete sweep.
    pub(in crate::session) fn stream_read(
        &mut self,
        found: Found,
        tail: &Tail,
        is_whole: bool,
        jobs: &mut FuturesUnordered<Job>,
    ) {
        self.sweeper.read(&tail.stored, is_whole);
        self.found(Some(found), jobs);
    }

    fn read_tail(&self, found: Found) -> Job {
        let tail = self.tail.clone();
        let swept = self.known.swept.as_ref().map(|it| it.lsn);
        let way = WayBack {
            // Without a complete sweep nothing is told from the stream's silence.
            resolved_before: swept.unwrap_or(pgoutput::Lsn(u64::MAX)),
            system_id: self.known.system_id,
            overtaken_max: self.config.window.events,
            at_least: 1,
            // Of more the sweeper remembers nothing; and it has to be a window behind what it looks
            // for to know that it has everything.
            at_most: (SWEEPER_STORED_MAX + self.config.window.events) as u64,
        };
        long_job(async move {
            let Some((tail, reached)) = jobs::tolerate(tail.all_back_to(way).await) else {
                return Ok(Done::Unmarked(None));
            };
            Ok(Done::SweepTail { found, tail, is_whole: reached && swept.is_some() })
        })
    }

    /// Before anything is published that the log did not bring, the whole stream is read for it: its
    /// mark may have been taken away, by hand or with a table that was restored. So that it is read
    /// once for many, for other unmarked rows of that age as well.
    fn seek(&self, found: Found, mut verdict: Verdict) -> Job {
        let (store, tail) = (Arc::clone(self.markers.store()), self.tail.clone());
        let (config, start) = (Arc::clone(&self.config), self.known.start_snapshot.clone());
        let (swept, step) = (self.known.swept.clone(), self.watermark_under_way());
        long_job(async move {
            let swept = async {
                let stream = &config.stream.name;
                let mut sought: HashSet<Uuid> = verdict.unlogged.iter().copied().collect();
                if let (Some(watermark), SWEPT_AT_ONCE) = (&step, found.rows.len()) {
                    let swept = swept.as_ref();
                    let mut look =
                        open_look(&config, &start, watermark, swept, found.swath).await?;
                    while sought.len() < SOUGHT_AT_ONCE {
                        let rows = look.batch().await?;
                        let is_sought = |it: &&Unmarked| it.age == Age::Swept && !it.is_dropped;
                        sought.extend(rows.iter().filter(is_sought).map(|it| it.id));
                        if rows.len() < SWEPT_AT_ONCE {
                            break;
                        }
                    }
                }
                let places = tail.find(sought).await?;
                let mut marked = store.mark(stream, &verdict.settled).await?;
                marked += store.mark_on_trust(stream, &verdict.trusted).await?;
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
            };
            Ok(Done::Swept(jobs::tolerate(swept.await)))
        })
    }

    fn watermark_under_way(&self) -> Option<Watermark> {
        match &self.watermark {
            Step::Sweeping(watermark) => Some(watermark.clone()),
            _ => None,
        }
    }

    fn carry_out(&self, found: Found, verdict: Verdict) -> Job {
        let (store, stream) = (Arc::clone(self.markers.store()), self.config.stream.name.clone());
        job(async move {
            let swept = async {
                let mut marked = store.mark(&stream, &verdict.settled).await?;
                marked += store.mark_on_trust(&stream, &verdict.trusted).await?;
                let unlogged = store.leave_to_the_scanner(&verdict.unlogged).await?;
                // Some may be locked.
                let left =
                    verdict.unlogged.len().saturating_sub(usize::try_from(unlogged).unwrap_or(0));
                Ok(Swept { found, marked, unlogged, suspected: verdict.suspected + left })
            };
            Ok(Done::Swept(jobs::tolerate(swept.await)))
        })
    }

    /// A sweep ended: the next one follows at once while it finds as much as it may take.
    pub(in crate::session) fn swept(
        &mut self,
        swept: Option<Swept>,
        jobs: &mut FuturesUnordered<Job>,
    ) {
        let step = std::mem::replace(&mut self.watermark, Step::Resting);
        let (Some(Swept { found, marked, unlogged, suspected }), Step::Sweeping(watermark)) =
            (swept, step)
        else {
            self.missed = Missed::Something;
            self.parked_unseen = self.parked_unseen.unswept();
            self.marks_lost |= self.marks_lost_before;
            return;
        };
        self.counts.swept += marked;
        self.counts.unlogged += unlogged;
        if marked > 0 {
            info!(swept = marked, "marked rows whose marks were lost or late");
        }
        if unlogged > 0 {
            error!(
                rows = unlogged,
                "rows came into the outbox without passing the log, and the stream, read from its \
                 beginning, does not have them: publishing them from the table"
            );
        }
        if suspected > 0 {
            self.missed = Missed::Something; // the next watermark tells
            return;
        }
        if found.rows.len() == SWEPT_AT_ONCE {
            jobs.push(self.look_on(watermark.clone(), found));
            self.watermark = Step::Sweeping(watermark);
            return;
        }
        if matches!(found.swath, Swath::Whole) {
            self.whole_at = Some(Instant::now());
            if self.known.is_indexed {
                let (store, slot) = (Arc::clone(self.markers.store()), self.config.slot.clone());
                jobs.push(note_look(store, slot, Looker::Sweeper));
            }
        }
        if self.config.mark.by == MarkBy::Watermark {
            self.counts.marked += self.observing - self.covered.unwrap_or(0);
        }
        self.covered = Some(self.observing);
        self.known.swept = Some(watermark);
        self.sweeper.completed();
        let had_missed = self.missed != Missed::Nothing;
        self.missed = self.missed.swept(found.transaction, found.oldest_running);
        self.parked_unseen = self.parked_unseen.swept(found.transaction, found.oldest_running);
        if had_missed && self.missed == Missed::Nothing {
            self.sweeper.forget();
        }
    }
}
