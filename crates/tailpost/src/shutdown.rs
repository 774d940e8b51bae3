//! SIGTERM and SIGINT ask the process to finish; the second one does not ask.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Returns a token that is cancelled by the first SIGTERM or SIGINT. The second ends the process.
///
/// # Errors
///
/// Fails if the signals cannot be listened to.
pub(crate) fn on_signal() -> anyhow::Result<CancellationToken> {
    let listen = |kind| signal(kind).context("could not listen to signals");
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        loop {
            let (name, code) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", 143),
                _ = interrupt.recv() => ("SIGINT", 130),
            };
            if cancelled.is_cancelled() {
                warn!("received a second signal ({name}): stopping at once");
                crate::telemetry::finish();
                std::process::exit(code);
            }
            info!("received {name}: stopping; once more to stop at once");
            cancelled.cancel();
        }
    });
    Ok(token)
}
