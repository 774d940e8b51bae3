//! `tailpost inbox …`.

mod dlq;
mod run;

use inbox::{Connection, DeadLetters};

use crate::cli::InboxCommand;
use crate::config::Settings;

pub(super) async fn run(command: &InboxCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        InboxCommand::Run(_) => run::run(settings).await,
        InboxCommand::Dlq { command } => dlq::run(command, settings).await,
        InboxCommand::MarkProcessed(args) => dlq::mark_processed(args, settings).await,
    }
}

async fn dead_letters(settings: &Settings) -> anyhow::Result<DeadLetters> {
    let (client, task) = settings.postgres_target()?.connect("tailpost inbox dlq").await?;
    let connection = Connection::with_guard(client, task);
    Ok(DeadLetters::new(connection, &settings.postgres.table))
}
