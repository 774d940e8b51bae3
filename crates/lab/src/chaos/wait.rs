//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::pauses::Pauses;

/// Long enough for a machine that does much else beside.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Asks again and again until the answer is yes. An error is a no: servers come back.
///
/// # Errors
///
/// When it is still no after [`DEADLINE`]; `what` says what was waited for.
pub(super) async fn until(what: &str, holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    until_within(DEADLINE, what, holds).await
}

/// As [`until`], with another deadline.
///
/// # Errors
///
/// As [`until`].
pub(super) async fn until_within(
    deadline: Duration,
    what: &str,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let (started, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        let answer = holds().await;
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if started.elapsed() > deadline {
            answer.with_context(|| format!("waited in vain until {what}"))?;
            bail!("waited {deadline:?} in vain until {what}");
        }
        pauses.pass().await;
    }
}
