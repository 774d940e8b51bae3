//! The broker, or the network, fails.

use std::time::Duration;

use anyhow::Result;
use testbed::Direction;

use super::{Daemons, Stage};

/// Keeps several messages on their way.
const SLOW: Duration = Duration::from_millis(10);

/// Outlasts the duplicate window of the stage's stream.
const LONGER_THAN_THE_WINDOW: Duration = Duration::from_millis(1_500);

pub(super) async fn killed(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = stage.start_relay()?;
    stage.to_nats.set_delay(SLOW);
    for _ in 0..3 {
        stage.wait_committed(200).await?;
        stage.nats.kill().await?;
        stage.say("killed NATS");
        stage.wait_committed(300).await?;
        stage.nats.start_again().await?;
        stage.fault_is_over();
        let took = stage.recover().await?;
        stage.say(&format!("NATS is back; recovered after {took:.2?}"));
    }
    Ok(vec![relay])
}

pub(super) async fn down_longer_than_dedup_window(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = stage.start_relay()?;
    stage.to_nats.set_delay(SLOW);
    for _ in 0..2 {
        stage.wait_committed(300).await?;
        stage.to_nats.blackhole(Direction::ToClient);
        stage.wait_committed(100).await?;
        stage.nats.kill().await?;
        stage.say("NATS has messages whose acknowledgements are lost, and is killed");
        tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
        stage.nats.start_again().await?;
        stage.to_nats.restore().await?;
        stage.fault_is_over();
        let took = stage.recover().await?;
        stage.say(&format!("NATS is back and has forgotten the ids; recovered after {took:.2?}"));
        stage.to_nats.set_delay(SLOW);
    }
    Ok(vec![relay])
}

pub(super) async fn half_open_network(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = stage.start_relay()?;
    stage.wait_committed(200).await?;
    stage.to_nats.blackhole(Direction::ToClient);
    stage.say("the network to NATS swallows every answer");
    relay.wait_log("the stream does not answer").await?;
    stage.wait_committed(300).await?;
    stage.to_nats.restore().await?;
    stage.fault_is_over();
    let took = stage.recover().await?;
    stage.say(&format!("restored; recovered after {took:.2?}"));

    stage.wait_committed(200).await?;
    stage.to_postgres.blackhole(Direction::Both);
    stage.say("the network to PostgreSQL swallows everything");
    stage.wait_committed(900).await?;
    stage.to_postgres.restore().await?;
    stage.fault_is_over();
    let took = stage.recover().await?;
    stage.say(&format!("restored; recovered after {took:.2?}"));
    Ok(vec![relay])
}
