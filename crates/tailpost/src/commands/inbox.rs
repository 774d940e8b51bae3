//! `tailpost inbox …`, one file per command.

mod run;

use crate::cli::InboxCommand;
use crate::config::Settings;

pub(super) async fn run(command: &InboxCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        InboxCommand::Run(_) => run::run(settings).await,
        InboxCommand::Dlq { .. } | InboxCommand::MarkProcessed(_) => anyhow::bail!("later"),
    }
}
