//! Asks the relay and the inbox, within a bound.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::dashboard::{Failure, InboxTold, RelayTold, Told};
use crate::commands::dlq::client::Client;
use crate::errors::ClientError;
use crate::exit;

/// How long one of them may take for all that it is asked.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often it is asked for what it asks the database for.
const SLOW_EVERY: Duration = Duration::from_secs(5);

/// Whom to ask.
pub(super) struct Poller {
    relay: Client,
    inbox: Option<InboxPoller>,
    slow_at: Option<Instant>,
}

/// An inbox, which need not be there unless somebody named it.
struct InboxPoller {
    client: Client,
    is_expected: bool,
}

impl Poller {
    pub(super) fn new(relay: Client, inbox: Option<(Client, bool)>) -> Self {
        let inbox = inbox.map(|(client, is_expected)| InboxPoller { client, is_expected });
        Self { relay, inbox, slow_at: None }
    }

    /// Asks both, beside each other.
    pub(super) async fn ask(&mut self) -> Told {
        let is_slow = self.slow_at.is_none_or(|it| it.elapsed() >= SLOW_EVERY);
        let relay = bounded("relay", ask_relay(&self.relay, is_slow));
        let inbox = async {
            let InboxPoller { client, .. } = self.inbox.as_ref()?;
            Some(bounded("inbox", ask_inbox(client, is_slow)).await)
        };
        let (relay, inbox) = tokio::join!(relay, inbox);
        if is_slow {
            // Who was away is asked for all of it when it is back.
            self.slow_at = relay.is_ok().then(Instant::now);
        }
        // One that answered once is missed from then on.
        if let (Some(Ok(_)), Some(poller)) = (&inbox, &mut self.inbox) {
            poller.is_expected = true;
        }
        let is_expected = self.inbox.as_ref().is_some_and(|it| it.is_expected);
        Told { relay, inbox: inbox.filter(|it| it.is_ok() || is_expected) }
    }
}

async fn bounded<T>(
    whom: &str,
    asked: impl Future<Output = anyhow::Result<T>>,
) -> Result<T, Failure> {
    match timeout(ANSWER_MAX, asked).await {
        Ok(answered) => answered.map_err(|error| failure(whom, &error)),
        Err(_) => Err(Failure {
            error: format!("the {whom} did not answer within {} s", ANSWER_MAX.as_secs()),
            hint: Some("it may be stopped, or the machine too busy; asking again".into()),
        }),
    }
}

fn failure(whom: &str, error: &anyhow::Error) -> Failure {
    let hint = match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused { .. }) => exit::hint(error),
        _ if whom == "relay" => {
            Some("start `tailpost relay`; admin.listen or --relay-url says where it is".into())
        }
        _ => Some("start `tailpost inbox run`; --inbox-url says where it is".into()),
    };
    Failure { error: exit::chain(error), hint }
}

async fn ask_relay(client: &Client, is_slow: bool) -> anyhow::Result<RelayTold> {
    let status = client.get("status").await?;
    let mut told = RelayTold { status, ..RelayTold::default() };
    if is_slow {
        let (letters, replays) =
            tokio::join!(client.get("outbox/dead-letter?limit=0"), client.get("replays?limit=50"));
        (told.dead_letters, told.replays) = (unless_away(letters)?, unless_away(replays)?);
    }
    Ok(told)
}

async fn ask_inbox(client: &Client, is_slow: bool) -> anyhow::Result<InboxTold> {
    let status = client.get("status").await?;
    let mut told = InboxTold { status, ..InboxTold::default() };
    if is_slow {
        told.consumers = unless_away(client.get("consumers").await)?;
    }
    Ok(told)
}

/// While the database is away, or has no such table, the rest is shown all the same.
fn unless_away<T: DeserializeOwned>(answered: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match answered {
        Ok(told) => Ok(Some(told)),
        Err(error) => match error.downcast_ref::<ClientError>() {
            Some(ClientError::Refused { status, .. })
                if status.is_server_error() || status.as_u16() == 404 =>
            {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}
