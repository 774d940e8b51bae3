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
}

const GRANTS: [&str; 2] = ["`tailpost doctor` has the GRANT that is missing"; 2];

const FAULTS: [Fault; 3] = [
    Fault {
        breaks: "REVOKE SELECT, UPDATE ON outbox_events FROM courier",
        told: ["permission denied for table outbox_events"; 2],
        hints: GRANTS,
        check: "outbox-privileges",
    },
    Fault {
        breaks: "REVOKE USAGE ON SCHEMA public FROM courier",
        told: ["permission denied for schema public"; 2],
        hints: GRANTS,
        check: "outbox-privileges",
    },
    Fault {
        breaks: "",
        told: ["invalid operation on sealed stream", "it is sealed and takes no more messages"],
        hints: [
            "`tailpost doctor` has the commands",
            "`nats stream rm OUTBOX`, and `tailpost setup`",
        ],
        check: "stream-seal",
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
