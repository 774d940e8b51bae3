//! What our sessions begin with, whatever the role, the database or the server sets by default.
//!
//! It is set when a session has begun, not by `options` in its first message: poolers refuse those.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Settings that end a session or its statements, or that change what a statement does or answers.
/// Sessions have PostgreSQL's own defaults of these, and of each `enable_…` and `geqo…`.
const DEFAULTED: [&str; 28] = [
    "array_nulls",
    "bytea_output",
    "client_min_messages",
    "datestyle",
    "debug_parallel_query",
    "default_table_access_method",
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "exit_on_error",
    "extra_float_digits",
    "force_parallel_mode",
    "from_collapse_limit",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "intervalstyle",
    "join_collapse_limit",
    "lock_timeout",
    "plan_cache_mode",
    "quote_all_identifiers",
    "restrict_nonsystem_relation_kind",
    "row_security",
    "standard_conforming_strings",
    "statement_timeout",
    "timezone",
    "transaction_timeout",
    "transform_null_equals",
    "xmloption",
];

/// `statement_timeout` comes first: it could end the statement that sets the others. The last four let
/// the server notice after 11 s when our host dies without a word: an open transaction would hold the
/// database's horizon for hours.
const SET: [(&str, &str); 6] = [
    ("statement_timeout", "0"),
    ("jit", "off"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "11000"),
];

/// PostgreSQL 18 (18.4 was seen to) crashes in `perform_pruning_base_step`, where a statement of several
/// parts finds partitions by values that only execution knows, and has rechecked a row that another
/// session changed just then. Looking into the index of each of 40 partitions takes no longer.
pub const WITHOUT_PRUNING: &str =
    "SELECT pg_catalog.set_config('enable_partition_pruning', 'off', false)
    WHERE pg_catalog.current_setting('server_version_num')::int >= 180000";

/// The server gives up a silent walsender by its `wal_sender_timeout`. With `tcp_user_timeout` it would
/// also give up one that takes no more of the log for 11 s, because the broker is away, or a scan or the
/// stream's tail is read first.
const OF_WALSENDERS: &str = "; SET tcp_user_timeout = 0";

/// Says whether the session was ours before (a pooler in session mode has reset it since), and which
/// process of the server it is.
const LOOK: &str = "SELECT current_setting('tailpost.session', true), pg_catalog.pg_backend_pid();
    SET tailpost.session = 'begun'; ";

/// Statements for a session whose connection string has the `options`. What these set stays.
pub(super) fn set(options: &str) -> String {
    let options = options.replace('-', "_").to_lowercase();
    let is_free = |name: &str| !options.contains(name);
    let set = SET.iter().filter(|(name, _)| is_free(name));
    let set: String = set.map(|(name, value)| format!("SET {name} = {value}; ")).collect();
    let defaulted = DEFAULTED.iter().filter(|name| is_free(name));
    let defaulted: Vec<String> = defaulted.map(|name| format!("'{name}'")).collect();
    format!(
        "{set}SELECT count(pg_catalog.set_config(name, boot_val, false))
         FROM pg_catalog.pg_settings
         WHERE (lower(name) IN ({}) OR starts_with(name, 'enable_') OR starts_with(name, 'geqo'))
             AND context = 'user' AND setting <> boot_val; {WITHOUT_PRUNING}",
        defaulted.join(", ")
    )
}

/// The same for a session that a [`Look`] is to judge.
pub(super) fn begin(options: &str) -> String {
    LOOK.to_owned() + &set(options)
}

/// The same for a walsender.
pub(super) fn of_walsender(options: &str) -> String {
    set(options) + OF_WALSENDERS
}

/// What the beginning of a session tells of it.
pub(super) struct Look {
    /// A pooler gave us the session as one of ours had left it: what is set in it would be set for
    /// others as well, and for us no longer.
    pub(super) is_handed_on: bool,
    pid: Option<i32>,
}

impl Look {
    pub(super) fn at(answers: &[SimpleQueryMessage]) -> Self {
        let row = answers.iter().find_map(|it| match it {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let value = |at| row.and_then(|it| it.get(at));
        Self {
            is_handed_on: value(0) == Some("begun"),
            pid: value(1).and_then(|it| it.parse().ok()),
        }
    }

    /// Whether the server itself let us in. A pooler tells its clients a process of its own invention.
    pub(super) async fn is_of_server(&self, client: &Client) -> bool {
        self.pid.is_some() && told_process(client).await == self.pid
    }
}

/// The process that a client is told of as it is let in, which only a request to cancel shows. `None`
/// where the client would ask for encryption first.
async fn told_process(client: &Client) -> Option<i32> {
    let mut request = Vec::new();
    let nowhere = tokio::io::join(tokio::io::empty(), &mut request);
    client.cancel_token().cancel_query_raw(nowhere, NoTls).await.ok()?;
    // Its length and its code, then the process and the key.
    request.get(8..12)?.try_into().ok().map(i32::from_be_bytes)
}

/// Whether there are two sessions for two connections, for all copies of a target: a pooler in
/// transaction mode gives the second connection the session of the first.
#[derive(Clone, Default)]
pub(super) struct HasSessions(Arc<AtomicBool>);

impl HasSessions {
    pub(super) fn is_to_be_seen(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    pub(super) fn seen(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// It is no part of what a target is.
impl PartialEq for HasSessions {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HasSessions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_connection_string_sets_stays() {
        let text = set("-c statement_timeout=5s --tcp-keepalives-idle=9");
        assert!(!text.contains("statement_timeout") && !text.contains("tcp_keepalives_idle"));
        assert!(text.contains("tcp_keepalives_count = 3") && text.contains("'lock_timeout'"));
        let text = of_walsender("");
        assert!(text.starts_with("SET statement_timeout = 0; "), "{text}");
        assert!(text.ends_with("SET tcp_user_timeout = 0"), "{text}");
    }
}
