//! Servers that are frozen, as a virtual machine or a full disk freezes them: connections stay open
//! and nobody answers. Operators see it in `/readyz`, of the relay and of the inbox, as
//! docs/operations.md shows it.

use lab::Port;
use support::{DEADLINE, Relay, TestEnv, ask, get, until};
use tokio::net::TcpStream;

use crate::inbox::http::{set_up, wait_processed};
use crate::inbox::service::Service;
use crate::pages::shown::{json_shape, readyz, section, steps_below};

const PAGE: &str = include_str!("../../docs/operations.md");
const HANGS: &str = "## A server that hangs";

struct Scene {
    env: TestEnv,
    relay_api: Port,
    inbox_api: Port,
    relay: Relay,
    inbox: Relay,
    _service: Service,
}

impl Scene {
    async fn new() -> Self {
        let mut env = set_up().await;
        let (relay_api, inbox_api) = (reserved(), reserved());
        env.set("TAILPOST_ADMIN__LISTEN", &relay_api.addr().to_string());
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox_api.addr().to_string());
        let relay = env.relay();
        let service = Service::start().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        env.insert(5).await;
        wait_processed(&env, 5).await;
        let scene = Self { env, relay_api, inbox_api, relay, inbox, _service: service };
        scene.both("200").await;
        scene
    }

    /// Waits until both say the same.
    async fn both(&self, code: &str) {
        for (name, api) in [("relay", &self.relay_api), ("inbox", &self.inbox_api)] {
            let mut told = String::new();
            until(DEADLINE, &format!("/readyz of the {name} answers {code}"), async || {
                told = get(api.addr(), "/readyz").await.unwrap_or_default();
                told.starts_with(&format!("HTTP/1.1 {code} "))
            })
            .await;
            eprintln!("{name}: {}", told.lines().last().unwrap_or_default());
        }
    }

    /// Waits until both say what the page shows below a heading, as its `n`th answers.
    async fn both_show(&self, heading: &str, n: usize) {
        let page = section(PAGE, heading);
        for (api, port) in [(&self.relay_api, 9464), (&self.inbox_api, 9465)] {
            let shown = readyz(page, port);
            let Some(shown) = shown.get(n) else { continue };
            let mut told = String::new();
            until(DEADLINE, &format!("{heading}: {shown}"), async || {
                let answer = get(api.addr(), "/readyz").await.unwrap_or_default();
                let answer = answer.lines().last().unwrap_or_default();
                if told != answer {
                    eprintln!("{answer}");
                    answer.clone_into(&mut told);
                }
                json_shape(answer) == *shown
            })
            .await;
        }
    }

    /// What an operator does with the consumer.
    async fn control(&self, action: &str) {
        let stream = TcpStream::connect(self.inbox_api.addr()).await.expect("connect");
        let headers = format!("Host: {}\r\nContent-Type: application/json", self.inbox_api.addr());
        let path = format!("/api/v1/consumers/billing/{action}");
        let told = ask(stream, "POST", &path, &headers, r#"{"by": "ada"}"#).await;
        let told = told.expect("an answer");
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    }

    /// Everything goes on, in the same processes.
    async fn goes_on(&self, events: i64) {
        self.both("200").await;
        wait_processed(&self.env, events).await;
        self.env.wait_marked().await;
        for process in [&self.relay, &self.inbox] {
            assert!(process.exited().is_none(), "{}", process.log());
        }
    }
}

fn reserved() -> Port {
    Port::reserve().expect("a free port")
}

// proves: G-SEEN-1
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_postgresql_is_seen_and_costs_nothing() {
    let scene = Scene::new().await;
    scene.env.postgres.pause().expect("pause PostgreSQL");
    scene.both("503").await;
    scene.both_show(HANGS, 1).await;
    scene.env.postgres.resume().expect("resume PostgreSQL");
    scene.env.insert(5).await;
    scene.goes_on(10).await;
}

mod long {
    use super::*;

    /// A consumer that an operator has paused is ready, but not while its database does not answer.
    // proves: G-SEEN-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_frozen_postgresql_is_seen_behind_a_pause() {
        let scene = Scene::new().await;
        scene.control("pause").await;
        until(DEADLINE, "the consumer is paused", async || {
            let told = get(scene.inbox_api.addr(), "/readyz").await.unwrap_or_default();
            told.starts_with("HTTP/1.1 200 ") && told.contains("\"state\":\"paused\"")
        })
        .await;
        scene.env.postgres.pause().expect("pause PostgreSQL");
        scene.both("503").await;
        scene.env.postgres.resume().expect("resume PostgreSQL");
        scene.both("200").await;
        scene.control("resume").await;
        scene.env.insert(5).await;
        scene.goes_on(10).await;
    }

    // proves: G-SEEN-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_frozen_nats_is_seen_and_costs_nothing() {
        let scene = Scene::new().await;
        scene.env.nats.pause().expect("pause NATS");
        // A relay that has nothing to send misses nothing.
        scene.env.insert(5).await;
        scene.both("503").await;
        scene.both_show(HANGS, 0).await;
        let away = "## A broker that is away";
        let [status] = steps_below(PAGE, away);
        status.play_until(&scene.env, &[]).await;
        scene.both_show(away, 0).await;
        scene.env.nats.resume().expect("resume NATS");
        scene.goes_on(10).await;
    }
}
