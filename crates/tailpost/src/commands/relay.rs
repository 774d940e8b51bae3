use relay::Status;
use tokio::sync::watch;
use tracing::info;

use crate::admin::{self, Admin, Relay};
use crate::cli::RelayArgs;
use crate::config::Settings;
use crate::shutdown;

pub(super) async fn run(args: &RelayArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    let stop = shutdown::on_signal()?;
    let (status, watcher) = watch::channel(Status::default());
    info!(
        version = env!("CARGO_PKG_VERSION"),
        postgres = %config.postgres,
        nats = %config.nats,
        slot = config.slot,
        stream = config.stream.name,
        "starting the relay"
    );
    // A drain ends by itself and may run beside a relay that has the address.
    let admin = match settings.admin.listen {
        Some(listen) if !args.once => {
            let admin = Admin::new(Relay::new(watcher, &config), settings.admin.token.clone());
            Some(admin::serve(listen, admin).await?)
        }
        _ => None,
    };
    let outcome = relay::run(config, args.once, stop, status).await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    Ok(outcome?)
}
