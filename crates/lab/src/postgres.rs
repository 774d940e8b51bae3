//! A throw-away PostgreSQL server.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::binaries::PostgresBinaries;
use crate::port::Port;
use crate::server::{Program, Server};
use crate::template_cluster;
use crate::user::User;

const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// How to set up a [`Postgres`].
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// The major version to run; the best one found if `None`.
    pub version: Option<u32>,
    /// Whether programs are needed beside the server, such as `pg_dump` and `pg_upgrade`; there has
    /// to be a version then.
    pub complete: bool,
    /// Whether commits reach the disk. Off by default: that survives every crash but that of the
    /// machine, and is faster. The data folder is in memory then, if there is room.
    pub fsync: bool,
    /// Further settings, as in `postgresql.conf`; they win over the defaults here. `ALTER SYSTEM`
    /// wins over them.
    pub settings: Vec<(String, String)>,
    /// Files in the data folder, such as `pg_hba.conf` or `server.key`: name and contents. Only the
    /// server's user may read them.
    pub files: Vec<(String, String)>,
    /// Whether the cluster needs a system identifier that no other one here has. Takes a second
    /// longer.
    pub own_identity: bool,
}

/// A PostgreSQL server with `wal_level = logical`, on a free port of 127.0.0.1, in a folder of its
/// own.
///
/// User `postgres`, no password. Server and folder are gone when this is dropped, and also when
/// this process dies, however it dies. Never runs as root: root's rights are dropped to the user
/// `postgres`.
pub struct Postgres {
    pub(crate) binaries: PostgresBinaries,
    port: Port,
    pub(crate) server: Server,
}

impl Postgres {
    /// Starts a server; returns when it takes connections.
    ///
    /// # Errors
    ///
    /// When there are no binaries (the message says how to get them), or the server does not start.
    pub async fn start(options: PostgresOptions) -> Result<Self> {
        let prepared = tokio::task::spawn_blocking(move || Self::prepare(&options)).await?;
        let mut postgres = prepared.context("prepare a PostgreSQL server")?;
        postgres.start_again().await?;
        Ok(postgres)
    }

    fn prepare(options: &PostgresOptions) -> Result<Self> {
        let binaries = match options.version {
            Some(version) if options.complete => PostgresBinaries::find_complete(version)?,
            version => PostgresBinaries::find(version)?,
        };
        let user = User::unprivileged()?;
        let parent = if options.fsync { user.temp_dir() } else { user.volatile_dir() };
        let server = Server::prepare("postgres", &parent, user, "QUIT")?;
        let postgres = Self { binaries, port: Port::reserve()?, server };
        let data = postgres.data_dir();
        template_cluster::create(
            &postgres.binaries,
            postgres.server.user(),
            &data,
            options.own_identity,
        )?;
        postgres.append_settings(&defaults(options.fsync))?;
        postgres.append_settings(&options.settings)?;
        for (name, contents) in &options.files {
            postgres.server.write_private(&data.join(name), contents)?;
        }
        Ok(postgres)
    }

    /// Starts a standby that streams from `primary`, through a slot named like the standby.
    ///
    /// With `sync`, commits on the primary wait for it from then on.
    ///
    /// # Errors
    ///
    /// As for [`Postgres::start`].
    pub async fn start_standby_of(primary: &Self, name: &str, sync: bool) -> Result<Self> {
        let beside = primary.server.folder().parent().context("the primary's folder")?;
        let server = Server::prepare("postgres", beside, User::unprivileged()?, "QUIT")?;
        let binaries = primary.binaries.clone();
        let mut standby = Self { binaries, port: Port::reserve()?, server };
        let client = primary.client("postgres").await?;
        primary.back_up_into(&standby, name, &client).await.context("make a base backup")?;

        let conninfo =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", primary.port());
        standby.append_settings(&[
            ("primary_conninfo".to_owned(), conninfo),
            ("primary_slot_name".to_owned(), name.to_owned()),
        ])?;
        standby.server.write_private(&standby.data_dir().join("standby.signal"), "")?;
        standby.start_again().await?;
        if sync {
            primary.wait_for_standbys(&client, name).await?;
        }
        Ok(standby)
    }

    /// Lets commits wait for the standbys of these names, from now on.
    pub async fn wait_for_standbys(&self, client: &Client, names: &str) -> Result<()> {
        let sql = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        client.batch_execute(&sql).await?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        let shown = "SELECT current_setting('synchronous_standby_names')";
        while client.query_one(shown, &[]).await?.get::<_, String>(0) != names {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Commits wait once the checkpointer has read the settings, which it does before it writes.
        client.batch_execute("CHECKPOINT").await.context("write a checkpoint")
    }

    /// Does what `pg_basebackup` does, which not every installation has.
    async fn back_up_into(&self, standby: &Self, name: &str, client: &Client) -> Result<()> {
        // Keeps the log from the backup's start on.
        client.execute("SELECT pg_create_physical_replication_slot($1, true)", &[&name]).await?;
        let (start, stop) = if self.version() >= 15 {
            ("pg_backup_start($1, true)", "pg_backup_stop(false)")
        } else {
            ("pg_start_backup($1, true, false)", "pg_stop_backup(false, false)")
        };
        client.execute(&format!("SELECT {start}"), &[&name]).await?;
        let (from, to, user) = (self.data_dir(), standby.data_dir(), standby.server.user().clone());
        tokio::task::spawn_blocking(move || template_cluster::copy_running(&from, &to, &user))
            .await??;
        let label = client.query_one(&format!("SELECT labelfile FROM {stop}"), &[]).await?;
        standby.server.write_private(&standby.data_dir().join("backup_label"), label.get(0))
    }

    /// The URL of a database on this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// The TCP port on 127.0.0.1. It stays the same, and reserved, over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the server's unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.server.folder()
    }

    /// The folder of this version's programs, such as `psql`.
    pub fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// The major version.
    pub fn version(&self) -> u32 {
        self.binaries.version.0
    }

    /// The server's data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.server.folder().join("data")
    }

    /// The postmaster's process id.
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn pid(&self) -> Result<u32> {
        self.server.pid()
    }

    /// Writes a file into the data folder, such as `pg_hba.conf` or `server.key`, which only the
    /// server's user may read. It looks at it when it [reloads](Postgres::reload).
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write_file(&self, name: &str, contents: &str) -> Result<()> {
        self.server.write_private(&self.data_dir().join(name), contents)
    }

    /// Has the server read its settings and certificates again; returns when it has.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn reload(&self) -> Result<()> {
        let client = self.client("postgres").await?;
        let loaded = "SELECT pg_conf_load_time()::text";
        // A backend reads it beside the postmaster, which decides about the next connection.
        let before: String = client.query_one(loaded, &[]).await?.get(0);
        client.batch_execute("SELECT pg_reload_conf()").await?;
        loop {
            let client = self.client("postgres").await?;
            if client.query_one(loaded, &[]).await?.get::<_, String>(0) != before {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// What the server logged so far, over all restarts.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Creates an empty database.
    ///
    /// # Errors
    ///
    /// When the server refuses, for instance because there is one of that name.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        let client = self.client("postgres").await?;
        let sql = format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\""));
        client.batch_execute(&sql).await.with_context(|| format!("create database {name}"))
    }

    /// Connects to a database.
    ///
    /// # Errors
    ///
    /// When the server does not take the connection.
    pub async fn client(&self, database: &str) -> Result<Client> {
        let connected = connect(&self.url(database)).await;
        connected.with_context(|| format!("connect to database {database}"))
    }

    /// Kills the server like a crash; when this returns, none of its processes is left.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub async fn kill(&mut self) -> Result<()> {
        self.server.kill().await.context("kill PostgreSQL")
    }

    /// Stops the server like `pg_ctl stop -m fast`; returns how long that took.
    ///
    /// # Errors
    ///
    /// When it is not running, or has not ended after a minute.
    pub async fn stop_fast(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.server.signal(Signal::INT)?;
        self.server.ended(STOP_DEADLINE).await.context("stop PostgreSQL")?;
        Ok(started.elapsed())
    }

    /// Starts the stopped or killed server again, on the same port and data; returns when it takes
    /// connections.
    ///
    /// # Errors
    ///
    /// When it does not start; the message holds the end of its log.
    pub async fn start_again(&mut self) -> Result<()> {
        let data = self.data_dir();
        let mut args: Vec<OsString> = vec!["-D".into(), data.into()];
        args.extend(["-c".into(), format!("port={}", self.port()).into()]);
        let mut socket = OsString::from("unix_socket_directories=");
        socket.push(self.server.folder());
        args.extend(["-c".into(), socket]);
        self.server.spawn(&Program {
            path: self.binaries.program("postgres")?,
            args,
            env: None,
        })?;
        let url = self.url("postgres");
        let answers = async || match connect(&url).await {
            // Only a server that speaks refuses a password, a certificate, a host: those are
            // settings a test asked for.
            Err(error) if refused_by_settings(&error) => Ok(()),
            connected => connected.map(drop),
        };
        self.server.ready("PostgreSQL", START_DEADLINE, answers).await
    }

    /// Stops all of the server's processes in their tracks, until [`Postgres::resume`]. Connections
    /// stay.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.server.freeze().map(drop).context("pause PostgreSQL")
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.server.thaw().context("resume PostgreSQL")
    }

    pub(crate) fn append_settings(&self, settings: &[(String, String)]) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let mut text = std::fs::read_to_string(&path).context("read postgresql.conf")?;
        text.push('\n');
        for (name, value) in settings {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        self.server.write_private(&path, &text)
    }
}

pub(crate) fn defaults(fsync: bool) -> Vec<(String, String)> {
    let mut settings = vec![
        ("listen_addresses", "127.0.0.1"),
        ("wal_level", "logical"),
        ("max_replication_slots", "20"),
        ("max_wal_senders", "20"),
        // Segments in /dev/shm would outlive a killed server.
        ("dynamic_shared_memory_type", "mmap"),
        ("log_line_prefix", "%m [%p] %a "),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
    ];
    if !fsync {
        settings.extend([("fsync", "off"), ("full_page_writes", "off")]);
        // Many small servers run side by side: a connection costs less without much to map.
        settings.extend([("shared_buffers", "16MB"), ("jit", "off")]);
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client, or with the server: either way the client's next call tells.
    tokio::spawn(connection);
    Ok(client)
}

/// SQLSTATE class 28: the server is up and does not let us in.
fn refused_by_settings(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    code.is_some_and(|it| it.code().starts_with("28"))
}
