//! The client of the broker that all sessions of a worker share.

use async_nats::Client;
use async_nats::connection::State;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tracing::info;

use super::PAUSE;
use crate::Error;
use crate::connection::ConnectNats;

pub(crate) struct Broker {
    /// With how many there were before it.
    client: watch::Sender<(u32, Client)>,
    reconnect: Option<ConnectNats>,
    /// One connects for all.
    turn: Mutex<()>,
}

impl Broker {
    pub(crate) fn new(client: Client, reconnect: Option<ConnectNats>) -> Self {
        Self { client: watch::Sender::new((0, client)), reconnect, turn: Mutex::default() }
    }

    pub(crate) fn client(&self) -> (u32, Client) {
        self.client.borrow().clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.borrow().1.connection_state() == State::Connected
    }

    /// A client that has not ended, and how many there were before it: some bytes in a header end one.
    pub(crate) async fn revived(&self) -> Result<(u32, Client), Error> {
        if let Some(alive) = self.alive().await {
            return Ok(alive);
        }
        let _turn = self.turn.lock().await;
        if let Some(alive) = self.alive().await {
            return Ok(alive);
        }
        let reconnect = self.reconnect.as_ref().ok_or_else(|| Error::Refused {
            problem: "the client of NATS has ended".into(),
            hint: "start the process again, or give the inbox a way to connect anew",
        })?;
        let client = reconnect().await.map_err(Error::jetstream("connect to NATS"))?;
        info!("connected to NATS anew");
        let anew = (self.client.borrow().0 + 1, client);
        self.client.send_replace(anew.clone());
        Ok(anew)
    }

    async fn alive(&self) -> Option<(u32, Client)> {
        let client = self.client();
        (!is_gone(&client.1).await).then_some(client)
    }
}

/// Whether the client's task has ended, so that nothing will ever be sent by it.
pub(super) async fn is_gone(nats: &Client) -> bool {
    matches!(timeout(PAUSE, nats.flush()).await, Ok(Err(_)))
}
