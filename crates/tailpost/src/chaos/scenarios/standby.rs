//! Several relays, one slot.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Daemons, Stage};

/// PostgreSQL gives a silent relay up soon.
pub(super) const IMPATIENT: &[(&str, &str)] = &[("wal_sender_timeout", "2s")];

const TAKEOVERS: usize = 15;

pub(super) async fn paused_relay(stage: &mut Stage) -> Result<Daemons> {
    let first = stage.start_relay()?;
    first.wait_active().await?;
    let second = stage.start_relay()?;
    second.wait_standby().await?;
    // Much under way, and none of it answered.
    stage.to_nats.set_delay(Duration::from_millis(20));
    stage.wait_committed(500).await?;
    first.pause()?;
    stage.fault_is_over();
    stage.say("paused the active relay in the middle of its work");
    second.wait_active().await?;
    stage.say("the other one took over");
    stage.wait_committed(300).await?;
    stage.recover().await?;
    first.resume()?;
    stage.say("woke the first one");
    first.wait_standby().await?;
    stage.say("it stands by");
    stage.wait_committed(300).await?;
    stage.recover().await?;
    Ok(vec![first, second])
}

pub(super) async fn takeovers(stage: &mut Stage) -> Result<Daemons> {
    let mut active = stage.start_relay()?;
    active.wait_active().await?;
    let mut took = Vec::with_capacity(TAKEOVERS);
    for _ in 0..TAKEOVERS {
        let next = stage.start_relay()?;
        next.wait_standby().await?;
        active.kill().await?;
        let died = Instant::now();
        stage.fault_is_over();
        next.wait_active().await?;
        took.push(died.elapsed());
        active = next;
        stage.recover().await?;
    }
    took.sort_unstable();
    let (median, longest) = (took[TAKEOVERS / 2], took[TAKEOVERS - 1]);
    stage.say(&format!("{TAKEOVERS} takeovers: {median:.2?} in the median, {longest:.2?} at most"));
    Ok(vec![active])
}
