//! PostgreSQL fails, or commits wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::Postgres;

use super::{Daemons, Stage};

pub(super) async fn killed(stage: &mut Stage) -> Result<Daemons> {
    let relay = stage.start_relay()?;
    for _ in 0..3 {
        stage.wait_committed(300).await?;
        stage.postgres.kill().await?;
        stage.say("killed PostgreSQL");
        stage.postgres.start_again().await?;
        stage.fault_is_over();
        stage.wait_committed(50).await?;
        let took = stage.recover().await?;
        stage.say(&format!("PostgreSQL is back; recovered after {took:.2?}"));
    }
    Ok(vec![relay])
}

pub(super) async fn slow_synchronous_standby(stage: &mut Stage) -> Result<Daemons> {
    const SILENCE: Duration = Duration::from_millis(1_500);
    let standby = Postgres::start_standby_of(&stage.postgres, "standby_1", true).await?;
    let relay = stage.start_relay()?;
    relay.wait_active().await?;
    for _ in 0..3 {
        stage.wait_committed(300).await?;
        stage.recover().await?;
        standby.pause()?;
        // Commits hang meanwhile, and the log goes on to the relay.
        tokio::time::sleep(SILENCE).await;
        let stored = i64::try_from(stage.stored().await?)?;
        let visible: i64 = stage.query("SELECT count(*) FROM outbox_events").await?;
        standby.resume()?;
        stage.fault_is_over();
        ensure!(stored > visible, "nothing was published before it was visible");
        let ahead = stored - visible;
        stage.say(&format!("the standby was silent: {ahead} events stored that nobody could see"));
        stage.wait_committed(50).await?;
        stage.recover().await?;
    }
    // Nobody is to wait for it when it ends.
    stage.execute("ALTER SYSTEM RESET synchronous_standby_names").await?;
    stage.execute("SELECT pg_reload_conf()").await?;
    Ok(vec![relay])
}
