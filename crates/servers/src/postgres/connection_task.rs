use tokio::task::JoinHandle;

/// The task that drives a connection's socket. Dropping it closes the connection.
#[derive(Debug)]
pub struct ConnectionTask {
    handle: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl ConnectionTask {
    pub(super) fn new(handle: JoinHandle<Result<(), tokio_postgres::Error>>) -> Self {
        Self { handle }
    }

    /// Waits until the connection has ended and says why, if not on request.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, but to be called no more once it has returned.
    pub async fn ended(&mut self) -> Option<tokio_postgres::Error> {
        (&mut self.handle).await.ok().and_then(Result::err)
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
