use std::num::NonZeroU32;
use std::time::Duration;

use outbox::quote;
use outbox::spans::SpanSink;

use crate::Error;
use crate::engine::{HoldLimits, Pauses, Rate};

/// What an inbox needs to know, beside its connections.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names the durable consumer, and is part of the key of every record.
    pub consumer: String,
    /// Into how many partitions the stream's events are divided, where workers share them.
    pub partitions: Option<NonZeroU32>,
    /// Which of them this is of; 0 where they are not divided.
    pub partition: u32,
    /// A regular expression for the subjects of the partition, up to its number; any matches without.
    /// The first partition has those of none: the consumer may have been divided otherwise.
    pub(crate) subjects: String,
    /// The stream to take events from.
    pub stream: String,
    /// The subjects to take; all of the stream's if there are none.
    pub filter_subjects: Vec<String>,
    /// How many handlers run at a time.
    pub lanes: usize,
    /// The most events that share a transaction of a transactional inbox.
    pub batch: usize,
    /// How long an event belongs to a worker that gives no sign of life.
    pub lease: Duration,
    /// After how many attempts an event becomes a dead letter.
    pub max_attempts: u32,
    /// After how long the broker delivers an event again.
    pub ack_wait: Duration,
    /// How long to wait between attempts.
    pub pauses: Pauses,
    /// How long after it failed first an event that fails becomes a dead letter.
    pub give_up_after: Option<Duration>,
    /// How many events are begun in a time.
    pub rate: Option<Rate>,
    /// The schema that holds the tables of the inbox.
    pub schema: String,
    /// For how long records are kept.
    pub retention: Option<Duration>,
    /// For how long decisions are kept.
    pub decisions_retention: Option<Duration>,
    /// How often the tables are looked after.
    pub upkeep_interval: Duration,
    /// Who takes spans of attempts.
    pub spans: Option<SpanSink>,
}

impl Config {
    pub(crate) fn new(consumer: String) -> Self {
        Self {
            consumer,
            partitions: None,
            partition: 0,
            subjects: String::new(),
            stream: String::new(),
            filter_subjects: Vec::new(),
            lanes: 8,
            batch: 64,
            lease: Duration::from_secs(30),
            max_attempts: 5,
            ack_wait: Duration::from_secs(30),
            pauses: crate::engine::backoff::EVENT.into(),
            give_up_after: None,
            rate: None,
            schema: "public".to_owned(),
            retention: None,
            decisions_retention: None,
            upkeep_interval: Duration::from_hours(1),
            spans: None,
        }
    }

    /// The schema's name for use in SQL.
    #[must_use]
    pub fn quoted_schema(&self) -> String {
        quote(&self.schema)
    }

    /// The name of the durable consumer: each partition has its own.
    #[must_use]
    pub fn durable(&self) -> String {
        match self.partitions {
            Some(_) => format!("{}-{}", self.consumer, self.partition),
            None => self.consumer.clone(),
        }
    }

    /// What each partition is handled by: together they have the rate of the whole. One that is not
    /// divided is its only part.
    #[must_use]
    pub fn parts(&self) -> Vec<Self> {
        let Some(partitions) = self.partitions else { return vec![self.clone()] };
        let others: Vec<String> = (1..partitions.get()).map(|it| it.to_string()).collect();
        let part = |partition: u32| {
            let number = partition.to_string();
            let filters = self.filter_subjects.iter().map(|it| it.replace(PARTITION, &number));
            Self {
                partition,
                filter_subjects: filters.collect(),
                subjects: match partition {
                    0 => format!("^(?!{})", self.subjects_of(&format!("({})", others.join("|")))),
                    _ => format!("^{}", self.subjects_of(&number)),
                },
                rate: self.rate.map(|it| it.divided(partition, partitions)),
                ..self.clone()
            }
        };
        (0..partitions.get()).map(part).collect()
    }

    /// What follows the number in a subject may be of events that are filtered out by now: letters.
    fn subjects_of(&self, numbers: &str) -> String {
        let is_plain = |it: char| it.is_alphanumeric() || "_-".contains(it);
        let escaped = |it: char| if is_plain(it) { it.to_string() } else { format!("\\{it}") };
        let token = |it: &str| match it {
            "*" => "[^.]+".to_owned(),
            it => {
                let parts = it.split(PARTITION).map(|it| it.chars().map(escaped).collect());
                parts.collect::<Vec<String>>().join(numbers)
            }
        };
        let start = |filter: &String| {
            let tokens: Vec<&str> = filter.split('.').collect();
            let end = tokens.iter().position(|it| it.contains(PARTITION)).unwrap_or(0);
            tokens[..=end].iter().map(|it| token(it)).collect::<Vec<_>>().join("\\.")
        };
        let starts: Vec<String> = self.filter_subjects.iter().map(start).collect();
        format!("({})(\\.|$)", starts.join("|"))
    }

    /// What is held in memory at most, at work or waiting. A worker may have all parts.
    pub(crate) fn hold_limits(&self) -> HoldLimits {
        let events = (2 * self.lanes * self.batch).clamp(256, 4096);
        HoldLimits::of(events).divided(self.partitions.map_or(1, NonZeroU32::get) as usize)
    }

    /// Says what is wrong with it.
    pub(crate) fn refused(&self, reason: impl Into<String>) -> Error {
        Error::Config { consumer: self.consumer.clone(), reason: reason.into() }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |reason: &str| Err(self.refused(reason));
        let illegal = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
        if self.consumer.is_empty() || self.consumer.contains(illegal) {
            return bad("the consumer's name is empty or has spaces, dots, wildcards or slashes");
        }
        if self.stream.is_empty() {
            return bad("no stream is given");
        }
        if self.lanes == 0 || self.batch == 0 || self.max_attempts == 0 {
            return bad("lanes, batch and max_attempts are at least 1");
        }
        if self.lanes > LANES_MAX || self.batch > BATCH_MAX {
            return bad("lanes are at most 1024, and batch is at most 1024");
        }
        if self.lease < Duration::from_secs(1) || self.ack_wait < Duration::from_secs(1) {
            return bad("lease and ack_wait are at least 1s");
        }
        if self.give_up_after.is_some_and(|it| it < Duration::from_secs(1)) {
            return bad("give_up_after is at least 1s");
        }
        if self.partitions.is_some_and(|it| it.get() > PARTITIONS_MAX) {
            return bad("partitions are at most 256");
        }
        let names_partition = |it: &String| it.contains(PARTITION);
        let all_do = self.filter_subjects.iter().all(names_partition);
        if self.partitions.is_some() && (!all_do || self.filter_subjects.is_empty()) {
            return bad(
                "with partitions every subject must contain {partition}, and there must be one",
            );
        }
        Ok(())
    }
}

/// What stands for the number of the partition in a subject.
const PARTITION: &str = "{partition}";

const LANES_MAX: usize = 1024;

/// Each has its sessions, and may hold what it cannot do without: 64 MiB in all.
const PARTITIONS_MAX: u32 = 256;
const BATCH_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_rate_of_the_whole_and_their_own_subjects() {
        let whole = Config {
            partitions: NonZeroU32::new(4),
            filter_subjects: vec!["a%.*.p{partition}.>".into(), "{partition}.b".into()],
            lanes: 6,
            rate: Some("40/s".parse().expect("a rate")),
            ..Config::new("billing".into())
        };
        let parts = whole.parts();
        let last = &parts[3];
        assert_eq!((parts.len(), last.durable()), (4, "billing-3".into()));
        assert_eq!(
            last.rate,
            whole.rate.map(|it| it.divided(3, NonZeroU32::MIN.saturating_add(3)))
        );
        assert_eq!(last.filter_subjects, ["a%.*.p3.>", "3.b"]);
        assert_eq!(last.subjects, r"^(a\%\.[^.]+\.p3|3)(\.|$)");
        assert_eq!(parts[0].subjects, r"^(?!(a\%\.[^.]+\.p(1|2|3)|(1|2|3))(\.|$))");

        let many = Config { partitions: NonZeroU32::new(64), ..whole.clone() };
        let (all, each) =
            (Config { partitions: None, ..whole }.hold_limits(), many.parts()[63].hold_limits());
        assert!(64 * each.bytes <= all.bytes && 64 * each.left <= all.left, "{each:?}");
        assert_eq!((all.events, each.events), (768, 16), "twelve, and what it cannot do without");
        let most =
            Config { partitions: NonZeroU32::new(PARTITIONS_MAX), stream: "S".into(), ..many };
        let least = most.parts()[255].hold_limits();
        assert_eq!((256 * least.events, 256 * least.bytes), (4_096, 64 * 1024 * 1024));
        most.check().expect("as many as there may be");
        let more = Config { partitions: NonZeroU32::new(PARTITIONS_MAX + 1), ..most };
        assert!(more.check().is_err_and(|it| it.to_string().contains("at most 256")));

        let undivided = Config { filter_subjects: Vec::new(), ..Config::new("billing".into()) };
        let [part] = &undivided.parts()[..] else { panic!("one part") };
        assert_eq!((part.durable(), &*part.subjects), ("billing".into(), ""));
    }
}
