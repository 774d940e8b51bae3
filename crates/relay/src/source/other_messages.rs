//! Messages of other writers under the ids of events.
//!
//! They are told apart by what they carry, on a connection that is made when the first one is seen: a
//! stream of a relay's own has none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::FutureExt;
use tokio::sync::Mutex;
use tracing::error;
use uuid::Uuid;

use crate::config::Config;
use crate::engine::Outgoing;
use crate::error::Error;
use crate::nats::{Judge, Suspect};
use crate::postgres::{Encoding, Rows, Store};

/// Messages that were told of are remembered, up to so many.
const TOLD_MAX: usize = 1_000;

/// What is to be done about such a message.
const HINT: &str = "consumers take it for the event: find out who publishes it, and let nobody but the \
    relay publish on the events' subjects (docs/security.md)";

struct Comparison {
    config: Arc<Config>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    table: Option<(Store, Rows)>,
    told: HashSet<u64>,
}

/// Compares messages with the rows of the events whose ids they have.
pub(super) fn judge(config: &Arc<Config>) -> Judge {
    let comparison = Comparison { config: Arc::clone(config), kept: Mutex::default() };
    let comparison = Arc::new(comparison);
    Arc::new(move |suspects| {
        let comparison = Arc::clone(&comparison);
        async move { comparison.others(suspects).await }.boxed()
    })
}

/// What is said of a message that is not the event's.
pub(super) fn said(id: Uuid, seq: u64) -> String {
    format!("the stream has another message under the id of event {id}, at sequence {seq}")
}

impl Comparison {
    async fn others(&self, suspects: Vec<Suspect>) -> Result<HashSet<u64>, Error> {
        let mut kept = self.kept.lock().await;
        let open = kept.table.take().filter(|(store, _)| !store.client().is_closed());
        let (store, rows) = match open {
            Some(open) => open,
            None => self.open().await?,
        };
        let ids: Vec<Uuid> = suspects.iter().map(|it| it.id).collect();
        let found = store.rows_of(&ids, "true").await?;
        let events: Result<HashMap<Uuid, Outgoing>, Error> = found
            .iter()
            .map(|row| rows.scanned(row).map(|outgoing| (outgoing.event.id, outgoing)))
            .collect();
        kept.table = Some((store, rows));
        let events = events?;
        let mut others = HashSet::new();
        for suspect in suspects {
            let Suspect { seq, id, .. } = suspect;
            let event = events.get(&id);
            if event.is_some_and(|event| carries(&suspect, event)) {
                continue;
            }
            others.insert(seq);
            // Without a row it is nobody's event, for all that is known.
            if event.is_some() && kept.told.insert(seq) {
                error!(hint = HINT, "{}", said(id, seq));
            }
        }
        if kept.told.len() > TOLD_MAX {
            kept.told.clear();
        }
        Ok(others)
    }

    async fn open(&self) -> Result<(Store, Rows), Error> {
        let store = Store::brief(&self.config, "tailpost strangers").await?;
        let encoding = Encoding::of(&store).await?;
        let rows = Rows::new(self.config.table.clone(), self.config.routing()).stored_in(encoding);
        Ok((store, rows))
    }
}

fn carries(message: &Suspect, event: &Outgoing) -> bool {
    let is_addressed = event.subject.as_ref().is_ok_and(|it| *it == message.subject);
    is_addressed && event.event.payload == message.payload
}
