//! Where events come from, and how far they have got: the log, or the table.
//!
//! A session (`session.rs`) is the same over both, and so is how it carries out what the engine says
//! ([`effects`]). What is not the same is below: how a source is opened, what brings its events, over
//! which connections its statements go, and what is left at the end.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod done;
mod effects;
mod lost_end;
mod other_messages;
mod polling;
mod replication;
mod stream_comparison;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use futures_util::future::{BoxFuture, FutureExt};
use servers::NatsLink;
use tokio::sync::watch;
use tracing::warn;

pub(crate) use self::done::{Done, Scanned};
use self::polling::Polling;
use self::replication::Replication;
use crate::config::{Config, Mode};
use crate::describe;
use crate::engine::{BrokerInput, Engine, LastEvent, LogInput, Tail};
use crate::error::Error;
use crate::nats::{Answers, Publisher, TailReader};
use crate::postgres::Opening;
use crate::reporter::News;

/// Why a session ends whose stream has lost what it acknowledged: the next one mends that.
const STREAM_IS_SHORTER: &str =
    "the stream ends before what it has acknowledged, or has others there, or was made anew";

/// Why a session has ended in which nothing broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was asked to, or everything is done.
    Stopped,
    /// PostgreSQL has made the slot, which the next session is to read.
    SlotIsThere,
}

/// What runs beside a session's loop.
pub(crate) type Job = BoxFuture<'static, Result<Done, Error>>;

/// Boxes a job and bounds its time. A statement that has not answered by then never will.
fn within(
    bound: Duration,
    work: impl Future<Output = Result<Done, Error>> + Send + 'static,
) -> Job {
    let bounded = tokio::time::timeout(bound, work);
    bounded.map(|done| done.unwrap_or(Err(Error::Stalled("a statement never answered")))).boxed()
}

/// What became of a statement; `None` after a warning if others have locked what it needs, so that it
/// is to be made again.
fn unless_contended<T>(outcome: Result<T, Error>, what: &str) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if error.is_contention() => {
            warn!(error = describe(&error), "{what}");
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// What the engine is told of a reading of the stream's tail.
fn tail_read(read: Result<Tail, Error>) -> BrokerInput {
    read.map_or_else(|error| BrokerInput::TailFailed(describe(&error)), BrokerInput::Tail)
}

/// What a source is opened with.
#[derive(Clone, Copy)]
pub(crate) struct OpenWith<'a> {
    pub(crate) config: &'a Arc<Config>,
    pub(crate) opening: &'a Opening,
    pub(crate) client: &'a Client,
    pub(crate) link: &'a watch::Receiver<NatsLink>,
    /// The session ends when everything is published that there is.
    pub(crate) once: bool,
}

/// A source with its engine and its connection to the broker.
pub(crate) struct Opened {
    pub(crate) source: Source,
    pub(crate) engine: Engine,
    pub(crate) publisher: Publisher,
    pub(crate) answers: Answers,
    pub(crate) tail: TailReader,
    /// The engine's time counts from here. What it was told first is not older.
    pub(crate) started: Instant,
    pub(crate) news: News,
}

/// Brings events, and does what the engine says.
pub(crate) enum Source {
    Log(Box<Replication>),
    Table(Box<Polling>),
}

impl Source {
    /// Connects, and reads the end of the stream. `unfenced` is why the session before had to leave
    /// fenced mode.
    pub(crate) async fn open(
        with: OpenWith<'_>,
        unfenced: Option<String>,
    ) -> Result<Opened, Error> {
        match with.config.mode {
            Mode::Poll => Box::pin(polling::open(with)).await,
            Mode::Fenced | Mode::Keyed => Box::pin(replication::open(with, unfenced)).await,
        }
    }

    /// The timeline of the log, if there is one.
    pub(crate) fn timeline(&self) -> Option<u32> {
        match self {
            Self::Log(log) => Some(log.timeline()),
            Self::Table(_) => None,
        }
    }

    /// Waits for the log and appends what it brings.
    ///
    /// Cancel safe: what is taken is appended.
    pub(crate) async fn receive(&mut self, into: &mut Vec<LogInput>) -> Result<(), Error> {
        match self {
            Self::Log(log) => log.receive(into).await,
            Self::Table(_) => std::future::pending().await, // rows come with claims
        }
    }

    /// Tells the engine which connections have closed, before it decides.
    pub(crate) fn watch_connections(&self, engine: &mut Engine, now: Duration) {
        match self {
            Self::Log(log) => log.watch_connections(engine, now),
            Self::Table(_) => {} // one that has closed ends the session
        }
    }

    /// Tells the engine that time has passed.
    pub(crate) fn tick(&mut self, engine: &mut Engine, now: Duration) -> Result<(), Error> {
        let seen = match self {
            Self::Log(log) => log.look(engine.wants_log())?,
            Self::Table(table) => table.look()?,
        };
        engine.tick(now, seen);
        Ok(())
    }

    /// Compares what is written down with the stream, if that is due.
    pub(crate) fn watch_history(&mut self, now: Duration) -> Option<Job> {
        match self {
            Self::Log(log) => log.watch_history(now),
            Self::Table(table) => table.watch_history(now),
        }
    }

    /// Leaves, once the engine is drained.
    pub(crate) async fn close(self, engine: &Engine) -> Result<Ended, Error> {
        match self {
            Self::Log(log) => log.close(engine).await,
            Self::Table(_) => Ok(polling::close(engine)),
        }
    }

    /// Leaves, after `error` has ended the session.
    pub(crate) async fn fail(self, error: &Error) -> Result<(), Error> {
        match self {
            Self::Log(log) => log.fail(error).await,
            Self::Table(_) => Ok(()), // the claims end with their connections
        }
    }

    /// The last event that is known to be stored.
    fn last_event(&mut self) -> &mut Option<LastEvent> {
        match self {
            Self::Log(log) => &mut log.last_event,
            Self::Table(table) => &mut table.last_event,
        }
    }

    fn replication(&mut self) -> Result<&mut Replication, Error> {
        match self {
            Self::Log(log) => Ok(log),
            Self::Table(_) => Err(Error::bug("a session over the table has no log")),
        }
    }

    fn polling(&mut self) -> Result<&mut Polling, Error> {
        match self {
            Self::Log(_) => Err(Error::bug("a session over the log has no claims")),
            Self::Table(table) => Ok(table),
        }
    }
}

#[cfg(test)]
mod tests;
