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
    /// Reading or writing the record of applied migrations failed.
    #[error("could not prepare the migrations of {table}")]
    PrepareMigrations {
        /// The outbox table.
        table: String,
        /// What PostgreSQL said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A migration failed; nothing of this run was kept.
    #[error("could not apply migration {version:04}_{name}")]
    Migrate {
        /// The migration's number.
        version: i32,
        /// The migration's name.
        name: &'static str,
        /// What PostgreSQL said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The database was migrated with another text of this migration.
    #[error(
        "migration {version:04}_{name} was applied to schema {schema} with a different text \
         (checksum {recorded}, this binary has {embedded}): a version before the first release made \
         it, and no migration leads from there to this one. With the version that made it, publish \
         what is left (`tailpost relay --once`), requeue or discard dead letters, and run `tailpost \
         slot drop`. Then run `{drop}`, which leaves the outbox alone, and `tailpost setup`"
    )]
    MigrationChanged {
        /// The migration's number.
        version: i32,
        /// The migration's name.
        name: &'static str,
        /// The checksum recorded in the database.
        recorded: String,
        /// The checksum of the embedded migration.
        embedded: String,
        /// The schema with the record.
        schema: String,
        /// The statements that make way for the companions of this version.
        drop: String,
    },
    /// The schema already holds the companion tables of another outbox.
    #[error(
        "schema {schema} already belongs to the outbox {recorded}; give {table} a schema of its own"
    )]
    SchemaTaken {
        /// The schema.
        schema: String,
        /// The table that was asked for.
        table: String,
        /// The table that the schema's records name.
        recorded: String,
    },
}
