use crate::connection::BoxError;

/// Why an inbox ended.
///
/// Only what waiting does not mend ends it: a database or broker that is away is waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or makes no sense.
    #[error("inbox \"{consumer}\" is not set up right: {reason}")]
    Config {
        /// The consumer's name.
        consumer: String,
        /// What is wrong.
        reason: String,
    },
    /// The tables are not there, or not as they should be.
    #[error("the tables of the inbox cannot be used: {reason}")]
    Tables {
        /// What is missing.
        reason: String,
    },
    /// PostgreSQL refuses, and will again.
    #[error("could not {doing}")]
    Sql {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// PostgreSQL's answer.
        source: tokio_postgres::Error,
    },
    /// A connection could not be opened.
    #[error("could not connect to PostgreSQL")]
    Connect(#[source] BoxError),
    /// JetStream refuses, or does not answer.
    #[error("could not {doing}")]
    JetStream {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The client's error.
        source: BoxError,
    },
    /// The durable consumer exists and is configured otherwise.
    #[error("consumer \"{consumer}\" of stream \"{stream}\" cannot be used: {reason}")]
    Consumer {
        /// The stream.
        stream: String,
        /// The consumer.
        consumer: String,
        /// What is wrong with it.
        reason: String,
    },
}
