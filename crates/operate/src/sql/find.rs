//! Events by what they are about.

use relay::Error;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::Store;
use crate::event_search::{EventFilter, EventPlace, FoundEvent, FoundState};

const COLUMNS: &str = "id, status, aggregate_type, aggregate_id, event_type, occurred_at,
    publish_attempts, coalesce(reason, publish_error), published_at, stream, stream_seq";

impl Store {
    /// The newest first, at most `limit`.
    pub(crate) async fn find_events(
        &self,
        filter: &EventFilter,
        after: Option<EventPlace>,
        limit: u32,
    ) -> Result<Vec<FoundEvent>, Error> {
        let letters = self.table.companion("inbox_dead_letter");
        if filter.dead_at_consumer {
            let sql = "SELECT to_regclass($1) IS NOT NULL";
            if !self.query_one("look for an inbox", sql, &[&letters]).await?.get::<_, bool>(0) {
                return Ok(vec![]);
            }
        }
        let aggregate = filter.aggregate.as_ref();
        let written = aggregate.map(ToString::to_string);
        let aggregate_ids = aggregate.map(|it| it.readings().1);
        let (time, id) = after.unwrap_or((None, Uuid::nil()));
        let limit = i64::from(limit);
        // Only what is asked for stands there: the planner then finds the index for it.
        let mut conditions = vec!["true".to_owned()];
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&limit];
        let mut add = |condition: &str, parameter| {
            parameters.push(parameter);
            conditions.push(condition.replace('$', &format!("${}", parameters.len())));
        };
        if aggregate.is_some() {
            add("aggregate_type || ':' || aggregate_id = $", &written);
            add("aggregate_id = ANY ($)", &aggregate_ids);
        }
        if filter.aggregate_id.is_some() {
            add("aggregate_id = $", &filter.aggregate_id);
        }
        if filter.event_type.is_some() {
            add("event_type = $", &filter.event_type);
        }
        if filter.since.is_some() {
            add("occurred_at >= $", &filter.since);
        }
        if filter.until.is_some() {
            add("occurred_at < $", &filter.until);
        }
        match after {
            Some((Some(_), _)) => {
                add("(occurred_at <= $ OR occurred_at IS NULL)", &time);
                let equal = format!("(occurred_at = ${}) IS NOT TRUE", parameters.len());
                parameters.push(&id);
                conditions.push(format!("({equal} OR id < ${})", parameters.len()));
            }
            Some((None, _)) => {
                parameters.push(&id);
                conditions.push(format!("occurred_at IS NULL AND id < ${}", parameters.len()));
            }
            None => {}
        }
        if filter.dead_at_consumer {
            conditions.push(format!("id = ANY (ARRAY(SELECT message_id FROM {letters}))"));
        }
        conditions.extend(filter.state.map(|it| condition(it).to_owned()));
        let sql = format!(
            "SELECT {COLUMNS} FROM {} WHERE {}
             ORDER BY occurred_at DESC NULLS LAST, id DESC LIMIT $1",
            self.table.companion("outbox_status"),
            conditions.join(" AND "),
        );
        Ok(self.query("look for events", &sql, &parameters).await?.iter().map(event).collect())
    }
}

/// Of what is not published there is an index.
fn condition(state: FoundState) -> &'static str {
    match state {
        FoundState::Pending => "status IN ('PENDING', 'RETRYING') AND published_at IS NULL",
        FoundState::Published => "status = 'PUBLISHED'",
        FoundState::Dead => "status = 'DEAD'",
        FoundState::Discarded => "status = 'DISCARDED'",
    }
}

fn event(row: &Row) -> FoundEvent {
    let state = match row.get(1) {
        "PUBLISHED" => FoundState::Published,
        "DEAD" => FoundState::Dead,
        "DISCARDED" => FoundState::Discarded,
        _ => FoundState::Pending,
    };
    FoundEvent {
        id: row.get(0),
        state,
        aggregate_type: row.get(2),
        aggregate_id: row.get(3),
        event_type: row.get(4),
        occurred_at: row.get(5),
        attempts: row.get::<_, Option<i32>>(6).map_or(0, |it| it.try_into().unwrap_or(0)),
        error: row.get(7),
        published_at: row.get(8),
        stream: row.get(9),
        stream_seq: row.get(10),
        dead_at: vec![],
    }
}
