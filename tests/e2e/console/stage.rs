//! A relay, an inbox with a consumer, a console, and a browser that has signed in.

use std::net::SocketAddr;

use lab::{NatsOptions, Port};
use support::{Browser, DEADLINE, Relay, TestEnv, TestEnvOptions, get, until};
use tempfile::TempDir;
use uuid::Uuid;

use crate::inbox::service::Service;

pub(super) struct Stage {
    pub(super) env: TestEnv,
    pub(super) relay: Relay,
    pub(super) inbox: Relay,
    pub(super) service: Service,
    pub(super) console: Relay,
    pub(super) base: String,
    tokens: TempDir,
    ports: [Port; 3],
}

impl Stage {
    /// Payloads over 4 KiB become dead letters, which block their aggregate.
    pub(super) async fn new(flags: &[&str]) -> Self {
        Self::with(flags, &[]).await
    }

    /// The same with these settings, too.
    pub(super) async fn with(flags: &[&str], settings: &[(&str, &str)]) -> Self {
        let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        let ports = [(); 3].map(|()| Port::reserve().expect("a free port"));
        let tokens = tempfile::tempdir().expect("a folder for tokens");
        let mut known = Vec::new();
        for role in ["viewer", "operator", "admin"] {
            let file = tokens.path().join(role);
            std::fs::write(&file, format!("{role}-token\n")).expect("write a token");
            known.push(format!("{role}:{}", file.display()));
        }
        let [relay, inbox, console] = ports.each_ref().map(Port::addr);
        env.set("TAILPOST_ADMIN__LISTEN", &relay.to_string());
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox.to_string());
        env.set("TAILPOST_ADMIN__TOKENS", &known.join(","));
        env.set("TAILPOST_CONSOLE__INBOXES", &format!("http://{inbox}"));
        env.set("TAILPOST_RELAY__ON_PARK", "block_key");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
        env.set("TAILPOST_METRICS__INTERVAL", "500ms");
        env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1");
        settings.iter().for_each(|(name, value)| env.set(name, value));
        env.setup().await;
        env.ends_with(0, &["inbox", "setup"]).await;
        let service = Service::start().await;
        let of_relay = env.relay();
        let args = service.args();
        let of_inbox = env.spawn(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let listen = console.to_string();
        let of_console = env.spawn(&[&["console", "--listen", &listen], flags].concat());
        for address in [relay, inbox, console] {
            wait_listening(address).await;
        }
        let base = format!("http://{console}");
        let (relay, inbox) = (of_relay, of_inbox);
        Self { env, relay, inbox, service, console: of_console, base, tokens, ports }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A browser in which somebody with this role has signed in.
    pub(super) async fn browser(&self, role: &str) -> Browser {
        let browser = Browser::start().await;
        self.sign_in(&browser, role).await;
        browser
    }

    pub(super) async fn sign_in(&self, browser: &Browser, role: &str) {
        browser.go(&self.url("/sign-in")).await;
        browser.type_into("#token", &format!("{role}-token")).await;
        browser.click("main button").await;
        browser.wait_text(".who", role).await;
    }

    /// Commits an event with a payload of this size.
    pub(super) async fn emit(&self, aggregate: &str, bytes: usize) -> Uuid {
        let sql = format!(
            "SELECT outbox_emit('order', '{aggregate}', 'Placed',
                 jsonb_build_object('n', 9007199254740993, 'x', repeat('x', {bytes})))"
        );
        self.env.query(&sql).await
    }

    /// One that the broker refuses.
    pub(super) async fn poison(&self, aggregate: &str) -> Uuid {
        let id = self.emit(aggregate, 5_000).await;
        let sql = format!("SELECT count(*) FROM outbox_dead_letter WHERE id = '{id}'");
        let what = "it is a dead letter";
        until(DEADLINE, what, async || self.env.query::<i64>(&sql).await == 1).await;
        id
    }

    /// One that the consumer's service refuses.
    pub(super) async fn refuse(&self, aggregate: &str) -> Uuid {
        self.service.answer_to(aggregate, 422);
        let id = self.emit(aggregate, 10).await;
        let sql = format!("SELECT count(*) FROM inbox_dead_letter WHERE message_id = '{id}'");
        let what = "it is a dead letter of the inbox";
        until(DEADLINE, what, async || self.env.query::<i64>(&sql).await == 1).await;
        id
    }

    /// Removes a token.
    pub(super) fn revoke(&self, role: &str) {
        std::fs::remove_file(self.tokens.path().join(role)).expect("remove a token");
    }

    /// Another console at the same port, with nobody's sessions.
    pub(super) async fn restart_console(&mut self) {
        let listen = self.console_port();
        self.console = self.env.spawn(&["console", "--listen", &listen.to_string()]);
        wait_listening(listen).await;
    }

    pub(super) fn console_port(&self) -> SocketAddr {
        self.ports[2].addr()
    }

    pub(super) fn relay_port(&self) -> SocketAddr {
        self.ports[0].addr()
    }
}

pub(super) async fn wait_listening(address: SocketAddr) {
    let is_there = async || get(address, "/livez").await.is_some();
    until(DEADLINE, &format!("{address} answers"), is_there).await;
}
