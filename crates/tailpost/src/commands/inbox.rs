//! `tailpost inbox …`.

mod answers;
pub(super) mod builder;
mod handler;
mod inbox_dlq;
mod inbox_rewind;
pub(super) mod inbox_setup;
mod ping;
mod retiring;
pub(super) mod run;
pub(super) mod sampler;

use operate::consumers::look_at_stream;
use operate::dead_letters::inbox_letters::DeadLetters;
use tokio::time::timeout;
use tracing::warn;

use crate::cli::InboxCommand;
use crate::config::{Consumer, Settings};

pub(super) async fn run(command: &InboxCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        InboxCommand::Run(_) => run::run(settings).await,
        InboxCommand::Setup(args) => inbox_setup::run(args, settings).await,
        InboxCommand::Dlq { command } => inbox_dlq::run(command, settings).await,
        InboxCommand::Rewind(args) => inbox_rewind::run(args, settings).await,
        InboxCommand::Ping(args) => ping::run(args, settings).await,
        InboxCommand::MarkProcessed(args) => inbox_dlq::mark_processed(args, settings).await,
    }
}

async fn dead_letters(settings: &Settings) -> anyhow::Result<DeadLetters> {
    let connection = settings.connection("tailpost inbox dlq").await?;
    Ok(DeadLetters::new(connection, &settings.table()?))
}

/// Whether records may go after `inbox.retention`: the stream of each consumer has to forget before.
/// A stream that does not exist yet, or a broker that does not answer, is another's to report.
///
/// # Errors
///
/// [`Error::Config`](inbox::Error::Config) with both values.
pub(super) async fn check_retention(
    settings: &Settings,
    nats: &async_nats::Client,
) -> anyhow::Result<()> {
    let Some(keep) = settings.inbox_retention() else { return Ok(()) };
    let context = servers::jetstream_of(nats);
    for Consumer { name, stream, settings } in settings.consumers()? {
        let Ok(found) = context.get_stream(&stream).await else { continue };
        let max_age = Some(found.cached_info().config.max_age).filter(|it| !it.is_zero());
        if let Some(reason) = inbox::retention_problem(keep, &stream, max_age, settings.lease.0) {
            return Err(inbox::Error::Config { consumer: name, reason }.into());
        }
    }
    Ok(())
}

/// Says what streams keep from their consumers. A broker that does not answer is another's to report.
async fn warn_of_streams(settings: &Settings, nats: &async_nats::Client) -> anyhow::Result<()> {
    let Ok(relay) = settings.relay_config() else { return Ok(()) };
    let looks = settings.consumers()?.into_iter().map(async |consumer| {
        let subjects = builder::subjects(&consumer);
        let look = look_at_stream(&relay, nats, &consumer.stream, &subjects);
        let Ok(Ok(looked)) = timeout(sampler::ASK_MAX, look).await else { return };
        for warning in looked.warnings {
            warn!(consumer = consumer.name, stream = consumer.stream, "{warning}");
        }
    });
    futures_util::future::join_all(looks).await;
    Ok(())
}
