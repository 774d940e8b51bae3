//! Reads the facts about the database server and the role.

use std::fmt::Display;
use std::time::Duration;

use crate::checks::Skip;
use crate::horizon;
use jiff::Timestamp;
use relay::access::connection::{Bound, Connection};
use relay::access::{Replication, standby_slots};
use relay::{Config, Error, Mode};
use servers::Session;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;

use super::CONNECT_MAX;
use super::facts::{Failure, Known, Role, Server};

/// How long one statement may take, here and on the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The setting that names the standbys that commits wait for.
pub(super) const SYNCHRONOUS: &str = "synchronous_standby_names";

/// Settings that rules look at.
const SETTINGS: &[&str] = &[
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "server_encoding",
    "max_connections",
    "superuser_reserved_connections",
    "sync_replication_slots",
    standby_slots::SETTING,
    SYNCHRONOUS,
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

/// The same of settings. Placeholders that were set are not in `pg_settings`.
const CUSTOM: &[&str] = &[
    "rds.logical_replication",
    "rds.iam_auth_for_replication",
    "azure.extensions",
    "neon.timeline_id",
    "cnpg.config_sha256",
];

/// The facts about the server. Settings are as the role's sessions begin with them, whatever was set
/// here.
const SERVER: &str = "
    SELECT current_setting('server_version_num')::int AS version,
        current_setting('server_version') AS version_text, current_database() AS database,
        pg_is_in_recovery() AS in_recovery,
        (SELECT sender_host || ':' || sender_port FROM pg_stat_wal_receiver) AS primary,
        (SELECT jsonb_object_agg(name, value) FROM (
            SELECT name, reset_val FROM pg_settings WHERE name = ANY($1::text[])
            UNION ALL
            SELECT name, current_setting(name, true) FROM unnest($2::text[]) AS name
         ) AS set (name, value) WHERE value IS NOT NULL) AS settings,
        coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)
            AS is_encrypted,
        inet_server_addr() IS NULL OR inet_server_addr() = inet_client_addr() AS is_local,
        (SELECT sum(numbackends)::bigint FROM pg_stat_database) AS connections,
        (SELECT coalesce(jsonb_agg(s), '[]') FROM (
            SELECT slot_name AS name, active, coalesce((
                CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                    ELSE pg_current_wal_lsn() END - restart_lsn)::bigint, 0) AS retained_bytes,
                active_pid AS pid, CASE WHEN database = current_database() THEN
                    substring(query FROM 'publication_names[^'']*''([^'']*)') END AS publications
            FROM pg_replication_slots LEFT JOIN pg_stat_activity ON pid = active_pid
            ORDER BY 1) AS s) AS slots,
        (SELECT count(*) FROM pg_stat_replication) AS walsenders,
        (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost poll'
             AND datname = current_database()) AS pollers,
        (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'
             AND query_start < clock_timestamp() - interval '2 s') AS held_commits,
        ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY($3::text[])
              UNION ALL
              SELECT name FROM unnest($2::text[]) AS name
              WHERE current_setting(name, true) IS NOT NULL) AS traits";

pub(super) async fn connect(config: &Config) -> Result<Connection, Failure> {
    let connecting = config.postgres.connect("tailpost doctor");
    let late = (&config.postgres, "check the address and any firewall");
    let client = let_in(connecting, late).await?;
    let connection = Connection::new(Session::own(client), Bound::Answer(ANSWER_MAX));
    // No statement here waits for others, and none is left behind.
    let seconds = ANSWER_MAX.as_secs();
    let sql = format!("SET statement_timeout = '{seconds}s'; SET lock_timeout = '1s'");
    let configured = connection.batch_execute("configure the session", &sql).await;
    configured.map_err(|error| Failure::of(&error))?;
    Ok(connection)
}

/// What a server answers within [`CONNECT_MAX`]. Where it does not answer, that is named with what
/// to do about it.
pub(super) async fn let_in<T, E: Into<Error>>(
    connecting: impl Future<Output = Result<T, E>>,
    (server, hint): (impl Display, &str),
) -> Result<T, Failure> {
    let late = || Failure {
        said: format!("could not connect to {server}: no answer within {CONNECT_MAX:?}"),
        hint: Some(hint.to_owned()),
        sqlstate: None,
    };
    let connected = timeout(CONNECT_MAX, connecting).await.map_err(|_| late())?;
    connected.map_err(|error| Failure::of(&error.into()))
}

/// What could not be read, as a reason.
pub(super) fn skip(error: &Error) -> Skip {
    Skip::because(relay::describe(error))
}

/// What PostgreSQL answers on a replication connection.
pub(super) async fn replication(config: &Config) -> Known<Result<(), Failure>> {
    if config.mode == Mode::Poll {
        return Err(Skip::because("relay.mode = \"poll\" reads no log"));
    }
    let shards = config.each_shard();
    let config = shards.first().unwrap_or(config);
    let hint = "name the database server itself in postgres.url, not a pooler";
    let late = (format!("{} for replication", config.postgres), hint);
    Ok(let_in(Replication::connect(config), late).await.map(|_| ()))
}

pub(super) async fn server(connection: &Connection) -> Result<Server, Error> {
    let before = Timestamp::now();
    let sql = "SELECT clock_timestamp()";
    let told: Timestamp = connection.query_one("read the clock", sql, &[]).await?.get(0);
    let half = Timestamp::now().duration_since(before).as_secs_f64() / 2.0;
    let parameters: [&(dyn ToSql + Sync); 3] = [&SETTINGS, &CUSTOM, &ROLES];
    let mut server = connection.read::<Server>("look at the server", SERVER, &parameters).await?;
    let server = server.pop().ok_or(Error::Stalled("the server gave no answer"))?;
    let clock_ahead = told.duration_since(before).as_secs_f64() - half;
    let holders = horizon::holders(connection).await?;
    Ok(Server { clock_ahead, clock_error: half, holders, ..server })
}

pub(super) async fn role(connection: &Connection, schema: &str) -> Result<Role, Error> {
    let sql = "SELECT rolname AS name, rolsuper AS is_superuser, rolreplication AS may_replicate,
                   rolconnlimit AS connection_limit,
                   ARRAY(SELECT r.rolname::text FROM pg_roles r
                         WHERE r.rolname = ANY($1::text[]) AND NOT me.rolsuper
                             AND pg_has_role(current_user, r.oid, 'MEMBER')) AS member_of,
                   coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace
                             WHERE nspname = $2), true) AS may_use_schema,
                   has_database_privilege(current_database(), 'CREATE') AS may_create_in_database,
                   coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace
                             WHERE nspname = $2), false) AS may_create_in_schema,
                   EXISTS (SELECT FROM pg_namespace WHERE nspname = $2) AS has_schema
               FROM pg_roles me WHERE rolname = current_user";
    let role = connection.read("look at the role", sql, &[&ROLES, &schema]).await?.pop();
    role.ok_or(Error::Stalled("the server gave no answer"))
}
