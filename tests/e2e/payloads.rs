//! The payload need not be `jsonb`: the message has it as it is, and so has a dead letter.

use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

/// The table as an application makes it that wants another type of payload.
fn table(payload_type: &str) -> String {
    format!(
        "CREATE TABLE outbox_events (
             id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
             event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload {payload_type} NOT NULL,
             occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
             published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0, publish_error TEXT)"
    )
}

async fn insert(env: &TestEnv, aggregate_type: &str, payload: &str) -> Uuid {
    env.query(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         VALUES (gen_random_uuid(), '{aggregate_type}', 'o-1', 'Placed', {payload}) RETURNING id"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn json_text_and_bytes_are_relayed_and_parked_as_they_are() {
    for (payload_type, payload, bytes, emits) in [
        ("json", r#"'{"b":1.50, "b":2}'"#, &br#"{"b":1.50, "b":2}"#[..], true),
        ("text", "'no json'", b"no json", true),
        ("bytea", r"'\x00ff7b'", b"\x00\xff{", false),
    ] {
        let env = TestEnv::new().await;
        env.execute(&table(payload_type)).await;
        let mut expected = vec![insert(&env, "order", payload).await]; // the scanner's
        env.setup().await;
        let (again, _) = env.ends_with(0, &["setup"]).await;
        assert!(!again.contains("created"), "{again}");
        let _relay = env.relay();
        expected.push(insert(&env, "order", payload).await); // the log's
        env.wait_stored(2).await;
        env.wait_marked().await;
        let stream = env.stream().await;
        for (sequence, id) in (1..).zip(&expected) {
            let message = stream.get_raw_message(sequence).await.expect("a message");
            let stored = message.headers.get("Nats-Msg-Id").map(|it| it.as_str().to_owned());
            assert_eq!((stored, &*message.payload), (Some(id.to_string()), bytes));
        }
        let poison = insert(&env, &"x".repeat(300), payload).await;
        let kept = format!(
            "SELECT count(*) FROM outbox_dead_letter WHERE id = '{poison}'
                 AND pg_typeof(payload) = '{payload_type}'::REGTYPE
                 AND payload::TEXT = ({payload})::{payload_type}::TEXT"
        );
        until(DEADLINE, "it is parked as it was", async || env.query::<i64>(&kept).await == 1)
            .await;
        let emit = "SELECT to_regproc('outbox_emit') IS NOT NULL";
        assert_eq!(env.query::<bool>(emit).await, emits, "{payload_type}");
    }
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn dead_letters_that_could_not_keep_the_payload_are_noticed_before_they_are_needed() {
        let env = TestEnv::new().await;
        env.execute(&table("bytea")).await;
        env.setup().await;
        let relay = env.relay();
        insert(&env, &"x".repeat(300), r"'\x7b7d'").await;
        let parked = "SELECT count(*) FROM outbox_dead_letter";
        until(DEADLINE, "it is parked", async || env.query::<i64>(parked).await == 1).await;
        relay.kill9().await;
        drop(relay);

        for payload_type in ["jsonb", "text", "json", "bytea"] {
            let using = if payload_type == "jsonb" {
                "convert_from(payload, 'UTF8')"
            } else {
                "payload::TEXT"
            };
            let using =
                if payload_type == "bytea" { "convert_to(payload::TEXT, 'UTF8')" } else { using };
            // `setup` makes it where the payload is jsonb.
            env.execute(&format!(
                "DROP FUNCTION IF EXISTS outbox_emit;
                 ALTER TABLE outbox_events ALTER payload TYPE {payload_type} USING {using}::{payload_type}"
            ))
            .await;
            let (_, log) = env.ends_with(3, &["relay"]).await;
            assert!(log.contains(&format!("column payload {payload_type} in")), "{log}");
            assert!(log.contains("run `tailpost setup`"), "{log}");
            let (told, _) = env.ends_with(0, &["setup"]).await;
            assert!(told.contains("created  column payload in outbox_dead_letter"), "{told}");
            env.ends_with(0, &["relay", "--once"]).await;
            let kept = "SELECT CASE pg_typeof(payload)::TEXT WHEN 'bytea'
                            THEN convert_from(payload::TEXT::BYTEA, 'UTF8') ELSE payload::TEXT END
                        FROM outbox_dead_letter";
            assert_eq!(env.query::<String>(kept).await, "{}");
        }
    }
}
