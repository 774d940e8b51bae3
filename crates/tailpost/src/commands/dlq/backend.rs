//! A running relay, or the database itself: the same functions either way.

use std::time::Duration;

use operate::dead_letters::outbox_letters::{DeadLetter, DeadLetterDetail, DeadLetters};
use operate::dead_letters::{Action, Actor, Aggregate, BulkRequest, Filter, Overview, Progress};
use relay::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::client::{Client, escape};
use crate::admin::api::Change;
use crate::admin::dead_letters::Requeue;
use crate::admin::operations::Started;
use crate::commands::decide::Queue;
use crate::config::Settings;
use crate::letters;

/// How often a running operation is asked how far it is.
const POLL: Duration = Duration::from_millis(200);

const BASE: &str = "outbox/dead-letter";

pub(super) enum Backend {
    Http(Client),
    Direct(Box<DeadLetters>),
}

impl Backend {
    pub(super) async fn open(settings: &Settings, direct: bool) -> anyhow::Result<Self> {
        if direct {
            let config: Config = settings.relay_config()?;
            return Ok(Self::Direct(Box::new(DeadLetters::connect(&config).await?)));
        }
        Ok(Self::Http(Client::new(&settings.admin)?))
    }

    pub(super) async fn detail(&self, id: Uuid, payload: bool) -> anyhow::Result<DeadLetterDetail> {
        match self {
            Self::Http(client) => client.get(&format!("{BASE}/{id}?payload={payload}")).await,
            Self::Direct(dead_letters) => Ok(dead_letters.detail(id, payload).await?),
        }
    }

    pub(super) async fn requeue_aggregate(
        &self,
        aggregate: &Aggregate,
        actor: &Actor,
    ) -> anyhow::Result<u64> {
        match self {
            Self::Http(client) => {
                let path = format!("outbox/aggregates/{}/requeue", escape(&aggregate.to_string()));
                client.post(&path, &change(actor)).await
            }
            Self::Direct(it) => Ok(it.requeue_aggregate(aggregate, actor).await?),
        }
    }
}

impl Queue for Backend {
    type Letter = DeadLetter;

    async fn overview(&self, filter: &Filter, limit: u32) -> anyhow::Result<Overview<DeadLetter>> {
        match self {
            Self::Http(client) => client.get(&format!("{BASE}?{}", query(filter, limit))).await,
            Self::Direct(dead_letters) => Ok(dead_letters.overview(filter, None, limit).await?),
        }
    }

    async fn find(&self, events: &[Uuid]) -> anyhow::Result<Vec<DeadLetter>> {
        let mut found = Vec::new();
        for &id in events {
            let letter = self.detail(id, false).await?.dead_letter;
            let letter = letter.filter(|it| it.discarded_at.is_none());
            found.push(letter.ok_or(relay::Error::NoDeadLetter { id })?);
        }
        Ok(found)
    }

    async fn decide(
        &self,
        action: Action,
        events: &[Uuid],
        payload: Option<String>,
        actor: &Actor,
    ) -> anyhow::Result<Vec<String>> {
        for &id in events {
            let (path, payload, Change { by, why }) =
                (format!("{BASE}/{id}"), payload.clone(), change(actor));
            match (self, action) {
                (Self::Http(client), Action::Requeue) => {
                    let requeue = Requeue { by, why, payload };
                    client.post(&format!("{path}/requeue"), &requeue).await?
                }
                (Self::Http(client), _) => client.delete(&path, &Change { by, why }).await?,
                (Self::Direct(it), Action::Requeue) => {
                    it.requeue(id, payload.as_deref(), None, actor).await?;
                }
                (Self::Direct(it), _) => it.discard(id, None, actor).await?,
            }
        }
        Ok(events.iter().map(Uuid::to_string).collect())
    }

    async fn work_through(
        &self,
        request: BulkRequest,
        actor: &Actor,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let client = match self {
            Self::Http(client) => client,
            Self::Direct(it) => {
                return letters::work_through(&**it, &request, actor, progress, stop).await;
            }
        };
        let Change { by, why } = change(actor);
        let request = BulkRequest { by, why, ..request };
        let Started { operation } = client.post(&format!("{BASE}/operations"), &request).await?;
        let path = format!("{BASE}/operations/{operation}");
        let mut told = false;
        loop {
            if stop.is_cancelled() && !std::mem::replace(&mut told, true) {
                client.delete(&path, &()).await?;
            }
            let now: Progress = client.get(&path).await?;
            let ended = now.ended;
            progress.send_replace(now);
            if ended {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn change(actor: &Actor) -> Change {
    Change { by: Some(actor.name.clone()), why: actor.why.clone() }
}

fn query(filter: &Filter, limit: u32) -> String {
    let mut query = format!("limit={limit}");
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            query += &format!("&{name}={}", escape(&value));
        }
    };
    add("aggregate", filter.aggregate.as_ref().map(ToString::to_string));
    add("type", filter.event_type.clone());
    add("reason", filter.reason.clone());
    add("since", filter.since.map(|it| it.to_string()));
    query
}
