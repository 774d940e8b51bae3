//! The rules on facts alone: providers, versions, ages and clocks that no test server has.

use crate::checks::Severity;
use crate::horizon::{Holder, Kind};
use tokio_postgres::error::SqlState;

use super::facts::{AnySlot, Broker, Permissions, Reader, SlotFacts, Subjects};
use super::*;

fn config(url: &str) -> Config {
    Config::new(url.parse().expect("valid"), "nats://localhost".parse().expect("valid"))
}

fn server() -> Server {
    let settings = [
        ("wal_level", "logical"),
        ("max_replication_slots", "10"),
        ("max_wal_senders", "10"),
        ("max_slot_wal_keep_size", "20480"),
        ("max_connections", "100"),
        ("shared_preload_libraries", ""),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Server {
        version: 180_000,
        database: "shop".into(),
        is_local: true,
        settings: settings.into(),
        ..Server::default()
    }
}

fn facts(server: Server) -> Facts {
    let slot = SlotFacts {
        plugin: Some("pgoutput".into()),
        database: Some("shop".into()),
        is_known: true,
        ..SlotFacts::default()
    };
    let subjects = vec!["outbox.>".into()];
    let config = async_nats::jetstream::stream::Config { subjects, ..Default::default() };
    let stream = facts::StreamFacts { config, ..facts::StreamFacts::default() };
    let shard = ShardFacts {
        publication: Ok(facts::Publication::Fit),
        slot: Ok(Some(slot)),
        lost: Ok(None),
        stream: Ok(Some(stream)),
        overlaps: Ok(Vec::new()),
    };
    Facts {
        locks: Ok(Vec::new()),
        server: Ok(server),
        role: Ok(Role {
            name: "ada".into(),
            may_replicate: true,
            connection_limit: -1,
            may_use_schema: true,
            ..Role::default()
        }),
        table: Ok(OutboxTable { exists: true, ..OutboxTable::default() }),
        contents: Ok(Contents::default()),
        replication: Ok(Ok(())),
        broker: Ok(Broker { version: "2.15.1".into(), ..Broker::default() }),
        shards: vec![Arc::new(shard)],
    }
}

const URL: &str = "postgres://ada@localhost/shop";

/// How the check comes out, and the texts of its remedies.
fn judged(config: &Config, facts: Facts, id: &str) -> (Severity, Vec<String>) {
    let checks = judge(config, &Arc::new(facts), &Scope::default());
    let check = checks.iter().find(|it| it.id == id).unwrap_or_else(|| panic!("no {id}"));
    let text = |it: &crate::checks::Remedy| it.text.clone();
    (check.severity, check.remedies.iter().map(text).collect())
}

fn of_server(change: impl FnOnce(&mut Server), id: &str) -> (Severity, Vec<String>) {
    let mut server = server();
    change(&mut server);
    judged(&config(URL), facts(server), id)
}

#[test]
fn a_fault_says_what_mends_it_and_what_is_well_says_nothing() {
    let checks = judge(&config(URL), &Arc::new(facts(server())), &Scope::default());
    for check in &checks {
        let is_fault = check.severity >= Severity::Warning;
        assert_eq!(is_fault, !check.remedies.is_empty(), "{check:?}");
        assert!(!check.evidence.is_empty(), "{check:?}");
        assert!(check.remedies.iter().all(|it| !it.text.ends_with(';')), "{check:?}");
    }
}

#[test]
fn what_cannot_be_asked_is_skipped_with_the_reason_and_the_rest_is_judged() {
    let mut unknown = facts(server());
    let said = "could not connect: connection refused".to_owned();
    unknown.server = Err(Failure { said, hint: Some("start it".into()), sqlstate: None });
    let Rest { role, table, contents, .. } = Rest::unknown(&config(URL), &no_postgres());
    (unknown.role, unknown.table, unknown.contents) = (role, table, contents);
    unknown.replication = Err(no_postgres());
    let checks = judge(&config(URL), &Arc::new(unknown), &Scope::default());
    let of = |id: &str| checks.iter().find(|it| it.id == id).expect(id);
    assert_eq!(of("postgres-reachable").severity, Severity::Error);
    assert_eq!(of("postgres-reachable").remedies[0].text, "start it");
    assert_eq!(of("replication-wal-level").severity, Severity::Skipped);
    assert_eq!(of("replication-wal-level").evidence, "PostgreSQL cannot be asked");
    assert_eq!(of("nats-version").severity, Severity::Ok);
}

#[test]
fn each_provider_is_known_by_what_only_it_has() {
    // Where wal_level cannot be set, what can is named.
    for (traits, remedy) in [
        ("rds_superuser", "set rds.logical_replication = 1"),
        ("cloudsqlsuperuser", "gcloud sql instances patch"),
        ("azure_pg_admin", "az postgres flexible-server parameter set"),
        ("neon_superuser", "enable logical replication"),
        ("supabase_admin", "ask Supabase's support"),
        ("cnpg.config_sha256", "set wal_level: logical below spec.postgresql.parameters"),
        ("nobody", "ALTER SYSTEM SET wal_level"),
    ] {
        let replica = |it: &mut Server| {
            it.traits = vec![traits.into()];
            it.settings.insert("wal_level".into(), "replica".into());
        };
        let (severity, remedies) = of_server(replica, "replication-wal-level");
        assert_eq!(severity, Severity::Error);
        assert!(remedies[0].starts_with(remedy), "{traits}: {remedies:?}");
    }
}

#[test]
fn a_failover_keeps_the_slot_where_the_provider_is_told_to() {
    let azure = |version: i32, settings: &'static [(&str, &str)]| {
        move |it: &mut Server| {
            (it.version, it.traits) = (version, vec!["azure_pg_admin".into()]);
            let settings = settings.iter().map(|it| (it.0.to_owned(), it.1.to_owned()));
            it.settings.extend(settings);
        }
    };
    let id = "managed-failover";
    let off = &[("sync_replication_slots", "off"), ("hot_standby_feedback", "on")];
    let (severity, remedies) = of_server(azure(170_000, off), id);
    assert_eq!(severity, Severity::Warning);
    assert!(remedies.len() == 1 && remedies[0].contains("sync_replication_slots"), "{remedies:?}");
    let (severity, remedies) = of_server(azure(160_000, &[]), id);
    assert_eq!(severity, Severity::Warning);
    assert!(remedies[0].contains("pg_failover_slots"), "{remedies:?}");
    let loaded = &[("shared_preload_libraries", "pg_cron,pg_failover_slots")];
    assert_eq!(of_server(azure(160_000, loaded), id).0, Severity::Ok);
    assert_eq!(of_server(|_| {}, id).0, Severity::Ok);
}

#[test]
fn poolers_are_known_by_their_hosts_and_by_what_they_answer() {
    for (host, direct) in [
        ("ep-cool-1-pooler.eu-central-1.aws.neon.tech", "ep-cool-1.eu-central-1.aws.neon.tech"),
        ("aws-0-eu-central-1.pooler.supabase.com", "db.PROJECT.supabase.co"),
    ] {
        let config = config(&format!("postgres://ada@{host}/shop"));
        let (severity, remedies) = judged(&config, facts(server()), "managed-direct-host");
        assert_eq!(severity, Severity::Error);
        assert!(remedies[0].contains(direct), "{remedies:?}");
    }
    for (said, sqlstate) in [
        ("syntax error at or near \"IDENTIFY_SYSTEM\"", Some("42601")),
        ("unsupported startup parameter: replication", Some("08P01")),
        ("syntax error at or near \"CREATE_REPLICATION_SLOT\"", None),
    ] {
        let mut refused = facts(server());
        let sqlstate = sqlstate.map(SqlState::from_code);
        refused.replication = Ok(Err(Failure { said: said.into(), hint: None, sqlstate }));
        let (severity, remedies) = judged(&config(URL), refused, "replication-connection");
        assert_eq!(severity, Severity::Error, "{said}");
        assert!(remedies[0].starts_with("name the database server itself"), "{remedies:?}");
    }
}

#[test]
fn a_slot_that_nobody_reads_is_soon_gone_at_neon() {
    let neon = || Server { traits: vec!["neon_superuser".into()], ..server() };
    let id = "managed-slot-removal";
    assert_eq!(judged(&config(URL), facts(neon()), id).0, Severity::Warning);
    let mut read = facts(neon());
    let slot = SlotFacts { reader: Some(Reader::default()), ..SlotFacts::default() };
    read.shards = vec![Arc::new(ShardFacts {
        publication: Ok(facts::Publication::Fit),
        slot: Ok(Some(slot)),
        lost: Ok(None),
        stream: Ok(None),
        overlaps: Ok(Vec::new()),
    })];
    assert_eq!(judged(&config(URL), read, id).0, Severity::Ok);
    let mut rewinding = config(URL);
    rewinding.rewind.retain = Some(1 << 30);
    let (severity, remedies) = judged(&rewinding, facts(neon()), id);
    assert_eq!((severity, &*remedies[0]), (Severity::Warning, "rewind.retain = \"off\""));
}

#[test]
fn who_keeps_old_rows_is_named_with_what_ends_it() {
    let id = "postgres-old-transactions";
    let held = |kind, pid, is_here, has_written| Holder {
        kind,
        pid,
        name: "it's".into(),
        has_written,
        is_here,
        database: Some("shop".into()),
        seconds: Some(301.0),
        transactions: 17,
    };
    assert_eq!(of_server(|_| {}, id).0, Severity::Ok);
    let on_standby = "on the standby, end the query that needs the rows (pg_stat_activity), or set \
                      hot_standby_feedback = off";
    for (kind, pid, remedy) in [
        (Kind::Session, Some(17), "SELECT pg_terminate_backend(17)"),
        (Kind::Prepared, None, "ROLLBACK PREPARED 'it''s'"),
        (Kind::Slot, None, "SELECT pg_drop_replication_slot('it''s')"),
        (Kind::Slot, Some(17), on_standby),
        (Kind::Standby, Some(17), on_standby),
    ] {
        let (severity, remedies) =
            of_server(|it| it.holders = vec![held(kind, pid, true, false)], id);
        assert_eq!((severity, &*remedies[0]), (Severity::Warning, remedy));
    }
    let said = |is_here, has_written| held(Kind::Prepared, None, is_here, has_written).said();
    assert_eq!(
        said(false, true),
        "transaction it's is prepared for 301 s, 17 transactions ago: a new slot waits for it"
    );
    assert!(said(true, true).contains("a new slot waits for it, vacuum"));
    assert!(said(true, false).contains("ago: vacuum removes no rows"));
}

#[test]
fn clocks_may_differ_by_seconds_and_a_slow_answer_proves_nothing() {
    let id = "postgres-clock";
    let ahead =
        |seconds, error| move |it: &mut Server| (it.clock_ahead, it.clock_error) = (seconds, error);
    assert_eq!(of_server(ahead(-4.9, 0.0), id).0, Severity::Ok);
    assert_eq!(of_server(ahead(6.0, 2.0), id).0, Severity::Ok);
    assert_eq!(of_server(ahead(-60.0, 0.1), id).0, Severity::Warning);
    assert_eq!(of_server(ahead(60.0, 5.1), id).0, Severity::Skipped);
    let mut late = facts(server());
    let clock = Some((60.0, 0.1));
    late.broker = Ok(Broker { clock, ..Broker::default() });
    assert_eq!(judged(&config(URL), late, "nats-clock").0, Severity::Warning);
}

#[test]
fn versions_and_encryption_are_judged() {
    let id = "postgres-version";
    assert_eq!(of_server(|it| it.version = 130_010, id).0, Severity::Error);
    assert_eq!(of_server(|it| it.version = 140_000, id).0, Severity::Ok);
    let far = |it: &mut Server| it.is_local = false;
    let (severity, remedies) = of_server(far, "postgres-encryption");
    assert_eq!(severity, Severity::Warning);
    assert_eq!(remedies, ["postgres.sslmode = \"verify-full\""]);
    for (version, severity) in
        [("2.10.26", Severity::Error), ("2.11.11", Severity::Ok), ("unknown", Severity::Skipped)]
    {
        let mut told = facts(server());
        told.broker = Ok(Broker { version: version.into(), ..Broker::default() });
        assert_eq!(judged(&config(URL), told, "nats-version").0, severity, "{version}");
    }
}

#[test]
fn slots_of_others_that_keep_the_log_are_named() {
    let left = |name: &str, active, mib: i64| AnySlot {
        name: name.into(),
        active,
        retained_bytes: mib << 20,
        ..AnySlot::default()
    };
    let id = "replication-other-slots";
    let slots = vec![
        left("tailpost", false, 5_000),
        left("standby_1", true, 5_000),
        left("small", false, 1_000),
    ];
    assert_eq!(of_server(|it| it.slots = slots.clone(), id).0, Severity::Ok);
    let slots = [slots, vec![left("debezium", false, 2_000)]].concat();
    let (severity, remedies) = of_server(|it| it.slots = slots, id);
    assert_eq!(severity, Severity::Warning);
    assert_eq!(remedies, ["SELECT pg_drop_replication_slot('debezium')"]);
}

#[test]
fn an_account_that_is_nearly_full_is_a_warning() {
    for (limit, used, severity) in
        [(-1, 1 << 40, Severity::Ok), (1000, 900, Severity::Ok), (1000, 901, Severity::Warning)]
    {
        let mut told = facts(server());
        told.broker = Ok(Broker { storage: Some((limit, used)), ..Broker::default() });
        assert_eq!(judged(&config(URL), told, "nats-storage").0, severity, "{limit} {used}");
    }
}

#[test]
fn what_is_denied_is_not_allowed_however_much_else_is() {
    let permitted = |allow: &[&str], deny: &[&str]| {
        let list = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let publish = Subjects { allow: Some(list(allow)), deny: list(deny) };
        let mut told = facts(server());
        let permissions = Some(Permissions { publish, ..Permissions::default() });
        told.broker = Ok(Broker { permissions, ..Broker::default() });
        judged(&config(URL), told, "nats-permissions")
    };
    assert_eq!(permitted(&[">"], &[]).0, Severity::Ok);
    assert_eq!(permitted(&[], &[]).0, Severity::Ok);
    for (allow, deny) in
        [(&["outbox.order.*", "$JS.>", "$SYS.>"][..], &[][..]), (&[">"], &["outbox.order.*"])]
    {
        let (severity, remedies) = permitted(allow, deny);
        assert_eq!(severity, Severity::Error, "{allow:?} {deny:?}");
        assert!(remedies[0].contains("\"outbox.*.*\""), "{remedies:?}");
    }
    let (severity, remedies) =
        permitted(&["outbox.>", "$JS.API.STREAM.>", "$JS.API.INFO", "$SYS.>"], &[]);
    assert_eq!(severity, Severity::Warning);
    assert!(remedies[0].contains("\"$JS.API.CONSUMER.LIST.OUTBOX\""), "{remedies:?}");
}
