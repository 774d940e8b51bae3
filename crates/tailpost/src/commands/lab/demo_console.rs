//! The console of the demo, with the API of its relay and of its inbox.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use console::{Console, Credential, Kind, Upstream};
use futures_util::future::BoxFuture;
use lab::demo::Running;
use operate::RetentionStatus;
use outbox::waiting::Waiting;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Access, Address, Admin, Relay, Samples, Watched};
use crate::commands::inbox::sampler::{Sampled, Sampler};
use crate::config::Settings;

/// Where it listens, if nothing else does.
const PORT: u16 = 9466;
/// The demo is short.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Serves it until `stop`, and says where it is.
pub(super) fn serve(
    running: Running,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<String>> {
    Box::pin(begin(running, stop))
}

async fn begin(running: Running, stop: CancellationToken) -> Result<String> {
    let settings = super::settings(running.database_url.clone(), running.nats_url.clone());
    let (relay, inbox) = (free().await?, free().await?);
    let of_relay = serve_relay(&running, &settings, relay, &stop).await?;
    let of_inbox = serve_inbox(&running, &settings, inbox, &stop).await?;
    let upstream = |kind, address: SocketAddr| Upstream {
        kind,
        authority: address.to_string(),
        credential: Credential::None,
    };
    let console = Console::new(console::Settings {
        title: "demo".into(),
        upstreams: vec![upstream(Kind::Relay, relay), upstream(Kind::Inbox, inbox)],
        ..console::Settings::default()
    });
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = match TcpListener::bind(local(PORT)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(local(0)).await.context("listen on 127.0.0.1")?,
    };
    let address = listener.local_addr().context("listen on 127.0.0.1")?;
    tokio::spawn(async move {
        let served = crate::commands::console::serve(listener, &console, stop).await;
        if let Err(error) = served {
            tracing::warn!(error = crate::errors::chain(&error), "the console ended");
        }
        of_relay.stop().await;
        of_inbox.stop().await;
    });
    Ok(format!("http://{address}/"))
}

/// A port that is free now.
async fn free() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("find a port")?;
    listener.local_addr().context("find a port")
}

async fn serve_relay(
    running: &Running,
    settings: &Settings,
    socket: SocketAddr,
    stop: &CancellationToken,
) -> Result<admin::Server> {
    let config = settings.relay_config()?;
    let (sampled, sample) = watch::channel(None);
    // The demo's relay deletes nothing and keeps no second slot: it is too short for either.
    let (_, kept) = watch::channel(RetentionStatus::default());
    let (_, rewound) = watch::channel(None);
    let watched = Watched::new(&config, running.relay.clone(), rewound);
    let waiting = Waiting::default();
    let relay = Relay::new(vec![watched], &config, waiting, ("demo", sample), kept);
    let sampling = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            never = relay::sampler::keep(&config, SAMPLE_EVERY, &sampled) => match never {},
            () = sampling.cancelled() => {}
        }
    });
    let admin = Admin::new(relay, Access::new(&settings.admin)?, admin::shown(settings));
    Ok(admin::serve(Address { key: "admin.listen", socket }, admin).await?)
}

async fn serve_inbox(
    running: &Running,
    settings: &Settings,
    socket: SocketAddr,
    stop: &CancellationToken,
) -> Result<admin::Server> {
    let (name, status) = (running.consumer.to_owned(), running.inbox.clone());
    let statuses = BTreeMap::from([(name.clone(), status)]);
    let (samples, sampled) = watch::channel(Samples::default());
    let sampler = Sampler {
        postgres: settings.postgres_target()?,
        table: settings.table()?,
        nats: settings.nats_target()?.connect("tailpost demo").await?,
        consumers: vec![Sampled {
            name: name.clone(),
            durables: vec![name.clone()],
            stream: running.stream.clone(),
            subjects: Vec::new(),
            lease: Duration::from_secs(30),
            timeout: Duration::from_secs(1),
        }],
        statuses: statuses.clone(),
        every: SAMPLE_EVERY,
        relay: None,
    };
    tokio::spawn(sampler.run(samples, stop.clone()));
    let waiting = Arc::new(BTreeMap::from([(name, Waiting::default())]));
    crate::commands::inbox::run::serve(settings, socket, statuses, sampled, waiting).await
}
