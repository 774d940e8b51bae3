mod shards;

use std::net::SocketAddr;

use anyhow::Result;
use operate::RetentionStatus;
use outbox::waiting::Waiting;
use relay::{Config, Reports, Role, Status};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::admin::{Access, Address, Admin, Relay, Server, Watched};
use crate::cli::RelayArgs;
use crate::config::{Error, Origin, Settings};
use crate::otlp::Traces;
use crate::{admin, shutdown, systemd};

pub(super) async fn run(args: &RelayArgs, settings: &Settings) -> Result<()> {
    let config = settings.relay_config()?;
    let chosen = chosen(&config, args.shard)?;
    if let Some(lsn) = args.start_lsn {
        for shard in &chosen {
            Box::pin(operate::check_start(shard, lsn)).await?;
        }
    }
    let stop = shutdown::on_signal()?;
    let traces = Traces::start(settings)?;
    let waiting = Waiting::default();
    let (sampled, sample) = watch::channel(None);
    let (retention, kept) = watch::channel(RetentionStatus::default());
    let mut statuses = Vec::new();
    let (mut reports, mut watched, mut rewinds) = (Vec::new(), Vec::new(), Vec::new());
    for shard in &chosen {
        let (status, watcher) = watch::channel(Status::default());
        let (rewind, rewound) = watch::channel(None);
        statuses.push(watcher.clone());
        reports.push(Reports { status, waiting: waiting.clone(), spans: traces.sink() });
        watched.push(Watched::new(shard, watcher, rewound));
        rewinds.push((shard.clone(), rewind));
    }
    chosen.iter().for_each(announce);
    // A drain ends by itself and may run beside a relay that has the address.
    let admin = match *settings.admin.listen {
        Some(socket) if !args.once => {
            let environment = &*settings.metrics.environment;
            let relay = Relay::new(watched, &config, waiting.clone(), (environment, sample), kept);
            Some(serve(settings, socket, relay).await?)
        }
        _ => None,
    };
    let stopped = stop.clone();
    let mut relays: Vec<_> = chosen.into_iter().zip(reports).collect();
    let work = async {
        match relays.pop() {
            Some((only, reports)) if relays.is_empty() => {
                Ok(Box::pin(relay::run(only, args.once, stop, reports)).await?)
            }
            last => {
                relays.extend(last);
                shards::run(relays, args.once, &stop).await
            }
        }
    };
    let told = tokio::spawn(systemd::tell(statuses, up, sd_notify::watchdog_enabled(), stopped));
    // Tasks of their own: the relay's is polled for each event, and should poll nothing else.
    let mut beside = JoinSet::new();
    if !args.once {
        for (shard, status) in rewinds {
            beside.spawn(async move { operate::rewind_slot::keep(&shard, &status).await });
        }
        let upkept = config.clone();
        beside.spawn(async move { operate::upkeep::keep(&upkept, &retention).await });
        if admin.is_some() {
            let (config, every) = (config.clone(), settings.metrics.interval.0);
            beside.spawn(async move { relay::sampler::keep(&config, every, &sampled).await });
        }
    }
    beside.spawn(async move { operate::waiting::answer(&config, &waiting).await });
    let outcome = Box::pin(work).await;
    beside.abort_all();
    told.abort();
    traces.stop().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    outcome
}

/// Serves health, the API, and the console beside it.
async fn serve(settings: &Settings, socket: SocketAddr, relay: Relay) -> Result<Server> {
    let access = Access::new(&settings.admin)?;
    let console = super::console::of_relay(settings, socket, access.own())?;
    let admin = Admin::new(relay, access, admin::shown(settings)).with_console(console);
    Ok(admin::serve(Address { key: "admin.listen", socket }, admin).await?)
}

/// Whether a relay does what it was started for, and in a word what that is.
fn up(status: &Status) -> (bool, &'static str) {
    (matches!(status.role, Role::Active | Role::Standby), status.role.name())
}

fn announce(shard: &Config) {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        postgres = %shard.postgres,
        nats = %shard.nats,
        slot = shard.slot,
        stream = shard.stream.name,
        "starting the relay"
    );
}

/// The relays that this process is to run.
fn chosen(config: &Config, shard: Option<u32>) -> Result<Vec<Config>, Error> {
    let mut shards = config.each_shard();
    let Some(number) = shard else { return Ok(shards) };
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    if index >= shards.len() {
        let last = shards.len() - 1;
        let problem = format!("there is no shard {number}: relay.shards makes 0 to {last}");
        return Err(Error::new(Origin::Flag("--shard"), problem));
    }
    Ok(vec![shards.swap_remove(index)])
}
