//! All that is known of relays and inboxes, from the answers of their API. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::answers::{
    Consumer, ConsumerStatus, InboxStatus, Letters, Readiness, RelayStatus, Replay, ShardStatus,
};
use super::history::History;
use super::operator_answers::{Operation, with_lost};
use super::rates::{Counters, Durations, Percentiles};

/// Why something cannot be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: String,
    /// What can be done about it.
    pub(crate) hint: Option<String>,
}

/// Whether a process answers, and since when not.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Link {
    #[default]
    NotAsked,
    Up,
    Down {
        since: Timestamp,
        why: Failure,
    },
}

/// One process behind an address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process<S> {
    pub(crate) address: String,
    pub(crate) link: Link,
    /// Of its last answer.
    pub(crate) ready: Readiness,
    pub(crate) status: S,
}

/// What a process answered.
pub(crate) type Answered<S> = Result<(S, Readiness), Failure>;

impl<S> Process<S> {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up)
    }

    fn apply(&mut self, now: Timestamp, answered: Answered<S>) {
        self.link = match (answered, &self.link) {
            (Ok((status, ready)), _) => {
                (self.status, self.ready) = (status, ready);
                Link::Up
            }
            (Err(why), Link::Down { since, .. }) => Link::Down { since: *since, why },
            (Err(why), _) => Link::Down { since: now, why },
        };
    }
}

/// The processes behind one URL of the command line, and what is asked less often.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source<S, B> {
    /// What it is called in addresses: `relay`, `relay-2`, `inbox`.
    pub(crate) key: String,
    pub(crate) processes: Vec<Process<S>>,
    /// What its database has.
    pub(crate) books: B,
    /// Why the last question about that had no answer.
    pub(crate) unread: Option<Failure>,
}

pub(crate) type Relay = Source<RelayStatus, RelayBooks>;
pub(crate) type Inbox = Source<InboxStatus, InboxBooks>;

#[derive(Debug, Clone, Default)]
pub(crate) struct RelayBooks {
    pub(crate) letters: Letters,
    pub(crate) replays: Vec<Replay>,
    pub(crate) operations: Vec<Operation>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct InboxBooks {
    pub(crate) letters: Letters,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) operations: Vec<Operation>,
}

/// One round of answers of a source.
#[derive(Debug, Clone)]
pub(crate) struct Told<S, B> {
    /// By address.
    pub(crate) processes: Vec<(String, Answered<S>)>,
    /// Not asked each time.
    pub(crate) books: Option<Result<B, Failure>>,
}

impl<S: Default, B> Source<S, B> {
    fn apply(&mut self, now: Timestamp, told: Told<S, B>) {
        let mut known: BTreeMap<_, _> =
            self.processes.drain(..).map(|it| (it.address.clone(), it)).collect();
        for (address, answered) in told.processes {
            let fresh = Process { address: address.clone(), ..Process::default() };
            let mut process = known.remove(&address).unwrap_or(fresh);
            process.apply(now, answered);
            self.processes.push(process);
        }
        match told.books {
            Some(Ok(books)) => (self.books, self.unread) = (books, None),
            Some(Err(why)) => self.unread = Some(why),
            None => {}
        }
    }
}

impl Relay {
    /// The shards of the processes that answer, each with its address. An active one comes first.
    pub(crate) fn shards(&self) -> Vec<(&str, &ShardStatus)> {
        let up = self.processes.iter().filter(|it| it.is_up());
        let mut shards: Vec<_> = up
            .flat_map(|it| it.status.shards().iter().map(|shard| (&*it.address, shard)))
            .collect();
        shards.sort_by_key(|(_, it)| it.role != "active");
        shards
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &ShardStatus> {
        self.shards().into_iter().map(|(_, it)| it).filter(|it| it.role == "active")
    }
}

/// A consumer, from all that is known of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ConsumerView {
    /// Of its inbox.
    pub(crate) source: String,
    pub(crate) name: String,
    /// What its worker says of itself, if that answers.
    pub(crate) status: Option<ConsumerStatus>,
    /// What the database has.
    pub(crate) record: Option<Consumer>,
    /// Why it does not do its job.
    pub(crate) unready: Option<String>,
    /// Processes that would take over.
    pub(crate) standbys: usize,
    /// No process of its inbox answers: what is known is old.
    pub(crate) is_unanswered: bool,
}

impl ConsumerView {
    /// Events that wait: not delivered yet, or in the worker's memory.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let status = self.status.as_ref()?;
        Some(status.pending? + status.held + status.left)
    }

    pub(crate) fn dead(&self) -> Option<u64> {
        self.record.as_ref().map(|it| it.dead)
    }

    pub(crate) fn oldest_seconds(&self) -> Option<f64> {
        self.record.as_ref()?.oldest_seconds
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
                _ => "working",
            },
        }
    }

    pub(crate) fn worker(&self) -> Option<&str> {
        let owner = &self.record.as_ref()?.worker.as_ref()?.owner;
        Some(owner.split_once(':').map_or(&**owner, |(process, _)| process))
    }
}

/// Figures of one moment that lie between two answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moment {
    /// Events published a second.
    pub(crate) rate: Option<f64>,
    pub(crate) latency: Option<Percentiles>,
    /// Events processed a second, by inbox and consumer.
    pub(crate) consumers: BTreeMap<(String, String), f64>,
}

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) relays: Vec<Relay>,
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) moment: Moment,
    pub(crate) history: History,
    /// When the last round of answers came.
    pub(crate) at: Option<Timestamp>,
    counters: Counters,
    durations: Durations,
}

/// One round of answers of all sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    pub(crate) relays: Vec<Told<RelayStatus, RelayBooks>>,
    pub(crate) inboxes: Vec<Told<InboxStatus, InboxBooks>>,
}

impl Picture {
    /// Nothing is known yet of these sources.
    pub(crate) fn new(relays: Vec<String>, inboxes: Vec<String>) -> Self {
        let relays = relays.into_iter().map(|key| Relay { key, ..Relay::default() });
        let inboxes = inboxes.into_iter().map(|key| Inbox { key, ..Inbox::default() });
        let (relays, inboxes) = (relays.collect(), inboxes.collect());
        Self { relays, inboxes, ..Self::default() }
    }

    pub(crate) fn apply(&mut self, now: Timestamp, round: Round) {
        for (relay, mut told) in self.relays.iter_mut().zip(round.relays) {
            if let Some(Ok(books)) = &mut told.books {
                with_lost(&mut books.operations, &relay.books.operations);
            }
            relay.apply(now, told);
        }
        for (inbox, mut told) in self.inboxes.iter_mut().zip(round.inboxes) {
            if let Some(Ok(books)) = &mut told.books {
                with_lost(&mut books.operations, &inbox.books.operations);
            }
            inbox.apply(now, told);
        }
        self.at = Some(now);
        self.count(now);
    }

    fn count(&mut self, now: Timestamp) {
        let mut moment = Moment::default();
        let shards: Vec<_> = self.relays.iter().flat_map(|it| it.shards()).collect();
        for (address, shard) in &shards {
            let of = format!("{address} {}", shard.shard.unwrap_or(0));
            if let Some(rate) = self.counters.rate(&of, now, shard.published_total) {
                *moment.rate.get_or_insert(0.0) += rate;
            }
        }
        self.durations.see(now, shards.iter().map(|(_, it)| &it.commit_to_ack));
        moment.latency = self.durations.percentiles();
        let slot = shards.iter().filter_map(|(_, it)| it.slot.as_ref()).map(|it| it.retained_bytes);
        let slot = slot.max().map(super::figures::as_f64);
        let history = &mut self.history;
        let mut note = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                history.note(name, now, value);
            }
        };
        note("rate", moment.rate);
        note("p50", moment.latency.map(|it| it.p50));
        note("p99", moment.latency.map(|it| it.p99));
        note("slot", slot);
        for inbox in &self.inboxes {
            for process in inbox.processes.iter().filter(|it| it.is_up()) {
                for (name, status) in &process.status.consumers {
                    let of = format!("{} consumer {name}", process.address);
                    let rate = self.counters.rate(&of, now, status.counts.processed);
                    if let Some(rate) = rate {
                        let of = (inbox.key.clone(), name.clone());
                        *moment.consumers.entry(of).or_insert(0.0) += rate;
                    }
                }
            }
        }
        for ((source, name), rate) in &moment.consumers {
            history.note(&consumer_series("rate", source, name), now, *rate);
        }
        for it in consumers(&self.inboxes) {
            if let Some(waiting) = it.waiting() {
                let name = consumer_series("waiting", &it.source, &it.name);
                history.note(&name, now, super::figures::as_f64(waiting));
            }
        }
        self.moment = moment;
    }

    pub(crate) fn consumers(&self) -> Vec<ConsumerView> {
        consumers(&self.inboxes)
    }

    pub(crate) fn relay(&self, key: &str) -> Option<&Relay> {
        self.relays.iter().find(|it| it.key == key)
    }

    /// Dead letters that nobody decided about, of both queues.
    pub(crate) fn dead_letters(&self) -> u64 {
        let of_relays = self.relays.iter().map(|it| it.books.letters.total);
        of_relays.chain(self.inboxes.iter().map(|it| it.books.letters.total)).sum()
    }

    /// Work on many dead letters, as far as it is known here.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (&str, &Operation)> {
        let of_relays = self.relays.iter().map(|it| (&*it.key, &it.books.operations));
        let of_inboxes = self.inboxes.iter().map(|it| (&*it.key, &it.books.operations));
        of_relays.chain(of_inboxes).flat_map(|(key, all)| all.iter().map(move |it| (key, it)))
    }

    /// Replays and work on dead letters that are not over.
    pub(crate) fn work(&self) -> usize {
        let replays = self.relays.iter().flat_map(|it| &it.books.replays);
        let operations = self.operations().filter(|(_, it)| !it.progress.ended);
        replays.filter(|it| it.is_under_way()).count() + operations.count()
    }
}

/// The name of a series of a consumer.
pub(crate) fn consumer_series(what: &str, source: &str, name: &str) -> String {
    format!("consumer {source} {name} {what}")
}

fn consumers(inboxes: &[Inbox]) -> Vec<ConsumerView> {
    let of = |inbox: &Inbox| {
        let up = || inbox.processes.iter().filter(|it| it.is_up());
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
                status: first.map(|(it, _)| (*it).clone()),
                record: inbox.books.consumers.iter().find(|it| it.name == *name).cloned(),
                unready,
                standbys,
                is_unanswered: up().next().is_none(),
            }
        };
        names.into_iter().map(view).collect::<Vec<_>>()
    };
    inboxes.iter().flat_map(of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::operator_answers::Progress;
    use super::*;

    pub(crate) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).expect("a time")
    }

    pub(crate) fn failure(error: &str) -> Failure {
        Failure { error: error.into(), hint: None }
    }

    /// A relay and an inbox that are all right.
    pub(crate) fn round() -> Round {
        let status = r#"{"process_id": 7, "role": "active", "postgres_connected": true,
            "nats_connected": true, "window": {"events": 8192}, "published_total": 1000,
            "breaker": "closed", "slot": {"wal_status": "reserved", "retained_bytes": 4096}}"#;
        let status = serde_json::from_str(status).expect("readable");
        let ready = Readiness { ready: true, ..Readiness::default() };
        let relay = Told {
            processes: vec![("10.0.0.1:9464".into(), Ok((status, ready)))],
            books: Some(Ok(RelayBooks::default())),
        };
        let status = r#"{"consumers": {"mailer": {"state": "active", "busy": 1, "held": 2,
            "pending": 40, "handler": {"breaker": "closed"}, "counts": {"processed": 900}}}}"#;
        let status = serde_json::from_str(status).expect("readable");
        let ready = r#"{"ready": true, "consumers": {"mailer": {"ready": true}}}"#;
        let consumer = r#"{"name": "mailer", "dead": 0, "oldest_seconds": 1.5,
            "worker": {"owner": "88:a", "is_valid": true, "breaker": "closed"}}"#;
        let consumer = serde_json::from_str(consumer).expect("readable");
        let books = InboxBooks { consumers: vec![consumer], ..InboxBooks::default() };
        let answered = Ok((status, serde_json::from_str(ready).expect("readable")));
        let inbox =
            Told { processes: vec![("10.0.0.2:9465".into(), answered)], books: Some(Ok(books)) };
        Round { relays: vec![relay], inboxes: vec![inbox] }
    }

    pub(crate) fn picture(rounds: impl IntoIterator<Item = Round>) -> Picture {
        let mut picture = Picture::new(vec!["relay".into()], vec!["inbox".into()]);
        for (second, round) in (0..).zip(rounds) {
            picture.apply(at(second), round);
        }
        picture
    }

    /// The same with another status of the relay.
    pub(crate) fn with_relay(change: impl FnOnce(&mut ShardStatus, &mut Readiness)) -> Round {
        let mut round = round();
        if let Ok((status, ready)) = &mut round.relays[0].processes[0].1 {
            let mut shard = status.shards()[0].clone();
            change(&mut shard, ready);
            *status = RelayStatus::of(shard);
        }
        round
    }

    #[test]
    fn a_rate_is_there_after_two_answers() {
        let later = with_relay(|it, _| it.published_total = 1250);
        assert_eq!(picture([round()]).moment.rate, None);
        assert_eq!(picture([round(), later]).moment.rate, Some(250.0));
    }

    #[test]
    fn who_is_away_is_away_since_then_and_keeps_its_last_figures() {
        let mut away = round();
        away.relays[0].processes[0].1 = Err(failure("connection refused"));
        away.relays[0].books = Some(Err(failure("connection refused")));
        let picture = picture([round(), away.clone(), away]);
        let process = &picture.relays[0].processes[0];
        let since = Link::Down { since: at(1), why: failure("connection refused") };
        assert_eq!(process.link, since);
        assert_eq!(process.status.shards()[0].published_total, 1000);
        assert!(picture.relays[0].unread.is_some() && picture.relays[0].shards().is_empty());
    }

    #[test]
    fn a_consumer_is_what_process_and_database_say() {
        let picture = picture([round()]);
        let consumers = picture.consumers();
        let it = &consumers[0];
        assert_eq!((&*it.name, it.waiting(), it.worker()), ("mailer", Some(42), Some("88")));
        assert_eq!((it.state(), it.breaker()), ("working", Some("closed")));
    }

    #[test]
    fn a_consumer_of_an_inbox_that_is_away_is_not_said_to_work() {
        let mut away = round();
        away.inboxes[0].processes[0].1 = Err(failure("connection refused"));
        assert_eq!(picture([round(), away]).consumers()[0].state(), "no answer");
    }

    #[test]
    fn work_that_was_under_way_when_its_process_ended_is_not_forgotten() {
        let with = |operations: &[(u64, bool)]| {
            let of = |&(operation, ended): &(u64, bool)| {
                let progress = Progress { ended, done: 3, ..Progress::default() };
                Operation { operation, progress, ..Operation::default() }
            };
            let mut round = round();
            let operations = operations.iter().map(of).collect();
            let books = RelayBooks { operations, ..RelayBooks::default() };
            round.relays[0].books = Some(Ok(books));
            round
        };
        let rounds = [with(&[(1, true), (2, false)]), with(&[]), with(&[])];
        let picture = picture(rounds);
        let all: Vec<_> = picture.operations().map(|(_, it)| (it.operation, it.is_lost)).collect();
        assert_eq!(all, [(2, true)]);
        assert_eq!(picture.work(), 0, "nobody works on it");
    }

    #[test]
    fn an_address_that_is_gone_is_forgotten() {
        let mut moved = round();
        moved.relays[0].processes[0].0 = "10.0.0.9:9464".into();
        let picture = picture([round(), moved]);
        let addresses: Vec<_> = picture.relays[0].processes.iter().map(|it| &*it.address).collect();
        assert_eq!(addresses, ["10.0.0.9:9464"]);
    }
}
