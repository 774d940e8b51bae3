//! All that is known of relays and inboxes, from the answers of their API. No I/O and no clock.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::answers::{InboxStatus, Letters, RelayStatus};
pub(crate) use super::consumer_view::ConsumerView;
use super::consumer_view::{Lagging, consumers, first_of, is_first, lags};
pub(crate) use super::history::{History, consumer_series};
use super::operator_answers::{Operation, with_lost};
use super::plan::is_of_followers;
use super::rates::{Counters, Durations, Percentiles};
pub(crate) use super::source::{
    Answered, Failure, Inbox, InboxBooks, Link, Process, Relay, RelayBooks, Told,
};

/// Percentiles are those of what was published in this time.
const LATENCY_SECONDS: i64 = 10;

/// What a consumer handles is counted in this time: attempts that take long end in bursts.
const HANDLED_SECONDS: i64 = 10;

/// Percentiles are those of attempts that ended in this time: one may take half a minute.
const ATTEMPTS_SECONDS: i64 = 60;

/// Figures of one moment that lie between two answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moment {
    /// Events published a second.
    pub(crate) rate: Option<f64>,
    pub(crate) latency: Option<Percentiles>,
    /// Events processed a second, by inbox and consumer.
    pub(crate) consumers: BTreeMap<(String, String), f64>,
    /// How long attempts took, by the same.
    pub(crate) attempts: BTreeMap<(String, String), Percentiles>,
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
    /// How often it was asked for what is in the databases, and somebody answered.
    pub(crate) counts: u64,
    counters: Counters,
    durations: Durations,
    attempts: BTreeMap<(String, String), Durations>,
    /// Whether consumers get less done than comes.
    lagging: Lagging,
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
        let is_counted = round.relays.iter().any(|it| matches!(it.books, Some(Ok(_))))
            || round.inboxes.iter().any(|it| matches!(it.books, Some(Ok(_))));
        self.counts += u64::from(is_counted);
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
            if let Some(rate) = self.counters.rate(&of, now, shard.published_total, 0) {
                *moment.rate.get_or_insert(0.0) += rate;
            }
        }
        let durations = shards.iter().map(|(_, it)| &it.commit_to_ack);
        moment.latency = self.durations.see(now, LATENCY_SECONDS, durations);
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
                    let rate =
                        self.counters.rate(&of, now, status.counts.processed, HANDLED_SECONDS);
                    if let Some(rate) = rate {
                        let of = (first_of(&self.inboxes, inbox).key.clone(), name.clone());
                        *moment.consumers.entry(of).or_insert(0.0) += rate;
                    }
                }
            }
        }
        for ((source, name), rate) in &moment.consumers {
            history.note(&consumer_series("rate", source, name), now, *rate);
        }
        for it in consumers(&self.inboxes, &self.lagging) {
            let of = (it.source.clone(), it.name.clone());
            let attempts = it.status.iter().map(|it| &it.attempt_duration);
            let seen = self.attempts.entry(of.clone()).or_default();
            if let Some(took) = seen.see(now, ATTEMPTS_SECONDS, attempts) {
                moment.attempts.insert(of.clone(), took);
            }
            if let Some(waiting) = it.waiting() {
                let name = consumer_series("waiting", &it.source, &it.name);
                history.note(&name, now, super::figures::as_f64(waiting));
            }
            let lags = lags(history, now, &of, it.lags);
            self.lagging.insert(of, lags);
        }
        self.moment = moment;
    }

    pub(crate) fn consumers(&self) -> Vec<ConsumerView> {
        consumers(&self.inboxes, &self.lagging)
    }

    pub(crate) fn relay(&self, key: &str) -> Option<&Relay> {
        self.relays.iter().find(|it| it.key == key)
    }

    /// What a process of this relay is called: with several relays, with the relay's name.
    pub(crate) fn called(&self, relay: &Relay, address: &str) -> String {
        if self.relays.len() > 1 { format!("{} {address}", relay.key) } else { address.to_owned() }
    }

    /// The inboxes, one of each database: of those that share one the first that answers.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Inbox> {
        self.inboxes.iter().filter(|it| is_first(&self.inboxes, it))
    }

    /// Whether what the database of this source has is asked of another one.
    pub(crate) fn is_twin(&self, key: &str) -> bool {
        let found = self.inboxes.iter().find(|it| it.key == key);
        found.is_some_and(|it| !is_first(&self.inboxes, it))
    }

    /// Dead letters that nobody decided about, of both queues, without those that wait for another.
    pub(crate) fn dead_letters(&self) -> u64 {
        let of_relays = self.relays.iter().map(|it| it.books.letters.total);
        let all: u64 = of_relays.chain(self.databases().map(|it| it.books.letters.total)).sum();
        all.saturating_sub(self.behind_letters())
    }

    /// Events of outboxes with which nothing is wrong: they wait for a dead letter of their aggregate.
    pub(crate) fn behind_letters(&self) -> u64 {
        // There are groups of the newest letters only.
        let are_all = |it: &&Letters| it.groups.iter().map(|it| it.count).sum::<u64>() == it.total;
        let letters = self.relays.iter().map(|it| &it.books.letters).filter(are_all);
        letters
            .flat_map(|it| &it.groups)
            .filter(|it| is_of_followers(&it.fingerprint))
            .map(|it| it.count)
            .sum()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::super::answers::{Readiness, ShardStatus};
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
    fn workers_that_share_a_consumer_are_counted_together() {
        let mut shared = round();
        let processes = &mut shared.inboxes[0].processes;
        let mut second = processes[0].clone();
        second.0 = "10.0.0.3:9465".into();
        let (status, _) = second.1.as_mut().expect("it answers");
        let of_second = status.consumers.get_mut("mailer").expect("it is there");
        (of_second.busy, of_second.left, of_second.pending) = (7, 5, None);
        for first in [0, 1] {
            let mut shared = shared.clone();
            shared.inboxes[0].processes.insert(first, second.clone());
            let consumers = picture([shared]).consumers();
            let status = consumers[0].status.as_ref().expect("they answer");
            let told = (status.busy, status.held, status.left, status.counts.processed);
            assert_eq!((told, consumers[0].waiting()), ((8, 4, 5, 1800), Some(49)));
        }
    }

    /// Either may be asked for the other's consumers, which may have no worker yet.
    #[test]
    fn inboxes_on_one_database_have_each_consumer_once() {
        let mut shared = round();
        if let Some(Ok(books)) = &mut shared.inboxes[0].books {
            books.database = Some("7/shop/public".into());
            books.consumers[0].worker = None;
        }
        let mut second = shared.inboxes[0].clone();
        second.processes[0].0 = "10.0.0.3:9465".into();
        if let Ok((status, _)) = &mut second.processes[0].1 {
            status.consumers.get_mut("mailer").expect("it is there").state = "standby".into();
        }
        shared.inboxes.push(second);
        let keys = || vec!["inbox".to_owned(), "inbox-2".to_owned()];
        let drawn = |round: Round| {
            let mut picture = Picture::new(vec!["relay".into()], keys());
            picture.apply(at(0), round);
            picture
        };
        let told = |picture: &Picture| {
            let all = picture.consumers();
            all.into_iter().map(|it| (it.source, it.standbys)).collect::<Vec<_>>()
        };
        let picture = drawn(shared.clone());
        assert_eq!(told(&picture), [("inbox".into(), 1)]);
        assert!(picture.is_twin("inbox-2") && !picture.is_twin("inbox"));
        // The other one is asked while this one is away.
        let mut away = shared.clone();
        away.inboxes[0].processes[0].1 = Err(failure("refused"));
        assert_eq!(told(&drawn(away)), [("inbox-2".into(), 1)]);
        let mut apart = shared;
        if let Some(Ok(books)) = &mut apart.inboxes[1].books {
            books.database = Some("7/shop/other".into());
        }
        assert_eq!(told(&drawn(apart)).len(), 2);
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
