//! Connections fall silent, close or become slow at any message.

use crate::proxy::After;
use anyhow::Result;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;

/// Of opening a session there are so many; running ones pass as many in moments.
const MESSAGES_MAX: u64 = 120;

/// For how long connections that are opened meanwhile have the same fate.
const MILLISECONDS_MAX: u64 = 12_000;

/// For how long connections stay silent after that, while new ones are well.
const SILENT_MAX: u64 = 20_000;

impl Soak {
    pub(super) async fn fall_silent(&mut self) -> Result<()> {
        let to_nats = self.random.random_bool(0.5);
        let messages = self.random.random_range(0..=MESSAGES_MAX);
        let delay = self.up_to(4_000);
        let fates = [After::Silence, After::Silence, After::Close, After::Delay(delay)];
        let fate = *fates.choose(&mut self.random).unwrap_or(&After::Silence);
        let anew = self.random.random_bool(0.5);
        let (lasting, silent) = (self.up_to(MILLISECONDS_MAX), self.up_to(SILENT_MAX));
        let (name, _) = self.lab.network(to_nats);
        let opened = if anew { ", opened anew" } else { "" };
        self.tell(&format!(
            "{fate:?} after {messages} messages of each connection to {name}{opened}, for \
             {lasting:?}; what is silent then stays so for {silent:?}"
        ));
        let (_, proxy) = self.lab.network(to_nats);
        if anew {
            proxy.cut().await;
            proxy.restore().await?;
        }
        proxy.after(messages, fate);
        tokio::time::sleep(lasting).await;
        proxy.lift_limit();
        if fate == After::Silence {
            tokio::time::sleep(silent).await;
        }
        self.mend_network().await
    }
}
