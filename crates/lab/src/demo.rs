//! `tailpost demo`: relay and inbox at work on throw-away servers, checked to the last event.
//!
//! ```text
//!   producer ──orders + events──▶ PostgreSQL ──log──▶ relay ──▶ NATS stream ──▶ consumer
//!      │                              ▲                              │             │
//!      │                              └──── shipments ──── inbox ◀───┘             │
//!      └────────────── just before COMMIT ─────── journal ─────── arrival ─────────┘
//! ```
//!
//! Nothing is simulated: the servers are real ones with `fsync` on, relay and inbox are those that
//! users run, with their defaults, and the figures at the end come from reading tables and stream
//! anew. Whatever the user has configured for servers of their own is not looked at.

mod consumer;
mod journal;
mod play;
mod servers;
mod shipments;
mod summary;

use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::BoxFuture;
use servers::Servers;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use summary::Summary;

/// What runs, for whoever shows it to a browser.
pub struct Running {
    /// Where the database is.
    pub database_url: String,
    /// Where the broker is.
    pub nats_url: String,
    /// The stream.
    pub stream: String,
    /// What the relay says of itself.
    pub relay: watch::Receiver<relay::Status>,
    /// The consumer's name.
    pub consumer: &'static str,
    /// What the consumer says of itself.
    pub inbox: watch::Receiver<inbox::Status>,
}

/// What to show.
pub struct Options {
    /// How long the producer writes.
    pub duration: Duration,
    /// Events a second.
    pub rate: u32,
    /// Says nothing while it runs.
    pub quiet: bool,
    /// What a relay is configured with that is told the URLs of PostgreSQL and NATS and nothing
    /// else.
    pub relay_config: fn(database_url: String, nats_url: String) -> Result<relay::Config>,
    /// Serves a console until the token is cancelled, and says where it is.
    pub console: fn(Running, CancellationToken) -> BoxFuture<'static, Result<String>>,
}

impl Options {
    /// Says something on stderr; stdout is for the figures.
    fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

/// Runs the demo to its end, or until `stop`: then what was written so far is checked.
///
/// # Errors
///
/// When a server does not start, or relay or inbox ends early. What they did is for
/// [`Summary::verdict`].
pub async fn run(options: &Options, stop: &CancellationToken) -> Result<Summary> {
    options.say("starting PostgreSQL and NATS in temporary folders");
    let servers = tokio::select! {
        servers = Servers::start(options.relay_config) => servers?,
        () = stop.cancelled() => bail!("stopped before anything was written"),
    };
    options.say(&servers.describe());
    let played = play::play(options, &servers, stop).await?;
    options.say("comparing the table, the stream, what the consumer got, and the effects");
    let summary = summary::compare(&servers, played).await?;
    options.say(&summary.text());
    options.say("stopping the servers and removing their folders");
    Ok(summary)
}
