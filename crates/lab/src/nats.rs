//! A throw-away NATS server with JetStream.

mod nats_cluster;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use async_nats::jetstream;
use rustix::process::Signal;

use crate::binaries::find_nats;
use crate::port::Port;
use crate::server::{Program, Server};
use crate::template_cluster::copy;
use crate::user::User;

pub use nats_cluster::NatsCluster;

const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A server of a cluster without a leader does not answer.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// How to set up a [`Nats`].
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// The version to run, such as `2.9`; the best one found if `None`.
    pub version: Option<String>,
    /// The binary to run, whatever `version` says.
    pub binary: Option<PathBuf>,
    /// The largest payload taken, in bytes; the server's default (1 MiB) if `None`.
    pub max_payload: Option<u32>,
    /// Further lines of the server's configuration.
    pub config: Vec<String>,
    /// Further lines of the configuration's `jetstream` block.
    pub jetstream: Vec<String>,
    /// The token by which [`Nats::client`] comes in, or the text of a credentials file.
    pub token: Option<String>,
}

/// A NATS server with JetStream, on a free port of 127.0.0.1, in a folder of its own.
///
/// Server and folder are gone when this is dropped, and also when this process dies, however it
/// dies.
pub struct Nats {
    binary: PathBuf,
    port: Port,
    server: Server,
    options: NatsOptions,
}

impl Nats {
    /// Starts a server; returns when JetStream is there.
    ///
    /// # Errors
    ///
    /// When there is no binary (the message says how to get one), or the server does not start.
    pub async fn start(options: NatsOptions) -> Result<Self> {
        let prepared = tokio::task::spawn_blocking(move || Self::prepare(&options)).await?;
        let mut nats = prepared.context("prepare a NATS server")?;
        nats.start_again().await?;
        Ok(nats)
    }

    fn prepare(options: &NatsOptions) -> Result<Self> {
        let binary = match &options.binary {
            Some(binary) => binary.clone(),
            None => find_nats(options.version.as_deref())?,
        };
        let user = User::current();
        let server = Server::prepare("nats", &user.temp_dir(), user, "KILL")?;
        let nats = Self { binary, port: Port::reserve()?, server, options: options.clone() };
        nats.write_config()?;
        Ok(nats)
    }

    fn write_config(&self) -> Result<()> {
        let options = &self.options;
        let mut lines = vec![
            format!("listen: \"127.0.0.1:{}\"", self.port()),
            format!("server_name: \"{}\"", self.name()),
            "jetstream {".to_owned(),
            format!("store_dir: \"{}\"", self.store_dir().display()),
        ];
        lines.extend(options.jetstream.iter().cloned());
        lines.push("}".to_owned());
        lines.extend(options.max_payload.map(|it| format!("max_payload: {it}")));
        lines.extend(options.config.iter().cloned());
        self.server.write_private(&self.config_path(), &(lines.join("\n") + "\n"))
    }

    /// Has the running server read other lines of configuration, and other files that they name.
    /// Returns when it has. It ends the connections of those whom it would not let in any more.
    ///
    /// # Errors
    ///
    /// When the server is not running, or does not take the configuration.
    pub async fn reload(&mut self, config: Vec<String>, token: Option<&str>) -> Result<()> {
        (self.options.config, self.options.token) = (config, token.map(str::to_owned));
        self.write_config()?;
        let reloads = |log: String| log.matches("Reloaded server configuration").count();
        let before = reloads(self.log());
        self.server.signal(Signal::HUP)?;
        let started = Instant::now();
        while reloads(self.log()) == before {
            if started.elapsed() > START_DEADLINE {
                bail!("NATS did not reload; its log ends:\n{}", self.server.tail());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    fn config_path(&self) -> PathBuf {
        self.server.folder().join("nats.conf")
    }

    /// The folder in which JetStream keeps its streams.
    pub fn store_dir(&self) -> PathBuf {
        self.server.folder().join("store")
    }

    /// Copies that folder, while the server does not run; says where the copy is.
    ///
    /// # Errors
    ///
    /// When the folder cannot be copied.
    pub fn copy_store(&self) -> Result<PathBuf> {
        let copied = self.server.folder().join("store copied");
        copy(&self.store_dir(), &copied, self.server.user()).context("copy the store")?;
        Ok(copied)
    }

    /// Makes the copy the store, while the server does not run.
    ///
    /// # Errors
    ///
    /// When files cannot be moved.
    pub fn put_store_back(&self, copied: &Path) -> Result<()> {
        std::fs::remove_dir_all(self.store_dir()).context("remove the store")?;
        std::fs::rename(copied, self.store_dir()).context("put the copy back")
    }

    /// Makes a consumer what the copy has of it, while the server does not run.
    ///
    /// # Errors
    ///
    /// When files cannot be moved.
    pub fn put_consumer_back(&self, copied: &Path, stream: &str, consumer: &str) -> Result<()> {
        let part = format!("jetstream/$G/streams/{stream}/obs/{consumer}");
        let now = self.store_dir().join(&part);
        std::fs::remove_dir_all(&now).context("remove the consumer")?;
        std::fs::rename(copied.join(&part), now).context("put the copy back")?;
        std::fs::remove_dir_all(copied).context("remove the copy")
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port())
    }

    /// The port on 127.0.0.1. It stays the same, and reserved, over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The name that it calls itself.
    pub fn name(&self) -> String {
        format!("lab-{}", self.port())
    }

    /// The path of the server's binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The server's process id.
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn pid(&self) -> Result<u32> {
        self.server.pid()
    }

    /// What the server logged so far, over all restarts.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Connects. The client connects again by itself when the server restarts.
    ///
    /// # Errors
    ///
    /// When the server does not take the connection.
    pub async fn client(&self) -> Result<async_nats::Client> {
        connect(&self.options, &self.url()).await
    }

    /// Connects, for JetStream.
    ///
    /// # Errors
    ///
    /// When the server does not take the connection.
    pub async fn jetstream(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(self.client().await?))
    }

    /// Kills the server like a crash.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub async fn kill(&mut self) -> Result<()> {
        self.server.kill().await.context("kill NATS")
    }

    /// Stops the server in its own good order; returns how long that took.
    ///
    /// # Errors
    ///
    /// When it is not running, or has not ended after half a minute.
    pub async fn stop(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.server.signal(Signal::TERM)?;
        self.server.ended(STOP_DEADLINE).await.context("stop NATS")?;
        Ok(started.elapsed())
    }

    /// Starts the stopped or killed server again, on the same port and store; returns when
    /// JetStream is there.
    ///
    /// # Errors
    ///
    /// When it does not start; the message holds the end of its log.
    pub async fn start_again(&mut self) -> Result<()> {
        let args: Vec<OsString> = vec!["--config".into(), self.config_path().into()];
        self.server.spawn(&Program { path: self.binary.clone(), args, env: None })?;
        let (options, url) = (&self.options, self.url());
        let answers = async || {
            let probed = tokio::time::timeout(PROBE_MAX, probe(options, &url)).await;
            probed.unwrap_or_else(|late| Err(late.into()))
        };
        self.server.ready("NATS", START_DEADLINE, answers).await
    }

    /// Stops the server in its tracks, until [`Nats::resume`]. Connections stay.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.server.freeze().map(drop).context("pause NATS")
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.server.thaw().context("resume NATS")
    }
}

async fn connect(options: &NatsOptions, url: &str) -> Result<async_nats::Client> {
    let options = match &options.token {
        Some(creds) if creds.starts_with("-----BEGIN") => {
            async_nats::ConnectOptions::with_credentials(creds)?
        }
        Some(token) => async_nats::ConnectOptions::with_token(token.clone()),
        None => async_nats::ConnectOptions::new(),
    };
    options.connect(url).await.context("connect to NATS")
}

async fn probe(options: &NatsOptions, url: &str) -> Result<()> {
    let client = match connect(options, url).await {
        Ok(client) => client,
        // The server is up and wants credentials or TLS: settings a test asked for.
        Err(error) if refused_by_settings(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    // By hand: the client library cannot read the answer of servers before 2.10.
    let answer = client.request("$JS.API.INFO", "".into()).await.context("ask for JetStream")?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
    match answer.get("error") {
        None => Ok(()),
        Some(error) => bail!("JetStream is not ready: {error}"),
    }
}

fn refused_by_settings(error: &anyhow::Error) -> bool {
    use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation, Tls};
    let kind = error.downcast_ref::<async_nats::ConnectError>().map(async_nats::ConnectError::kind);
    matches!(kind, Some(Authentication | AuthorizationViolation | Tls))
}
