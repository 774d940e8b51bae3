//! The processes behind one URL, and what they and their database last said.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::answers::{Consumer, InboxStatus, Letters, Readiness, RelayStatus, Replay, ShardStatus};
use super::operator_answers::Operation;

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
    pub(crate) database: Option<String>,
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
    pub(crate) fn apply(&mut self, now: Timestamp, told: Told<S, B>) {
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

impl Inbox {
    /// The consumers that have dead letters.
    pub(crate) fn with_letters(&self) -> Vec<&str> {
        let dead = self.books.consumers.iter().filter(|it| it.dead > 0);
        dead.map(|it| &*it.name).collect()
    }

    /// Whether both have their consumers in one database.
    pub(super) fn shares(&self, other: &Self) -> bool {
        let database = &self.books.database;
        self.key == other.key || database.is_some() && *database == other.books.database
    }
}
