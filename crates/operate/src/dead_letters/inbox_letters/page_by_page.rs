//! A decision about many dead letters, page by page.

use std::collections::BTreeMap;

use crate::dead_letters::{Action, Actor, Filter, Store};
use inbox::Error;
use jiff::Timestamp;
use uuid::Uuid;

use super::{DeadLetters, Parameters, Selection};
use crate::sql::records::{list_letters, query};

impl Store for DeadLetters {
    type Error = Error;
    type Place = (Timestamp, Uuid, String);
    const AT_ONCE: u32 = 1_000;

    async fn aggregates(&self, filter: &Filter) -> Result<Vec<(String, String)>, Error> {
        if filter.aggregate.is_none() {
            return Ok(vec![]);
        }
        let of = filter.clone().into();
        let sql = list_letters::list_aggregates(&self.schema);
        let parameters = self.parameters(&of);
        let parameters = parameters.with(&[]);
        let rows = query(&self.connection, "tell aggregates apart", &sql, &parameters).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn count(&self, filter: &Filter) -> Result<(u64, Timestamp), Error> {
        let sql = "SELECT clock_timestamp()";
        let now = query(&self.connection, "read the server's clock", sql, &[]).await?;
        Ok((self.overview(&filter.clone().into(), None, 0).await?.total, now[0].get(0)))
    }

    /// The oldest first.
    async fn page(
        &self,
        filter: &Filter,
        until: Timestamp,
        after: Option<&Self::Place>,
        limit: u32,
    ) -> Result<Vec<Self::Place>, Error> {
        let first = (Timestamp::UNIX_EPOCH, Uuid::nil(), String::new());
        let (dead_at, id, consumer) = after.unwrap_or(&first);
        let of = filter.clone().into();
        let (parameters, limit) = (self.parameters(&of), i64::from(limit));
        let parameters = parameters.with(&[&until, dead_at, id, consumer, &limit]);
        let sql = list_letters::page_letters(&self.schema);
        let rows = query(&self.connection, "find dead letters", &sql, &parameters).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    async fn decide(
        &self,
        action: Action,
        filter: &Filter,
        page: &[Self::Place],
        actor: &Actor,
    ) -> Result<(usize, Option<String>), Error> {
        // An event may be a dead letter of several consumers.
        let mut by_consumer: BTreeMap<&String, Vec<Uuid>> = BTreeMap::new();
        for (_, id, consumer) in page {
            by_consumer.entry(consumer).or_default().push(*id);
        }
        let mut done = 0;
        for (consumer, ids) in by_consumer {
            let of = Selection { events: Some(ids), filter: filter.clone(), dead_at: None };
            let these = Parameters::new(Some(consumer), &of);
            done += self.decide_about(action, &these, actor).await?.len();
        }
        let refusal = "they are requeued, have no record any more, or cannot be handled, whatever \
                       changes";
        Ok((done, (done < page.len()).then(|| refusal.to_owned())))
    }
}
