//! From the order to its effect, while everything on the way is killed.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::{Daemons, Lab};
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

pub(super) async fn killed_at_random(lab: &mut Lab) -> Result<Daemons> {
    lab.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    // What a killed worker had waits for so long.
    lab.set("TAILPOST_INBOX__LEASE", "2s");
    lab.set("TAILPOST_INBOX__TIMEOUT", "1s");
    lab.set("TAILPOST_INBOX__BACKOFF_FIRST", "200ms");
    lab.open_shipping().await?;
    lab.say(&format!("seed {}", lab.seed));
    let mut random = StdRng::seed_from_u64(lab.seed);
    let (relay, inbox) = (lab.start_relay()?, lab.start_inbox()?);
    relay.wait_active().await?;
    inbox.wait_active().await?;
    let mut chain = Chain { relay: Some(relay), inbox: Some(inbox) };
    for _ in 0..KILLINGS {
        tokio::time::sleep(Duration::from_millis(random.random_range(CALM))).await;
        chain.kill_some(lab, &mut random).await?;
    }
    lab.fault_is_over();
    lab.wait_committed(300).await?;
    Ok(chain.relay.into_iter().chain(chain.inbox).collect())
}

impl Chain {
    /// Kills one or more links, and starts them again a moment later, in any order.
    async fn kill_some(&mut self, lab: &mut Lab, random: &mut StdRng) -> Result<()> {
        let mut victims = LINKS;
        victims.shuffle(random);
        let victims = &mut victims[..random.random_range(1..=LINKS.len())];
        let away = Duration::from_millis(random.random_range(AWAY));
        lab.say(&format!("kill {victims:?} for {away:?}"));
        for victim in &*victims {
            self.kill(lab, *victim).await?;
        }
        tokio::time::sleep(away).await;
        victims.shuffle(random);
        for victim in &*victims {
            self.replace(lab, *victim).await?;
        }
        Ok(())
    }

    async fn kill(&mut self, lab: &mut Lab, link: Link) -> Result<()> {
        let gone = "it was started again";
        match link {
            Link::Postgres => lab.postgres.kill().await,
            Link::Relay => self.relay.take().context(gone)?.kill().await,
            Link::Nats => lab.nats.kill().await,
            Link::Inbox => self.inbox.take().context(gone)?.kill().await,
        }
    }

    async fn replace(&mut self, lab: &mut Lab, link: Link) -> Result<()> {
        match link {
            Link::Postgres => lab.postgres.start_again().await?,
            Link::Relay => self.relay = Some(lab.start_relay()?),
            Link::Nats => lab.nats.start_again().await?,
            Link::Inbox => self.inbox = Some(lab.start_inbox()?),
        }
        Ok(())
    }
}
