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
mod view;

use std::time::Duration;

use anyhow::{Result, bail};
use tokio_util::sync::CancellationToken;

use servers::Servers;
use view::View;

pub use summary::Summary;

/// What to show.
pub struct Options {
    /// How long the producer writes.
    pub duration: Duration,
    /// Events a second.
    pub rate: u32,
    /// Says nothing while it runs.
    pub quiet: bool,
    /// Leaves the servers running, and says how to reach them.
    pub keep: bool,
    /// What a relay is configured with that is told the URLs of PostgreSQL and NATS and nothing
    /// else.
    pub relay_config: fn(database_url: String, nats_url: String) -> Result<relay::Config>,
}

/// Runs the demo to its end, or until `stop`: then what was written so far is checked.
///
/// # Errors
///
/// When a server does not start, or relay or inbox ends early. What they did is for
/// [`Summary::verdict`].
pub async fn run(options: &Options, stop: &CancellationToken) -> Result<Summary> {
    let view = View::new(options);
    view.say("starting PostgreSQL and NATS in temporary folders");
    let servers = tokio::select! {
        servers = Servers::start(options.relay_config) => servers?,
        () = stop.cancelled() => bail!("stopped before anything was written"),
    };
    let summary = measure(options, &servers, &view, stop).await;
    if let Ok(summary) = &summary {
        view.say(&summary.text());
    }
    // Also after a failure: that is when someone wants to look.
    if options.keep {
        eprintln!("{}", servers.leave_running()?);
    } else {
        view.say("stopping the servers and removing their folders");
        drop(servers);
    }
    summary
}

async fn measure(
    options: &Options,
    servers: &Servers,
    view: &View,
    stop: &CancellationToken,
) -> Result<Summary> {
    view.say(&servers.describe());
    let played = play::play(options, servers, view, stop).await?;
    view.say("comparing the table, the stream, what the consumer got, and the effects");
    summary::compare(servers, played).await
}
