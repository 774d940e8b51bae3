//! Reads the facts about the database server and the role.

use std::time::Duration;

use jiff::Timestamp;
use outbox::checks::Skip;
use tokio::time::timeout;

use super::CONNECT_MAX;
use super::facts::{AnySlot, Failure, Known, OldTransaction, Role, Server};
use crate::config::{Config, Mode};
use crate::error::Error;
use crate::postgres::connection::{Bound, Connection};
use crate::postgres::{Replication, Session};

/// How long one statement may take, here and on the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Settings that rules look at.
const SETTINGS: &[&str] = &[
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "wal_sender_timeout",
    "statement_timeout",
    "transaction_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "default_transaction_read_only",
    "max_connections",
    "superuser_reserved_connections",
    "sync_replication_slots",
    "hot_standby_feedback",
    "shared_preload_libraries",
];

/// Roles by which providers are known.
const ROLES: &[&str] = &[
    "rds_superuser",
    "rds_replication",
    "rds_iam",
    "cloudsqlsuperuser",
    "azure_pg_admin",
    "neon_superuser",
    "supabase_admin",
];

/// The same of settings. Placeholders that somebody set are not in `pg_settings`.
const CUSTOM: &[&str] = &[
    "rds.logical_replication",
    "rds.iam_auth_for_replication",
    "cloudsql.logical_decoding",
    "azure.extensions",
    "neon.timeline_id",
    "cnpg.config_sha256",
];

pub(super) async fn connect(config: &Config) -> Result<Connection, Failure> {
    let late = || Failure {
        said: format!("could not connect to {}: no answer within {CONNECT_MAX:?}", config.postgres),
        hint: Some("check the address and any firewall".into()),
        sqlstate: None,
    };
    let connected = timeout(CONNECT_MAX, config.postgres.connect("tailpost doctor")).await;
    let client = match connected {
        Ok(connected) => connected.map_err(|error| Failure::of(&error.into()))?,
        Err(_) => return Err(late()),
    };
    let connection = Connection::new(Session::own(client), Bound::Answer(ANSWER_MAX));
    // No statement here waits for others, and none is left behind.
    let seconds = ANSWER_MAX.as_secs();
    let sql = format!("SET statement_timeout = '{seconds}s'; SET lock_timeout = '1s'");
    let configured = connection.batch_execute("configure the session", &sql).await;
    configured.map_err(|error| Failure::of(&error))?;
    Ok(connection)
}

/// What could not be read, as a reason.
pub(super) fn skip(error: &Error) -> Skip {
    Skip::because(crate::describe(error))
}

/// What PostgreSQL answers on a replication connection.
pub(super) async fn replication(config: &Config) -> Known<Result<(), Failure>> {
    if config.mode == Mode::Poll {
        return Err(Skip::because("relay.mode = \"poll\" reads no log"));
    }
    let shards = config.each_shard();
    let config = shards.first().unwrap_or(config);
    match timeout(CONNECT_MAX, Replication::connect(config)).await {
        Ok(Ok(_)) => Ok(Ok(())),
        Ok(Err(error)) => Ok(Err(Failure::of(&error))),
        Err(_) => Ok(Err(Failure {
            said: format!("no answer on a replication connection within {CONNECT_MAX:?}"),
            hint: Some("name the database server itself in postgres.url, not a pooler".into()),
            sqlstate: None,
        })),
    }
}

pub(super) async fn server(connection: &Connection) -> Result<Server, Error> {
    let mut server = identity(connection).await?;
    server.settings = settings(connection).await?;
    server.traits = traits(connection).await?;
    server.slots = slots(connection).await?;
    server.oldest = oldest(connection).await?;
    Ok(server)
}

async fn identity(connection: &Connection) -> Result<Server, Error> {
    let sql =
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
            current_database()::text, pg_is_in_recovery(),
            (SELECT sender_host || ':' || sender_port FROM pg_stat_wal_receiver),
            coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
            inet_server_addr() IS NULL OR inet_server_addr() = inet_client_addr(),
            (SELECT sum(numbackends)::bigint FROM pg_stat_database),
            (SELECT count(*) FROM pg_stat_replication),
            clock_timestamp(),
            (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost poll'
                 AND datname = current_database())";
    let before = Timestamp::now();
    let row = connection.query_one("look at the server", sql, &[]).await?;
    let half = Timestamp::now().duration_since(before).as_secs_f64() / 2.0;
    let told: Timestamp = row.get(9);
    Ok(Server {
        version: row.get(0),
        version_text: row.get(1),
        database: row.get(2),
        in_recovery: row.get(3),
        primary: row.get(4),
        is_encrypted: row.get(5),
        is_local: row.get(6),
        connections: row.get(7),
        walsenders: row.get(8),
        pollers: row.get(10),
        clock_ahead: told.duration_since(before).as_secs_f64() - half,
        clock_error: half,
        ..Server::default()
    })
}

/// As the role's sessions begin with them, whatever was set here.
async fn settings(
    connection: &Connection,
) -> Result<std::collections::HashMap<String, String>, Error> {
    let sql = "SELECT name, reset_val FROM pg_settings WHERE name = ANY($1::text[])
                   AND reset_val IS NOT NULL
               UNION ALL
               SELECT name, current_setting(name, true) FROM unnest($2::text[]) AS name
               WHERE current_setting(name, true) IS NOT NULL";
    let rows = connection.query("read the settings", sql, &[&SETTINGS, &CUSTOM]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn traits(connection: &Connection) -> Result<Vec<String>, Error> {
    let sql = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY($1::text[])
               UNION ALL
               SELECT name FROM unnest($2::text[]) AS name
               WHERE current_setting(name, true) IS NOT NULL";
    let rows = connection.query("look for the provider", sql, &[&ROLES, &CUSTOM]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn slots(connection: &Connection) -> Result<Vec<AnySlot>, Error> {
    let end = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                    ELSE pg_current_wal_lsn() END";
    let sql = format!(
        "SELECT slot_name::text, active, coalesce(({end} - restart_lsn)::bigint, 0)
         FROM pg_replication_slots ORDER BY 1"
    );
    let rows = connection.query("list the slots", &sql, &[]).await?;
    let slot = |row: &tokio_postgres::Row| AnySlot {
        name: row.get(0),
        active: row.get(1),
        retained_bytes: row.get(2),
    };
    Ok(rows.iter().map(slot).collect())
}

/// Walsenders have transactions of their own, and those of this session do not count.
async fn oldest(connection: &Connection) -> Result<Option<OldTransaction>, Error> {
    let sql = "SELECT pid, coalesce(application_name, ''),
                   extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
               FROM pg_stat_activity
               WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()
                   AND backend_type = 'client backend'
               UNION ALL
               SELECT NULL, gid, extract(epoch FROM clock_timestamp() - prepared)::float8
               FROM pg_prepared_xacts
               ORDER BY age DESC LIMIT 1";
    let row = connection.query_opt("look for old transactions", sql, &[]).await?;
    Ok(row.map(|row| OldTransaction { pid: row.get(0), name: row.get(1), seconds: row.get(2) }))
}

pub(super) async fn role(connection: &Connection, schema: &str) -> Result<Role, Error> {
    let sql = "SELECT rolname::text, rolsuper, rolreplication, rolconnlimit,
                   ARRAY(SELECT r.rolname::text FROM pg_roles r
                         WHERE r.rolname = ANY($1::text[]) AND NOT me.rolsuper
                             AND pg_has_role(current_user, r.oid, 'MEMBER')),
                   coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace
                             WHERE nspname = $2), true),
                   has_database_privilege(current_database(), 'CREATE'),
                   coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace
                             WHERE nspname = $2), false),
                   EXISTS (SELECT FROM pg_namespace WHERE nspname = $2)
               FROM pg_roles me WHERE rolname = current_user";
    let row = connection.query_one("look at the role", sql, &[&ROLES, &schema]).await?;
    Ok(Role {
        name: row.get(0),
        is_superuser: row.get(1),
        may_replicate: row.get(2),
        connection_limit: row.get(3),
        member_of: row.get(4),
        may_use_schema: row.get(5),
        may_create_in_database: row.get(6),
        may_create_in_schema: row.get(7),
        has_schema: row.get(8),
    })
}
