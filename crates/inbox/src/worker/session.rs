//! Owns the lanes: takes deliveries in, hands events out to be handled, and acknowledges.

mod room;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Subject};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use self::room::Leaving;
use crate::config::Config;
use crate::engine::{
    Breaker, Capacity, Convicted, Delivered, Ending, Lanes, Offered, Path, Role, Trouble,
    TroubleKind,
};
use crate::feed::Intake;
use crate::message::{MessageId, Origin};
use crate::nats::acks::Acks;
use crate::status::Handler;
use crate::worker::work::{Context, Effect, Report, Reports, Work};
use crate::{BreakerState, State, Status, Summary};

/// How long a stop waits for handlers.
const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// How long it waits for their claims to be given back, when it has ended them.
const ABANDON_DEADLINE: Duration = Duration::from_secs(3);

/// How long the broker may take for what is told to it without being asked.
const TOLD_DEADLINE: Duration = Duration::from_secs(2);

/// Jobs of a transactional inbox begin with few events each, so that they run side by side; when
/// there are more than that for everybody, they get more.
const SHARE_MIN: usize = 8;

pub(crate) struct Session<W> {
    pub(crate) config: Arc<Config>,
    pub(crate) nats: Client,
    pub(crate) acks: Acks,
    pub(crate) ack_wait: Duration,
    pub(crate) work: Arc<W>,
    pub(crate) context: Arc<Context>,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) role: watch::Receiver<Role>,
    pub(crate) trouble: watch::Receiver<Option<String>>,
    /// Why nothing can be taken from the stream, while that is so.
    pub(crate) broker: watch::Receiver<Option<String>>,
    pub(crate) intake: Intake,
    pub(crate) lanes: Lanes,
    pub(crate) leaving: Leaving,
    pub(crate) capacity: Capacity,
    pub(crate) origin: Origin,
    pub(crate) breaker: Breaker,
    /// When the next probe is due, for people.
    pub(crate) next_probe_at: Option<Timestamp>,
    /// The most events in a job, as of now.
    pub(crate) batch: usize,
    pub(crate) counts: Summary,
}

impl<W: Work> Session<W> {
    /// Runs until `shutdown`, or until the role is lost to another worker.
    pub(crate) async fn run(mut self, shutdown: &CancellationToken) -> Summary {
        let (reports, mut reported) = mpsc::channel(4 * self.config.lanes.max(16));
        let mut jobs = JoinSet::new();
        let mut in_progress = tokio::time::interval((self.ack_wait / 3).max(PROGRESS_MIN));
        let mut stopping = false;
        loop {
            if !stopping {
                self.start(&mut jobs, &reports);
            }
            self.leave().await;
            self.publish(stopping);
            let due_at = self.next_due();
            tokio::select! {
                biased;
                () = shutdown.cancelled(), if !stopping => stopping = true,
                Some(reports) = reported.recv() => self.note_all(reports).await,
                Some(ended) = jobs.join_next() => {
                    // Every panic of a handler is caught; this one is ours.
                    ended.expect("jobs do not panic");
                }
                delivered = self.intake.deliveries.recv(), if !stopping => match delivered {
                    Some(delivered) => self.take_in(delivered),
                    None => stopping = true,
                },
                Some(loaded) = self.leaving.loads.join_next() => {
                    self.note_loaded(loaded.expect("reading does not panic"));
                }
                () = due(due_at) => {}
                changed = self.role.changed() => {
                    if changed.is_err() || *self.role.borrow() == Role::Standby {
                        info!(consumer = self.config.consumer, "another worker took over");
                        stopping = true;
                    }
                }
                _ = self.trouble.changed() => {}
                Ok(()) = self.broker.changed() => {}
                _ = in_progress.tick() => self.say_in_progress().await,
            }
            if stopping {
                return self.stop(jobs, reports, reported).await;
            }
        }
    }

    fn take_in(&mut self, delivered: Delivered) {
        let mut next = Some(delivered);
        while let Some(mut delivered) = next {
            // Only in a transaction can several of one aggregate be under way, in order.
            if !W::SHARES && delivered.path == Path::Fast {
                delivered.path = Path::Careful;
            }
            let later = delivered.reply.clone();
            if self.lanes.offer(delivered, Instant::now()) == Offered::Left {
                self.leaving.replies.extend(later);
            }
            next = if self.capacity.room(&self.lanes) > 0 {
                self.intake.deliveries.try_recv().ok()
            } else {
                None
            };
        }
    }

    fn start(&mut self, jobs: &mut JoinSet<()>, reports: &Reports) {
        let now = Instant::now();
        self.lanes.advance(now);
        self.leaving.starved = false;
        if self.hindrance().is_some() {
            return;
        }
        loop {
            let busy = if W::SHARES { jobs.len() } else { self.lanes.busy() };
            let free = self.config.lanes.saturating_sub(busy);
            let share = self.lanes.held().div_ceil(self.config.lanes).max(SHARE_MIN);
            let most = if W::SHARES { share.min(self.batch) } else { free };
            let most = if free == 0 { 0 } else { most };
            let items = self.breaker.take(&mut self.lanes, most, now);
            if items.is_empty() {
                self.leaving.starved = free > 0;
                return;
            }
            let (work, context) = (Arc::clone(&self.work), Arc::clone(&self.context));
            let reports = reports.clone();
            jobs.spawn(async move { work.run(context, items, reports).await });
        }
    }

    /// Why nothing is started, if it is so.
    fn hindrance(&self) -> Option<String> {
        match (*self.role.borrow(), &*self.trouble.borrow()) {
            (Role::Active { until }, None) if Instant::now() < until => {}
            (_, Some(trouble)) => return Some(format!("the database is away: {trouble}")),
            (_, None) => return Some("the database is away".into()),
        }
        None
    }

    /// Why only probes are started, if it is so.
    fn pause(&self) -> Option<String> {
        Some(match self.breaker.pause()? {
            (TroubleKind::Away, reason) => format!("the handler is away: {reason}"),
            (TroubleKind::Misconfigured, reason) => {
                format!("the handler is not set up right: {reason}")
            }
        })
    }

    async fn note_all(&mut self, reports: Vec<Report>) {
        for report in reports {
            self.note(report).await;
        }
    }

    async fn note(&mut self, report: Report) {
        let Report { id, ending, effect, answered } = report;
        match effect {
            Effect::Processed => self.counts.processed += 1,
            Effect::Skipped => self.counts.skipped += 1,
            Effect::Retried => self.counts.retried += 1,
            Effect::Dead => self.counts.dead += 1,
            Effect::Trouble(_) | Effect::Undone => {}
        }
        match effect {
            Effect::Processed | Effect::Retried => {
                self.batch = (self.batch + 1).min(self.config.batch);
            }
            // One that fails undoes its whole batch: with many of them, smaller ones are better.
            Effect::Undone if W::SHARES => self.batch = (self.batch - self.batch / 8).max(1),
            _ => {}
        }
        let reply = self.lanes.ended(id, ending, Instant::now());
        match effect {
            Effect::Trouble(trouble) => self.note_trouble(id, trouble),
            _ if answered => self.note_answer(id),
            _ => self.breaker.not_asked(id, Instant::now()),
        }
        if ending == Ending::Resolved {
            self.breaker.forget(id);
        }
        if let Some(reply) = reply {
            self.acks.ack(reply).await;
        }
    }

    fn note_trouble(&mut self, id: MessageId, trouble: Trouble) {
        let (now, reason) = (Instant::now(), trouble.reason.clone());
        let opens = self.breaker.failed(id, trouble, now, rand::random());
        let next_probe = self.breaker.next_probe(now);
        self.next_probe_at = next_probe.and_then(|at| Timestamp::now().checked_add(at - now).ok());
        if opens {
            warn!(consumer = self.config.consumer, reason, "the consumer pauses: breaker open");
        }
    }

    fn note_answer(&mut self, id: MessageId) {
        let was_open = self.breaker.pause().is_some();
        let convicted = self.breaker.answered(id);
        if was_open && self.breaker.pause().is_none() {
            info!(consumer = self.config.consumer, "the handler answers again: breaker closed");
        }
        if let Some(Convicted { id, reason }) = convicted {
            let consumer = &self.config.consumer;
            warn!(
                consumer,
                stream_seq = id.seq,
                reason,
                "only this event fails: its attempt counts"
            );
            self.lanes.convict(id, &reason, Instant::now());
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let probe_at = self.breaker.next_probe(now);
        [self.lanes.next_due(), probe_at, self.next_trim(now)].into_iter().flatten().min()
    }

    /// Tells the source how much to bring, and the world what is going on.
    fn publish(&self, stopping: bool) {
        let hindrance = self.hindrance();
        let closed = stopping || hindrance.is_some();
        let room = if closed { 0 } else { self.capacity.room(&self.lanes) };
        self.intake.room.send_if_modified(|now| std::mem::replace(now, room) != room);
        let broker = || self.broker.borrow().as_ref().map(|it| format!("the broker is away: {it}"));
        let paused = hindrance.or_else(|| self.pause()).or_else(broker).or_else(|| self.full());
        let state = match (stopping, &paused) {
            (true, _) => State::Stopping,
            (false, Some(_)) => State::Paused,
            (false, None) => State::Active,
        };
        let status = Status {
            state,
            paused,
            handler: self.handler(),
            busy: self.lanes.busy(),
            lanes: self.lanes.len(),
            held: self.lanes.held(),
            left: self.lanes.left(),
            counts: self.counts,
        };
        self.status.send_if_modified(|now| std::mem::replace(now, status.clone()) != status);
    }

    fn handler(&self) -> Handler {
        let breaker = match self.breaker.pause() {
            None => BreakerState::Closed,
            Some(_) if self.breaker.is_half_open() => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        };
        let next_probe_at = self.next_probe_at.filter(|_| breaker == BreakerState::Open);
        Handler { breaker, next_probe_at, opened: self.breaker.opened() }
    }

    /// Keeps what is held from being delivered again.
    async fn say_in_progress(&self) {
        let told = async {
            for reply in self.lanes.replies() {
                answer(&self.nats, reply, b"+WPI").await;
            }
        };
        // The client queues what it cannot send, up to a limit: then it would wait for the broker.
        let _ = timeout(TOLD_DEADLINE, told).await;
    }

    /// Lets what was started finish and gives the rest back.
    async fn stop(
        mut self,
        mut jobs: JoinSet<()>,
        reports: Reports,
        mut reported: mpsc::Receiver<Vec<Report>>,
    ) -> Summary {
        drop(reports);
        self.publish(true);
        // Ends the source when its request has been answered.
        let (gone, _) = watch::channel(0);
        drop(std::mem::replace(&mut self.intake.room, gone));
        let deadline = tokio::time::sleep(STOP_DEADLINE);
        tokio::pin!(deadline);
        let mut in_progress = tokio::time::interval((self.ack_wait / 3).max(PROGRESS_MIN));
        let (mut fed, mut abandoned) = (true, false);
        loop {
            self.give_back().await;
            self.publish(true);
            tokio::select! {
                done = reported.recv() => match done {
                    Some(done) => self.note_all(done).await,
                    None if !fed => break,
                    None => fed = self.drain_feed().await,
                },
                delivered = self.intake.deliveries.recv(), if fed => match delivered {
                    Some(delivered) => self.take_in(delivered),
                    None => fed = false,
                },
                Some(ended) = jobs.join_next() => ended.expect("jobs do not panic"),
                _ = in_progress.tick() => self.say_in_progress().await,
                () = &mut deadline => {
                    let busy = self.lanes.busy();
                    if abandoned {
                        warn!(consumer = self.config.consumer, busy, "left handlers at work");
                        break;
                    }
                    warn!(consumer = self.config.consumer, busy, "handlers are at work: ending them");
                    self.context.leases.abandon_all();
                    abandoned = true;
                    deadline.as_mut().reset((Instant::now() + ABANDON_DEADLINE).into());
                }
            }
        }
        self.give_back().await;
        self.acks.finish().await;
        let _ = timeout(TOLD_DEADLINE, self.nats.flush()).await;
        self.counts
    }

    /// The jobs are done; takes what the source still brings. Returns whether more may come.
    async fn drain_feed(&mut self) -> bool {
        let delivered = self.intake.deliveries.recv().await;
        let more = delivered.is_some();
        delivered.into_iter().for_each(|delivered| self.take_in(delivered));
        more
    }

    async fn give_back(&mut self) {
        let released = self.lanes.release();
        self.counts.released += released.len() as u64;
        let told = async {
            for reply in released.iter().flatten() {
                answer(&self.nats, reply, b"-NAK").await;
            }
        };
        let _ = timeout(TOLD_DEADLINE, told).await;
    }
}

const PROGRESS_MIN: Duration = Duration::from_millis(50);

async fn answer(nats: &Client, reply: &Subject, text: &'static [u8]) {
    // Lost with the connection at worst: then the broker delivers again, and the event is known.
    let _ = nats.publish(reply.clone(), Bytes::from_static(text)).await;
}

async fn due(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}
