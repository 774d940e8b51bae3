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
mod shipping;
mod summary;
mod view;

use anyhow::{Result, bail};
use tokio_util::sync::CancellationToken;

use crate::cli::DemoArgs;
use crate::output;
use crate::shutdown;

use servers::Servers;
use summary::Summary;
use view::View;

/// Runs the demo to its end, or until the first signal: then what was written so far is checked.
///
/// # Errors
///
/// When a server does not start, and when relay or inbox made a mistake.
pub(crate) async fn run(args: &DemoArgs) -> Result<()> {
    let stop = shutdown::on_signal()?;
    let view = View::new(args);
    view.say("starting PostgreSQL and NATS in temporary folders");
    let servers = tokio::select! {
        servers = Servers::start() => servers?,
        () = stop.cancelled() => bail!("stopped before anything was written"),
    };
    let summary = measure(args, &servers, &view, &stop).await;
    if let Ok(summary) = &summary {
        view.say(&summary.text());
    }
    // Also after a failure: that is when someone wants to look.
    if args.keep {
        eprintln!("{}", servers.leave_running()?);
    } else {
        view.say("stopping the servers and removing their folders");
        drop(servers);
    }
    let summary = summary?;
    output::text(&summary.json()?)?;
    summary.verdict()
}

async fn measure(
    args: &DemoArgs,
    servers: &Servers,
    view: &View,
    stop: &CancellationToken,
) -> Result<Summary> {
    view.say(&servers.describe());
    let played = play::play(args, servers, view, stop).await?;
    view.say("comparing the table, the stream, what the consumer got, and the effects");
    summary::compare(servers, played).await
}
