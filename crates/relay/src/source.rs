//! Where events come from, and how far they have got: the log, or the table.
//!
//! A session (`session.rs`) is the same over both. What is not the same is here: how a source is
//! opened, what brings its events, what the effects of its engine do, and what is left at the end.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod history_watch;
mod lost_end;
mod polling;
mod replication;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use futures_util::future::{BoxFuture, FutureExt};
use servers::NatsLink;
use tokio::sync::watch;

pub(crate) use self::polling::Polling;
pub(crate) use self::replication::Replication;
use crate::config::Config;
use crate::engine::{self, Decides, Input};
use crate::error::Error;
use crate::nats::{Answers, Publisher, TailReader};
use crate::postgres::Opening;
use crate::reporter::Reporter;

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
pub(crate) type Job<Done> = BoxFuture<'static, Result<Done, Error>>;

/// Boxes a job and bounds its time. A statement that has not answered by then never will.
fn within<Done>(
    bound: Duration,
    work: impl Future<Output = Result<Done, Error>> + Send + 'static,
) -> Job<Done> {
    let bounded = tokio::time::timeout(bound, work);
    bounded.map(|done| done.unwrap_or(Err(Error::Stalled("a statement never answered")))).boxed()
}

/// A source with its engine and its connection to the broker.
pub(crate) struct Opened<S: Source> {
    pub(crate) source: S,
    pub(crate) engine: S::Engine,
    pub(crate) publisher: Publisher,
    pub(crate) answers: Answers,
    pub(crate) tail: TailReader,
    /// The engine's time counts from here. What it was told first is not older.
    pub(crate) started: Instant,
    /// Why it works in keyed mode although fenced mode is configured.
    pub(crate) unfenced: Option<String>,
    /// Rows whose messages the stream has lost are to be published again.
    pub(crate) restores: bool,
    /// The stream has events of a log that the database has not, with their places.
    pub(crate) went_back: Option<String>,
}

/// Brings events, and does what its engine says.
pub(crate) trait Source: Sized {
    type Engine: Decides;
    /// What a job brings.
    type Done;

    /// Connects, and reads the end of the stream. With `once` the session ends when everything is
    /// published that there is. `unfenced` is why the session before had to leave fenced mode.
    async fn open(
        config: &Arc<Config>,
        opening: &Opening,
        client: &Client,
        link: watch::Receiver<NatsLink>,
        once: bool,
        unfenced: Option<String>,
    ) -> Result<Opened<Self>, Error>;

    /// The timeline of the log, if there is one.
    fn timeline(&self) -> Option<u32>;

    /// Waits for the log and appends what it brings.
    ///
    /// Cancel safe: what is taken is appended.
    async fn receive(&mut self, into: &mut Vec<Input>) -> Result<(), Error>;

    /// Tells the engine which connections have closed, before it decides.
    fn watch_connections(&self, engine: &mut Self::Engine, now: Duration);

    /// Does what the engine says, or makes a job of it.
    ///
    /// # Errors
    ///
    /// What ends the session.
    fn carry_out(
        &mut self,
        effect: <Self::Engine as Decides>::Effect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job<Self::Done>>, Error>;

    /// Tells the engine what came of a job.
    fn finish(
        &mut self,
        done: Self::Done,
        engine: &mut Self::Engine,
        now: Duration,
        reporter: &mut Reporter,
    ) -> Result<(), Error>;

    /// The next message, of a session that began at `started`.
    fn next_send(engine: &mut Self::Engine, started: Instant) -> Option<engine::Send<'_>>;

    /// Tells the engine that time has passed.
    fn tick(&mut self, engine: &mut Self::Engine, now: Duration) -> Result<(), Error>;

    /// Compares what is written down with the stream, if that is due.
    fn watch_history(&mut self, now: Duration) -> Option<Job<Self::Done>>;

    /// Leaves, once the engine is drained.
    async fn close(self, engine: &Self::Engine) -> Result<Ended, Error>;

    /// Leaves, after `error` has ended the session.
    async fn fail(self, error: &Error) -> Result<(), Error>;
}

#[cfg(test)]
mod tests;
