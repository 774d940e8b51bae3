/// Why an event could not be built or written, or the outbox not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload's `Serialize` failed.
    #[error("could not serialise the event's payload as json")]
    Payload(#[source] serde_json::Error),
    /// The insert failed; the transaction is aborted.
    #[error("could not write to the outbox {table}")]
    Enqueue {
        /// The outbox table.
        table: String,
        /// What PostgreSQL said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// PostgreSQL refused a statement of the migrations; nothing of this run was kept.
    #[error("could not {doing}")]
    Migrate {
        /// What was being done, in the imperative.
        doing: String,
        /// What PostgreSQL said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The schema holds something else than this version makes.
    #[error("{0}")]
    Refused(String),
}
