//! The scenarios: a name, what it proves, what it needs, what it does.

mod broker;
mod crashes;
mod data;
mod database;
mod left_behind;
mod slot;
mod standby;

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

/// Makes [`ALL`]: of each scenario the name, what is played, on servers of which settings if not the
/// usual ones, and what that proves.
macro_rules! scenarios {
    (@servers) => { Servers::PLAIN };
    (@servers $servers:path) => { $servers };
    ($($name:literal => $play:path $(, on $servers:path)?, $proves:literal;)*) => {
        /// All scenarios, in the order of `chaos all`.
        pub(super) const ALL: &[Scenario] = &[$(Scenario {
            name: $name,
            proves: $proves,
            servers: scenarios!(@servers $($servers)?),
            play: |lab| Box::pin($play(lab)),
        }),*];
    };
}

scenarios! {
    "crash-between-ack-and-mark" => crashes::between_ack_and_mark,
        "what the broker has and the table does not know of is marked, not sent again";
    "crash-between-mark-and-confirm" => crashes::between_mark_and_confirm,
        "a confirmation that PostgreSQL forgot brings no event twice";
    "broker-down-longer-than-dedup-window" => broker::down_longer_than_dedup_window,
        "nothing hangs on the broker's memory of ids";
    "slot-invalidated" => slot::invalidated, on slot::LITTLE_LOG,
        "the gap behind a slot whose log PostgreSQL removed is filled from the table";
    "failover-without-slot" => slot::failover,
        "a promoted standby needs no slot to go on where the primary stopped";
    "slow-synchronous-standby" => database::slow_synchronous_standby,
        "an event that is in the log before its row is visible is published and marked once";
    "paused-relay" => standby::paused_relay, on standby::IMPATIENT,
        "of two relays the one that slept does not write when it wakes";
    "poison-in-backlog" => data::poison_in_backlog, on data::LITTLE_PAYLOADS,
        "events that the broker will never take are parked and stop nobody";
    "million-row-transaction" => data::million_row_transaction,
        "a million events of one transaction pass while others wait their turn";
    "ddl-while-running" => data::ddl_while_running,
        "columns come, go and change under a running relay";
    "stuck-claim" => left_behind::stuck_claim,
        "what a dead worker had is left alone until its lease expires, and then has its one effect";
    "manual-fix" => left_behind::manual_fix,
        "what was mended by hand and marked as processed has no second effect; without a record \
         it has";
}
