//! What the two ways of handling events have in common.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::Either;
use tokio::sync::{
    OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, Semaphore, mpsc, oneshot, watch,
};
use tracing::{info, warn};
use uuid::Uuid;

use crate::attempt::Attempt;
use crate::config::Config;
use crate::engine::{Begin, Decision, Item, Path, Patience, Report, Term, begin, decide};
use crate::message::{Message, MessageId, Whence};
use crate::nats::reconnects::Unanswered;
use crate::postgres::attended::answered;
use crate::postgres::pool::Pool;
use crate::postgres::resolved;
use crate::postgres::sqlstate::{asks_again, is_locked, is_refused, without_letter};
use crate::postgres::store::Store;
use crate::postgres::tables::{Partitions, Room};
use crate::record::{Cause, Claim, ClaimReply, UNFINISHED_MAX};
use crate::tally::Tally;
use crate::unread::Handled;
use crate::worker::lease::Leases;
use crate::{Delivery, Error, Verdict};

/// Before another look at an event that somebody else is at work on, where the database refuses to
/// say for how long.
const HELD_PAUSE: Duration = Duration::from_secs(1);

/// A way of handling events.
pub(crate) trait Work: Send + Sync + 'static {
    /// Whether the events of a job share a transaction, and so a place among the lanes.
    const SHARES: bool;

    /// Handles events and reports each one's end. A report that does not come leaves its lane
    /// blocked: only when the session is gone.
    fn run(
        &self,
        context: Arc<Context>,
        items: Vec<Item>,
        reports: Reports,
    ) -> impl Future<Output = ()> + Send;
}

/// Where a job says what becomes of its events.
pub(crate) type Reports = mpsc::Sender<Said>;

/// What a job says.
pub(crate) enum Said {
    Reported(Vec<Report>),
    /// Of the group these are claimed, which is said once of each group. An event begins when it is
    /// told to; its claim is given back when it cannot be told any more.
    Claimed(Vec<(MessageId, oneshot::Sender<()>)>),
    /// No handler has the event any more, or will.
    Left(MessageId),
}

/// What jobs work with.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) partitions: watch::Sender<Option<Partitions>>,
    /// The term of the role that its session began in; of nobody outside of a session.
    pub(crate) term: Term,
    /// Up to which message everything is handled, as far as it is known in this term.
    pub(crate) handled: watch::Sender<Option<(Term, Handled)>>,
    /// Whether records may go: the stream forgets before they do.
    pub(crate) may_forget: watch::Sender<bool>,
    /// Something may be done under the role.
    pub(crate) at_work: watch::Sender<bool>,
    /// Since when no event is handled for a reason that other workers may not have.
    pub(crate) hindered: watch::Sender<Option<Instant>>,
    /// A session did not wait for all that it had begun.
    pub(crate) left_behind: Arc<AtomicBool>,
    /// Shared by all sessions: they have one client.
    pub(crate) unanswered: Arc<Unanswered>,
    /// Changes when the handler may work again.
    pub(crate) mended: watch::Receiver<u64>,
    /// Had for writing by the event that is tried with nothing else at work in the process.
    pub(crate) alone: Arc<RwLock<()>>,
    /// The lanes of a consumer whose partitions share them.
    pub(crate) places: Option<Arc<Semaphore>>,
}

/// An event that is ours to handle.
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    /// Before it was claimed, by our clock.
    pub(crate) since: Instant,
    pub(crate) attempts: u32,
    /// How long before `answered` the first of them failed, or longer.
    pub(crate) age: Option<Duration>,
    /// After it was claimed, by our clock: no event is given up before its time.
    pub(crate) answered: Instant,
}

impl Claimed {
    /// How many attempts were started, and how long ago the first failed.
    pub(crate) fn tried(&self) -> (u32, Duration) {
        (self.attempts, self.age.map_or(Duration::ZERO, |it| it + self.answered.elapsed()))
    }
}

/// A claim that ends, what is decided about the event, and how long its handler took, if it was asked.
pub(crate) type Ending<'a> = (&'a Item, Claim, Option<(&'a Decision, Option<Duration>)>);

/// What is ours to handle, and what became of the rest.
pub(crate) type Begun = (Vec<(Item, Claimed)>, Vec<Report>);

/// Keeps others from being at work, or an event that is to be alone from it.
pub(crate) type Turn = Either<OwnedRwLockWriteGuard<()>, OwnedRwLockReadGuard<()>>;

impl Context {
    /// What is done for one partition with.
    pub(crate) fn of_part(&self, config: Config) -> Self {
        Self {
            config: Arc::new(config),
            handled: watch::Sender::default(),
            at_work: watch::Sender::new(false),
            left_behind: Arc::default(),
            hindered: watch::Sender::default(),
            ..self.clone()
        }
    }

    pub(crate) fn hinder(&self, is_hindered: bool) {
        let now = is_hindered.then(Instant::now);
        self.hindered.send_if_modified(|it| {
            let differs = it.is_some() != now.is_some();
            *it = if differs { now } else { *it };
            differs
        });
    }

    /// Waits until a job may be at work, beside those for other partitions.
    pub(crate) async fn turn(&self, items: &[Item]) -> Turn {
        let alone = Arc::clone(&self.alone);
        match items {
            [Item { path: Path::Alone, .. }] => Either::Left(alone.write_owned().await),
            _ => Either::Right(alone.read_owned().await),
        }
    }

    /// An attempt at an event begins. Says what the handler gets.
    pub(crate) fn delivery<'a>(
        &'a self,
        message: &'a Message,
        attempt: u32,
    ) -> (Delivery<'a>, Attempt) {
        let begun = Attempt::begin(&self.config, message, attempt);
        let event = message.event.as_ref().expect("unreadable messages are parked");
        let delivery = Delivery {
            consumer: &self.config.consumer,
            event,
            subject: &message.subject,
            headers: &message.headers,
            stream: &self.config.stream,
            stream_seq: message.stream_seq,
            attempt,
            max_attempts: self.config.max_attempts,
            lease: self.config.lease,
            span: begun.parent(),
        };
        (delivery, begun)
    }

    /// Makes sure that these events can have a record. `Err` has those that cannot: what became of
    /// them.
    pub(crate) async fn make_room(
        &self,
        store: &Store,
        items: Vec<Item>,
    ) -> Result<(Vec<Item>, Vec<Report>), Error> {
        let mut kept = Vec::with_capacity(items.len());
        let mut reports = Vec::new();
        for item in items {
            let room =
                self.partitions.borrow().as_ref().map(|it| it.room(item.message.key.event_time));
            match room {
                Some(Room::There) => {}
                None => return Err(Error::Tables { reason: "not looked at yet".into() }),
                Some(Room::Missing(time)) => {
                    let mut partitions = self.partitions.borrow().clone().expect("just looked at");
                    partitions.create(store.client(), time).await?;
                    self.partitions.send_replace(Some(partitions));
                }
                // Its record is there: what is requeued, or unfinished, is not forgotten.
                Some(Room::Forgotten) if item.message.whence != Whence::Stream => {}
                Some(Room::Forgotten) => {
                    reports.push(self.park_forgotten(store, &item).await?);
                    continue;
                }
            }
            kept.push(item);
        }
        Ok((kept, reports))
    }

    /// Claims events, no two with the same id. Says which are ours to handle, and of each other what
    /// becomes of it.
    pub(crate) async fn claim(&self, store: &Store, items: Vec<Item>) -> Result<Begun, Error> {
        let (items, mut done) = self.make_room(store, items).await?;
        let (items, unreadable): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| item.message.event.is_ok());
        for item in &unreadable {
            done.push(self.park_unreadable(store, item).await?);
        }
        let (token, since) = (Uuid::new_v4(), Instant::now());
        let messages: Vec<&Message> = items.iter().map(|item| &*item.message).collect();
        let replies = store.sql().claim(store.client(), (self.term.token, token), &messages).await;
        let replies = replies.map_err(Error::sql("claim events"))?;
        let answered = Instant::now();
        let mut ours = Vec::with_capacity(items.len());
        for (item, reply) in items.into_iter().zip(replies) {
            let claim = Claim { key: item.message.key, token };
            match (self.begin(store, &item, (claim, reply)).await?, &item.at_fault) {
                (Err(report), _) => done.push(report),
                (Ok((attempts, age)), None) => {
                    ours.push((item, Claimed { claim, since, attempts, age, answered }));
                }
                (Ok((attempts, age)), Some(reason)) => {
                    let claimed = Claimed { claim, since, attempts, age, answered };
                    let decision = self.decide(Verdict::retry(reason), claimed.tried());
                    // The attempt itself was noted when it failed.
                    let ending = [(&item, claim, Some((&decision, None)))];
                    let waits = || Report::waits(&item, HELD_PAUSE, item.path);
                    let ended = self.end(store, &ending).await?;
                    done.extend(ended.into_iter().map(|it| it.unwrap_or_else(waits)));
                }
            }
        }
        Ok((ours, done))
    }

    /// Each of several events was refused for a lock: fails if it is one on a table, which is in
    /// everybody's way. A claim of no event needs the tables, and no record.
    pub(crate) async fn look_for_locked_tables(&self, store: &Store) -> Result<(), Error> {
        let claiming = store.sql().claim(store.client(), (self.term.token, Uuid::nil()), &[]).await;
        let looked = claiming.map(drop).map_err(Error::sql("claim events"));
        if let Err(error) = &looked
            && is_locked(error)
        {
            self.pool.note_trouble(error);
            self.pool.close_idle(); // A new one meets the lock too, and says when it is gone.
        }
        looked
    }

    /// Which attempt begins, and how long ago the first failed, or what becomes of the event without one.
    async fn begin(
        &self,
        store: &Store,
        item: &Item,
        (claim, reply): (Claim, ClaimReply),
    ) -> Result<Result<(u32, Option<Duration>), Report>, Error> {
        self.tally.claimed(&reply);
        if let ClaimReply::Leased { remaining } = reply {
            info!(
                consumer = self.config.consumer,
                event_id = %item.message.key.id,
                stream_seq = item.message.stream_seq,
                lsn = item.message.lsn(),
                trace_id = item.message.trace_id().map(display),
                ?remaining,
                "leased by another worker"
            );
        }
        Ok(match begin(item, reply, rand::random()) {
            Begin::Handle { attempts, age } => Ok((attempts, age)),
            Begin::Alone => {
                self.end(store, &[(item, claim, None)]).await?;
                Err(Report::undone(item, Path::Alone))
            }
            Begin::Forgotten => Err(self.park_forgotten(store, item).await?),
            Begin::Crashed { attempts } => {
                let reason = format!("{attempts} attempts began, {UNFINISHED_MAX} never ended");
                let message = &item.message;
                let parked = self.park(store, message, None, Cause::Crashes, &reason).await?;
                // Otherwise the end of the last attempt was written down meanwhile.
                let undone = || Report::undone(item, Path::Careful);
                Err(if parked { Report::dead(item) } else { undone() })
            }
            Begin::Nothing(report) => Err(report),
        })
    }

    async fn park_forgotten(&self, store: &Store, item: &Item) -> Result<Report, Error> {
        let reason = "it is older than the inbox remembers, and may have been handled";
        self.park_or_wait(store, item, None, (Cause::Forgotten, reason)).await
    }

    /// Puts a message that cannot be read, or that there is none of, out of the way.
    async fn park_unreadable(&self, store: &Store, item: &Item) -> Result<Report, Error> {
        let reason = item.message.event.as_ref().err().map_or("", String::as_str);
        let gone = item.message.whence == Whence::Record;
        let cause = if gone { Cause::Gone } else { Cause::Unreadable };
        self.park_or_wait(store, item, None, (cause, reason)).await
    }

    /// Puts a message out of the way of which the database refuses to keep what there is to keep:
    /// the same statement would be refused for ever.
    pub(crate) async fn park_unrecordable(
        &self,
        store: &Store,
        item: &Item,
        claim: Option<Claim>,
        refusal: &Error,
    ) -> Result<Report, Error> {
        // Its day may have lost its partition, or not have one yet: that is not the message's fault.
        let partitions = Partitions::load(store.client(), &self.config.schema).await?;
        let room = partitions.room(item.message.key.event_time);
        self.partitions.send_replace(Some(partitions));
        if room != Room::There {
            return Ok(Report::undone(item, Path::Careful));
        }
        let reason = format!("the database refuses its record: {}", refusal.without_data());
        self.park_or_wait(store, item, claim, (Cause::Unrecordable, &reason)).await
    }

    async fn park_or_wait(
        &self,
        store: &Store,
        item: &Item,
        claim: Option<Claim>,
        (cause, reason): (Cause, &str),
    ) -> Result<Report, Error> {
        let claim = claim.map(|it| (it, None));
        if self.park(store, &item.message, claim, cause, reason).await? {
            return Ok(Report::dead(item));
        }
        // It has had its end, or somebody else is at work on it, or has the role.
        let key = item.message.key;
        let resolved = resolved::find(store.client(), &self.config, &[key]).await?;
        Ok(if resolved.is_empty() {
            Report::waits(item, HELD_PAUSE, Path::Careful)
        } else {
            Report::skipped(item)
        })
    }

    pub(super) async fn park(
        &self,
        store: &Store,
        message: &Message,
        claim: Option<(Claim, Option<Duration>)>,
        cause: Cause,
        reason: &str,
    ) -> Result<bool, Error> {
        let under = (self.term.token, claim);
        let parked = store.sql().park(store.client(), message, under, cause, reason).await;
        let parked = parked.map_err(without_letter).inspect_err(|it| self.keep_out(message, it))?;
        if parked {
            self.tally.parked(cause);
            self.tally.let_in(message.key.id);
            warn!(
                consumer = self.config.consumer,
                event_id = %message.key.id,
                stream_seq = message.stream_seq,
                lsn = message.lsn(),
                trace_id = message.trace_id().map(display),
                ?cause,
                reason,
                hint = "see `tailpost inbox dlq show` with its id; mend the cause, then requeue it",
                "became a dead letter"
            );
        }
        Ok(parked)
    }

    /// `tried` is how many attempts were started, and how long ago the first failed.
    pub(crate) fn decide(&self, verdict: Verdict, tried: (u32, Duration)) -> Decision {
        let Config { max_attempts, ref pauses, give_up_after, .. } = *self.config;
        let patience = Patience { max_attempts, pauses, give_up_after };
        decide(verdict, tried, patience, rand::random())
    }

    /// Another look says whose it is now.
    pub(crate) fn lost(&self, item: &Item) -> Report {
        self.tally.lost();
        self.tally.let_in(item.message.key.id);
        let (consumer, message) = (&self.config.consumer, &item.message);
        warn!(
            consumer,
            event_id = %message.key.id,
            lsn = message.lsn(),
            trace_id = message.trace_id().map(display),
            "the lease was lost while the handler was at work"
        );
        Report::undone(item, Path::Careful)
    }

    /// After trouble with the database: what has been claimed is given back, for as long as that
    /// takes. The attempts do not count: it was not the handler's fault.
    pub(crate) async fn release(&self, item: &Item, claim: Claim) {
        loop {
            let store = self.pool.get().await;
            match answered("end a claim", self.end(&store, &[(item, claim, None)])).await {
                Ok(_) => return self.pool.put(store),
                Err(error) => self.pool.note_trouble(&error),
            }
        }
    }
}

/// What a handler says; that it panicked is for another attempt to mend.
pub(crate) fn verdict_of(handling: impl Future<Output = Verdict>) -> impl Future<Output = Verdict> {
    let panicked = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Verdict::retry(format!("the handler panicked: {}", text.unwrap_or("for no given reason")))
    };
    AssertUnwindSafe(handling).catch_unwind().map(move |it| it.unwrap_or_else(panicked))
}

/// Says what went wrong; if the database is to blame, to those who wait for it.
pub(crate) fn trouble(context: &Context, error: &Error) {
    if matches!(error, Error::KeptOut { .. }) {
        return; // It is told.
    }
    let (mut refused, mut again) = (false, false);
    if let Error::Sql { source, .. } = error {
        (refused, again) = (is_refused(source), asks_again(source));
    }
    if error.is_transient() && !matches!(error, Error::LeaseLost) && !refused && !again {
        context.pool.note_trouble(error);
    } else {
        let error = error.without_data();
        warn!(consumer = context.config.consumer, error, "could not keep the record");
    }
}
