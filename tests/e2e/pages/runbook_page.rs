//! docs/operations.md, trouble by trouble. What frozen servers show is held against it by `frozen`.

use async_nats::jetstream::stream::Config;
use lab::Port;
use support::{DEADLINE, TestEnv, ask, get, until};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::shown::{json_shape, readyz, section, steps_below};
use crate::inbox::http::{set_up, wait_processed};
use crate::inbox::service::Service;

const PAGE: &str = include_str!("../../../docs/operations.md");

/// What the page calls its events.
const POISON: &str = "d75cc0d1-9aa8-4982-974f-1ed8bf28c9ee";
const WAITING: &str = "426f2470-2006-4de3-a597-c3a2da79b034";
const REFUSED: &str = "a318f7d3-75af-49ee-92a3-3a726137c335";

async fn emit(env: &TestEnv, aggregate: &str, kind: &str, payload: &str) -> Uuid {
    env.query(&format!("SELECT outbox_emit('order', '{aggregate}', '{kind}', {payload})")).await
}

/// Waits until a table of dead letters has so many.
async fn wait_dead(env: &TestEnv, table: &str, count: i64) {
    let sql = format!("SELECT count(*) FROM {table}");
    let are_there = async || env.query::<i64>(&sql).await == count;
    until(DEADLINE, &format!("{table} has {count}"), are_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_of_relay_and_inbox_is_mended_as_the_runbook_shows() {
    let mut env = set_up().await;
    let [admin, inbox_admin] = [(); 2].map(|()| Port::reserve().expect("a free port"));
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox_admin.addr().to_string());
    env.set("TAILPOST_RELAY__ON_PARK", "block_key");
    // The page closes the breaker before it probes by itself.
    env.set("TAILPOST_INBOX__BACKOFF", "24h");
    let relay = env.relay();
    relay.wait_active().await;
    what_the_stream_does_not_take(&env).await;

    let service = Service::start().await;
    service.answer_to("o-16", 422);
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    wait_processed(&env, 3).await;
    what_the_service_does_not_take(&env, &service).await;
    a_handler_that_is_away(&env, &service, &inbox_admin).await;
}

async fn what_the_stream_does_not_take(env: &TestEnv) {
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let config = env.stream().await.cached_info().config.clone();
    let edit = async |max_message_size, max_messages| {
        let config = Config { max_message_size, max_messages, ..config.clone() };
        jetstream.update_stream(config).await.expect("edit the stream");
    };
    edit(2_000, -1).await;
    let large = "json_build_object('x', repeat('x', 3000))::jsonb";
    let poison = emit(env, "o-17", "OrderPaid", large).await;
    let waiting = emit(env, "o-17", "OrderShipped", "'{}'").await;
    wait_dead(env, "outbox_dead_letter", 2).await;
    let [list, requeue] = steps_below(PAGE, "## A poisoned event");
    let [blocked] = steps_below(PAGE, "## A blocked aggregate");
    let (poison_id, waiting_id) = (poison.to_string(), waiting.to_string());
    let instead = [(POISON, &*poison_id), (WAITING, &*waiting_id)];
    list.play(env, &instead).await;
    blocked.play(env, &instead).await;
    edit(-1, -1).await;
    requeue.play(env, &instead).await;
    env.wait_stored(2).await;
    assert_eq!(env.stored_ids().await, [poison, waiting]);

    edit(-1, 2).await;
    emit(env, "o-18", "OrderPaid", "'{}'").await;
    let [status] = steps_below(PAGE, "## A full stream");
    status.play_until(env, &[]).await;
    edit(-1, -1).await;
    env.wait_stored(3).await;
}

async fn what_the_service_does_not_take(env: &TestEnv, service: &Service) {
    let id = emit(env, "o-16", "OrderPaid", "'{\"total\": 990}'").await.to_string();
    wait_dead(env, "inbox_dead_letter", 1).await;
    let [list, show, requeue, reject] = steps_below(PAGE, "## An event that cannot be handled");
    let instead = [(REFUSED, &*id)];
    for step in [list, show, requeue] {
        step.play(env, &instead).await;
    }
    // It is refused once more.
    service.wait_calls(5).await;
    let dead = "SELECT count(*) FROM inbox_messages WHERE status = 'DEAD'";
    until(DEADLINE, "it is dead again", async || env.query::<i64>(dead).await == 1).await;
    reject.play(env, &instead).await;
}

async fn a_handler_that_is_away(env: &TestEnv, service: &Service, api: &Port) {
    service.answer(503);
    for aggregate in ["o-20", "o-21", "o-22"] {
        emit(env, aggregate, "OrderPaid", "'{}'").await;
    }
    let page = section(PAGE, "## A handler that is away");
    let expected = readyz(page, 9465).remove(0);
    until(DEADLINE, "/readyz says that the handler is away", async || {
        let told = get(api.addr(), "/readyz").await.unwrap_or_default();
        json_shape(told.lines().last().unwrap_or_default()) == expected
    })
    .await;
    service.answer(204);
    let (_, path) = page.split_once("\n    http://127.0.0.1:9465").expect("the breaker is closed");
    let path = path.lines().next().expect("a path");
    let (_, body) = page.split_once(" -d '").expect("with a body");
    let body = body.split('\'').next().expect("a body");
    let stream = TcpStream::connect(api.addr()).await.expect("the inbox listens");
    let headers = format!("Host: {}\r\nContent-Type: application/json", api.addr());
    let told = ask(stream, "POST", path, &headers, body).await.expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    wait_processed(env, 6).await;
}
