use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use inbox::http::HttpHandler;
use inbox::{Connection, Inbox, Leased, State, Status, Summary};
use operate::checks::Scope;
use outbox::waiting::Waiting;
use servers::{NatsTarget, PostgresTarget};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answers;
use super::builder::{builder, durables, subjects};
use super::handler::handler;
use super::inbox_rewind;
use super::retiring::Retiring;
use super::sampler::{Sampled, Sampler};
use crate::admin::{self, Access, Address, Admin, AppState, Look, Samples, Server, WaitingOf};
use crate::commands::doctor::consumer_checks::consumer_checks;
use crate::config::{Consumer, Error, Settings};
use crate::otlp::Traces;
use crate::shutdown;
use crate::systemd;

/// How long to wait before the next attempt to reach a broker that has not been there yet.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// A consumer that is to run.
struct Part {
    consumer: Consumer,
    handler: HttpHandler,
    status: watch::Sender<Status>,
}

/// Runs the consumers of the settings until they are asked to stop, or one of them cannot go on.
pub(super) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let consumers = settings.consumers()?;
    if consumers.is_empty() {
        return Err(Error::no_consumer().into());
    }
    let (postgres, nats) = (settings.postgres_target()?, settings.nats_target()?);
    let mut parts = Vec::new();
    for consumer in consumers {
        let handler = handler(settings, &consumer).await?;
        parts.push(Part { consumer, handler, status: watch::Sender::default() });
    }
    let stop = shutdown::on_signal()?;
    info!(version = env!("CARGO_PKG_VERSION"), %postgres, %nats, "starting the inbox");
    let traces = Traces::start(settings)?;
    let waiting: WaitingOf =
        Arc::new(parts.iter().map(|it| (it.consumer.name.clone(), Waiting::default())).collect());
    let (samples, sampled) = watch::channel(Samples::default());
    // Before a server is reached: a supervisor probes the process from its start.
    let statuses = parts.iter().map(|it| (it.consumer.name.clone(), it.status.subscribe()));
    let statuses: BTreeMap<_, _> = statuses.collect();
    let admin = match *settings.admin.inbox_listen {
        Some(socket) => {
            let waiting = Arc::clone(&waiting);
            Some(serve(settings, socket, statuses.clone(), sampled, waiting).await?)
        }
        None => None,
    };
    let samples = admin.is_some().then_some(samples);
    // An idle consumer has no news: a watchdog would kill the process.
    let watched = statuses.values().cloned().collect();
    let told = tokio::spawn(systemd::tell(watched, up, None, stop.clone()));
    let table = settings.table()?;
    let (refuse, mut refused) = mpsc::channel(1);
    let work = async {
        let connected = connect_all(&nats, &parts, &stop).await?;
        let Some((client, clients)) = connected else { return Ok(()) };
        // Before any of them deletes records: they share the tables.
        super::check_retention(settings, &client).await?;
        super::warn_of_streams(settings, &client).await?;
        if let Some(samples) = samples {
            let sampler = sampler(settings, client, &parts, statuses)?;
            tokio::spawn(sampler.run(samples, stop.clone()));
        }
        let made = parts.into_iter().zip(clients).map(|(part, client)| {
            let Part { consumer, handler, status } = part;
            let name = consumer.name.clone();
            let mut builder = inbox(consumer, settings, (&postgres, &nats), client, &refuse);
            builder = builder.status(status).mended(handler.changes());
            if let Some(spans) = traces.sink() {
                builder = builder.spans(spans);
            }
            let (postgres, table) = (postgres.clone(), table.clone());
            (name, builder.leased(Retiring { handler, postgres, table }))
        });
        run_all(made.collect(), &stop).await
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        Some(error) = refused.recv() => Err(servers::Error::into(error)),
        never = answers::give(&postgres, &table, &waiting) => match never {},
    };
    told.abort();
    traces.stop().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    outcome
}

/// Serves the HTTP API.
pub(in crate::commands) async fn serve(
    settings: &Settings,
    socket: SocketAddr,
    statuses: BTreeMap<String, watch::Receiver<Status>>,
    sampled: watch::Receiver<Samples>,
    waiting: WaitingOf,
) -> anyhow::Result<Server> {
    let state = AppState::new(&settings.postgres_target()?, settings.table()?);
    let shown = (state, look(settings), inbox_rewind::rewinders(settings));
    let environment = &settings.metrics.environment;
    let inbox = admin::Inbox::new(statuses, sampled, shown, waiting, environment);
    let admin = Admin::new(inbox, Access::new(&settings.admin)?, admin::shown(settings));
    Ok(admin::serve(Address { key: "admin.inbox_listen", socket }, admin).await?)
}

fn sampler(
    settings: &Settings,
    nats: async_nats::Client,
    parts: &[Part],
    statuses: BTreeMap<String, watch::Receiver<Status>>,
) -> anyhow::Result<Sampler> {
    let consumers = parts.iter().map(|Part { consumer: it, .. }| Sampled {
        name: it.name.clone(),
        durables: durables(it),
        stream: it.stream.clone(),
        subjects: subjects(it),
        lease: it.settings.lease.0,
        timeout: it.settings.timeout.0,
    });
    Ok(Sampler {
        postgres: settings.postgres_target()?,
        table: settings.table()?,
        nats,
        consumers: consumers.collect(),
        statuses,
        every: settings.metrics.interval.0,
        relay: settings.relay_config().ok(),
    })
}

/// Whether a consumer does what it was started for, and in a word what that is.
fn up(status: &Status) -> (bool, &'static str) {
    (status.state != State::Starting, status.state.name())
}

/// The checks of `tailpost doctor` for these consumers.
fn look(settings: &Settings) -> Look {
    let settings = Arc::new(settings.clone());
    Arc::new(move || {
        let settings = Arc::clone(&settings);
        Box::pin(async move { consumer_checks(&settings, &Scope::default()).await })
    })
}

fn inbox(
    consumer: Consumer,
    settings: &Settings,
    (postgres, nats): (&PostgresTarget, &NatsTarget),
    client: async_nats::Client,
    refuse: &mpsc::Sender<servers::Error>,
) -> inbox::Builder {
    let (postgres, nats) = (postgres.clone(), nats.clone());
    let application = format!("tailpost inbox {}", consumer.name);
    let refuse = refuse.clone();
    let mut builder = builder(&consumer)
        .postgres(move || {
            let (postgres, application) = (postgres.clone(), application.clone());
            let refuse = refuse.clone();
            async move {
                let connected = postgres.connect(&application).await;
                let (client, task) = connected.map_err(|error| refusal(error, &refuse))?;
                Ok(Connection::with_guard(client, task))
            }
        })
        .nats(client)
        .reconnect_nats(move || {
            let nats = nats.clone();
            async move { Ok(nats.connect("tailpost inbox").await?) }
        })
        .schema(settings.postgres.table.schema());
    if let Some(keep) = settings.inbox_retention() {
        builder = builder.retention(keep);
    }
    builder = builder.upkeep_interval(settings.retention().interval);
    match settings.retention().audit {
        Some(keep) => builder.decisions_retention(keep),
        None => builder,
    }
}

/// A pooler that lends its sessions ends the inbox: each claim may be in another one.
fn refusal(error: servers::Error, refuse: &mpsc::Sender<servers::Error>) -> inbox::BoxError {
    match error {
        servers::Error::HandedOn { .. } => {
            let told = error.to_string();
            let _ = refuse.try_send(error);
            told.into()
        }
        other => with_hint(other),
    }
}

/// The error with its hint, if an operator has to do something: the inbox waits, and logs nothing
/// else.
fn with_hint(error: servers::Error) -> inbox::BoxError {
    match error.hint().filter(|_| error.is_refusal()) {
        Some(hint) => format!("{} ({hint})", crate::errors::chain(&error.into())).into(),
        None => error.into(),
    }
}

/// A client that reads no stream, and one for each consumer: what another client stores in a stream
/// may end the client that reads it. Waits for the broker, and tells why. `None` if asked to stop
/// before.
async fn connect_all(
    nats: &NatsTarget,
    parts: &[Part],
    stop: &CancellationToken,
) -> anyhow::Result<Option<(async_nats::Client, Vec<async_nats::Client>)>> {
    let tell = |why: Option<String>| {
        for part in parts {
            part.status.send_modify(|it| it.paused.clone_from(&why));
        }
    };
    let mut clients = Vec::new();
    while clients.len() <= parts.len() {
        let connected = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            connected = nats.connect("tailpost inbox") => connected,
        };
        match connected {
            Ok(client) => {
                tell(None);
                clients.push(client);
            }
            Err(error) if error.is_transient() => {
                let hint = error.hint().filter(|_| error.is_renewable());
                let error = crate::errors::chain(&error.into());
                let with_hint = hint.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
                tell(Some(format!("the broker is away: {error}{with_hint}")));
                warn!(error, hint, "trying again in {RECONNECT_PAUSE:?}");
                tokio::select! {
                    () = tokio::time::sleep(RECONNECT_PAUSE) => {}
                    () = stop.cancelled() => return Ok(None),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(clients.pop().map(|first| (first, clients)))
}

/// Runs all until `stop`. If one cannot go on, the others stop cleanly too: a process that does
/// half of its job looks healthy for too long.
async fn run_all(
    inboxes: BTreeMap<String, Inbox<Leased<Retiring>>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let stop = stop.child_token();
    let mut running = JoinSet::new();
    for (name, inbox) in inboxes {
        let stop = stop.clone();
        running.spawn(async move { (name, Box::pin(inbox.run(stop)).await) });
    }
    let mut outcome = Ok(());
    while let Some(ended) = running.join_next().await {
        let (name, ended) = ended.context("a consumer panicked")?;
        match ended {
            Ok(summary) => report(&name, &summary),
            Err(error) => {
                if outcome.is_ok() {
                    outcome = Err(error).with_context(|| format!("consumer {name}"));
                }
                stop.cancel();
            }
        }
    }
    outcome
}

fn report(consumer: &str, summary: &Summary) {
    let Summary { processed, skipped, retried, dead, released } = summary;
    info!(consumer, processed, skipped, retried, dead, released, "stopped");
}
