//! What stays wrong until somebody changes it ends the relay by name: `/readyz` answers no more. What
//! its hint says mends it.

use async_nats::jetstream::stream::Config;
use support::{DEADLINE, TestEnv};

struct Fault {
    /// Statements that break it; none where the stream is sealed.
    breaks: &'static str,
    /// The relay names it when it ends, and when it is started again.
    told: [&'static str; 2],
    hints: [&'static str; 2],
    check: &'static str,
    /// What `tailpost status` says beside that no relay reads the slot; nothing where it cannot look.
    status: &'static str,
}

const fn fault(
    breaks: &'static str,
    told: &'static str,
    hint: &'static str,
    check: &'static str,
) -> Fault {
    Fault { breaks, told: [told; 2], hints: [hint; 2], check, status: told }
}

/// So does `status` of each of them.
const DOCTOR: &str = "if it ends, `tailpost doctor` says why";

const GRANT: &str = "`tailpost doctor` has the GRANT that is missing";

const FAULTS: [Fault; 7] = [
    fault(
        "REVOKE SELECT, UPDATE ON outbox_events FROM courier",
        "permission denied for table outbox_events",
        GRANT,
        "outbox-privileges",
    ),
    fault(
        "REVOKE USAGE ON SCHEMA public FROM courier",
        "permission denied for schema public",
        GRANT,
        "outbox-privileges",
    ),
    fault(
        "ALTER TABLE outbox_events DROP COLUMN event_version CASCADE,
             ADD COLUMN event_version INT GENERATED ALWAYS AS (1) STORED",
        "column \"event_version\"",
        "DROP EXPRESSION",
        "publication",
    ),
    fault(
        "CREATE TABLE child () INHERITS (outbox_events)",
        "public.child",
        "run `ALTER TABLE public.child NO INHERIT",
        "publication",
    ),
    fault(
        "CREATE RULE kept AS ON UPDATE TO outbox_events DO INSTEAD NOTHING",
        "rule \"kept\" on UPDATE keeps the relay from its rows",
        "run `DROP RULE ",
        "publication",
    ),
    fault(
        "ALTER PUBLICATION tailpost DROP TABLE outbox_events",
        "it does not publish the outbox table",
        "run `ALTER PUBLICATION tailpost ADD TABLE",
        "publication",
    ),
    Fault {
        breaks: "",
        told: ["invalid operation on sealed stream", "it is sealed and takes no more messages"],
        hints: [
            "`tailpost doctor` has the commands",
            "`nats stream rm OUTBOX`, and `tailpost setup`",
        ],
        check: "stream-seal",
        status: "",
    },
];

/// The relay has a role of its own, to which tables and schema were granted.
async fn begun() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.setup().await;
    env.execute(
        "CREATE ROLE courier LOGIN REPLICATION;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO courier;
         GRANT USAGE ON SCHEMA public TO courier;
         REVOKE USAGE ON SCHEMA public FROM PUBLIC",
    )
    .await;
    env.set("DATABASE_URL", &as_role(&env, "courier"));
    env
}

fn as_role(env: &TestEnv, role: &str) -> String {
    env.postgres.url("postgres").replace("postgres@", &format!("{role}@"))
}

async fn seal(env: &TestEnv) {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let config = env.stream().await.cached_info().config.clone();
    let sealed = Config { sealed: true, ..config };
    jetstream.update_stream(sealed).await.expect("seal the stream");
}

/// Does what `doctor` says.
async fn mend(env: &mut TestEnv, doctor: &str) {
    let mut count = 0;
    for line in doctor.lines() {
        if let Some((_, statement)) = line.split_once("-> psql> ") {
            env.execute(statement).await;
        } else if line.contains("-> $ nats stream rm OUTBOX") {
            let jetstream = env.nats.jetstream().await.expect("connect to NATS");
            jetstream.delete_stream("OUTBOX").await.expect("remove the stream");
        } else if line.ends_with("-> $ tailpost setup") {
            env.set("DATABASE_URL", &as_role(env, "postgres"));
            env.setup().await;
            env.set("DATABASE_URL", &as_role(env, "courier"));
        } else {
            continue;
        }
        count += 1;
    }
    assert!(count > 0, "it says nothing:\n{doctor}");
}

async fn plays(fault: &Fault) {
    let mut env = begun().await;
    let relay = env.relay();
    let before = env.insert(5).await;
    env.wait_marked().await;
    match fault.breaks {
        "" => seal(&env).await,
        statement => env.execute(statement).await,
    }
    let after = env.insert(5).await;
    relay.announce("");
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    let (_, again) = env.ends_with(4, &["relay"]).await;
    for (at, log) in [relay.log(), again].iter().enumerate() {
        assert!(log.contains(fault.told[at]) && log.contains(fault.hints[at]), "{log}");
    }
    let status = env.spawn(&["status"]);
    status.announce("");
    status.wait_exit(DEADLINE).await;
    let said = status.stdout() + &status.log();
    let names_doctor = !said.contains("no relay reads") || said.contains(DOCTOR);
    assert!(
        said.contains(fault.status) && names_doctor,
        "status does not tell of `{}`:\n{said}",
        fault.status
    );
    let (found, _) = env.ends_with(1, &["doctor", "--only", fault.check]).await;
    mend(&mut env, &found).await;
    env.ends_with(0, &["doctor", "--only", fault.check]).await;
    let _relay = env.relay();
    env.wait_marked().await;
    // What the sealed stream had is in its backup.
    let stored = if fault.breaks.is_empty() { after } else { [before, after].concat() };
    assert_eq!(env.stored_ids().await, stored);
}

// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_the_relay_is_mended_by_what_it_says() {
    for fault in &FAULTS {
        plays(fault).await;
    }
}
