//! The example `orders` does what it says.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{DEADLINE, until};

use super::Inbox;

#[tokio::test(flavor = "multi_thread")]
async fn the_warehouse_reserves_each_order_once_and_parks_what_it_cannot() {
    let inbox = Inbox::new().await;
    for n in 0..50 {
        inbox.publish(&format!("o-{n}"), json!({ "article": "book", "quantity": 2 })).await;
    }
    let nonsense = inbox.publish("o-x", json!({ "article": 7 })).await;
    let mut warehouse = Command::new(env!("CARGO_BIN_EXE_orders"))
        .env("DATABASE_URL", inbox.env.postgres.url("postgres"))
        .env("NATS_URL", inbox.env.nats.url())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let processed = "inbox_messages WHERE consumer = 'warehouse' AND status = 'PROCESSED'";
    let tables = "SELECT to_regclass('stock') IS NOT NULL";
    until(DEADLINE, "the tables are there", async || inbox.env.query(tables).await).await;
    inbox.wait_count(processed, 50).await;
    inbox.wait_count(&format!("inbox_dead_letter WHERE message_id = '{nonsense}'"), 1).await;
    kill_process(Pid::from_child(&warehouse), Signal::TERM).unwrap();
    let mut ended = None;
    until(DEADLINE, "the warehouse closes", async || {
        ended = warehouse.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert!(ended.unwrap().success());
    assert_eq!(inbox.env.query::<i32>("SELECT reserved FROM stock").await, 100);
}
