//! What servers and roles get wrong.

use lab::PostgresOptions;
use support::{TestEnv, TestEnvOptions};

use super::clinic::Step::{Restart, Sql, Tailpost};
use super::clinic::{Clinic, Fault};

const FAULTS: &[Fault] = &[
    Fault::new(
        "postgres-reachable",
        "error",
        &[Sql(&["ALTER ROLE courier NOLOGIN"])],
        &["ALTER ROLE \"courier\" LOGIN"],
    ),
    Fault::new(
        "postgres-reachable",
        "error",
        &[Sql(&["ALTER ROLE courier CONNECTION LIMIT 0"])],
        &["ALTER ROLE \"courier\" CONNECTION LIMIT -1"],
    ),
    Fault::new(
        "postgres-connections",
        "error",
        &[Sql(&["ALTER ROLE courier CONNECTION LIMIT 5"])],
        &["ALTER ROLE \"courier\" CONNECTION LIMIT -1"],
    ),
    Fault::new(
        "replication-role",
        "error",
        &[Sql(&["ALTER ROLE courier NOREPLICATION"])],
        &["ALTER ROLE \"courier\" REPLICATION"],
    ),
    Fault::new(
        "replication-keep-size",
        "warning",
        &[Sql(&["ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()"])],
        &["ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'", "SELECT pg_reload_conf()"],
    ),
    Fault::new(
        "replication-keep-size",
        "warning",
        &[Sql(&["ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'", "SELECT pg_reload_conf()"])],
        &["ALTER SYSTEM SET max_slot_wal_keep_size = '20480MB'", "SELECT pg_reload_conf()"],
    ),
    Fault::new(
        "replication-slots",
        "error",
        &[
            Tailpost(&["slot", "drop"]),
            Sql(&["SELECT pg_create_physical_replication_slot('standby_' || n)
                   FROM generate_series(1, 4) AS n"]),
        ],
        &["ALTER SYSTEM SET max_replication_slots = 9", "restart PostgreSQL"],
    )
    .after(&[
        Sql(&["SELECT pg_drop_replication_slot('standby_' || n) FROM generate_series(1, 4) AS n"]),
        Tailpost(&["setup"]),
    ]),
    Fault::new(
        "replication-senders",
        "error",
        &[Sql(&["ALTER SYSTEM SET max_wal_senders = 0"]), Restart],
        &["ALTER SYSTEM SET max_wal_senders = 5", "restart PostgreSQL"],
    ),
    Fault::new(
        "replication-wal-level",
        "error",
        &[Tailpost(&["slot", "drop"]), Sql(&["ALTER SYSTEM SET wal_level = 'replica'"]), Restart],
        &["ALTER SYSTEM SET wal_level = 'logical'", "restart PostgreSQL"],
    )
    .after(&[Tailpost(&["setup"])]),
];

/// What providers have: told by roles and settings that only they have.
const MANAGED: &[Fault] = &[
    Fault::new(
        "managed-replication-role",
        "error",
        &[Sql(&["CREATE ROLE rds_superuser", "CREATE ROLE rds_replication"])],
        &["GRANT rds_replication TO \"courier\""],
    ),
    Fault::new(
        "managed-iam",
        "error",
        &[Sql(&["CREATE ROLE rds_iam", "GRANT rds_iam TO courier"])],
        &["REVOKE rds_iam FROM \"courier\"", "or set rds.iam_auth_for_replication = 1*"],
    ),
];

async fn clinic() -> Clinic {
    let settings = [
        ("max_replication_slots", "4"),
        ("max_wal_senders", "4"),
        ("max_slot_wal_keep_size", "20GB"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let postgres = PostgresOptions { settings: settings.to_vec(), ..PostgresOptions::default() };
    Clinic::open(TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await)
        .await
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_servers_and_roles_get_wrong_is_found_and_mended() {
    clinic().await.treat(FAULTS).await;
}

/// Told by what they answer, as `managed_postgres.md` knows it; not run at the providers.
// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_providers_want_is_found_and_mended() {
    clinic().await.treat(MANAGED).await;
}
