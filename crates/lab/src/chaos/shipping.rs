//! The service that an inbox calls: every event ships something, in the producer's database.
//!
//! It does what a service under leases has to do: it knows the idempotency keys that it has met, and
//! writes key and effect in one statement, so that a call that is repeated has no effect. Nothing but
//! that keeps an event from taking effect twice: effects are told apart by what the events say, not
//! by their keys, and a second one is counted, not refused.
//!
//! It lives in this process, which no scenario kills.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::proxy::{Direction, Proxy};

const TABLES: &str = "
    CREATE TABLE shipping_keys (key UUID PRIMARY KEY, calls INT NOT NULL DEFAULT 1);
    CREATE TABLE shipments (
        event_id     UUID NOT NULL,
        aggregate_id TEXT NOT NULL,
        payload      JSONB NOT NULL,
        stream_seq   BIGINT, -- none if it was made by hand
        place        BIGINT GENERATED ALWAYS AS IDENTITY
    )";

const SHIP: &str = "
    WITH known AS (
        INSERT INTO shipping_keys AS k (key) VALUES ($1)
        ON CONFLICT (key) DO UPDATE SET calls = k.calls + 1
        RETURNING calls
    )
    INSERT INTO shipments (event_id, aggregate_id, payload, stream_seq)
    SELECT $1, $2, $3::text::jsonb, $4 FROM known WHERE calls = 1";

const BY_HAND: &str = "
    INSERT INTO shipments (event_id, aggregate_id, payload)
    SELECT id, aggregate_id, payload FROM outbox_events WHERE id = $1";

const COUNT: &str = "
    WITH had AS (
        SELECT aggregate_id, payload, count(*) AS effects, bool_or(event_id = ANY($1)) AS wanted,
            min(place) FILTER (WHERE stream_seq > 0) AS place, (payload ->> 'counter')::bigint AS nth
        FROM shipments GROUP BY aggregate_id, payload
    ), in_order AS (
        SELECT nth, max(nth) OVER (PARTITION BY aggregate_id ORDER BY place
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last
        FROM had WHERE place IS NOT NULL
    )
    SELECT count(*),
        coalesce(sum(h.effects - 1) FILTER (WHERE NOT wanted), 0)::bigint,
        coalesce(sum(h.effects - 1) FILTER (WHERE wanted), 0)::bigint,
        (SELECT count(*) FROM in_order WHERE nth < last),
        (SELECT coalesce(sum(calls - 1), 0)::bigint FROM shipping_keys),
        (SELECT count(*) FROM orders),
        count(DISTINCT o.payload ->> 'order')
    FROM outbox_events o JOIN had h USING (aggregate_id, payload)
    WHERE o.aggregate_type = 'order'";

/// Far more than what the load's events say.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Between an effect and its answer: the moment at which a worker's death makes a call come again.
const ANSWER_AFTER: Duration = Duration::from_millis(20);

/// What the service does to the events of an aggregate instead of shipping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conduct {
    /// Says 422: no further attempt will do.
    Refuse,
    /// Never answers.
    Hang,
}

/// What the service does to every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Well,
    /// Connections are refused.
    Away,
    /// Connections are taken, and nothing else happens.
    Hang,
    /// The service does its work, and no answer arrives.
    Unanswered,
    /// Nothing but this answer, after so long.
    Answer(u16, Duration),
}

/// A service behind a proxy, gone with this.
pub(super) struct Shipping {
    proxy: Proxy,
    state: Arc<AppState>,
    task: JoinHandle<()>,
    /// Events whose second effect a scenario wants.
    twice_on_purpose: Vec<Uuid>,
}

struct AppState {
    database_url: String,
    idle: Mutex<Vec<Client>>,
    conducts: Mutex<HashMap<String, Conduct>>,
    manner: Mutex<Manner>,
    /// All calls that began: whose, and when.
    calls: Mutex<Vec<(Uuid, Timestamp)>>,
}

impl Shipping {
    /// Makes the tables, beside an outbox, and listens.
    pub(super) async fn open(database: &Client, database_url: String) -> Result<Self> {
        database.batch_execute(TABLES).await.context("make the tables of the service")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("listen for the inbox")?;
        let address = listener.local_addr().context("listen for the inbox")?;
        let state = Arc::new(AppState {
            database_url,
            idle: Mutex::default(),
            conducts: Mutex::default(),
            manner: Mutex::new(Manner::Well),
            calls: Mutex::default(),
        });
        let router = Router::new().fallback(called).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move {
            // Ends only with the task; what it cannot accept, the inbox tries again.
            let _ = axum::serve(listener, router).await;
        });
        let proxy = Proxy::start(address).await?;
        Ok(Self { proxy, state, task, twice_on_purpose: Vec::new() })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/events", self.proxy.addr())
    }

    /// From now on fails in this manner, whatever the event is about.
    pub(super) async fn behave(&mut self, manner: Manner) -> Result<()> {
        *lock(&self.state.manner) = manner;
        self.proxy.restore().await?;
        match manner {
            Manner::Away => self.proxy.cut().await,
            Manner::Hang => self.proxy.blackhole(Direction::Both),
            Manner::Unanswered => self.proxy.blackhole(Direction::ToClient),
            Manner::Well | Manner::Answer(..) => {}
        }
        Ok(())
    }

    /// From now on does something else to the events of this aggregate, or ships them again.
    pub(super) fn conduct(&self, aggregate_id: &str, conduct: Option<Conduct>) {
        let mut conducts = lock(&self.state.conducts);
        match conduct {
            Some(conduct) => conducts.insert(aggregate_id.to_owned(), conduct),
            None => conducts.remove(aggregate_id),
        };
    }

    /// When the calls with this event began.
    pub(super) fn calls_of(&self, id: Uuid) -> Vec<Timestamp> {
        lock(&self.state.calls).iter().filter(|it| it.0 == id).map(|it| it.1).collect()
    }

    /// What an operator does who mends what an event should have done.
    pub(super) async fn by_hand(&self, database: &Client, event: Uuid) -> Result<()> {
        let made = database.execute(BY_HAND, &[&event]).await;
        made.map(drop).context("make an effect by hand")
    }

    /// Says that this event is to take effect twice, to be counted apart.
    pub(super) fn wants_twice(&mut self, event: Uuid) {
        self.twice_on_purpose.push(event);
    }

    pub(super) async fn count(&self, database: &Client) -> Result<Effects> {
        let row = database.query_one(COUNT, &[&self.twice_on_purpose]).await;
        let row = row.context("count the effects")?;
        let count = |index: usize| usize::try_from(row.get::<_, i64>(index));
        Ok(Effects {
            effects: count(0)?,
            effects_twice: count(1)?,
            twice_on_purpose: count(2)?,
            effects_reordered: count(3)?,
            calls_repeated: count(4)?,
            orders: count(5)?,
            orders_with_effects: count(6)?,
        })
    }
}

impl Drop for Shipping {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the events have brought about. Its fields are fixed: scripts read them.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Effects {
    /// Events with an effect, by the service or by hand.
    pub(super) effects: usize,
    /// Effects beyond the first of each event.
    pub(super) effects_twice: usize,
    /// Those that a scenario provoked to show how they come about.
    pub(super) twice_on_purpose: usize,
    /// Effects behind that of a later event of the same aggregate.
    pub(super) effects_reordered: usize,
    /// Calls that reached the end although an earlier one had: they had no effect.
    pub(super) calls_repeated: usize,
    pub(super) orders: usize,
    pub(super) orders_with_effects: usize,
}

impl Effects {
    /// Whether each of `stored` events has one effect, in order.
    pub(super) fn is_exact(&self, stored: usize) -> bool {
        self.effects == stored
            && self.effects_twice + self.effects_reordered == 0
            && self.orders_with_effects == self.orders
    }
}

impl Display for Effects {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { effects, effects_twice, effects_reordered, .. } = self;
        write!(f, "{effects} effects, {effects_twice} twice, {effects_reordered} reordered; ")?;
        if self.twice_on_purpose > 0 {
            write!(f, "{} twice on purpose; ", self.twice_on_purpose)?;
        }
        let Self { orders, orders_with_effects, calls_repeated, .. } = self;
        write!(f, "{orders_with_effects} of {orders} orders; {calls_repeated} calls repeated")
    }
}

async fn called(State(state): State<Arc<AppState>>, request: Request) -> StatusCode {
    let manner = *lock(&state.manner);
    if let Manner::Answer(status, after) = manner {
        tokio::time::sleep(after).await;
        return StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    }
    let (parts, body) = request.into_parts();
    let text = |name: &str| parts.headers.get(name).and_then(|it| it.to_str().ok());
    let Some(key) = text("idempotency-key").and_then(|it| it.parse().ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    if text("aggregate-type") != Some("order") {
        // Nothing to ship, whatever it says.
        return StatusCode::NO_CONTENT;
    }
    let stream_seq = text("tailpost-stream-seq").and_then(|it| it.parse().ok());
    let (Some(aggregate_id), Some(stream_seq)) = (text("aggregate-id"), stream_seq) else {
        return StatusCode::BAD_REQUEST;
    };
    lock(&state.calls).push((key, Timestamp::now()));
    let conduct = lock(&state.conducts).get(aggregate_id).copied();
    match conduct {
        Some(Conduct::Refuse) => return StatusCode::UNPROCESSABLE_ENTITY,
        Some(Conduct::Hang) => return std::future::pending().await,
        None => {}
    }
    let body = to_bytes(body, BODY_BYTES_MAX).await.map(Vec::from);
    let Some(payload) = body.ok().and_then(|it| String::from_utf8(it).ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    match state.ship(key, aggregate_id, &payload, stream_seq).await {
        Ok(()) => {
            tokio::time::sleep(ANSWER_AFTER).await;
            StatusCode::NO_CONTENT
        }
        // The database may be away, and whether it took the effect unknown: the next call finds out.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl AppState {
    async fn ship(
        &self,
        key: Uuid,
        aggregate_id: &str,
        payload: &str,
        stream_seq: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let idle = lock(&self.idle).pop();
        let client = match idle {
            Some(client) if !client.is_closed() => client,
            _ => {
                let (client, connection) =
                    tokio_postgres::connect(&self.database_url, NoTls).await?;
                tokio::spawn(connection);
                client
            }
        };
        client.execute(SHIP, &[&key, &aggregate_id, &payload, &stream_seq]).await?;
        lock(&self.idle).push(client);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
