//! The database refuses the marks of some rows: the others are marked, and why is said.

use lab::Port;
use support::{DEADLINE, TestEnv, get, until};

const REFUSING: &str = "
    CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'order o-3 is frozen' USING DETAIL = OLD.payload::text; END $$;
    CREATE TRIGGER frozen BEFORE UPDATE ON outbox_events FOR EACH ROW
        WHEN (OLD.aggregate_id = 'o-3') EXECUTE FUNCTION frozen()";

const UNTAKEN: &str = "
    CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE TRIGGER kept BEFORE UPDATE ON outbox_events FOR EACH ROW
        WHEN (OLD.aggregate_id = 'o-3') EXECUTE FUNCTION kept()";

async fn others_are_marked(mode: &str, trigger: &str, name: &str, reason: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    env.execute(trigger).await;
    let relay = env.relay();
    // A tenth of them is of the aggregate.
    let ids = env.insert(300).await;
    until(DEADLINE, "all others are marked", async || env.unmarked().await == 30).await;
    let said = async || get(admin.addr(), "/api/v1/status").await.unwrap_or_default();
    let said = async || said().await.replace(' ', "");
    until(DEADLINE, "it is said", async || said().await.contains("\"refused_marks\":30,")).await;
    assert!(said().await.contains("\"owed_rows\":0,"), "nobody has locked them");
    let (status, _) = env.ends_with(0, &["status"]).await;
    let told =
        format!("30 rows of published or parked events cannot be marked or removed: {reason}");
    assert!(status.contains(&told) && !status.contains("wait for a lock"), "{status}");
    assert!(relay.log().contains(reason), "{}", relay.log());
    // What the trigger says may be data.
    assert!(!relay.log().contains("is frozen") && !status.contains("is frozen"), "{status}");
    // Later ones are isolated as well, and one that is only locked is not forgotten among them.
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    let sql = "SELECT FROM outbox_events WHERE aggregate_id = 'o-3' LIMIT 1 FOR UPDATE";
    lock.execute(sql, &[]).await.expect("lock a row");
    env.insert(100).await;
    until(DEADLINE, "all others are marked", async || env.unmarked().await == 40).await;
    lock.rollback().await.expect("let go");

    env.execute(&format!("DROP TRIGGER {name} ON outbox_events")).await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 400);
    assert_eq!(env.stored_ids().await[..300], ids);
    until(DEADLINE, "nothing is owed", async || {
        env.query::<i64>("SELECT count(*) FROM tailpost_owed").await == 0
    })
    .await;
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}

// proves: G-MARK-2
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_refuses_marks_of_some_rows_costs_the_others_nothing() {
    others_are_marked(
        "fenced",
        REFUSING,
        "frozen",
        "function frozen() refuses a row (SQLSTATE P0001",
    )
    .await;
}

const FUNCTION: &str = "
    CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$";

/// Marks name the outbox: triggers of its partitions fire all the same, if they are for each row.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_of_a_partition_is_named_with_what_it_does_to_marks() {
    let env = TestEnv::new().await;
    env.ends_with(0, &["setup", "--partitioned"]).await;
    env.insert(5).await;
    let today: String =
        env.query("SELECT DISTINCT tableoid::regclass::text FROM outbox_events").await;
    let trigger = |name: &str, table: &str, each: &str| {
        let function = "EXECUTE FUNCTION kept()";
        format!("CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH {each} {function}")
    };
    env.execute(FUNCTION).await;
    env.execute(&trigger("at_once", &today, "STATEMENT")).await;
    let (told, _) = env.ends_with(0, &["doctor"]).await;
    assert!(!told.contains("at_once"), "it never fires: {told}");
    env.execute(&trigger("kept", &today, "ROW")).await;
    env.execute(&trigger("wide", "outbox_events", "ROW")).await;
    let (told, _) = env.ends_with(0, &["doctor"]).await;
    let named = format!("wide of public.outbox_events, kept of public.{today}. If a trigger");
    assert!(told.contains(&named) && told.contains("gets no mark"), "{told}");
    env.execute("DROP TRIGGER wide ON outbox_events").await;

    let _relay = env.relay();
    let refused = "SELECT count(*) FROM tailpost_owed WHERE reason IS NOT NULL";
    until(DEADLINE, "it is noted", async || env.query::<i64>(refused).await == 5).await;
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("5 rows of published or parked events cannot be marked"), "{told}");
    let disable = format!("ALTER TABLE public.{today} DISABLE TRIGGER kept");
    let (told, _) = env.ends_with(0, &["doctor"]).await;
    assert!(told.contains(&disable), "{told}");
    env.execute(&disable).await;
    env.wait_marked().await;
    let (told, _) = env.ends_with(0, &["doctor"]).await;
    assert!(!told.contains("gets no mark"), "{told}");
    assert_eq!(env.stored_count().await, 5);
}

/// What keeps a row from being deleted, the statement that ends it, and what is said of it.
const KEEPING: [(&str, &str, &str); 5] = [
    (
        "CREATE TRIGGER kept BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION kept()",
        "ALTER TABLE public.outbox_events DISABLE TRIGGER kept",
        "a trigger leaves the row as it is",
    ),
    (
        "ALTER TABLE refers ADD CONSTRAINT its FOREIGN KEY (id) REFERENCES outbox_events NOT VALID",
        "ALTER TABLE public.refers DROP CONSTRAINT its",
        "constraint its refuses a row (SQLSTATE 23503",
    ),
    (
        "ALTER TABLE refers ADD CONSTRAINT later FOREIGN KEY (id) REFERENCES outbox_events
             DEFERRABLE INITIALLY DEFERRED NOT VALID",
        "ALTER TABLE public.refers DROP CONSTRAINT later",
        "constraint later refuses a row (SQLSTATE 23503",
    ),
    (
        "CREATE TRIGGER gone AFTER DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION raises()",
        "ALTER TABLE public.outbox_events DISABLE TRIGGER gone",
        "function raises() refuses a row (SQLSTATE P0001",
    ),
    (
        "CREATE TRIGGER once BEFORE DELETE ON outbox_events EXECUTE FUNCTION raises()",
        "ALTER TABLE public.outbox_events DISABLE TRIGGER once",
        "function raises() refuses a row (SQLSTATE P0001",
    ),
];

const PARKED: &str = "
    INSERT INTO refers SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')
    RETURNING id";

/// Whatever keeps the row of a parked event: the dead letter is written all the same, others flow, and why
/// its row stays is said, in any mode.
async fn a_parked_row_that_will_not_go_is_named(mode: &str, mark: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.set("TAILPOST_RELAY__MARK", mark);
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.setup().await;
    env.execute(FUNCTION).await;
    env.execute(
        "CREATE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'none is deleted'; END $$;
         CREATE TABLE refers (id uuid)",
    )
    .await;
    let letters = "SELECT count(*) FROM outbox_dead_letter";
    let settled = async || match mode {
        "poll" => env.wait_marked().await,
        _ => env.wait_confirmed().await,
    };

    let mut relay = env.relay();
    let (mut stored, mut parked) = (0, 0);
    for (keeps, mends, reason) in KEEPING {
        env.execute(keeps).await;
        env.insert(3).await;
        let id: uuid::Uuid = env.query(PARKED).await;
        env.insert(3).await;
        (stored, parked) = (stored + 6, parked + 1);
        env.wait_stored(stored).await;
        until(DEADLINE, "it is parked", async || env.query::<i64>(letters).await == parked).await;
        let owed = format!("SELECT coalesce(max(reason), '') FROM tailpost_owed WHERE id = '{id}'");
        until(DEADLINE, keeps, async || env.query::<String>(&owed).await.starts_with(reason)).await;
        let (told, _) = env.ends_with(0, &["status"]).await;
        assert!(
            told.contains("of published or parked events cannot be marked or removed: "),
            "{told}"
        );
        let (told, _) = env.ends_with(0, &["doctor"]).await;
        assert!(told.contains(mends), "{keeps}: {told}");
        // Neither the log nor a scan comes back to it.
        relay.kill9().await;
        relay = env.relay();
        env.insert(3).await;
        stored += 3;
        env.wait_stored(stored).await;
        env.execute(mends).await;
    }
    let left = "SELECT count(*) FROM outbox_events WHERE headers = '[]'";
    until(DEADLINE, "they go", async || env.query::<i64>(left).await == 0).await;
    settled().await;
    assert_eq!(env.stored_count().await, stored);
    assert_eq!(env.query::<i64>(letters).await, parked);
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(!told.contains("cannot be marked or removed"), "{told}");
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_deleted_rows_costs_no_dead_letter_and_no_other_event() {
    a_parked_row_that_will_not_go_is_named("fenced", "row").await;
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn without_marks_what_keeps_deleted_rows_costs_no_dead_letter_and_no_other_event() {
    a_parked_row_that_will_not_go_is_named("fenced", "lean").await;
}

// proves: G-DEAD-1
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_what_keeps_deleted_rows_costs_no_dead_letter_and_no_other_event() {
    a_parked_row_that_will_not_go_is_named("poll", "row").await;
}

mod long {
    use super::*;

    // proves: G-MARK-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_trigger_that_puts_rows_back_as_they_were_is_named() {
        let former = UNTAKEN.replace("RETURN NULL", "RETURN OLD");
        for mode in ["fenced", "poll"] {
            others_are_marked(mode, &former, "kept", "a trigger leaves the row as it is").await;
        }
    }

    // proves: G-MARK-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_trigger_that_leaves_rows_without_marks_is_named_and_nothing_is_swept_for_ever() {
        others_are_marked("fenced", UNTAKEN, "kept", "a trigger leaves the row as it is").await;
    }
}
