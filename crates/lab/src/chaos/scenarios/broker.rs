//! The broker, or the network, fails.

use std::time::Duration;

use crate::proxy::Direction;
use anyhow::Result;

use super::{Daemons, Lab};

/// Keeps several messages on their way.
const SLOW: Duration = Duration::from_millis(10);

/// Outlasts the duplicate window of the lab's stream.
const LONGER_THAN_THE_WINDOW: Duration = Duration::from_millis(1_500);

pub(super) async fn killed(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = lab.start_relay()?;
    lab.to_nats.set_delay(SLOW);
    for _ in 0..3 {
        lab.wait_committed(200).await?;
        lab.nats.kill().await?;
        lab.say("killed NATS");
        lab.wait_committed(300).await?;
        lab.nats.start_again().await?;
        lab.fault_is_over();
        lab.recovers("NATS is back; recovered").await?;
    }
    Ok(vec![relay])
}

pub(super) async fn down_longer_than_dedup_window(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = lab.start_relay()?;
    lab.to_nats.set_delay(SLOW);
    for _ in 0..2 {
        lab.wait_committed(300).await?;
        lab.to_nats.blackhole(Direction::ToClient);
        lab.wait_committed(100).await?;
        lab.nats.kill().await?;
        lab.say("NATS has messages whose acknowledgements are lost, and is killed");
        tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
        lab.nats.start_again().await?;
        lab.to_nats.restore().await?;
        lab.fault_is_over();
        lab.recovers("NATS is back and has forgotten the ids; recovered").await?;
        lab.to_nats.set_delay(SLOW);
    }
    Ok(vec![relay])
}

pub(super) async fn half_open_network(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    let relay = lab.start_relay()?;
    lab.wait_committed(200).await?;
    lab.to_nats.blackhole(Direction::ToClient);
    lab.say("the network to NATS swallows every answer");
    relay.wait_log("the stream does not answer").await?;
    lab.wait_committed(300).await?;
    lab.to_nats.restore().await?;
    lab.fault_is_over();
    lab.recovers("restored; recovered").await?;

    lab.wait_committed(200).await?;
    lab.to_postgres.blackhole(Direction::Both);
    lab.say("the network to PostgreSQL swallows everything");
    lab.wait_committed(900).await?;
    lab.to_postgres.restore().await?;
    lab.fault_is_over();
    lab.recovers("restored; recovered").await?;
    Ok(vec![relay])
}
