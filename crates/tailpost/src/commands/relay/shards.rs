//! All shards in one process, each on a thread of its own.
//!
//! A relay is one loop with a few connections, which is fastest on one thread: so it stays, and the
//! shards have nothing to say to each other.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::Builder;

use anyhow::{Context, Result};
use relay::{Config, Reports};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info_span, warn};

/// Runs until all have ended. One that cannot go on without an operator stops the others, cleanly;
/// its error is returned.
pub(super) async fn run(
    relays: Vec<(Config, Reports)>,
    once: bool,
    stop: &CancellationToken,
) -> Result<()> {
    // A token of our own: to whoever sends a signal later, it is still the first.
    let stop = stop.child_token();
    let (ended, mut endings) = mpsc::channel(relays.len());
    for (config, reports) in relays {
        let shard = config.shard().map_or(0, |it| it.number);
        let (stop, ended) = (stop.clone(), ended.clone());
        let thread = move || {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| relay(shard, config, once, stop, reports)));
            // Nobody listens only if the process ends anyway.
            let _ = ended.blocking_send((shard, outcome));
        };
        Builder::new().name(format!("shard {shard}")).spawn(thread).context("start a thread")?;
    }
    drop(ended);
    let mut failed: Option<(u32, anyhow::Error)> = None;
    let mut panicked = None;
    while let Some((shard, outcome)) = endings.recv().await {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                // With `--once` a server that is away ends one of them; the others do what they can.
                if !is_transient(&error) {
                    warn!(shard, "the shard cannot go on: stopping the others");
                    stop.cancel();
                }
                // The one that is returned is what an operator has to mend, if there is such a one.
                let other = match &failed {
                    Some((_, first)) if !is_transient(first) || is_transient(&error) => {
                        Some((shard, error))
                    }
                    _ => failed.replace((shard, error)),
                };
                if let Some((shard, other)) = other {
                    error!(shard, error = format!("{other:#}"), "the shard's relay failed as well");
                }
            }
            Err(panic) => {
                stop.cancel();
                panicked = Some(panic);
            }
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
    failed.map_or(Ok(()), |(shard, error)| Err(error.context(format!("shard {shard}"))))
}

fn is_transient(error: &anyhow::Error) -> bool {
    error
        .chain()
        .find_map(|it| it.downcast_ref::<relay::Error>())
        .is_some_and(relay::Error::is_transient)
}

fn relay(
    shard: u32,
    config: Config,
    once: bool,
    stop: CancellationToken,
    reports: Reports,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("could not start the runtime")?;
    let relay = relay::run(config, once, stop, reports).instrument(info_span!("relay", shard));
    Ok(runtime.block_on(relay)?)
}
