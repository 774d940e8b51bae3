//! A consumer, from what its workers and its database say.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::answers::{Buckets, Consumer, ConsumerStatus, Counts, Failing, HeldUp, process};
use super::figures::{as_f64, counted};
use super::history::{History, consumer_series};
use super::source::{Inbox, Process};

/// A consumer that has so many events before it is behind.
const BEHIND_EVENTS: u64 = 10_000;
/// And one with fewer whose oldest is so old, unless they are a few.
const BEHIND_SECONDS: f64 = 60.0;
const FEW_EVENTS: u64 = 100;
/// And one before which more and more events are, by now more than it handles in so many seconds.
const LAG_SECONDS: f64 = 30.0;

/// A consumer, from all that is known of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ConsumerView {
    /// Of its inbox.
    pub(crate) source: String,
    pub(crate) name: String,
    /// What its workers say of themselves, if any answers: how one is, and what all of them have.
    pub(crate) status: Option<ConsumerStatus>,
    /// What the database has.
    pub(crate) record: Option<Consumer>,
    /// Why it does not do its job.
    pub(crate) unready: Option<String>,
    /// Processes that would take over.
    pub(crate) standbys: usize,
    /// No process of its inbox answers: what is known is old.
    pub(crate) is_unanswered: bool,
    /// More came than it handled, and it has not caught up.
    pub(crate) lags: bool,
}

/// Of consumers, by inbox and name.
pub(super) type Lagging = BTreeMap<(String, String), bool>;

/// Whether a consumer lags, from its history. One that lagged does until half of that is left: a figure
/// beside the limit is not told again and again.
pub(super) fn lags(history: &History, now: Timestamp, of: &(String, String), lagged: bool) -> bool {
    let mean = |what, ago| history.mean(&consumer_series(what, &of.0, &of.1), now, ago);
    let [first, then, last] = [[15, 10], [10, 5], [5, 0]].map(|ago| mean("waiting", ago));
    let grows = first.is_some() && first < then && then < last;
    let much = as_f64(FEW_EVENTS).max(LAG_SECONDS * mean("rate", [15, 0]).unwrap_or(0.0));
    last.is_some_and(|it| if lagged { it > much / 2.0 } else { grows && it > much })
}

impl ConsumerView {
    /// Events that wait: not delivered yet, or in the memory of a worker.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let status = self.status.as_ref()?;
        Some(status.pending? + status.held + status.left)
    }

    /// Much waits, or has for long, and nothing says why: it does not get on as fast as events come.
    fn is_behind(&self) -> bool {
        let waiting = self.waiting().unwrap_or(0);
        let is_old = self.oldest_seconds().is_some_and(|it| it >= BEHIND_SECONDS);
        let fails = self.failing().next().is_some();
        waiting >= BEHIND_EVENTS || !fails && (self.lags || is_old && waiting >= FEW_EVENTS)
    }

    pub(crate) fn dead(&self) -> Option<u64> {
        self.record.as_ref().map(|it| it.dead)
    }

    pub(crate) fn oldest_seconds(&self) -> Option<f64> {
        self.record.as_ref()?.oldest_seconds
    }

    /// What fails now, the oldest first, with what waits for it as far as a worker says so.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (&Failing, Option<&HeldUp>)> {
        let listed = self.record.iter().flat_map(|it| &it.failing);
        let held_up = || self.status.iter().flat_map(|it| &it.held_up);
        listed.map(move |it| (it, held_up().find(|held| held.event_id == it.event_id)))
    }

    /// `closed`, `open` or `half_open`.
    pub(crate) fn breaker(&self) -> Option<&str> {
        let of_worker = self.status.as_ref().map(|it| &*it.handler.breaker);
        let noted = || self.record.as_ref()?.worker.as_ref()?.breaker.as_deref();
        of_worker.filter(|it| !it.is_empty()).or_else(noted)
    }

    pub(crate) fn has_worker(&self) -> bool {
        let is_held = self.record.as_ref().and_then(|it| it.worker.as_ref()).map(|it| it.is_valid);
        is_held.unwrap_or(self.status.is_some())
    }

    /// What it does, in a word.
    pub(crate) fn state(&self) -> &'static str {
        let is_paused = self.record.as_ref().is_some_and(|it| it.pause.is_some());
        if self.is_unanswered {
            return "no answer";
        }
        match (is_paused, self.has_worker(), self.breaker()) {
            (true, ..) => "paused",
            (_, false, _) => "no worker",
            (.., Some("open")) => "breaker open",
            (.., Some("half_open")) => "probing",
            _ if self.unready.is_some() => "not ready",
            _ => match self.status.as_ref().map(|it| &*it.state) {
                Some("starting") => "starting",
                Some("stopping") => "stopping",
                Some("paused") => "waiting",
                _ if self.is_behind() => "behind",
                _ => "working",
            },
        }
    }

    /// The same, with what waits for an event that fails.
    pub(crate) fn says(&self) -> String {
        let held_up = self.failing().filter_map(|(_, it)| it).filter(|it| it.waiting > 0).count();
        match (self.state(), held_up) {
            ("working", 1..) => {
                let held_up = counted(held_up as u64, "aggregate", "aggregates");
                format!("working, {held_up} held up")
            }
            (state, _) => state.to_owned(),
        }
    }

    pub(crate) fn worker(&self) -> Option<&str> {
        Some(process(&self.record.as_ref()?.worker.as_ref()?.owner))
    }
}

/// Of those that share the database of this one, the first that answers, or the first.
pub(super) fn first_of<'a>(inboxes: &'a [Inbox], inbox: &'a Inbox) -> &'a Inbox {
    let answers = |it: &&Inbox| it.processes.iter().any(Process::is_up);
    let sharing = || inboxes.iter().filter(|it| it.shares(inbox));
    sharing().find(answers).or_else(|| sharing().next()).unwrap_or(inbox)
}

pub(super) fn is_first(inboxes: &[Inbox], inbox: &Inbox) -> bool {
    first_of(inboxes, inbox).key == inbox.key
}

/// How the first is, and what both have.
fn together(one: ConsumerStatus, other: ConsumerStatus) -> ConsumerStatus {
    ConsumerStatus {
        busy: one.busy + other.busy,
        held: one.held + other.held,
        left: one.left + other.left,
        lanes: one.lanes + other.lanes,
        counts: Counts {
            processed: one.counts.processed + other.counts.processed,
            retried: one.counts.retried + other.counts.retried,
            dead: one.counts.dead + other.counts.dead,
        },
        attempt_duration: Buckets {
            buckets: [one.attempt_duration.buckets, other.attempt_duration.buckets].concat(),
        },
        pending: one.pending.or(other.pending),
        held_up: [one.held_up, other.held_up].concat(),
        ..one
    }
}

pub(super) fn consumers(inboxes: &[Inbox], lagging: &Lagging) -> Vec<ConsumerView> {
    let of = |inbox: &Inbox| {
        let sharing = inboxes.iter().filter(|it| it.shares(inbox)).collect::<Vec<_>>();
        let up = || sharing.iter().flat_map(|it| &it.processes).filter(|it| it.is_up());
        let of_processes = up().flat_map(|it| it.status.consumers.keys());
        let of_books = inbox.books.consumers.iter().map(|it| &it.name);
        let names: BTreeSet<_> = of_processes.chain(of_books).collect();
        let view = |name: &String| {
            let mut all: Vec<_> = up()
                .filter_map(|it| Some((it.status.consumers.get(name)?, &it.ready.consumers)))
                .collect();
            all.sort_by_key(|(it, _)| it.state == "standby");
            let standbys = all.iter().filter(|(it, _)| it.state == "standby").count();
            let first = all.first();
            let ready = first.and_then(|(_, ready)| ready.get(name)).filter(|it| !it.ready);
            let unready = ready.map(|it| it.reason.clone().unwrap_or_else(|| "not ready".into()));
            ConsumerView {
                source: inbox.key.clone(),
                name: name.clone(),
                status: all.iter().map(|(it, _)| (*it).clone()).reduce(together),
                record: inbox.books.consumers.iter().find(|it| it.name == *name).cloned(),
                unready,
                standbys,
                is_unanswered: up().next().is_none(),
                lags: lagging.get(&(inbox.key.clone(), name.clone())) == Some(&true),
            }
        };
        names.into_iter().map(view).collect::<Vec<_>>()
    };
    inboxes.iter().filter(|it| is_first(inboxes, it)).flat_map(of).collect()
}
