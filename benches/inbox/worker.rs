//! The inbox that is measured: this program, in a process of its own.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use inbox::http::{HttpHandler, HttpOptions};
use inbox::{Connection, Delivery, Inbox, TransactionalHandler, Verdict};
use tokio::process::{Child, ChildStdin, Command};
use tokio_postgres::{NoTls, Transaction};
use tokio_util::sync::CancellationToken;

use crate::bench_env::{BenchEnv, Waiting};
use crate::cpu;

/// As `tailpost inbox run` has them by default.
const HTTP_LANES: usize = 16;
const HTTP_TIMEOUT: Duration = Duration::from_secs(20);

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
    pid: u32,
    child: Child,
    hold: ChildStdin,
}

impl Worker {
    /// Starts an inbox; does not wait until it works. `handler` is the service to call, if any.
    pub(crate) fn start(
        env: &BenchEnv<'_>,
        waiting: &Waiting,
        mode: Mode,
        handler: &str,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .args(["--worker", mode.consumer()])
            .env("DATABASE_URL", env.servers.postgres.url(&env.database))
            .env("NATS_URL", env.servers.nats.url())
            .env("STREAM", &waiting.stream)
            .env("HANDLER", handler)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start the inbox")?;
        let hold = child.stdin.take().context("hold the inbox's leash")?;
        Ok(Self { pid: child.id().context("the inbox ended at once")?, child, hold })
    }

    /// The processor time that it has used. Fails once it is no longer there.
    pub(crate) fn used(&self) -> Result<Duration> {
        cpu::of_process(self.pid).context("the inbox ended by itself")
    }

    /// The most memory that it ever had resident, in bytes.
    pub(crate) fn peak_resident_bytes(&self) -> Result<u64> {
        cpu::peak_resident_bytes(self.pid)
    }

    /// Lets it stop as an operator would.
    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.hold);
        let status = self.child.wait().await.context("wait for the inbox")?;
        if !status.success() {
            bail!("the inbox ended with {status}");
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

/// What the process does: an inbox with its defaults, until its input ends.
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
    let ended = stop.clone();
    // Closed by the benchmark, or because it is gone.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        ended.cancel();
    });
    match mode {
        Mode::Transactional => Box::pin(builder.transactional(NoOp).run(stop)).await?,
        Mode::Http => {
            let url = setting("HANDLER")?;
            let options =
                HttpOptions { url, timeout: HTTP_TIMEOUT, secrets: Vec::new(), tls: None };
            let handler = HttpHandler::new(options)?;
            Box::pin(builder.lanes(HTTP_LANES).leased(handler).run(stop)).await?
        }
    };
    Ok(())
}

fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}
