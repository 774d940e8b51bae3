//! Commits wait.

use std::time::Duration;

use crate::postgres::Postgres;
use anyhow::{Result, ensure};

use super::{Daemons, Lab};

pub(super) async fn slow_synchronous_standby(lab: &mut Lab) -> Result<Daemons> {
    const SILENCE: Duration = Duration::from_millis(1_500);
    let standby = Postgres::start_standby_of(&lab.postgres, "standby_1", true).await?;
    let relay = lab.active_relay().await?;
    for _ in 0..3 {
        lab.wait_committed(300).await?;
        lab.recover().await?;
        standby.pause()?;
        // Commits hang meanwhile, and the log goes on to the relay.
        tokio::time::sleep(SILENCE).await;
        let stored = i64::try_from(lab.stored().await?)?;
        let visible: i64 = lab.query("SELECT count(*) FROM outbox_events").await?;
        standby.resume()?;
        lab.fault_is_over();
        ensure!(stored > visible, "nothing was published before it was visible");
        let ahead = stored - visible;
        lab.say(&format!("the standby was silent: {ahead} events stored that nobody could see"));
        lab.wait_committed(50).await?;
        lab.recover().await?;
    }
    // Nobody is to wait for it when it ends.
    lab.execute("ALTER SYSTEM RESET synchronous_standby_names").await?;
    lab.execute("SELECT pg_reload_conf()").await?;
    Ok(vec![relay])
}
