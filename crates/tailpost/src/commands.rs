//! One file per command; what they do is in the libraries.

mod console;
mod decide;
pub(crate) mod dlq;
mod doctor;
mod explain;
mod inbox;
#[cfg(feature = "lab")]
mod lab;
mod maintain;
mod manual;
mod progress;
mod relay;
mod repair_text;
mod replay;
mod replays;
mod setup;
mod setup_report;
mod sides;
mod slot;
mod status;
mod top;
mod verify;
mod wait;

use crate::cli::Command;
use crate::cli::dlq_args::OutboxCommand;
use crate::config::Settings;

/// Runs one command to its end.
pub(crate) async fn run(command: Command, settings: Settings) -> anyhow::Result<()> {
    match command {
        Command::Setup(args) => Box::pin(setup::run(&args, &settings)).await,
        Command::Relay(args) => Box::pin(relay::run(&args, &settings)).await,
        Command::Status(args) => Box::pin(status::run(&args, &settings)).await,
        Command::Top(args) => Box::pin(top::run(&args, &settings)).await,
        Command::Console(args) => Box::pin(console::run(args, &settings)).await,
        Command::Doctor(args) => Box::pin(doctor::run(&args, &settings)).await,
        Command::Wait(args) => Box::pin(wait::run(&args, &settings)).await,
        Command::Explain(args) => Box::pin(explain::run(&args, &settings)).await,
        Command::Verify(args) => Box::pin(verify::run(&args, &settings)).await,
        Command::Replay(args) => Box::pin(replay::run(&args, &settings)).await,
        Command::Replays(command) => Box::pin(replays::run(&command, &settings)).await,
        Command::Maintain(args) => Box::pin(maintain::run(&args, &settings)).await,
        Command::Inbox(args) => inbox::run(&args.command, &settings).await,
        Command::Outbox(command) => {
            let OutboxCommand::Dlq(command) = &*command;
            dlq::run(command, &settings).await
        }
        Command::Slot(command) => Box::pin(slot::run(&command, &settings)).await,
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(&args.dir),
        #[cfg(feature = "lab")]
        Command::Demo(args) => Box::pin(lab::demo(args)).await,
        #[cfg(feature = "lab")]
        Command::Chaos(args) => lab::chaos(args).await,
    }
}
