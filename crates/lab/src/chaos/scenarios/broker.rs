//! The broker fails.

use std::time::Duration;

use crate::proxy::Direction;
use anyhow::Result;

use super::{Daemons, Lab};

/// Keeps several messages on their way.
const SLOW: Duration = Duration::from_millis(10);

/// Outlasts the duplicate window of the lab's stream.
const LONGER_THAN_THE_WINDOW: Duration = Duration::from_millis(1_500);

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
