//! The scenarios: a name, what it proves, what it needs, what it does.

mod broker;
mod crashes;
mod data;
mod database;
mod edges;
mod left_behind;
mod slot;
mod standby;
mod whole_way;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

use super::daemon::Daemon;
use super::lab::{Lab, Servers};

pub(super) use data::{LITTLE_PAYLOADS, POISON};
pub(super) use slot::DROP_SLOT;

/// The relays that are to publish the rest, and the inbox that is to handle it, if there is one.
pub(super) type Daemons = Vec<Daemon>;

type Play = for<'a> fn(&'a mut Lab) -> LocalBoxFuture<'a, Result<Daemons>>;

/// A fault with a name.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) proves: &'static str,
    pub(super) servers: Servers,
    /// Fails if the fault could not be provoked: then nothing is proven.
    pub(super) play: Play,
}

const fn scenario(name: &'static str, proves: &'static str, play: Play) -> Scenario {
    Scenario { name, proves, servers: Servers::PLAIN, play }
}

impl Scenario {
    const fn with_postgres(mut self, settings: &'static [(&'static str, &'static str)]) -> Self {
        self.servers.postgres = settings;
        self
    }

    const fn with_max_payload(mut self, bytes: u32) -> Self {
        self.servers.max_payload = Some(bytes);
        self
    }
}

/// All scenarios, in the order of `chaos all`.
pub(super) const ALL: &[Scenario] = &[
    scenario(
        "crash-between-ack-and-mark",
        "what the broker has and the table does not know of is marked, not sent again",
        |it| Box::pin(crashes::between_ack_and_mark(it)),
    ),
    scenario(
        "crash-between-mark-and-confirm",
        "a confirmation that PostgreSQL forgot brings no event twice",
        |it| Box::pin(crashes::between_mark_and_confirm(it)),
    ),
    scenario(
        "broker-down-longer-than-dedup-window",
        "nothing hangs on the broker's memory of ids",
        |it| Box::pin(broker::down_longer_than_dedup_window(it)),
    ),
    scenario("broker-killed", "a broker may crash and come back at any moment", |it| {
        Box::pin(broker::killed(it))
    }),
    scenario(
        "postgres-killed",
        "marks and confirmations that a crash takes back do no harm",
        |it| Box::pin(database::killed(it)),
    ),
    scenario("slot-dropped", "the gap behind a lost slot is filled from the table", |it| {
        Box::pin(slot::dropped(it))
    }),
    scenario(
        "slot-invalidated",
        "so it is when PostgreSQL removes log that the slot still needs",
        |it| Box::pin(slot::invalidated(it)),
    )
    .with_postgres(slot::LITTLE_LOG),
    scenario(
        "failover-without-slot",
        "a promoted standby needs no slot to go on where the primary stopped",
        |it| Box::pin(slot::failover(it)),
    ),
    scenario(
        "slow-synchronous-standby",
        "an event that is in the log before its row is visible is published and marked once",
        |it| Box::pin(database::slow_synchronous_standby(it)),
    ),
    scenario("half-open-network", "connections that look alive and carry nothing are left", |it| {
        Box::pin(broker::half_open_network(it))
    }),
    scenario(
        "paused-relay",
        "of two relays the one that slept does not write when it wakes",
        |it| Box::pin(standby::paused_relay(it)),
    )
    .with_postgres(standby::IMPATIENT),
    scenario(
        "poison-in-backlog",
        "events that the broker will never take are parked and stop nobody",
        |it| Box::pin(data::poison_in_backlog(it)),
    )
    .with_max_payload(LITTLE_PAYLOADS),
    scenario(
        "million-row-transaction",
        "a million events of one transaction pass while others wait their turn",
        |it| Box::pin(data::million_row_transaction(it)),
    ),
    scenario("ddl-while-running", "columns come, go and change under a running relay", |it| {
        Box::pin(data::ddl_while_running(it))
    }),
    scenario("takeovers", "the active relay is killed again and again; the other goes on", |it| {
        Box::pin(standby::takeovers(it))
    }),
    scenario(
        "whole-way",
        "whatever is killed between an order and the HTTP service behind it, each event has one \
         effect: calls may be repeated, under the same idempotency key",
        |it| Box::pin(whole_way::killed_at_random(it)),
    ),
    scenario(
        "stuck-claim",
        "what a dead worker had is left alone until its lease expires, and then has its one effect",
        |it| Box::pin(left_behind::stuck_claim(it)),
    ),
    scenario(
        "manual-fix",
        "what was mended by hand and marked as processed has no second effect; without a record \
         it has",
        |it| Box::pin(left_behind::manual_fix(it)),
    ),
    scenario("locked-row", "rows that somebody locks hold up nobody else's events", |it| {
        Box::pin(edges::locked_row(it))
    }),
    scenario(
        "silent-peer",
        "a connection that falls silent at any moment is given up, and another one opened",
        |it| Box::pin(edges::silent_peer(it)),
    ),
    scenario(
        "hostile-rows",
        "each row that PostgreSQL takes is published or parked, by either way alike",
        |it| Box::pin(edges::hostile_rows(it)),
    )
    .with_max_payload(LITTLE_PAYLOADS),
    scenario(
        "hostile-messages",
        "messages of other clients stop nothing, whatever bytes they are made of",
        |it| Box::pin(edges::hostile_messages(it)),
    ),
    scenario(
        "handler-away",
        "a service that is away costs its events time, and nothing else",
        |it| Box::pin(edges::handler_away(it)),
    ),
    scenario(
        "stopped-worker",
        "of two workers the other one takes over from one that hangs",
        |it| Box::pin(edges::stopped_worker(it)),
    ),
];
