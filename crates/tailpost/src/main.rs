//! The `tailpost` binary: reads the command line and the configuration, and runs one command.

mod admin;
mod cli;
mod commands;
mod config;
mod exit;
mod output;
mod shutdown;
mod telemetry;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

fn main() -> ExitCode {
    // Usage errors end here, with code 2.
    let cli = cli::Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exit::report(&error);
            exit::code(&error)
        }
    }
}

fn run(cli: cli::Cli) -> anyhow::Result<()> {
    relay::connect::install_crypto_provider();
    let settings = config::Settings::load(&cli.global.sources())?;
    telemetry::init(settings.log.format, cli.global.verbosity())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    runtime.block_on(commands::run(cli.command, settings))
}
