//! An operator with `tailpost status` and `tailpost outbox dlq`.

use async_nats::HeaderMap;
use lab::{NatsOptions, Port};
use serde_json::Value;
use support::{DEADLINE, SCRAPER, TestEnv, TestEnvOptions, ask, until};
use tokio::net::TcpStream;
use uuid::Uuid;

/// Events of a blocked aggregate while it is mended.
const BUSY: i32 = 300;

/// Payloads over 4 KiB are poison, and the scanner looks often.
async fn env(on_park: &str) -> TestEnv {
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__ON_PARK", on_park);
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    env
}

async fn emit(env: &TestEnv, aggregate: &str, n: i32, bytes: usize) -> Uuid {
    let sql = format!(
        "SELECT outbox_emit('order', '{aggregate}', 'Placed',
             jsonb_build_object('n', {n}, 'x', repeat('x', {bytes})))"
    );
    env.query(&sql).await
}

async fn dlq(env: &TestEnv, code: i32, args: &[&str]) -> (String, String) {
    let all: Vec<&str> = ["outbox", "dlq"].iter().chain(args).copied().collect();
    env.ends_with(code, &all).await
}

async fn wait_dead(env: &TestEnv, n: i64) {
    let sql = "SELECT count(*) FROM outbox_dead_letter WHERE discarded_at IS NULL";
    until(DEADLINE, &format!("{n} dead letters"), async || env.query::<i64>(sql).await == n).await;
}

/// The `n` of each stored event of an aggregate, in the stream's order.
async fn numbers(env: &TestEnv, aggregate: &str) -> Vec<i64> {
    let stored = env.stored().await.into_iter().map(|it| it.event());
    let of_it = stored.filter(|it| it.aggregate_id == aggregate);
    let payload = |it: outbox::Event| serde_json::from_slice::<Value>(&it.payload).expect("JSON");
    of_it.map(|it| payload(it)["n"].as_i64().expect("a number")).collect()
}

fn fixed(name: &str, json: &str) -> String {
    let path = std::env::temp_dir().join(format!("{name}-{}", Uuid::new_v4()));
    std::fs::write(&path, json).expect("write a payload");
    path.to_str().expect("UTF-8").to_owned()
}

/// Found with `status`, mended, published under its
/// own id within the duplicate window.
// proves: G-DEAD-4
#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_event_is_found_mended_and_published_under_its_own_id() {
    let env = env("skip").await;
    let _relay = env.relay();
    emit(&env, "a", 1, 9).await;
    let poison = emit(&env, "a", 2, 9_000).await;
    emit(&env, "a", 3, 9).await;
    wait_dead(&env, 1).await;
    env.wait_stored(2).await;

    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("tailpost outbox dlq list"), "{told}");
    assert!(told.contains("1 × payload and headers exceed"), "{told}");
    let id = poison.to_string();
    let (told, _) = dlq(&env, 0, &["list", "--direct"]).await;
    assert!(told.contains(&id) && told.contains("max_payload of <n> bytes"), "{told}");
    for (args, n) in [
        (&["--reason", "MAX_PAYLOAD"][..], 1),
        (&["--reason", "timeout"], 0),
        (&["--aggregate", "order:a", "--type", "Placed", "--since", "1h"], 1),
        (&["--aggregate", "order:b"], 0),
        (&["--since", "2099-01-01T00:00:00Z"], 0),
    ] {
        let args = [&["list", "--direct", "--json"], args].concat();
        let told: Value = serde_json::from_str(&dlq(&env, 0, &args).await.0).expect("JSON");
        assert_eq!(told["total"], n, "{args:?}");
    }
    let (told, _) = dlq(&env, 0, &["show", &id, "--direct"]).await;
    assert!(told.contains("order:a") && !told.contains("xxx"), "{told}");
    let (told, _) = dlq(&env, 0, &["show", &id, "--payload", "--direct"]).await;
    assert!(told.contains("xxx"), "{told}");

    let file = fixed("payload", r#"{"n": 2, "exact": 1.10}"#);
    let why = ["--why", "shortened", "--by", "ada"];
    let args = ["requeue", &id, "--payload-file", &file, "--wait", "10s", "--direct"];
    let (told, _) = dlq(&env, 0, &[&args[..], &why].concat()).await;
    assert_eq!(told.trim(), format!("{id} is published as sequence 3"));
    let stored = env.stored().await;
    assert_eq!((stored[2].id, stored[2].payload.as_str()), (poison, r#"{"n": 2, "exact": 1.10}"#));
    assert_eq!(env.stored_count().await, 3);
    let (told, _) = dlq(&env, 0, &["show", &id, "--direct"]).await;
    let said = "requeue by ada, payload replaced: shortened";
    assert!(told.contains("published") && told.contains(said), "{told}");
    let kept = "SELECT octet_length(old_payload::jsonb->>'x') FROM outbox_dead_letter_audit";
    assert_eq!(env.query::<i32>(kept).await, 9_000);
    dlq(&env, 3, &["requeue", &id, "--direct"]).await;
}

/// Its row may not have been visible yet when it was parked.
// proves: G-DEAD-4
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_still_there_becomes_what_its_dead_letter_was_mended_to() {
    let env = env("skip").await;
    for keys in ["", "ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey"] {
        env.execute(keys).await;
        let row =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
                headers)
            VALUES (gen_random_uuid(), 'order', 'a', 'Placed', '{}', '[]') RETURNING id";
        let id: Uuid = env.query(row).await;
        let mended = "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type,
                payload, headers, reason)
            SELECT id, aggregate_type, 'b', 'Paid', '{\"n\": 1}', '{\"x\": \"y\"}', '' FROM outbox_events";
        env.execute(mended).await;
        dlq(&env, 0, &["requeue", &id.to_string(), "--direct"]).await;
        let is = "WITH gone AS (DELETE FROM outbox_events RETURNING *)
            SELECT concat_ws(' ', aggregate_id, event_type, payload, headers) FROM gone";
        assert_eq!(env.query::<String>(is).await, r#"b Paid {"n": 1} {"x": "y"}"#, "{keys}");
    }
}

/// It was requeued and died again since somebody saw it.
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_died_again_is_another_one_than_was_seen() {
    let mut env = env("skip").await;
    let api = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &api.addr().to_string());
    env.set("TAILPOST_ADMIN__TOKEN", SCRAPER);
    let _relay = env.relay();
    let id = emit(&env, "a", 1, 9_000).await;
    wait_dead(&env, 1).await;
    let asked = async |method: &str, path: &str, tag: &str| {
        let headers = format!(
            "Host: {}\r\nAuthorization: Bearer {SCRAPER}\r\nContent-Type: application/json\r\n\
             If-Match: {tag}",
            api.addr()
        );
        let path = format!("/api/v1/outbox/dead-letter/{id}{path}");
        let stream = TcpStream::connect(api.addr()).await.expect("it listens");
        let body = if method == "GET" { "" } else { r#"{"by": "ada", "why": "a test"}"# };
        ask(stream, method, &path, &headers, body).await.expect("an answer")
    };
    let tag = async || {
        let shown = asked("GET", "", "*").await;
        let body = shown.split_once("\r\n\r\n").expect("a body").1;
        let shown: Value = serde_json::from_str(body).expect("JSON");
        shown["etag"].as_str().expect("a tag").to_owned()
    };
    let seen = tag().await;
    dlq(&env, 0, &["requeue", &id.to_string(), "--direct"]).await;
    wait_dead(&env, 1).await;
    until(DEADLINE, "it died again", async || tag().await != seen).await;
    for (method, path) in [("POST", "/requeue"), ("DELETE", "")] {
        let told = asked(method, path, &seen).await;
        assert!(told.starts_with("HTTP/1.1 412"), "{method}: {told}");
    }
    assert!(asked("DELETE", "", &tag().await).await.starts_with("HTTP/1.1 204"));
}

/// An event that is in the stream after all, because somebody brought it there, is not
/// published a second time, and the operator is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_stream_has_already_is_not_published_again() {
    let mut env = env("skip").await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "2m");
    let _relay = env.relay();
    let poison = emit(&env, "a", 1, 9_000).await;
    wait_dead(&env, 1).await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", poison.to_string());
    let jetstream = env.nats.jetstream().await.expect("connect");
    let sent = jetstream.publish_with_headers("outbox.order.Placed", headers, "{}".into()).await;
    sent.expect("send").await.expect("stored");
    let (id, file) = (poison.to_string(), fixed("again", "{}"));
    let args = ["requeue", &id, "--payload-file", &file, "--wait", "10s", "--direct"];
    let (told, _) = dlq(&env, 0, &args).await;
    assert!(told.contains("sequence 1: the stream had it already"), "{told}");
    assert_eq!(env.stored_count().await, 1);

    // Published by its row: there is nothing to requeue.
    env.execute(&format!(
        "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload, reason)
         SELECT id, aggregate_type, aggregate_id, event_type, payload, 'restored by mistake'
         FROM outbox_events WHERE id = '{id}'"
    ))
    .await;
    let (_, said) = dlq(&env, 4, &["requeue", &id, "--direct"]).await;
    assert!(said.contains("published already"), "{said}");
}

/// Later events of the aggregate wait, across a restart, hold nobody else up, and
/// follow in order.
// proves: G-DEAD-3
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_aggregate_waits_across_restarts_and_follows_in_order() {
    let env = env("block_key").await;
    let relay = env.relay();
    emit(&env, "a", 1, 9).await;
    let poison = emit(&env, "a", 2, 9_000).await;
    let mut waiting = Vec::new();
    for n in 3..6 {
        waiting.push(emit(&env, "a", n, 9).await);
        emit(&env, "b", n, 9).await;
    }
    wait_dead(&env, 4).await;
    env.wait_confirmed().await;
    assert_eq!(numbers(&env, "b").await, [3, 4, 5], "held up by another aggregate");
    relay.kill9().await;
    drop(relay);
    let _relay = env.relay();
    for n in 6..9 {
        emit(&env, "a", n, 9).await;
    }
    wait_dead(&env, 7).await;
    env.wait_confirmed().await;
    assert_eq!(numbers(&env, "a").await, [1]);
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("blocked      1 aggregate"), "{told}");
    let (_, said) = dlq(&env, 4, &["requeue", &waiting[0].to_string(), "--direct"]).await;
    assert!(said.contains(&format!("waits for {poison}")), "{said}");

    let file = fixed("head", r#"{"n": 2}"#);
    let id = poison.to_string();
    let args = ["requeue", &id, "--payload-file", &file, "--direct"];
    let more = async {
        for n in 9..BUSY {
            emit(&env, "a", n, 9).await;
        }
    };
    // Its aggregate does not stand still meanwhile.
    tokio::join!(more, dlq(&env, 0, &args));
    wait_dead(&env, 0).await;
    env.wait_stored(u64::try_from(BUSY).expect("positive") + 2).await;
    env.wait_marked().await;
    assert_eq!(numbers(&env, "a").await, (1..i64::from(BUSY)).collect::<Vec<_>>());
    let again =
        "SELECT count(*) FROM outbox_dead_letter_audit WHERE action = 'release' AND event_id = ";
    let again: i64 = env.query(&format!("{again} '{poison}'")).await;
    assert_eq!(again, 0, "the log brought what was requeued, and it was parked again");
}

/// The tail of a blocked aggregate goes in one step, or follows when what it
/// waits for is discarded.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_aggregate_is_requeued_whole_or_goes_on_without_its_head() {
    let env = env("block_key").await;
    let relay = env.relay();
    for aggregate in ["a", "b"] {
        emit(&env, aggregate, 1, 9_000).await;
        for n in 2..5 {
            emit(&env, aggregate, n, 9).await;
        }
    }
    wait_dead(&env, 8).await;
    let head: Uuid = env
        .query("SELECT id FROM outbox_dead_letter WHERE aggregate_id = 'a' AND blocked_by IS NULL")
        .await;
    let discard = ["discard", &head.to_string(), "--why", "tests", "--direct"];
    let (_, said) = dlq(&env, 4, &discard).await;
    assert!(said.contains("--yes"), "{said}");
    dlq(&env, 0, &[&discard[..], &["--yes"]].concat()).await;
    env.wait_stored(3).await;
    assert_eq!(numbers(&env, "a").await, [2, 3, 4]);

    env.execute(
        "UPDATE outbox_dead_letter SET payload = '{\"n\": 1}'
         WHERE aggregate_id = 'b' AND blocked_by IS NULL",
    )
    .await;
    let whole = ["requeue", "--aggregate", "order:b", "--direct"];
    let (told, _) = dlq(&env, 0, &[&whole[..], &["--dry-run"]].concat()).await;
    assert!(told.starts_with("to requeue: 4 dead letters"), "{told}");
    dlq(&env, 0, &[&whole[..], &["--yes"]].concat()).await;
    env.wait_stored(7).await;
    env.wait_marked().await;
    assert_eq!(numbers(&env, "b").await, [1, 2, 3, 4]);
    drop(relay);
}

/// Types of Rails, empty types and ids: what is printed is what `--aggregate` takes. Of two that are
/// printed the same none is touched.
#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_is_named_as_it_is_printed() {
    let env = env("block_key").await;
    let _relay = env.relay();
    let parked = async |kind: &str, id: &str, n: i64| {
        let sql = format!(
            "SELECT outbox_emit('{kind}', '{id}', 'Placed',
                 jsonb_build_object('n', 1, 'x', repeat('x', 9000)))"
        );
        env.query::<Uuid>(&sql).await;
        wait_dead(&env, n).await;
        let waiting: Uuid =
            env.query(&format!("SELECT outbox_emit('{kind}', '{id}', 'Paid', '{{}}')")).await;
        wait_dead(&env, n + 1).await;
        waiting.to_string()
    };
    for (kind, id) in [("Billing::Invoice", "17"), ("order", ""), ("", "x"), ("shop", "order:1")] {
        let waiting = parked(kind, id, 1).await;
        let (_, said) = dlq(&env, 4, &["requeue", &waiting, "--direct", "--yes"]).await;
        let printed = said.split_once("--aggregate ").expect("a hint").1;
        let printed = printed.split_whitespace().next().expect("an aggregate");
        assert_eq!(printed, format!("{kind}:{id}"));
        env.execute("UPDATE outbox_dead_letter SET payload = '{\"n\": 1}'").await;
        dlq(&env, 0, &["requeue", "--aggregate", printed, "--direct", "--yes"]).await;
        wait_dead(&env, 0).await;
    }
    env.wait_marked().await;
    let again = ["replay", "--aggregate", "Billing::Invoice:17", "--json"];
    let (planned, _) = env.ends_with(0, &again).await;
    let planned: Value = serde_json::from_str(&planned).expect("JSON");
    assert_eq!(planned["plans"][0]["events"], 2, "{planned}");

    parked("shop", "order:2", 1).await;
    parked("shop:order", "2", 3).await;
    let (told, _) = dlq(&env, 0, &["list", "--aggregate", "shop:order:2", "--direct"]).await;
    assert!(told.contains("4"), "{told}");
    for all in [&["requeue"][..], &["requeue", "--all-matching"]] {
        let named = ["--aggregate", "shop:order:2", "--direct", "--yes"];
        let (_, said) = dlq(&env, 4, &[all, &named].concat()).await;
        let both = "type 'shop' and id 'order:2', type 'shop:order' and id '2'";
        assert!(said.contains(both), "{said}");
    }
    wait_dead(&env, 4).await;
}

/// Through a relay, with its token: plan, dry run, rate, exit codes.
#[tokio::test(flavor = "multi_thread")]
async fn many_are_worked_through_by_a_relay_that_is_asked() {
    let mut env = env("skip").await;
    let admin = Port::reserve().expect("a port");
    let nobody = ["list"];
    dlq(&env, 5, &nobody).await;
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.set("TAILPOST_ADMIN__TOKEN", "sesame");
    let relay = env.relay();
    relay.wait_active().await;
    for n in 0..30 {
        emit(&env, &format!("a-{}", n % 3), n, 9_000).await;
    }
    wait_dead(&env, 30).await;
    let shorten = "UPDATE outbox_dead_letter SET payload = jsonb_build_object('n', payload->'n')";
    env.execute(shorten).await;
    let (told, _) = dlq(&env, 0, &["list", "--limit", "5"]).await;
    assert!(told.contains("30 dead letters") && told.contains("3 aggregates"), "{told}");

    let some = ["requeue", "--all-matching", "--aggregate", "order:a-1"];
    let (told, _) = dlq(&env, 0, &[&some[..], &["--dry-run"]].concat()).await;
    assert!(told.contains("to requeue: 10 dead letters"), "{told}");
    wait_dead(&env, 30).await;
    let (told, plan) =
        dlq(&env, 0, &[&some[..], &["--rate", "20", "--yes", "--json"]].concat()).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["done"], &told["total"]), (&10.into(), &10.into()), "{told}");
    assert!(plan.contains("to requeue: 10"), "the plan was not shown: {plan}");
    env.wait_stored(10).await;
    assert_eq!(numbers(&env, "a-1").await, (0..10).map(|it| it * 3 + 1).collect::<Vec<_>>());

    let (told, _) = dlq(&env, 0, &["discard", "--all-matching", "--yes", "--why", "tests"]).await;
    assert_eq!(told.trim(), "discarded 20 of 20");
    let done = "SELECT count(*) FROM outbox_dead_letter_audit
                WHERE action = 'discard' AND via = 'http' AND why = 'tests'";
    assert_eq!(env.query::<i64>(done).await, 20);
    let unknown = Uuid::new_v4().to_string();
    let (_, said) = dlq(&env, 2, &["discard", "--all-matching", "--yes"]).await;
    assert!(said.contains("--why"), "{said}");
    dlq(&env, 3, &["show", &unknown]).await;
    dlq(&env, 3, &["requeue", &unknown]).await;
    env.set("TAILPOST_ADMIN__TOKEN", "guessed");
    let (_, said) = dlq(&env, 4, &["list"]).await;
    assert!(said.contains("admin.token"), "{said}");
    env.set("TAILPOST_ADMIN__TOKEN", "sesame");

    // Nobody publishes it: the relay is gone, and the database keeps it for the next one.
    emit(&env, "z", 1, 9_000).await;
    wait_dead(&env, 1).await;
    env.execute(shorten).await;
    relay.kill9().await;
    drop(relay);
    let id: Uuid = env.query("SELECT id FROM outbox_dead_letter WHERE discarded_at IS NULL").await;
    let id = id.to_string();
    dlq(&env, 5, &["requeue", &id]).await;
    dlq(&env, 6, &["requeue", &id, "--wait", "300ms", "--direct"]).await;
    let _relay = env.relay();
    env.wait_stored(11).await;
}

/// Where nobody can be asked, nobody said yes.
#[tokio::test(flavor = "multi_thread")]
async fn many_are_neither_requeued_nor_discarded_unless_somebody_says_yes() {
    let env = env("skip").await;
    let _relay = env.relay();
    for n in 0..3 {
        emit(&env, "a", n, 9_000).await;
    }
    wait_dead(&env, 3).await;
    env.wait_marked().await;
    let state = "SELECT (SELECT jsonb_agg(to_jsonb(d) ORDER BY id) FROM outbox_dead_letter AS d)
                 || coalesce((SELECT jsonb_agg(to_jsonb(a)) FROM outbox_dead_letter_audit AS a), '[]')
                 || coalesce((SELECT jsonb_agg(to_jsonb(e)) FROM outbox_events AS e), '[]')";
    let before: Value = env.query(state).await;
    for args in [
        &["requeue", "--all-matching"][..],
        &["requeue", "--aggregate", "order:a"],
        &["discard", "--all-matching", "--why", "tests"],
    ] {
        let (told, said) = dlq(&env, 4, &[args, &["--direct"]].concat()).await;
        assert!(said.contains("3 dead letters") && said.contains("--yes"), "{args:?}: {said}");
        assert_eq!(told, "", "{args:?}");
        let after: Value = env.query(state).await;
        assert_eq!(after, before, "{args:?} changed something");
    }
    assert_eq!(env.stored_count().await, 0);
}

/// Bytes stay bytes, and a limit that was raised counts from the moment it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_bytes_is_requeued_as_it_was_once_the_stream_takes_it() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.execute(
        "CREATE TABLE outbox_events (
             id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id UUID NOT NULL,
             event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload BYTEA NOT NULL,
             occurred_at TIMESTAMP DEFAULT NOW(), correlation_id UUID, causation_id UUID,
             published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0, publish_error TEXT)",
    )
    .await;
    env.setup().await;
    let limit = async |max_message_size| {
        let mut config = env.stream().await.cached_info().config.clone();
        config.max_message_size = max_message_size;
        let jetstream = env.nats.jetstream().await.expect("connect to NATS");
        jetstream.update_stream(config).await.expect("limit the stream");
    };
    limit(4_096).await;
    let _relay = env.relay();
    let id: Uuid = env
        .query(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES (gen_random_uuid(), 'order', gen_random_uuid(), 'Placed',
                 '\\x00ff7b' || convert_to(repeat('x', 9000), 'UTF8')) RETURNING id",
        )
        .await;
    wait_dead(&env, 1).await;
    limit(-1).await;
    let before: String = env.query("SELECT occurred_at::TEXT FROM outbox_dead_letter").await;
    dlq(&env, 0, &["requeue", &id.to_string(), "--wait", "10s", "--direct"]).await;
    let message = env.stream().await.get_raw_message(1).await.expect("a message");
    assert_eq!(message.payload.len(), 9_003);
    assert_eq!(message.payload[..4], *b"\x00\xff{x");
    let after = "SELECT (occurred_at AT TIME ZONE 'UTC')::TEXT FROM outbox_events";
    assert_eq!(env.query::<String>(after).await, before);
}

/// What is requeued is the scanner's, although its row passes the log.
// proves: G-DEAD-4
#[tokio::test(flavor = "multi_thread")]
async fn the_log_leaves_a_requeued_event_to_the_scanner() {
    let mut env = env("skip").await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "1h");
    let relay = env.relay();
    relay.wait_active().await;
    let poison = emit(&env, "a", 1, 9_000).await;
    wait_dead(&env, 1).await;
    let file = fixed("logged", "{}");
    dlq(&env, 0, &["requeue", &poison.to_string(), "--payload-file", &file, "--direct"]).await;
    let next = emit(&env, "a", 2, 9).await;
    env.wait_stored(1).await;
    assert_eq!(env.stored_ids().await, [next]);
    relay.kill9().await;
    drop(relay);
    let _relay = env.relay();
    env.wait_stored(2).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, [next, poison]);
}
