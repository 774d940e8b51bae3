//! Runs a session of an active consumer: waits for one thing, tells the engine, and does what the
//! engine says.

mod loads;
mod notices;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::{Client, Subject};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::engine::{ConsumerEngine, Delivered, Effect, Loaded, Pause, Role, Surroundings};
use crate::feed::Intake;
use crate::message::{MessageId, Origin};
use crate::nats::acks::Acks;
use crate::worker::controlling::Wanted;
use crate::worker::places::Places;
use crate::worker::work::{Context, Reports, Said, Work};
use crate::{HeldUp, Status, Summary};

/// How long the broker may take for what is told to it without being asked.
const TOLD_DEADLINE: Duration = Duration::from_secs(2);

/// What jobs say that is taken in at a time.
const SAID_MAX: usize = 256;

/// How often all that is held is looked at.
const ENDED_EVERY: Duration = Duration::from_secs(1);

const IN_PROGRESS: &[u8] = b"+WPI";

const GIVEN_BACK: &[u8] = b"-NAK";

/// The broker delivers again after a day what is left: it is known here, and told so once more. As
/// it goes before what is new, a shorter pause would make others wait for many of them more often.
const LATER: &[u8] = b"-NAK {\"delay\": 86400000000000}";

pub(crate) struct Session<W> {
    pub(crate) nats: Client,
    pub(crate) acks: Acks,
    pub(crate) work: Arc<W>,
    pub(crate) context: Arc<Context>,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) role: watch::Receiver<Role>,
    pub(crate) trouble: watch::Receiver<Option<String>>,
    /// Why nothing can be taken from the stream, while that is so.
    pub(crate) broker: watch::Receiver<Option<String>>,
    pub(crate) wanted: Wanted,
    pub(crate) intake: Intake,
    pub(crate) origin: Origin,
    pub(crate) engine: ConsumerEngine,
    pub(crate) places: Places,
    /// Up to which message of the stream all that was delivered has its end, as of `ended_at`.
    pub(crate) ended: watch::Sender<u64>,
    pub(crate) ended_at: Option<Instant>,
    /// As of then.
    pub(crate) held_up: Arc<[HeldUp]>,
}

/// What was begun.
struct Begun {
    jobs: JoinSet<()>,
    /// Dropped when no job is begun any more.
    reports: Option<Reports>,
    /// Claimed events, which begin when they are told to.
    waiting: HashMap<MessageId, oneshot::Sender<()>>,
    loads: JoinSet<Loaded>,
}

impl<W: Work> Session<W> {
    /// Runs until `shutdown`, or until the role is lost to another worker.
    pub(crate) async fn run(mut self, shutdown: &CancellationToken) -> Summary {
        let (reports, mut said) = mpsc::channel(4 * SAID_MAX);
        let mut begun = Begun {
            jobs: JoinSet::new(),
            reports: Some(reports),
            waiting: HashMap::new(),
            loads: JoinSet::new(),
        };
        let mut words = Vec::new();
        let mut kept_out = self.context.tally.kept_out.subscribe();
        // What a former session left is delivered again.
        self.context.tally.kept_out.send_modify(BTreeMap::clear);
        while let Some(turned_at) = self.turn(&mut begun).await {
            let runs = !self.engine.is_stopping();
            let due_at = self.engine.next_due(turned_at);
            tokio::select! {
                biased;
                () = shutdown.cancelled(), if !self.engine.is_told_to_stop() => self.engine.stop(Instant::now()),
                many = said.recv_many(&mut words, SAID_MAX), if self.engine.awaits_reports() => {
                    if many == 0 {
                        self.engine.reports_ended(Instant::now());
                    }
                    words.drain(..).for_each(|word| self.note(word, &mut begun));
                }
                Some(ended) = begun.jobs.join_next() => {
                    // Every panic of a handler is caught; this one is ours.
                    ended.expect("jobs do not panic");
                    self.engine.job_ended();
                    self.places.keep(self.engine.used_places());
                }
                delivered = self.intake.deliveries.recv(), if self.engine.is_fed() => {
                    self.take_in(delivered);
                }
                Ok(events) = self.wanted.decided.recv(), if runs => {
                    events.iter().for_each(|it| self.engine.hasten(*it, Instant::now()));
                }
                Ok(()) = self.wanted.mended.changed(), if runs => self.engine.probe(Instant::now()),
                Some(loaded) = begun.loads.join_next(), if runs => {
                    let loaded = loaded.expect("reading does not panic");
                    self.engine.loaded(Instant::now(), loaded);
                }
                () = due(due_at) => {}
                Ok(()) = kept_out.changed() => {}
                Ok(()) = self.role.changed() => {}
                Ok(()) = self.trouble.changed(), if runs => {}
                Ok(()) = self.broker.changed(), if runs => {}
                Ok(()) = self.wanted.control.changed(), if runs => {}
                () = self.places.granted(), if runs => {}
            }
        }
        self.context.left_behind.fetch_or(!begun.jobs.is_empty(), Ordering::Relaxed);
        self.context.at_work.send_replace(false);
        self.ended.send_replace(self.engine.ended());
        self.acks.finish().await;
        let _ = timeout(TOLD_DEADLINE, self.nats.flush()).await;
        self.engine.counts()
    }

    /// Has the engine decide, and does what it says. Returns when it decided; nothing at the end.
    async fn turn(&mut self, begun: &mut Begun) -> Option<Instant> {
        let now = Instant::now();
        let control = self.wanted.control.borrow_and_update().clone();
        let known = std::mem::replace(&mut self.wanted.known, control);
        if known.breaker_closings != self.wanted.known.breaker_closings {
            self.engine.close_breaker();
        }
        self.engine.look(Surroundings {
            role: *self.role.borrow_and_update(),
            database: self.trouble.borrow_and_update().clone(),
            broker: self.broker.borrow_and_update().clone(),
            operator: self.wanted.known.pause.as_ref().map(|it| it.by.clone()),
            places: self.places.take(),
        });
        self.engine.turn(now);
        self.places.keep(self.engine.used_places());
        self.places.want(self.engine.wants_place(now));
        if self.engine.is_draining() {
            // The broker may take longer: what is acknowledged has its end.
            self.context.at_work.send_replace(false);
        }
        self.note_ended(now);
        self.publish();
        while let Some(effect) = self.engine.next_effect() {
            if self.carry_out(effect, begun).await.is_break() {
                return None;
            }
        }
        Some(now)
    }

    /// Breaks at the end of the session.
    async fn carry_out(&mut self, effect: Effect, begun: &mut Begun) -> ControlFlow<()> {
        match effect {
            Effect::Start(items) => {
                let reports = begun.reports.clone();
                debug_assert!(reports.is_some(), "an event is begun after the last one");
                let (work, context) = (Arc::clone(&self.work), Arc::clone(&self.context));
                begun.jobs.spawn(async move {
                    let _turn = context.turn(&items).await;
                    if let Some(reports) = reports {
                        let context = Arc::clone(&context);
                        work.run(context, items, reports).await;
                    }
                });
            }
            Effect::Handle(ids) => {
                for id in ids {
                    // Fails where the lease was lost meanwhile, which is reported.
                    let _ = begun.waiting.remove(&id).map(|it| it.send(()));
                }
            }
            Effect::Withdraw(ids) => ids.iter().for_each(|id| drop(begun.waiting.remove(id))),
            Effect::Acknowledge(reply) => self.acks.ack(reply).await,
            Effect::InProgress(replies) => self.tell_broker(&replies, IN_PROGRESS).await,
            Effect::GiveBack(replies) => self.tell_broker(&replies, GIVEN_BACK).await,
            Effect::Leave(replies) => self.tell_broker(&replies, LATER).await,
            Effect::Load(load) => {
                let (nats, origin) = (self.nats.clone(), self.origin.clone());
                let consumer = self.context.config.durable();
                begun.loads.spawn(loads::read(nats, origin, consumer, load));
            }
            Effect::Request(room) => _ = self.intake.room.send_replace(room),
            Effect::Close => {
                begun.reports = None;
                // Ends the source when its request has been answered.
                let (gone, _) = watch::channel(0);
                drop(std::mem::replace(&mut self.intake.room, gone));
            }
            Effect::AbandonAll => self.context.leases.abandon(self.context.config.partition),
            Effect::Tell(notice) => notices::tell(&self.context.config, notice),
            Effect::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// What is not told is lost with the connection at worst: then the broker delivers again, and the
    /// event is known.
    async fn tell_broker(&self, replies: &[Subject], text: &'static [u8]) {
        let told = async {
            for reply in replies {
                let _ = self.nats.publish(reply.clone(), Bytes::from_static(text)).await;
            }
        };
        // The client queues what it cannot send, up to a limit: then it would wait for the broker.
        let _ = timeout(TOLD_DEADLINE, told).await;
    }

    fn note_ended(&mut self, now: Instant) {
        let is_due = self.ended_at.is_none_or(|it| it + ENDED_EVERY <= now);
        if is_due || self.engine.is_empty() {
            self.ended_at = Some(now);
            self.ended.send_replace(self.engine.ended());
            let held_up = self.engine.held_up();
            if held_up != *self.held_up {
                self.held_up = held_up.into();
            }
        }
    }

    /// Tells the world what is going on.
    fn publish(&self) {
        let now = Instant::now();
        let paused = self.engine.pause(now);
        let is_hindered = matches!(paused, Some(Pause::Broker(_) | Pause::Handler(..)));
        self.context.hinder(is_hindered);
        let paused = paused.map(|it| notices::in_words(&self.context.config, it));
        let paused = paused.or_else(|| self.context.tally.keeps_out());
        let status = Status {
            paused_by: self.engine.held_by(now).map(str::to_owned),
            held_up: Arc::clone(&self.held_up),
            ..self.engine.status(paused, self.context.tally.status())
        };
        let is_new = *self.status.borrow() != status;
        if is_new {
            self.status.send_replace(status);
        }
    }

    fn note(&mut self, said: Said, begun: &mut Begun) {
        let now = Instant::now();
        match said {
            Said::Reported(reports) => {
                let time = Timestamp::now();
                for report in reports {
                    self.engine.reported(now, time, report, rand::random());
                }
            }
            Said::Claimed(group) => {
                self.engine.claimed(now, group.iter().map(|(id, _)| *id).collect());
                begun.waiting.extend(group);
            }
            Said::Left(id) => {
                begun.waiting.remove(&id);
                self.engine.left(id);
                self.places.keep(self.engine.used_places());
            }
        }
    }

    fn take_in(&mut self, delivered: Option<Delivered>) {
        let Some(delivered) = delivered else { return self.engine.feed_ended(Instant::now()) };
        self.engine.delivered(Instant::now(), delivered);
        while self.engine.has_room()
            && let Ok(delivered) = self.intake.deliveries.try_recv()
        {
            self.engine.delivered(Instant::now(), delivered);
        }
    }
}

async fn due(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}
