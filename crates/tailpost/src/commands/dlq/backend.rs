//! A running relay, or the database itself: the same functions either way.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use relay::Config;
use relay::dead_letters::{
    Action, Aggregate, Author, DeadLetters, Filter, Overview, Progress, Story,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::client::Client;
use crate::admin::api::Change;
use crate::admin::dead_letters::{Order, Requeue, Started};
use crate::config::Settings;

/// How often a running operation is asked how far it is.
const POLL: Duration = Duration::from_millis(200);

const BASE: &str = "outbox/dead-letter";

pub(super) enum Backend {
    Http(Client),
    Direct(Box<DeadLetters>),
}

/// Something done to many.
pub(super) struct Work {
    pub(super) action: Action,
    pub(super) filter: Filter,
    pub(super) rate: Option<u32>,
}

impl Backend {
    pub(super) async fn open(settings: &Settings, direct: bool) -> anyhow::Result<Self> {
        if direct {
            let config: Config = settings.relay_config()?;
            return Ok(Self::Direct(Box::new(DeadLetters::connect(&config).await?)));
        }
        Ok(Self::Http(Client::new(&settings.admin)?))
    }

    pub(super) async fn overview(&self, filter: &Filter, limit: u32) -> anyhow::Result<Overview> {
        match self {
            Self::Http(client) => client.get(&format!("{BASE}?{}", query(filter, limit))).await,
            Self::Direct(dead_letters) => Ok(dead_letters.overview(filter, limit).await?),
        }
    }

    pub(super) async fn story(&self, id: Uuid, payload: bool) -> anyhow::Result<Story> {
        match self {
            Self::Http(client) => client.get(&format!("{BASE}/{id}?payload={payload}")).await,
            Self::Direct(dead_letters) => Ok(dead_letters.story(id, payload).await?),
        }
    }

    pub(super) async fn requeue(
        &self,
        id: Uuid,
        payload: Option<String>,
        author: &Author,
    ) -> anyhow::Result<()> {
        match self {
            Self::Http(client) => {
                let (by, why) = (Some(author.name.clone()), author.why.clone());
                let requeue = Requeue { by, why, payload };
                client.post(&format!("{BASE}/{id}/requeue"), &requeue).await
            }
            Self::Direct(it) => Ok(it.requeue(id, payload.as_deref(), author).await?),
        }
    }

    pub(super) async fn requeue_aggregate(
        &self,
        aggregate: &Aggregate,
        author: &Author,
    ) -> anyhow::Result<u64> {
        match self {
            Self::Http(client) => {
                let path = format!("outbox/aggregates/{}/requeue", escape(&aggregate.to_string()));
                client.post(&path, &change(author)).await
            }
            Self::Direct(it) => Ok(it.requeue_aggregate(aggregate, author).await?),
        }
    }

    pub(super) async fn discard(&self, id: Uuid, author: &Author) -> anyhow::Result<()> {
        match self {
            Self::Http(client) => client.delete(&format!("{BASE}/{id}"), &change(author)).await,
            Self::Direct(dead_letters) => Ok(dead_letters.discard(id, author).await?),
        }
    }

    /// Works through many, tells how far it got, and stops early if asked to.
    pub(super) async fn work_through(
        &self,
        work: Work,
        author: &Author,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let Work { action, filter, rate } = work;
        match self {
            Self::Direct(dead_letters) => {
                Ok(dead_letters.work_through(action, &filter, rate, author, progress, stop).await?)
            }
            Self::Http(client) => {
                let (by, why) = (Some(author.name.clone()), author.why.clone());
                let order = Order { action, filter, dry_run: false, rate, by, why };
                let Started { operation } =
                    client.post(&format!("{BASE}/operations"), &order).await?;
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
    }
}

fn change(author: &Author) -> Change {
    Change { by: Some(author.name.clone()), why: author.why.clone() }
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
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
