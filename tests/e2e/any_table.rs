//! Others change the outbox's schema at random while a relay works under load: what is committed is
//! published once, whatever `tailpost setup` has to mend.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, until};

use crate::swapped::follow;

/// Changes that are made for each seed.
const CHANGES_MADE: usize = 8;

/// What somebody does to the table; `{n}` is a number that was not there before.
const CHANGES: &[&str] = &[
    "ALTER TABLE outbox_events DROP COLUMN stream_seq CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN commit_lsn CASCADE, DROP COLUMN next_attempt_at CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN txid CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN seq CASCADE",
    "ALTER TABLE outbox_events DROP COLUMN correlation_id CASCADE, DROP COLUMN event_version CASCADE",
    "ALTER TABLE outbox_events ADD COLUMN other{n} TEXT DEFAULT 'x'",
    "ALTER TABLE outbox_events ADD COLUMN other{n} INT DEFAULT (random() * 9)::int;
     ALTER TABLE outbox_events ALTER COLUMN other{n} TYPE BIGINT;
     ALTER TABLE outbox_events RENAME COLUMN other{n} TO another{n}",
    "CREATE DOMAIN short{n} AS TEXT CHECK (length(VALUE) < 9);
     ALTER TABLE outbox_events ADD COLUMN other{n} short{n}",
    "VACUUM FULL outbox_events",
    "DO $$ BEGIN
         EXECUTE format('CLUSTER outbox_events USING %s', (SELECT relname FROM pg_index
             JOIN pg_class ON oid = indexrelid
             WHERE indrelid = 'outbox_events'::regclass AND indisprimary));
     END $$",
    "REINDEX TABLE outbox_events",
    "DROP INDEX IF EXISTS idx_outbox_unpublished",
    "CREATE OR REPLACE FUNCTION passes() RETURNS trigger LANGUAGE plpgsql
         AS 'BEGIN RETURN NEW; END';
     CREATE TRIGGER passes{n} BEFORE INSERT OR UPDATE ON outbox_events
         FOR EACH ROW EXECUTE FUNCTION passes()",
    "ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY",
    "DROP TABLE tailpost_owed",
    "DROP TABLE tailpost_published, tailpost_retention CASCADE",
    "DROP VIEW outbox_status; DROP FUNCTION tailpost_jsonb",
    "BEGIN;
     ALTER TABLE outbox_events RENAME TO outbox_old{n};
     CREATE TABLE outbox_events (LIKE outbox_old{n} INCLUDING ALL);
     COMMIT",
    "BEGIN;
     ALTER TABLE outbox_events RENAME TO outbox_old{n};
     CREATE TABLE outbox_events (LIKE outbox_old{n} INCLUDING ALL);
     COMMIT",
];

fn start(env: &TestEnv) -> Relay {
    let relay = env.relay();
    relay.announce("");
    relay
}

async fn plays(seed: u64) {
    let mut env = TestEnv::with(TestEnvOptions::default()).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut relay = start(&env);
    let load = env.load(seed, 200.0).await;
    for n in 0..CHANGES_MADE {
        load.wait_committed(rng.random_range(1..100)).await;
        let change = CHANGES.choose(&mut rng).expect("changes").replace("{n}", &n.to_string());
        eprintln!("seed {seed}: {change}");
        env.execute(&change).await;
        load.wait_committed(rng.random_range(1..60)).await;
        follow(&env, "run `tailpost setup`".into()).await;
        if relay.exited().is_some() {
            let log = relay.log();
            assert!(
                log.contains("hint: ") || log.contains("ecause"),
                "seed {seed}: {change}\n{log}"
            );
            relay = start(&env);
        }
    }
    let written = load.stop().await;
    relay.kill9().await;
    follow(&env, "run `tailpost setup`".into()).await;
    let relay = start(&env);
    let end = env.wal_end().await;
    until(DEADLINE, &format!("seed {seed}: all is published and marked"), async || {
        assert!(relay.exited().is_none(), "seed {seed}\n{}", relay.log());
        env.unmarked().await == 0 && env.confirmed().await >= end
    })
    .await;
    let tally = env.tally(&written).await;
    assert_eq!((tally.lost, tally.duplicates, tally.phantoms), (0, 0, 0), "seed {seed}: {tally}");
}

mod long {
    use super::*;

    /// `EXAMPLES=n` plays a fifth as many seeds, which take long, `REPLAY_SEED=n` that one.
    // proves: G-SETUP-2, G-LOSS-9
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_others_change_of_the_table_under_load_costs_no_event() {
        let examples = std::env::var("EXAMPLES")
            .ok()
            .and_then(|it| it.parse().ok())
            .map_or(1, |it: u64| it.div_ceil(5));
        for seed in lab::seeds(examples) {
            plays(seed).await;
        }
    }
}
