//! What is shown, and what keys and answers make of it. No I/O and no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::readings::{Consumers, DeadLetters, InboxStatus, RelayStatus, Replays};

/// How many rates the line of rates has at most.
const HISTORY_MAX: usize = 240;
/// Percentiles are those of what was published in this time, or since the answer before.
const LATENCY_SPAN: Duration = Duration::from_secs(10);
const INTERVALS: [Duration; 8] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

/// What happens to the dashboard.
#[derive(Debug)]
pub(super) enum Input {
    Key(Key),
    /// The time of [`Dashboard::next_at`] has come.
    Due,
    Told(Box<Told>),
}

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Slower,
    Faster,
    Help,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Quit,
    /// Ask the relay and the inbox.
    Ask,
}

/// What was answered, or why nothing was.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) relay: Result<RelayTold, Failure>,
    /// `None` if no inbox is asked.
    pub(super) inbox: Option<Result<InboxTold, Failure>>,
}

/// What a relay told. What is asked less often is missing in between.
#[derive(Debug, Default)]
pub(super) struct RelayTold {
    pub(super) status: RelayStatus,
    pub(super) dead_letters: Option<DeadLetters>,
    pub(super) replays: Option<Replays>,
}

#[derive(Debug, Default)]
pub(super) struct InboxTold {
    pub(super) status: InboxStatus,
    pub(super) consumers: Option<Consumers>,
}

/// Why something cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: String,
    /// What can be done about it.
    pub(super) hint: Option<String>,
}

/// Whether somebody answers, and since when not.
#[derive(Debug, Default)]
pub(super) enum Link {
    #[default]
    NotAsked,
    Up,
    Down {
        since: Instant,
        why: Failure,
    },
}

impl Link {
    fn set(&mut self, now: Instant, failed: Option<Failure>) {
        *self = match (failed, &*self) {
            (None, _) => Self::Up,
            (Some(why), Self::Down { since, .. }) => Self::Down { since: *since, why },
            (Some(why), _) => Self::Down { since: now, why },
        };
    }
}

/// A total that only grows, until its process starts anew.
#[derive(Debug, Default)]
struct Counter {
    last: Option<(Instant, u64)>,
}

impl Counter {
    /// By how much it grew each second since the last time; `None` if that cannot be said.
    fn rate(&mut self, now: Instant, total: u64) -> Option<f64> {
        let (at, before) = self.last.replace((now, total))?;
        let (grown, seconds) = (total.checked_sub(before)?, (now - at).as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "what a person reads is rounded anyway")]
        let rate = (seconds > 0.0).then(|| grown as f64 / seconds);
        rate
    }
}

/// Durations since the start, again and again: what lies between two of them are percentiles.
#[derive(Debug, Default)]
struct Durations {
    seen: VecDeque<(Instant, BTreeMap<i32, u64>)>,
}

impl Durations {
    fn see(&mut self, now: Instant, counts: BTreeMap<i32, u64>) {
        let total = |counts: &BTreeMap<i32, u64>| counts.values().sum::<u64>();
        if self.seen.back().is_some_and(|(_, last)| total(last) > total(&counts)) {
            self.seen.clear();
        }
        self.seen.push_back((now, counts));
        while self.seen.len() > 2 && self.seen.get(1).is_some_and(|it| now - it.0 >= LATENCY_SPAN) {
            self.seen.pop_front();
        }
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let ((_, first), (_, last)) = (self.seen.front()?, self.seen.back()?);
        let before = |bucket: &i32| first.get(bucket).copied().unwrap_or_default();
        let grown =
            last.iter().map(|(bucket, count)| (*bucket, count.saturating_sub(before(bucket))));
        let grown: Vec<_> = grown.filter(|(_, count)| *count > 0).collect();
        let total: u64 = grown.iter().map(|(_, count)| count).sum();
        let at = |per_mille: u64| {
            let wanted = (total * per_mille).div_ceil(1000);
            let mut below = 0;
            let found = grown.iter().find(|(_, count)| {
                below += count;
                below >= wanted
            });
            found.map(|(bucket, _)| relay::Latency::bound(*bucket))
        };
        Some(Percentiles { p50: at(500)?, p99: at(990)?, max: at(1000)? })
    }
}

/// In seconds, at most 9 % above what they were.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// The whole state.
pub(super) struct Dashboard {
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    /// When to ask next; `None` while it is asked, or is paused.
    pub(super) next_at: Option<Instant>,
    is_asking: bool,
    pub(super) relay: Relay,
    pub(super) inbox: Inbox,
}

/// What is known of the relay.
#[derive(Default)]
pub(super) struct Relay {
    pub(super) link: Link,
    pub(super) status: RelayStatus,
    pub(super) dead_letters: Option<DeadLetters>,
    pub(super) replays: Replays,
    /// Events published a second, the newest last; of all shards.
    pub(super) rates: VecDeque<f64>,
    /// `None` before the second answer, and after a restart.
    pub(super) rate: Option<f64>,
    pub(super) shard_rates: Vec<Option<f64>>,
    pub(super) commit_to_ack: Option<Percentiles>,
    pub(super) publish_to_ack: Option<Percentiles>,
    published: Vec<Counter>,
    processes: Vec<u32>,
    since_commit: Durations,
    since_publish: Durations,
}

/// What is known of the inbox.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) link: Link,
    pub(super) status: InboxStatus,
    pub(super) consumers: Consumers,
    pub(super) rates: BTreeMap<String, f64>,
    processed: BTreeMap<String, Counter>,
}

impl Dashboard {
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        Self {
            interval,
            is_paused: false,
            shows_help: false,
            next_at: Some(now),
            is_asking: false,
            relay: Relay::default(),
            inbox: Inbox::default(),
        }
    }

    pub(super) fn apply(&mut self, now: Instant, input: Input) -> Option<Output> {
        match input {
            Input::Key(key) => self.press(now, key),
            Input::Due if self.is_asking || self.is_paused => {
                self.next_at = None;
                None
            }
            Input::Due => {
                (self.is_asking, self.next_at) = (true, None);
                Some(Output::Ask)
            }
            Input::Told(told) => {
                let Told { relay, inbox } = *told;
                self.relay.see(now, relay);
                if let Some(inbox) = inbox {
                    self.inbox.see(now, inbox);
                }
                self.is_asking = false;
                self.next_at = (!self.is_paused).then(|| now + self.interval);
                None
            }
        }
    }

    fn press(&mut self, now: Instant, key: Key) -> Option<Output> {
        let place = INTERVALS.partition_point(|it| *it < self.interval);
        match key {
            Key::Quit => return Some(Output::Quit),
            Key::Help => self.shows_help = !self.shows_help,
            Key::Pause => {
                self.is_paused = !self.is_paused;
                self.next_at = (!self.is_paused && !self.is_asking).then_some(now);
                return None;
            }
            Key::Faster => self.interval = INTERVALS[place.saturating_sub(1)],
            Key::Slower => {
                let next = INTERVALS.iter().find(|it| **it > self.interval);
                self.interval = next.copied().unwrap_or(self.interval);
            }
        }
        // Who makes it faster does not wait for what was slow.
        self.next_at = self.next_at.map(|it| it.min(now + self.interval));
        None
    }
}

impl Relay {
    fn see(&mut self, now: Instant, told: Result<RelayTold, Failure>) {
        let told = match told {
            Ok(told) => told,
            Err(why) => {
                self.link.set(now, Some(why));
                self.rate = None;
                return;
            }
        };
        self.link.set(now, None);
        self.status = told.status;
        if told.dead_letters.is_some() {
            self.dead_letters = told.dead_letters;
        }
        if let Some(replays) = told.replays {
            self.replays = replays;
        }
        self.count(now);
    }

    fn count(&mut self, now: Instant) {
        let shards = self.status.shards();
        let processes: Vec<_> = shards.iter().map(|it| it.process_id).collect();
        if processes != self.processes {
            // Its totals begin anew.
            self.processes = processes;
            (self.since_commit, self.since_publish) = (Durations::default(), Durations::default());
            self.published = shards.iter().map(|_| Counter::default()).collect();
        }
        let rates = shards.iter().zip(&mut self.published);
        let rates = rates.map(|(it, counter)| counter.rate(now, it.published_total));
        self.shard_rates = rates.collect();
        self.rate = self.shard_rates.iter().copied().sum();
        if self.shard_rates.is_empty() {
            self.rate = None;
        }
        if let Some(rate) = self.rate {
            self.rates.push_back(rate);
            if self.rates.len() > HISTORY_MAX {
                self.rates.pop_front();
            }
        }
        let (mut commit, mut publish) = (BTreeMap::new(), BTreeMap::new());
        for shard in shards {
            shard.commit_to_ack.add_to(&mut commit);
            shard.publish_to_ack.add_to(&mut publish);
        }
        self.since_commit.see(now, commit);
        self.since_publish.see(now, publish);
        self.commit_to_ack = self.since_commit.percentiles();
        self.publish_to_ack = self.since_publish.percentiles();
    }
}

impl Inbox {
    fn see(&mut self, now: Instant, told: Result<InboxTold, Failure>) {
        self.rates.clear();
        let told = match told {
            Ok(told) => told,
            Err(why) => return self.link.set(now, Some(why)),
        };
        self.link.set(now, None);
        self.status = told.status;
        if let Some(consumers) = told.consumers {
            self.consumers = consumers;
        }
        for (name, status) in &self.status.consumers {
            let counter = self.processed.entry(name.clone()).or_default();
            if let Some(rate) = counter.rate(now, status.counts.processed) {
                self.rates.insert(name.clone(), rate);
            }
        }
    }
}

#[cfg(test)]
mod tests;
