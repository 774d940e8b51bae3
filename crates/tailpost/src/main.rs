//! The `tailpost` binary: reads the command line and the configuration, and runs one command.

mod admin;
mod check_names;
mod cli;
mod commands;
mod config;
mod errors;
mod letters;
mod otlp;
mod output;
mod removed;
mod shutdown;
mod story;
mod systemd;
mod telemetry;

use std::process::ExitCode;

use anyhow::Context;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Usage errors end here, with code 2.
    let cli = cli::Cli::read();
    let _finish = telemetry::Finish;
    let ended = run(cli);
    telemetry::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errors::report(&error);
            errors::code(&error)
        }
    }
}

fn run(cli: cli::Cli) -> anyhow::Result<()> {
    servers::install_crypto_provider();
    let load = || config::Settings::load(&cli.sources());
    let (settings, verbosity) = match cli.command {
        #[cfg(feature = "lab")]
        // Runs anywhere, whatever is configured for other servers, and draws its own picture.
        cli::Command::Demo(_) | cli::Command::Chaos(_) => {
            (config::Settings::default(), cli.global.verbosity().of_demo())
        }
        // What packages need while they are made.
        cli::Command::Completions(_) | cli::Command::Man(_) => {
            (config::Settings::default(), cli.global.verbosity())
        }
        ref command if command.only_shows() => (load()?, cli.global.verbosity().of_status()),
        _ => (load()?, cli.global.verbosity()),
    };
    if cli.command.is_service() {
        telemetry::lines::start();
    }
    telemetry::init(settings.log.format.0, verbosity)?;
    // A relay is one loop with a few connections: on one thread they hand events on in batches, where
    // several threads would wake each other for each. That halves what an event costs.
    let mut runtime = match cli.command {
        cli::Command::Relay(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().context("could not start the runtime")?;
    runtime.block_on(commands::run(cli.command, settings))
}
