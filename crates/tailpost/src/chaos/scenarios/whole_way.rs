//! From the order to its effect, while everything on the way is killed.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::{Daemons, Stage};
use crate::chaos::daemon::Daemon;

const KILLINGS: usize = 12;

/// Between two killings, in milliseconds: the next one meets a chain that still recovers as often as
/// one that has recovered.
const CALM: std::ops::Range<u64> = 100..900;

/// How long what was killed stays away, in milliseconds.
const AWAY: std::ops::Range<u64> = 0..400;

/// What is between an order and its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Postgres,
    Relay,
    Nats,
    Inbox,
}

const LINKS: [Link; 4] = [Link::Postgres, Link::Relay, Link::Nats, Link::Inbox];

/// The processes of ours among the links; none at the moment if it was killed.
struct Chain {
    relay: Option<Daemon>,
    inbox: Option<Daemon>,
}

pub(super) async fn killed_at_random(stage: &mut Stage) -> Result<Daemons> {
    stage.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    // What a killed worker had waits for so long.
    stage.set("TAILPOST_INBOX__LEASE", "2s");
    stage.set("TAILPOST_INBOX__TIMEOUT", "1s");
    stage.set("TAILPOST_INBOX__BACKOFF_FIRST", "200ms");
    stage.open_shipping().await?;
    stage.say(&format!("seed {}", stage.seed));
    let mut random = StdRng::seed_from_u64(stage.seed);
    let (relay, inbox) = (stage.start_relay()?, stage.start_inbox()?);
    relay.wait_active().await?;
    inbox.wait_active().await?;
    let mut chain = Chain { relay: Some(relay), inbox: Some(inbox) };
    for _ in 0..KILLINGS {
        tokio::time::sleep(Duration::from_millis(random.random_range(CALM))).await;
        chain.kill_some(stage, &mut random).await?;
    }
    stage.fault_is_over();
    stage.wait_committed(300).await?;
    Ok(chain.relay.into_iter().chain(chain.inbox).collect())
}

impl Chain {
    /// Kills one or more links, and starts them again a moment later, in any order.
    async fn kill_some(&mut self, stage: &mut Stage, random: &mut StdRng) -> Result<()> {
        let mut victims = LINKS;
        victims.shuffle(random);
        let victims = &mut victims[..random.random_range(1..=LINKS.len())];
        let away = Duration::from_millis(random.random_range(AWAY));
        stage.say(&format!("kill {victims:?} for {away:?}"));
        for victim in &*victims {
            self.kill(stage, *victim).await?;
        }
        tokio::time::sleep(away).await;
        victims.shuffle(random);
        for victim in &*victims {
            self.replace(stage, *victim).await?;
        }
        Ok(())
    }

    async fn kill(&mut self, stage: &mut Stage, link: Link) -> Result<()> {
        let gone = "it was started again";
        match link {
            Link::Postgres => stage.postgres.kill().await,
            Link::Relay => self.relay.take().context(gone)?.kill().await,
            Link::Nats => stage.nats.kill().await,
            Link::Inbox => self.inbox.take().context(gone)?.kill().await,
        }
    }

    async fn replace(&mut self, stage: &mut Stage, link: Link) -> Result<()> {
        match link {
            Link::Postgres => stage.postgres.start_again().await?,
            Link::Relay => self.relay = Some(stage.start_relay()?),
            Link::Nats => stage.nats.start_again().await?,
            Link::Inbox => self.inbox = Some(stage.start_inbox()?),
        }
        Ok(())
    }
}
