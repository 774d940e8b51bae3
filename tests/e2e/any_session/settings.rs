//! Whatever a role or a database sets for its sessions, events get out and have their effect.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Relay, TestEnv, until};

use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

/// How many sets of settings are drawn. `EXAMPLES=n` says how many, `REPLAY_SEED=n` with which to begin.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse().expect("a number"));
    let first = number("REPLAY_SEED").unwrap_or(1);
    first..first + number("EXAMPLES").unwrap_or(1)
}

const EVENTS: i32 = 60;

/// What can be set for a role's sessions. Left out is who they are, and libraries.
const SETTINGS: &str = "
    SELECT name, vartype, min_val, max_val, enumvals, coalesce(unit, '') FROM pg_settings
    WHERE context IN ('user', 'superuser')
        AND name NOT IN ('role', 'session_authorization', 'application_name')
        AND name !~ 'libraries|librarydir|library_path|^log_|^trace_|^debug_print|^transaction_(is|re|de)'
    ORDER BY name";

/// Times after which the server ends a session, a transaction or a statement. In less than this no
/// session can say anything.
const ENDS: &[&str] = &[
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "statement_timeout",
    "transaction_timeout",
];
const MS_MIN: i64 = 300;
const MS_MAX: i64 = 1_500;

const TEXTS: &[(&str, &[&str])] = &[
    ("DateStyle", &["SQL, DMY", "German", "Postgres, YMD"]),
    ("TimeZone", &["Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati"]),
    ("client_encoding", &["LATIN1", "SQL_ASCII", "EUC_JP"]),
    ("search_path", &["", "pg_temp", "nowhere", "information_schema"]),
    ("timezone_abbreviations", &["Australia", "India"]),
    ("default_text_search_config", &["pg_catalog.simple"]),
];

/// A value that is legal, as an SQL literal's text.
fn draw(rng: &mut StdRng, name: &str, kind: &str, row: &tokio_postgres::Row) -> Option<String> {
    if ENDS.contains(&name) {
        return Some(rng.random_range(MS_MIN..MS_MAX).to_string());
    }
    let bound = |at: usize| row.get::<_, Option<String>>(at).expect("numbers have bounds");
    Some(match kind {
        "bool" => ["on", "off"][rng.random_range(0..2)].into(),
        "enum" => {
            let values: Vec<String> = row.get(4);
            values[rng.random_range(0..values.len())].clone()
        }
        "integer" => {
            let (least, most): (i64, i64) =
                (bound(2).parse().expect("a number"), bound(3).parse().expect("a number"));
            // What is reserved at once has to be there.
            let most = if row.get::<_, &str>(5).is_empty() { most } else { most.min(100_000) };
            [least, most.max(least), rng.random_range(least..=most.max(least).min(least + 5_000))]
                [rng.random_range(0..3)]
            .to_string()
        }
        "real" => [bound(2), bound(3)][rng.random_range(0..2)].clone(),
        _ => {
            let (_, texts) = TEXTS.iter().find(|(it, _)| *it == name)?;
            texts[rng.random_range(0..texts.len())].into()
        }
    })
}

/// Who owns the outbox and runs everything, and the statements that set what its sessions begin with.
async fn plant(env: &mut TestEnv, seed: u64) -> Vec<String> {
    env.execute(
        "CREATE ROLE courier LOGIN REPLICATION;
         GRANT CREATE ON DATABASE postgres TO courier;
         ALTER SCHEMA public OWNER TO courier",
    )
    .await;
    let client = env.client().await;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut planted = Vec::new();
    for row in client.query(SETTINGS, &[]).await.expect("settings") {
        let (name, kind): (&str, &str) = (row.get(0), row.get(1));
        if rng.random_range(0..2) == 0 && !ENDS.contains(&name) {
            continue;
        }
        let Some(value) = draw(&mut rng, name, kind, &row) else { continue };
        let value = match (name, value.as_str()) {
            // A list.
            ("search_path", text) if !text.is_empty() => text.to_owned(),
            (_, text) => format!("'{text}'"),
        };
        let ours = format!("ALTER ROLE postgres IN DATABASE postgres SET {name} FROM CURRENT");
        let set = match rng.random_range(0..3) {
            0 => format!("ALTER ROLE courier SET {name} = {value}"),
            1 => format!("ALTER ROLE courier IN DATABASE postgres SET {name} = {value}"),
            // Not for who looks at it all.
            _ => format!("{ours}; ALTER DATABASE postgres SET {name} = {value}"),
        };
        // Some cannot be set like this, or only together.
        if client.batch_execute(&set).await.is_ok() {
            planted.push(set);
        }
    }
    let url = env.postgres.url("postgres").replace("postgres@", "courier@");
    env.set("DATABASE_URL", &url);
    planted
}

/// The youngest of a program's sessions is older than what would have ended it.
async fn wait_idle(env: &TestEnv, name: &str) {
    let old = format!(
        "SELECT coalesce(min(clock_timestamp() - backend_start) > '{} ms', false)
         FROM pg_stat_activity WHERE application_name LIKE '{name}%'",
        2 * MS_MAX
    );
    until(DEADLINE, "the sessions are old", async || env.query::<bool>(&old).await).await;
}

fn assert_undisturbed(process: &Relay, planted: &[String]) {
    let log = process.log();
    for told in ["starting anew", "is away", "terminating connection", "canceling statement"] {
        assert!(!log.contains(told), "{}\n{log}", planted.join("\n"));
    }
}

async fn try_with(seed: u64) {
    let mut env = TestEnv::new().await;
    let planted = plant(&mut env, seed).await;
    eprintln!("seed {seed}, {} settings\n{}", planted.len(), planted.join("\n"));
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env.insert(EVENTS).await;
    let relay = env.relay();
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    wait_processed(&env, i64::from(EVENTS)).await;
    wait_idle(&env, "tailpost").await;
    env.execute("SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')").await;
    let ids = env.insert(EVENTS).await;
    wait_processed(&env, i64::from(2 * EVENTS)).await;
    env.wait_marked().await;
    assert_undisturbed(&relay, &planted);
    assert_undisturbed(&inbox, &planted);
    let id = ids[0].to_string();
    for args in [
        &["status"][..],
        &["doctor", "--skip", "postgres-clock"],
        &["verify"],
        &["wait", "--all", "--timeout", "60s"],
        &["outbox", "dlq", "list", "--direct"],
        &["inbox", "dlq", "list"],
        &["replay", "--event-id", &id],
        &["explain", &id],
        &["maintain"],
        &["setup"],
    ] {
        env.ends_with(0, args).await;
    }
    let parked: i64 = env.query("SELECT count(*) FROM outbox_dead_letter").await;
    assert_eq!(parked, 1, "the one whose headers are no object");
    assert_eq!(service.calls().len(), 2 * usize::try_from(EVENTS).expect("positive"));
}

/// `EXAMPLES=n` draws more.
// proves: G-SESSION-1
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_role_or_a_database_sets_by_default_events_have_their_effect() {
    for seed in seeds() {
        try_with(seed).await;
    }
}
