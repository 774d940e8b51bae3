//! Nothing is found where nothing is wrong, whatever goes on.

use std::io::Write;

use lab::NatsOptions;
use serde_json::Value;
use support::{DEADLINE, Load, TestEnv, TestEnvOptions, until};
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::{nothing_is_found, report, unjudged};

/// Events of which a route drops those of one type.
const ROUTES: &str = "[[route]]\nevent_type = \"Dropped\"\ndrop = true\n";

/// Comparisons while the load goes on, of which each other one has a relay killed beside it.
const COMPARISONS: usize = 4;

struct Scene {
    env: TestEnv,
    _routes: NamedTempFile,
}

/// Payloads over 4 KiB are parked, and a route drops some events.
async fn scene(settings: &[(&str, &str)]) -> Scene {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let mut routes = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
    routes.write_all(ROUTES.as_bytes()).expect("write the routes");
    env.set("TAILPOST_CONFIG", routes.path().to_str().expect("UTF-8"));
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    for (name, value) in settings {
        env.set(name, value);
    }
    Scene { env, _routes: routes }
}

/// Parks events, drops some, and requeues a parked one, mended.
async fn disturb(env: &TestEnv, round: usize) {
    let emit = |kind: &str, bytes: usize| {
        format!(
            "SELECT outbox_emit('order', 'd-{round}', '{kind}',
                 jsonb_build_object('x', repeat('x', {bytes})))"
        )
    };
    env.query::<Uuid>(&emit("Dropped", 3)).await;
    let poison: Uuid = env.query(&emit("Placed", 9_000)).await;
    env.query::<Uuid>(&emit("Placed", 9_000)).await;
    env.query::<Uuid>(&emit("Placed", 3)).await;
    let dead = format!("SELECT count(*) FROM outbox_dead_letter WHERE id = '{poison}'");
    until(DEADLINE, "an event is parked", async || env.query::<i64>(&dead).await == 1).await;
    let mut payload = NamedTempFile::new().expect("create a file");
    payload.write_all(b"{\"mended\": true}").expect("write a payload");
    let (id, path) = (poison.to_string(), payload.path().to_str().expect("UTF-8"));
    let args = ["outbox", "dlq", "requeue", &id, "--payload-file", path, "--why", "x", "--direct"];
    env.ends_with(0, &args).await;
}

/// Compares again and again while events are written, rolled back, parked, dropped, requeued, and
/// relays are killed.
async fn compare_under_load(scene: &Scene) {
    let env = &scene.env;
    env.setup().await;
    // Rows that no log brings.
    env.insert(200).await;
    let mut relay = env.relay();
    let load = env.load(7, 200.0).await;
    load.wait_committed(200).await;
    for round in 0..COMPARISONS {
        disturb(env, round).await;
        let restart = async {
            if round % 2 == 1 {
                relay.kill9().await;
                relay = env.relay();
            }
        };
        let (compared, ()) = tokio::join!(report(env, 0, &[]), restart);
        assert!(compared["matched"].as_u64() > Some(0), "{compared}");
    }
    stop(load).await;
    env.wait_marked().await;
    let compared = nothing_is_found(env).await;
    assert_eq!(compared["pending"], 0, "{compared}");
    assert_eq!(compared["dead_letters"], COMPARISONS as u64, "{compared}");
}

/// Ends the load, which has rolled transactions back.
async fn stop(load: Load) {
    let written = load.stop().await;
    assert!(!written.committed.is_empty() && !written.rolled_back.is_empty());
}

/// As [`compare_under_load`], where not every row has a mark: relays are killed beside each
/// comparison. Returns the last one.
async fn compare_without_marks(env: &TestEnv) -> Value {
    env.setup().await;
    let mut relay = env.relay();
    let load = env.load(7, 200.0).await;
    load.wait_committed(200).await;
    for round in 0..COMPARISONS {
        disturb(env, round).await;
        relay.kill9().await;
        relay = env.relay();
        report(env, 0, &[]).await;
    }
    stop(load).await;
    report(env, 0, &[]).await
}

mod long {
    use super::*;

    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_in_fenced_mode() {
        let scene = scene(&[]).await;
        compare_under_load(&scene).await;
        let compared = nothing_is_found(&scene.env).await;
        assert!(unjudged(&compared, "dropped") >= COMPARISONS as u64, "{compared}");
    }

    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_in_keyed_mode() {
        compare_under_load(&scene(&[("TAILPOST_RELAY__MODE", "keyed")]).await).await;
    }

    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_in_poll_mode() {
        compare_under_load(&scene(&[("TAILPOST_RELAY__MODE", "poll")]).await).await;
    }

    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_with_two_shards() {
        let mut scene = scene(&[]).await;
        scene.env.set_shards(2);
        compare_under_load(&scene).await;
    }

    /// Rows are gone once they are published.
    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_where_rows_are_deleted() {
        let scene = scene(&[("TAILPOST_RELAY__MARK", "delete")]).await;
        let compared = compare_without_marks(&scene.env).await;
        assert!(unjudged(&compared, "deleted") > 200, "{compared}");
    }

    /// Rows have no marks, and say nothing of where their events are.
    // proves: G-VERIFY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_found_under_load_by_watermark() {
        let scene = scene(&[("TAILPOST_RELAY__MARK", "lean")]).await;
        let compared = compare_without_marks(&scene.env).await;
        assert!(compared["matched"].as_u64() > Some(200), "{compared}");
    }
}
