//! What bounds statements that wait for nobody.

use std::time::Duration;

use tokio::time::timeout;

use crate::error::Error;

/// How long a statement may take that waits for nobody.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Bounds statements that wait for nobody.
///
/// # Errors
///
/// [`Error::Silent`] if they take more than `ANSWER_MAX`; whatever `work` ends with.
pub async fn answered<T>(
    doing: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(ANSWER_MAX, work).await.unwrap_or(Err(Error::Silent { doing }))
}
