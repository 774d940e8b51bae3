//! Several relays, one slot.

use std::time::Duration;

use anyhow::Result;

use super::{Daemons, Lab, Servers};

/// PostgreSQL gives a silent relay up soon.
pub(super) const IMPATIENT: Servers =
    Servers { postgres: &[("wal_sender_timeout", "2s")], ..Servers::PLAIN };

pub(super) async fn paused_relay(lab: &mut Lab) -> Result<Daemons> {
    let first = lab.active_relay().await?;
    let second = lab.start_relay()?;
    second.wait_standby().await?;
    // Much under way, and none of it answered.
    lab.to_nats.set_delay(Duration::from_millis(20));
    lab.wait_committed(500).await?;
    first.pause()?;
    lab.fault_is_over();
    lab.say("paused the active relay in the middle of its work");
    second.wait_active().await?;
    lab.say("the other one took over");
    lab.wait_committed(300).await?;
    lab.recover().await?;
    first.resume()?;
    lab.say("woke the first one");
    first.wait_standby().await?;
    lab.say("it stands by");
    lab.wait_committed(300).await?;
    lab.recover().await?;
    Ok(vec![first, second])
}
