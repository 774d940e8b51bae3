mod lanes_hold;
mod left;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subject;
use uuid::Uuid;

use crate::HeldUp;
use crate::message::{Message, MessageId, Whence};

use self::left::Left;
pub(crate) use self::left::{Load, Loaded};

/// How an event is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// It is new, as far as we know: with others in one go, nothing written down before.
    Fast,
    /// Something happened to it before: each start is written down first.
    Careful,
    /// It may have killed the process twice: nothing else is at work while it is handled.
    Alone,
}

/// A message, and what is known about it.
pub(crate) struct Delivered {
    pub(crate) message: Arc<Message>,
    /// Where to acknowledge it, if that is to be done.
    pub(crate) reply: Option<Subject>,
    pub(crate) path: Path,
}

/// An event that has been delivered and not yet had its end.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) message: Arc<Message>,
    pub(crate) path: Path,
    /// Its last attempt, which was given back, counts after all: this is what became of it. To be
    /// written down, without another attempt.
    pub(crate) at_fault: Option<Arc<str>>,
    /// Where to acknowledge it; not known if it was read from the stream.
    reply: Option<Subject>,
    not_before: Option<Instant>,
    /// It has had to wait for a time: what is behind it waits for it.
    holds_up: bool,
}

impl Item {
    fn new(message: Arc<Message>, path: Path, reply: Option<Subject>) -> Self {
        Self { message, path, at_fault: None, reply, not_before: None, holds_up: false }
    }

    pub(crate) fn id(&self) -> MessageId {
        self.message.id()
    }
}

/// What became of an event that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There is nothing left to do: acknowledge it.
    Resolved,
    /// Its turn comes again, after the pause at the earliest. Its aggregate waits.
    Again { after: Duration, path: Path },
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It is held, or was.
    Held,
    /// It is left in the stream, behind others of its aggregate, and read from there in its turn.
    Left,
    /// It is not noted: whoever found it finds it again.
    Passed,
}

/// Events in lanes: those of one aggregate in the order of the stream, one (or a row of them) at a
/// time; those of different aggregates side by side.
///
/// An event whose turn has not come waits here, not at the broker: given back, it would be delivered
/// behind later events of its aggregate. Of an aggregate that makes no progress only the first few
/// wait here; of those behind them nothing is kept but their sequences (`left.rs`).
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: HashMap<u64, Lane>,
    /// The lane of each event that is held.
    known: HashMap<MessageId, u64>,
    /// Lanes whose first event can be started, by its place in the stream: old events first.
    ready: BTreeMap<MessageId, u64>,
    /// Lanes whose first event has to wait.
    waiting: BTreeSet<(Instant, u64)>,
    /// The first events, of those in `ready`, that have to be alone.
    alone: BTreeSet<MessageId>,
    /// Taken, and nothing else is until it has its end.
    alone_at_work: Option<MessageId>,
    busy: usize,
    /// The ids of those that are at work: of two messages of one id in different aggregates one waits,
    /// since both have one record.
    at_work: HashSet<Uuid>,
    bytes: usize,
    /// Events that are left in the stream.
    left: usize,
    /// Lanes whose next events are to be read from the stream.
    hungry: BTreeSet<u64>,
    /// The first message that was let go of without an end.
    released: Option<u64>,
}

#[derive(Debug, Default)]
struct Lane {
    /// In the order of the stream.
    queue: VecDeque<Item>,
    /// Taken, in that order; `None` when its end is resolved.
    taken: Vec<(MessageId, Option<Item>)>,
    /// Taken and without an end.
    busy: usize,
    /// Behind all that is in `queue`.
    left: Left,
    /// When an event of it had its end, or it was empty.
    moved_at: Option<Instant>,
}

impl Lanes {
    /// Takes in a delivery. If the event is here already only the way to acknowledge it is noted:
    /// the newest delivery's counts.
    pub(crate) fn offer(&mut self, delivered: Delivered, now: Instant) -> Offered {
        let Delivered { message, reply, path } = delivered;
        let id = message.id();
        if let Some(lane) = self.known.get(&id) {
            if reply.is_some() {
                let lane = self.lanes.get_mut(lane).expect("known");
                lane.find(id).expect("known").reply = reply;
            }
            return Offered::Held;
        }
        let key = message.lane();
        if let Some(lane) = self.lanes.get_mut(&key)
            && lane.left.is_before(id)
        {
            return self.leave(key, &message, path);
        }
        self.hold(key, Item::new(message, path, reply), now);
        Offered::Held
    }

    fn hold(&mut self, key: u64, item: Item, now: Instant) {
        let id = item.id();
        self.known.insert(id, key);
        self.bytes += item.message.bytes();
        self.unlist(key);
        let lane = self.lanes.entry(key).or_default();
        lane.moved_at.get_or_insert(now);
        // Mostly at the end; a redelivery may be older than what waits.
        let place = lane.queue.partition_point(|it| it.id() < id);
        lane.queue.insert(place, item);
        self.list(key, now);
    }

    /// Moves on to `now`: what had to wait until then is ready.
    pub(crate) fn advance(&mut self, now: Instant) {
        while let Some(&(until, key)) = self.waiting.first()
            && until <= now
        {
            self.unlist(key);
            self.list(key, now);
        }
    }

    /// When [`Lanes::advance`] has something to do.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.first().map(|(until, _)| *until)
    }

    /// Takes up to `max` events that are handled in the same way: the oldest that can be started,
    /// and what fits to it. No two have the same id, nor that of one at work. If they are fast, several
    /// of one aggregate may be among them, in order; otherwise they are of different aggregates. An
    /// aggregate whose first event is not `allowed` is passed over.
    pub(crate) fn take(&mut self, max: usize, allowed: impl Fn(MessageId) -> bool) -> Vec<Item> {
        let mut taken = Vec::new();
        if max == 0 || self.alone_at_work.is_some() {
            return taken;
        }
        if let Some(&id) = self.alone.iter().find(|id| allowed(**id)) {
            // Everything else waits until it has had its turn.
            if self.busy == 0 {
                self.alone_at_work = Some(id);
                self.take_from(self.ready[&id], 1, &mut taken);
            }
            return taken;
        }
        let ready = self.ready.iter().filter(|(id, _)| allowed(**id));
        let heads: Vec<u64> = ready.map(|(_, key)| *key).take(max).collect();
        let path = heads.first().map(|key| self.lanes[key].queue[0].path);
        for key in heads {
            let room = max - taken.len();
            if room == 0 {
                break;
            }
            if Some(self.lanes[&key].queue[0].path) == path {
                let count = if path == Some(Path::Fast) { room } else { 1 };
                self.take_from(key, count, &mut taken);
            }
        }
        taken
    }

    /// The first events that can be started, oldest first.
    pub(crate) fn ready(&self) -> impl Iterator<Item = MessageId> {
        self.ready.keys().copied()
    }

    /// Whether an event that is `allowed` has to be alone while it is handled.
    pub(crate) fn has_alone(&self, allowed: impl Fn(MessageId) -> bool) -> bool {
        self.alone.iter().any(|id| allowed(*id))
    }

    /// The attempt of an event that waits for its turn, and that was given back, counts after all.
    pub(crate) fn set_at_fault(&mut self, id: MessageId, reason: &str, now: Instant) {
        let Some(&key) = self.known.get(&id) else { return };
        self.unlist(key);
        let item = self.lanes.get_mut(&key).and_then(|lane| lane.find(id)).expect("known");
        item.at_fault = Some(reason.into());
        item.not_before = None;
        self.list(key, now);
    }

    /// What keeps this event waiting for a time is over. Its record says what is done with it.
    pub(crate) fn hasten(&mut self, event: Uuid, now: Instant) {
        let first = |key: &u64| self.lanes[key].queue.front();
        let is_its =
            |(_, key): &&(Instant, u64)| first(key).is_some_and(|it| it.message.key.id == event);
        let Some(key) = self.waiting.iter().find(is_its).map(|(_, key)| *key) else { return };
        self.unlist(key);
        let lane = self.lanes.get_mut(&key).expect("listed lanes exist");
        lane.queue.front_mut().expect("it waits").not_before = None;
        self.list(key, now);
    }

    fn take_from(&mut self, key: u64, max: usize, taken: &mut Vec<Item>) {
        self.unlist(key);
        let lane = self.lanes.get_mut(&key).expect("listed");
        let path = lane.queue[0].path;
        let before = taken.len();
        while taken.len() - before < max
            && let Some(item) = lane.queue.front()
            && item.path == path
            && item.not_before.is_none()
            && self.at_work.insert(item.message.key.id)
        {
            let item = lane.queue.pop_front().expect("looked at");
            lane.taken.push((item.id(), Some(item.clone())));
            lane.busy += 1;
            self.busy += 1;
            taken.push(item);
        }
        if lane.busy == 0 {
            // The same id is at work from another lane: next time.
            self.ready.insert(lane.queue[0].id(), key);
        }
    }

    /// Notes what became of an event that was taken. Returns where to acknowledge it, if it is
    /// resolved and that is known.
    pub(crate) fn ended(&mut self, id: MessageId, ending: Ending, now: Instant) -> Option<Subject> {
        let key = *self.known.get(&id).expect("it was taken");
        let lane = self.lanes.get_mut(&key).expect("known");
        let slot = lane.taken.iter_mut().find(|(taken, _)| *taken == id).expect("it was taken");
        let item = slot.1.as_mut().expect("resolved once");
        self.alone_at_work = self.alone_at_work.filter(|alone| *alone != id);
        self.at_work.remove(&id.key.id);
        let mut reply = None;
        match ending {
            Ending::Resolved => {
                reply = item.reply.take();
                self.bytes -= item.message.bytes();
                self.known.remove(&id);
                slot.1 = None;
                lane.moved_at = Some(now);
            }
            Ending::Again { after, path } => {
                item.not_before = (!after.is_zero()).then(|| now + after);
                item.holds_up |= !after.is_zero();
                item.path = path;
                item.at_fault = None;
            }
        }
        lane.busy -= 1;
        self.busy -= 1;
        if lane.busy == 0 {
            let before = lane.queue.len();
            lane.queue.extend(lane.taken.drain(..).filter_map(|(_, item)| item));
            if lane.queue.len() > before {
                lane.queue.make_contiguous().sort_by_key(Item::id);
            }
            self.list(key, now);
        }
        reply
    }

    /// Enters a lane in `ready` or `waiting`, by its first event, or forgets it if it is empty.
    fn list(&mut self, key: u64, now: Instant) {
        let lane = self.lanes.get_mut(&key).expect("listed lanes exist");
        if lane.busy > 0 {
            return;
        }
        if lane.is_hungry(now) {
            self.hungry.insert(key);
        } else {
            self.hungry.remove(&key);
        }
        let Some(first) = lane.queue.front_mut() else {
            if lane.left.is_empty() {
                self.lanes.remove(&key);
            }
            return;
        };
        match first.not_before {
            Some(until) if until > now => drop(self.waiting.insert((until, key))),
            _ => {
                first.not_before = None;
                self.ready.insert(first.id(), key);
                if first.path == Path::Alone {
                    self.alone.insert(first.id());
                }
            }
        }
    }

    fn unlist(&mut self, key: u64) {
        let Some(first) = self.lanes.get(&key).and_then(|lane| lane.queue.front()) else { return };
        let id = first.id();
        self.ready.remove(&id);
        self.alone.remove(&id);
        if let Some(until) = first.not_before {
            self.waiting.remove(&(until, key));
        }
    }

    /// The oldest events that others of their aggregate wait for, with how many.
    pub(crate) fn held_up(&self) -> Vec<HeldUp> {
        let mut firsts: Vec<_> = self
            .lanes
            .values()
            .filter_map(|lane| Some((lane.items().next().filter(|it| it.holds_up)?, lane)))
            .collect();
        firsts.sort_by_key(|(first, _)| first.id());
        firsts.truncate(HeldUp::MOST);
        firsts.into_iter().map(|(first, lane)| lane.held_up_by(first)).collect()
    }

    /// Where to say that we are still at it.
    pub(crate) fn replies(&self) -> impl Iterator<Item = &Subject> {
        self.lanes.values().flat_map(Lane::items).filter_map(|item| item.reply.as_ref())
    }

    /// Lets go of everything that is not taken. Returns where to give it back, if that is known.
    pub(crate) fn release(&mut self) -> Vec<Option<Subject>> {
        let waiting = self.lanes.values().filter_map(Lane::first_waiting);
        self.released = waiting.chain(self.released).min();
        let mut released = Vec::new();
        self.left = 0;
        self.hungry.clear();
        for lane in self.lanes.values_mut() {
            lane.left = Left::default();
            for item in lane.queue.drain(..) {
                self.known.remove(&item.id());
                self.bytes -= item.message.bytes();
                released.push(item.reply);
            }
        }
        self.lanes.retain(|_, lane| lane.busy > 0);
        self.ready.clear();
        self.alone.clear();
        self.waiting.clear();
        released
    }

    /// Events that were taken and have no end yet.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// Events that are held.
    pub(crate) fn held(&self) -> usize {
        self.known.len()
    }

    /// The first message of the stream that was delivered and has no end.
    pub(crate) fn first(&self) -> Option<u64> {
        let lanes = self.lanes.values();
        let at_work =
            |it: &Lane| first_stored(it.taken.iter().filter_map(|(_, item)| item.as_ref()));
        let firsts = lanes.flat_map(|it| [at_work(it), it.first_waiting()]).flatten();
        firsts.chain(self.released).min()
    }

    /// Aggregates with events that are held.
    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// What the held events take in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The place of the first of these that the stream delivered.
fn first_stored<'a>(items: impl IntoIterator<Item = &'a Item>) -> Option<u64> {
    let stored = items.into_iter().filter(|it| it.message.whence == Whence::Stream);
    stored.map(|it| it.message.stream_seq).min()
}

impl Lane {
    fn items(&self) -> impl Iterator<Item = &Item> {
        self.taken.iter().filter_map(|(_, item)| item.as_ref()).chain(&self.queue)
    }

    fn held_up_by(&self, first: &Item) -> HeldUp {
        let event = first.message.event.as_ref().ok();
        HeldUp {
            event_id: first.message.key.id,
            aggregate: event.map(|it| format!("{}:{}", it.aggregate_type, it.aggregate_id)),
            event_type: event.map(|it| it.event_type.to_string()),
            waiting: self.items().count() - 1 + self.left.len(),
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        first_stored(&self.queue).into_iter().chain(self.left.first()).min()
    }

    fn find(&mut self, id: MessageId) -> Option<&mut Item> {
        let taken = self.taken.iter_mut().filter_map(|(_, item)| item.as_mut());
        taken.chain(&mut self.queue).find(|item| item.id() == id)
    }
}
