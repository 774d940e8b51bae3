//! What is wrong with the table, the publication and the slot.

use std::time::Duration;

use lab::PostgresOptions;
use pgwire_replication::ReplicationClient;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use super::clinic::Step::{Do, Set, Sql, StopRelays, Tailpost};
use super::clinic::{Clinic, Fault};
use crate::slot_life::lose_the_log;

const DROP_SLOT: &str = "SELECT pg_drop_replication_slot('tailpost')";

const TABLES: &[Fault] = &[
    Fault::new(
        "outbox-privileges",
        "error",
        &[Sql(&["REVOKE UPDATE, DELETE ON outbox_events FROM courier"])],
        &["GRANT UPDATE, DELETE ON public.outbox_events TO \"courier\""],
    ),
    Fault::new(
        "outbox-privileges",
        "error",
        &[Sql(&["REVOKE ALL ON tailpost_state, outbox_status FROM courier"])],
        &[
            "GRANT SELECT ON public.outbox_status TO \"courier\"",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON public.tailpost_state TO \"courier\"",
        ],
    ),
    Fault::new(
        "outbox-privileges",
        "error",
        &[Sql(&["REVOKE USAGE ON SCHEMA public FROM PUBLIC, courier"])],
        &["GRANT USAGE ON SCHEMA \"public\" TO \"courier\""],
    ),
    Fault::new(
        "outbox-policies",
        "error",
        &[Sql(&["ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY"])],
        &["ALTER ROLE \"courier\" BYPASSRLS"],
    ),
    Fault::new(
        "outbox-indexes",
        "warning",
        &[Sql(&["DROP INDEX idx_outbox_unpublished"])],
        &["tailpost setup"],
    ),
    Fault::new(
        "outbox-indexes",
        "warning",
        &[Sql(&["UPDATE pg_index SET indisvalid = false
                 WHERE indexrelid = 'idx_outbox_unpublished'::regclass"])],
        &["REINDEX INDEX public.idx_outbox_unpublished"],
    ),
    Fault::new(
        "outbox-indexes",
        "error",
        &[Set("TAILPOST_RELAY__MODE", "poll")],
        &["tailpost setup"],
    )
    .after(&[Set("TAILPOST_RELAY__MODE", "")]),
    Fault::new(
        "outbox-triggers",
        "warning",
        &[Sql(&[
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "CREATE TRIGGER noted AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION note()",
        ])],
        &["ALTER TABLE public.outbox_events DISABLE TRIGGER noted"],
    ),
    Fault::new(
        "outbox-companions",
        "warning",
        &[Sql(&[
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER no BEFORE UPDATE ON tailpost_state FOR EACH ROW EXECUTE FUNCTION no()",
        ])],
        &["ALTER TABLE public.tailpost_state DISABLE TRIGGER no"],
    ),
    Fault::new(
        "outbox-table",
        "error",
        &[Sql(&["CREATE SCHEMA elsewhere", "ALTER TABLE outbox_events SET SCHEMA elsewhere"])],
        &["ALTER TABLE elsewhere.outbox_events SET SCHEMA public"],
    ),
    Fault::new(
        "outbox-columns",
        "error",
        &[Sql(&["ALTER TABLE outbox_events ALTER COLUMN seq TYPE int"])],
        &[
            "ALTER TABLE \"public\".\"outbox_events\" ALTER COLUMN seq TYPE bigint*",
            "tailpost setup",
        ],
    ),
    Fault::new(
        "outbox-vacuum",
        "warning",
        &[Sql(&["ALTER TABLE outbox_events SET (autovacuum_enabled = off)"])],
        &["ALTER TABLE public.outbox_events RESET (autovacuum_enabled)"],
    ),
    Fault::new(
        "outbox-schema",
        "error",
        &[Sql(&["DROP VIEW outbox_status", "DROP FUNCTION tailpost_jsonb"])],
        &["tailpost setup"],
    ),
    Fault::new(
        "outbox-schema",
        "error",
        &[Sql(&["ALTER TABLE tailpost_state ALTER COLUMN epoch TYPE int"])],
        &[
            "ALTER TABLE \"public\".tailpost_state ALTER COLUMN epoch TYPE BIGINT*",
            "tailpost setup",
        ],
    ),
    Fault::new(
        "outbox-migrations",
        "error",
        &[Sql(&[
            "GRANT SELECT ON tailpost_migrations TO courier",
            "DELETE FROM tailpost_migrations WHERE version > 1",
        ])],
        &["tailpost setup"],
    ),
    Fault::new(
        "outbox-migrations",
        "warning",
        &[Sql(&["INSERT INTO tailpost_migrations (version, name, checksum, outbox_table)
                 SELECT 999, 'later', checksum, outbox_table FROM tailpost_migrations LIMIT 1"])],
        &["run the newer tailpost here too"],
    )
    .by_hand(&[Sql(&["DELETE FROM tailpost_migrations WHERE version = 999"])]),
    Fault::new(
        "retention-upkeep",
        "error",
        &[
            Tailpost(&["maintain"]),
            Sql(&[
                "UPDATE tailpost_retention SET failure = 'permission denied', failed_at = now()",
            ]),
        ],
        &["tailpost maintain"],
    ),
    Fault::new("outbox-shards", "error", &[Set("TAILPOST_RELAY__SHARDS", "2")], &["*slot*"])
        .by_hand(&[Set("TAILPOST_RELAY__SHARDS", "")]),
    // Before set-up: a role that may create nothing, and tables that an application made itself.
    Fault::new(
        "outbox-setup",
        "warning",
        &[
            Sql(&["CREATE SCHEMA empty; GRANT USAGE ON SCHEMA empty TO courier"]),
            Set("TAILPOST_POSTGRES__TABLE", "empty.events"),
            Set("TAILPOST_POSTGRES__PUBLICATION", "empty"),
        ],
        &[
            "GRANT CREATE ON DATABASE \"postgres\" TO \"courier\"",
            "GRANT CREATE ON SCHEMA \"empty\" TO \"courier\"",
        ],
    )
    .with(&["--pre"])
    .after(&[Set("TAILPOST_POSTGRES__PUBLICATION", "")]),
    Fault::new(
        "outbox-logged",
        "error",
        &[
            Sql(&[
                "CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO courier",
                "CREATE UNLOGGED TABLE shop.events (LIKE outbox_events INCLUDING ALL)",
                "GRANT ALL ON shop.events TO courier",
            ]),
            Set("TAILPOST_POSTGRES__TABLE", "shop.events"),
        ],
        &["ALTER TABLE shop.events SET LOGGED"],
    )
    .with(&["--pre"]),
    Fault::new(
        "outbox-columns",
        "error",
        &[Sql(&["ALTER TABLE shop.events ALTER COLUMN payload TYPE xml USING NULL"])],
        &["mend the table as `tailpost setup --print` shows it*"],
    )
    .by_hand(&[Sql(&["ALTER TABLE shop.events ALTER COLUMN payload TYPE jsonb USING NULL"])])
    .with(&["--pre"])
    .after(&[Set("TAILPOST_POSTGRES__TABLE", "")]),
    Fault::new(
        "outbox-table",
        "error",
        &[Sql(&["DROP TABLE outbox_events CASCADE"])],
        &["DROP PUBLICATION IF EXISTS tailpost", "tailpost setup"],
    ),
];

const PUBLICATIONS: &[Fault] = &[
    Fault::new("publication", "error", &[Sql(&["DROP PUBLICATION tailpost"])], &["tailpost setup"]),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["CREATE TABLE chunk () INHERITS (outbox_events)"])],
        &["ALTER TABLE public.chunk NO INHERIT \"public\".\"outbox_events\"; INSERT INTO *"],
    ),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["ALTER PUBLICATION tailpost DROP TABLE outbox_events"])],
        &["ALTER PUBLICATION tailpost ADD TABLE \"public\".\"outbox_events\""],
    ),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["ALTER PUBLICATION tailpost SET (publish = 'insert, update')"])],
        &["ALTER PUBLICATION tailpost SET (publish = 'insert')"],
    ),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["ALTER PUBLICATION tailpost SET (publish_via_partition_root = false)"])],
        &["ALTER PUBLICATION tailpost SET (publish_via_partition_root = true)"],
    ),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["ALTER PUBLICATION tailpost SET TABLE outbox_events WHERE (event_type <> 'x')"])],
        &["ALTER PUBLICATION tailpost SET TABLE \"public\".\"outbox_events\""],
    ),
    Fault::new(
        "publication",
        "error",
        &[Sql(&["ALTER PUBLICATION tailpost SET TABLE outbox_events (id, payload)"])],
        &["ALTER PUBLICATION tailpost SET TABLE \"public\".\"outbox_events\""],
    ),
    Fault::new("publication-age", "warning", &[], &["tailpost relay --once"]),
];

const SLOTS: &[Fault] = &[
    Fault::new("slot-exists", "error", &[Sql(&[DROP_SLOT])], &["tailpost setup"]),
    Fault::new(
        "slot-fits",
        "error",
        &[Sql(&[
            DROP_SLOT,
            "DELETE FROM tailpost_state",
            "SELECT pg_create_logical_replication_slot('tailpost', 'pgoutput')",
        ])],
        &[DROP_SLOT, "tailpost setup"],
    ),
    Fault::new(
        "slot-fits",
        "error",
        &[Sql(&[
            DROP_SLOT,
            "SELECT pg_create_logical_replication_slot('tailpost', 'test_decoding')",
        ])],
        &[DROP_SLOT, "tailpost setup"],
    ),
    Fault::new(
        "slot-fits",
        "error",
        &[
            Sql(&[DROP_SLOT, "DELETE FROM tailpost_state", "CREATE DATABASE shop"]),
            Do(|clinic| Box::pin(slot_in_shop(clinic))),
        ],
        &["postgres.slot = \"tailpost_postgres\"", "tailpost setup"],
    )
    .after(&[
        Set("TAILPOST_POSTGRES__SLOT", ""),
        Do(|clinic| Box::pin(drop_in_shop(clinic))),
        Sql(&[
            "SELECT pg_drop_replication_slot('tailpost_postgres')",
            "DELETE FROM tailpost_state",
        ]),
        Tailpost(&["setup"]),
    ]),
    Fault::new(
        "slot-reader",
        "error",
        &[Do(|clinic| Box::pin(read_by_somebody(clinic)))],
        &["SELECT pg_terminate_backend(*)"],
    ),
    Fault::new(
        "slot-idle",
        "warning",
        &[
            Set("TAILPOST_RELAY__WAL_LIMIT", "1MiB"),
            Sql(&["SELECT count(pg_logical_emit_message(false, 'other', repeat('x', 100000)))
                   FROM generate_series(1, 30)"]),
        ],
        &["tailpost relay"],
    )
    // The slot lets go of the log when it has read what a checkpoint writes.
    .by_hand(&[Sql(&["CHECKPOINT"])])
    .after(&[StopRelays, Set("TAILPOST_RELAY__WAL_LIMIT", "")]),
    Fault::new("relay-running", "warning", &[], &["tailpost relay"]).after(&[StopRelays]),
    Fault::new(
        "slot-log",
        "error",
        &[
            Sql(&["ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()"]),
            Do(|clinic| Box::pin(lose_the_log(&clinic.env))),
        ],
        &["tailpost slot create"],
    ),
];

async fn slot_in_shop(clinic: &mut Clinic) {
    let shop = clinic.env.postgres.client("shop").await.expect("connect to PostgreSQL");
    let sql = "SELECT pg_create_logical_replication_slot('tailpost', 'pgoutput')";
    shop.batch_execute(sql).await.expect("create a slot");
}

async fn drop_in_shop(clinic: &mut Clinic) {
    let shop = clinic.env.postgres.client("shop").await.expect("connect to PostgreSQL");
    shop.batch_execute(DROP_SLOT).await.expect("drop a slot");
}

/// Another program that has the slot's name. It goes when it is told to.
async fn read_by_somebody(clinic: &mut Clinic) {
    let url = format!("{}?application_name=intruder", clinic.owner);
    let target: servers::PostgresTarget = url.parse().expect("valid");
    let config = target.replication_config("tailpost", "tailpost").await.expect("valid");
    let mut client = ReplicationClient::connect(config).await.expect("connect");
    let is_read = "SELECT active FROM pg_replication_slots WHERE slot_name = 'tailpost'";
    until(DEADLINE, "somebody reads the slot", async || {
        let _ = tokio::time::timeout(Duration::from_millis(50), client.recv()).await;
        clinic.env.query::<bool>(is_read).await
    })
    .await;
    tokio::spawn(async move { while let Ok(Some(_)) = client.recv().await {} });
}

async fn clinic() -> Clinic {
    Clinic::open(TestEnv::with(TestEnvOptions::default()).await).await
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_tables_is_found_and_mended() {
    clinic().await.treat(TABLES).await;
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_publication_and_slot_is_found_and_mended() {
    let mut clinic = clinic().await;
    let (of_all, of_later) = PUBLICATIONS.split_at(5);
    clinic.treat(of_all).await;
    // Row filters and lists of columns came with PostgreSQL 15.
    let later = if clinic.env.postgres.version() >= 15 { of_later } else { &of_later[2..] };
    clinic.treat(later).await;
    clinic.treat(SLOTS).await;
}

/// PostgreSQL 18 drops slots that nobody reads, if it is told to.
// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drops_idle_slots_is_found_and_mended() {
    let postgres = PostgresOptions { version: Some(18), ..PostgresOptions::default() };
    let env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    let fault = Fault::new(
        "replication-idle-timeout",
        "warning",
        &[Sql(&[
            "ALTER SYSTEM SET idle_replication_slot_timeout = '1h'",
            "SELECT pg_reload_conf()",
        ])],
        &["ALTER SYSTEM SET idle_replication_slot_timeout = 0", "SELECT pg_reload_conf()"],
    );
    Clinic::open(env).await.treat(&[fault]).await;
}
