//! The inbox that is measured: this program, in a process of its own.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use inbox::http::{HttpHandler, HttpOptions};
use inbox::{Connection, Delivery, Inbox, TransactionalHandler, Verdict};
use lab::Process;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{NoTls, Transaction};
use tokio_util::sync::CancellationToken;

use crate::bench_env::{BenchEnv, Waiting};
use crate::cpu;

/// As `tailpost inbox run` has them by default.
pub(crate) const HTTP_LANES: usize = 16;
const HTTP_TIMEOUT: Duration = Duration::from_secs(20);

const STOP_MAX: Duration = Duration::from_secs(60);

/// How events are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Transactional,
    Http,
}

impl Mode {
    /// The name of its consumer.
    pub(crate) fn consumer(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Http => "http",
        }
    }
}

/// A running inbox. Killed when dropped.
pub(crate) struct Worker {
    process: Process,
    pid: u32,
}

impl Worker {
    /// Starts an inbox; does not wait until it works. `handler` is the service to call, if any.
    pub(crate) fn start(
        env: &BenchEnv<'_>,
        waiting: &Waiting,
        mode: Mode,
        handler: &str,
    ) -> Result<Self> {
        let this = std::env::current_exe().context("find this program")?;
        let program = env.servers.measured.inbox.clone().unwrap_or(this);
        let variables = [
            ("DATABASE_URL", env.servers.postgres.url(&env.database)),
            ("NATS_URL", env.servers.nats.url()),
            ("STREAM", waiting.stream.clone()),
            ("HANDLER", handler.to_owned()),
            ("LANES", env.servers.measured.lanes.to_string()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let process = Process::start(&program, &["--worker", mode.consumer()], &variables)?;
        Ok(Self { pid: process.pid()?, process })
    }

    /// The processor time that it has used. Fails once it is no longer there.
    pub(crate) fn used(&self) -> Result<Duration> {
        let ended = || format!("the inbox ended by itself: {}", self.process.log());
        cpu::of_process(self.pid).with_context(ended)
    }

    /// The most memory that it ever had resident, in bytes.
    pub(crate) fn peak_resident_bytes(&self) -> Result<u64> {
        cpu::peak_resident_bytes(self.pid)
    }

    /// Lets it stop as an operator would.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let status = self.process.stop(STOP_MAX).await?;
        if !status.success() {
            bail!("the inbox ended with {status}: {}", self.process.log());
        }
        Ok(())
    }
}

struct NoOp;

impl TransactionalHandler for NoOp {
    async fn handle(&self, _: Delivery<'_>, _: &Transaction<'_>) -> Verdict {
        Verdict::processed()
    }
}

/// What the process does: an inbox with its defaults, until SIGTERM.
pub(crate) async fn run(mode: Mode) -> Result<()> {
    let url = setting("DATABASE_URL")?;
    let connect = move || {
        let url = url.clone();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            Ok(Connection::new(client))
        }
    };
    let nats = async_nats::connect(setting("NATS_URL")?).await.context("connect to NATS")?;
    let builder = Inbox::builder(mode.consumer()).postgres(connect).nats(nats);
    let builder = builder.stream(setting("STREAM")?);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let mut terminated = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    tokio::spawn(async move {
        terminated.recv().await;
        stopped.cancel();
    });
    match mode {
        Mode::Transactional => Box::pin(builder.transactional(NoOp).run(stop)).await?,
        Mode::Http => {
            let url = setting("HANDLER")?;
            let options = HttpOptions::new(url, HTTP_TIMEOUT);
            let handler = HttpHandler::new(options)?;
            let lanes = setting("LANES")?.parse().context("LANES is no number")?;
            Box::pin(builder.lanes(lanes).leased(handler).run(stop)).await?
        }
    };
    Ok(())
}

fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}
