//! What keeps dead letters out of their table: none is lost for it, and the other events flow.

use lab::Port;
use support::{DEADLINE, TestEnv, until};

const FUNCTION: &str = "
    CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$";

const TRIGGER: &str = "
    CREATE TRIGGER lost BEFORE INSERT ON outbox_dead_letter FOR EACH ROW EXECUTE FUNCTION drops()";

const CHECK: &str = "
    ALTER TABLE outbox_dead_letter ADD CONSTRAINT small CHECK (length(reason) < 3) NOT VALID";

const DISABLE: &str = r#"ALTER TABLE "public"."outbox_dead_letter" DISABLE TRIGGER lost"#;

const DROP: &str = r#"ALTER TABLE "public"."outbox_dead_letter" DROP CONSTRAINT small"#;

const POISON: &str = "SELECT outbox_emit('order', 'p-1', 'Placed', '{}', headers => '[]')";

async fn a_refused_letter_is_not_lost(mode: &str, keeps: &str, mends: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    env.execute(FUNCTION).await;
    let relay = env.relay();
    env.insert(3).await;
    env.wait_stored(3).await;
    env.execute(keeps).await;
    env.execute(POISON).await;

    until(DEADLINE, "it is named", async || {
        let (told, _) = env.ends_with(0, &["status"]).await;
        told.contains(mends)
    })
    .await;
    let rows = "SELECT count(*) FROM outbox_events WHERE headers = '[]'";
    assert_eq!(env.query::<i64>(rows).await, 1, "the row is gone: {}", relay.log());
    if keeps == TRIGGER {
        let (told, _) = env.ends_with(1, &["doctor"]).await;
        let disable = "ALTER TABLE public.outbox_dead_letter DISABLE TRIGGER lost";
        assert!(told.contains(disable), "{told}");
    }
    if mode != "poll" {
        env.insert(3).await;
        env.wait_stored(6).await;
    }
    env.execute(mends).await;
    let letters = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "it is parked", async || env.query::<i64>(letters).await == 1).await;
    until(DEADLINE, "its row goes", async || env.query::<i64>(rows).await == 0).await;
    env.insert(3).await;
    env.wait_stored(if mode == "poll" { 6 } else { 9 }).await;
    env.ends_with(0, &["wait", "--all", "--timeout", "30s"]).await;
    assert_eq!(relay.exited(), None);
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_drops_dead_letters_loses_no_event() {
    a_refused_letter_is_not_lost("fenced", TRIGGER, DISABLE).await;
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_a_trigger_that_drops_dead_letters_loses_no_event() {
    a_refused_letter_is_not_lost("poll", TRIGGER, DISABLE).await;
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_that_refuses_a_dead_letter_stops_no_other_event() {
    a_refused_letter_is_not_lost("fenced", CHECK, DROP).await;
}
