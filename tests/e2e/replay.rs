//! `tailpost replay`: events are published once more, each once, in order.

mod cannot_be_read;
mod decisions;
mod from_the_log;
mod goes_on;
mod permissions;
mod restored;
mod rewind_slot;
mod selections;

use serde_json::Value;
use support::{DEADLINE, Stored, TestEnv, until};
use uuid::Uuid;

/// The copies that a replay stored, in the stream's order.
async fn copies(env: &TestEnv, replay: &str) -> Vec<Stored> {
    let mut stored = env.stored().await;
    stored.retain(|it| it.header("Tailpost-Replay") == Some(replay));
    stored
}

fn ids(messages: &[Stored]) -> Vec<Uuid> {
    messages.iter().map(|it| it.event().id).collect()
}

/// Runs `tailpost replay`, and returns what it says as JSON.
async fn replay(env: &TestEnv, code: i32, args: &[&str]) -> Value {
    let (told, said) = env.ends_with(code, &[&["replay", "--json"], args].concat()).await;
    eprintln!("{told}\n{said}");
    serde_json::from_str(&told).expect("one JSON object")
}

/// Asks for a replay, and does not wait. Returns its id.
pub(crate) async fn ask(env: &TestEnv, args: &[&str]) -> String {
    let asked = ["--execute", "--why", "a test", "--by", "ada", "--detach"];
    let told = replay(env, 0, &[args, &asked].concat()).await;
    told["replays"][0].as_str().expect("an id").to_owned()
}

/// What `tailpost replays show` says.
async fn shown(env: &TestEnv, id: &str) -> Value {
    let (told, _) = env.ends_with(0, &["replays", "show", id, "--json"]).await;
    serde_json::from_str(&told).expect("one JSON object")
}

/// Waits until a replay is over, and returns what is said of it.
pub(crate) async fn wait_done(env: &TestEnv, id: &str) -> Value {
    let status = format!("SELECT status FROM tailpost_replays WHERE id = '{id}'");
    let is_done = async || env.query::<String>(&status).await == "done";
    until(2 * DEADLINE, "the replay is done", is_done).await;
    shown(env, id).await
}

/// All events in the order of their commits.
async fn in_commit_order(env: &TestEnv) -> Vec<Uuid> {
    env.query("SELECT array_agg(id ORDER BY commit_lsn NULLS FIRST, seq) FROM outbox_events").await
}
