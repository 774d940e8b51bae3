//! Triggers of others on the inbox's tables that answer NULL: PostgreSQL says that all is well, and
//! nothing is written.

use lab::Port;
use support::{DEADLINE, TestEnv, get, until};

use super::http::{configure, set_up, wait_processed};
use super::service::{Service, emit};

/// Makes a trigger `no` that keeps rows out.
async fn keep_out(env: &TestEnv, when: &str, what: &str) {
    let statements = format!(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF {what} THEN RETURN NULL; END IF; RETURN NEW; END $$;
         CREATE TRIGGER no BEFORE {when} FOR EACH ROW EXECUTE FUNCTION no()"
    );
    env.execute(&statements).await;
}

/// Waits until `/readyz`, the log and `tailpost status` name it, and does what `doctor` says.
async fn told_and_mended(env: &TestEnv, admin: &Port, (words, code): (&str, i32)) {
    let ready = async || get(admin.addr(), "/readyz").await.unwrap_or_default();
    until(DEADLINE, "/readyz tells of it", async || {
        let told = ready().await;
        told.contains("HTTP/1.1 503") && told.contains("records are kept out")
    })
    .await;
    until(DEADLINE, &format!("status tells of `{words}`"), async || {
        env.ends_with(0, &["status"]).await.0.contains(words)
    })
    .await;
    let (found, _) = env.ends_with(code, &["doctor", "--only", "inbox-triggers"]).await;
    let remedy = found.lines().find_map(|it| it.trim().strip_prefix("-> psql> "));
    env.execute(remedy.expect("a remedy")).await;
    until(DEADLINE, "the inbox is ready", async || ready().await.contains("HTTP/1.1 200")).await;
}

async fn set_up_listening() -> (TestEnv, Port, tempfile::TempDir) {
    let mut env = set_up().await;
    let file = configure(&mut env);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &admin.addr().to_string());
    (env, admin, file)
}

/// An event that the service refuses is not acknowledged, nor its record dead, before its letter is
/// there. Events of other aggregates go on.
// proves: G-LETTER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_not_dead_before_its_letter_is_there() {
    let (env, admin, _file) = set_up_listening().await;
    keep_out(&env, "INSERT ON inbox_dead_letter", "true").await;
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("refused", 422);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let refused = emit(&env, "refused", "{}").await;
    until(DEADLINE, "it is refused", async || service.calls_of(refused) > 0).await;
    for aggregate in ["a", "b", "c"] {
        emit(&env, aggregate, "{}").await;
    }
    wait_processed(&env, 3).await;
    let all = ["wait", "--all", "--processed-by", "billing", "--timeout", "1s"];
    env.ends_with(6, &all).await;

    told_and_mended(&env, &admin, ("inbox_dead_letter", 1)).await;
    env.ends_with(0, &["wait", "--all", "--processed-by", "billing", "--timeout", "5m"]).await;
    assert_eq!(env.query::<i64>("SELECT count(*) FROM inbox_dead_letter").await, 1);
    let dead = "SELECT count(*) FROM inbox_messages WHERE status = 'DEAD'";
    assert_eq!(env.query::<i64>(dead).await, 1);
    assert_eq!(service.calls_of(refused), 1, "{}", inbox.log());
    let told = inbox.log().lines().filter(|it| it.contains("a record is kept out")).count();
    assert_eq!(told, 1, "{}", inbox.log());
}

/// What came of an event is kept out of its record.
// proves: G-SEEN-2
#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_a_trigger_keeps_out_is_no_lost_lease() {
    let (env, admin, _file) = set_up_listening().await;
    keep_out(&env, "UPDATE ON inbox_messages", "NEW.status = 'PROCESSED'").await;
    let _relay = env.relay();
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let ids = [emit(&env, "a", "{}").await, emit(&env, "b", "{}").await];

    told_and_mended(&env, &admin, ("inbox_messages", 0)).await;
    wait_processed(&env, 2).await;
    let log = inbox.log();
    assert!(!log.contains("the lease was lost"), "{log}");
    let calls = ids.map(|id| service.calls_of(id));
    assert_eq!(calls, [1, 1], "{log}");
}
