//! What stops events is seen: `/readyz` is red within a bound and says why, `tailpost status`,
//! `tailpost doctor` and an alert say it too, and all of that ends when it is mended.
//!
//! A fault is an entry of [`FAULTS`]: a function that breaks something and mends it, and what is told.
//! A fault that stops no event, or that Tailpost repairs by itself, leaves `/readyz` as it is: the others
//! tell of it.

mod from_the_field;
mod what_ends;
mod what_stops;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use lab::{NatsOptions, Port, PostgresOptions, Process, Proxy, Stranger};
use support::{DEADLINE, Prometheus, Relay, SCRAPER, TestEnv, TestEnvOptions, ask, until};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_postgres::Client;

use self::what_stops::FAULTS;
use crate::alerts;
use crate::inbox::http::{configure, processed, set_up_with, wait_processed};
use crate::inbox::service::Service;

/// Faults under way at a time.
const AT_ONCE: usize = 3;

/// Red comes within the 30 s that a process may be without progress, and what the look takes.
const RED_WITHIN: Duration = Duration::from_secs(90);

/// Who is ready for so long is not about to be red.
const STAYS_READY: Duration = Duration::from_secs(40);

/// Of an account.
const MAPPING: &str = "mappings = { \"outbox.bill.*\": \"outbox.other.{{wildcard(1)}}\" }";

/// What the inbox is for.
const SUBJECTS: &str = "TAILPOST_INBOX__BILLING__SUBJECTS";

/// What a stream or a database lost by coming back is told long after it was mended.
const KEPT: [&str; 2] = ["came back", "lacks what was ack"];

enum Phase {
    Break,
    Mend,
}

#[derive(Clone, Copy)]
enum Side {
    Relay,
    Inbox,
}

type Steps<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What is told of a fault, in parts of it.
struct Told {
    /// Of whom.
    by: Side,
    /// What `/readyz` answers, and what it says then.
    code: &'static str,
    readyz: &'static str,
    status: &'static str,
    /// The check that fails or warns, and what it names. None if `doctor` does not look at it: it calls
    /// no handler, counts no claims and compares no messages.
    doctor: Option<(&'static str, &'static str)>,
    /// None where events flow as ever.
    alert: Option<&'static str>,
}

impl Told {
    /// Events flow, or will by themselves.
    const fn stays_ready(self) -> Self {
        Self { code: "200", ..self }
    }

    const fn without_alert(self) -> Self {
        Self { alert: None, ..self }
    }
}

struct Fault {
    name: &'static str,
    plays: for<'a> fn(&'a mut Scene, Phase) -> Steps<'a>,
    told: Told,
    /// Versions of servers, if others have not what breaks.
    postgres: Option<u32>,
    nats: Option<&'static str>,
    /// Whether the account stores some events under other subjects, and the inbox is for some.
    is_mapped: bool,
}

impl Fault {
    const fn on_postgres(self, version: u32) -> Self {
        Self { postgres: Some(version), ..self }
    }

    const fn on_nats(self, version: &'static str) -> Self {
        Self { nats: Some(version), ..self }
    }

    const fn with_mapping(self) -> Self {
        Self { is_mapped: true, ..self }
    }

    fn servers(&self) -> TestEnvOptions {
        let postgres = PostgresOptions { version: self.postgres, ..PostgresOptions::default() };
        let config = if self.is_mapped { vec![MAPPING.to_owned()] } else { Vec::new() };
        let version = self.nats.map(str::to_owned);
        let nats = NatsOptions { version, config, ..NatsOptions::default() };
        TestEnvOptions { postgres, nats, ..TestEnvOptions::default() }
    }
}

/// A relay and an inbox at work.
struct Scene {
    env: TestEnv,
    relay_api: Port,
    inbox_api: Port,
    relay: Option<Relay>,
    inbox: Option<Relay>,
    /// The network before the handler.
    handler: Proxy,
    _service: Service,
    prometheus: Prometheus,
    /// Who holds a lock.
    holder: Option<Client>,
    /// A program beside.
    beside: Option<Process>,
    /// Who answers in the broker's place.
    stranger: Option<Stranger>,
    /// The consumer's settings.
    _file: TempDir,
}

impl Scene {
    async fn new(fault: &Fault) -> Self {
        let mut env = set_up_with(fault.servers()).await;
        let file = configure(&mut env);
        if fault.is_mapped {
            env.set(SUBJECTS, "outbox.order.>,outbox.bill.>");
        }
        let (relay_api, inbox_api) = (reserved(), reserved());
        env.set("TAILPOST_ADMIN__LISTEN", &relay_api.addr().to_string());
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox_api.addr().to_string());
        env.set("TAILPOST_ADMIN__TOKEN", SCRAPER);
        env.set("TAILPOST_METRICS__INTERVAL", "300ms");
        let jobs = [("tailpost-relay", relay_api.addr()), ("tailpost-inbox", inbox_api.addr())];
        let rules = alerts::rules().replace("age_seconds) > 60", "age_seconds) > 5");
        let prometheus = Prometheus::start(&jobs, &rules, &[]).await;
        let service = Service::start().await;
        let handler = Proxy::start(service.address()).await.expect("start a proxy");
        let relay = env.relay();
        relay.announce("");
        let inbox = run_inbox(&env, &handler);
        env.insert(5).await;
        wait_processed(&env, 5).await;
        let scene = Self {
            env,
            relay_api,
            inbox_api,
            relay: Some(relay),
            inbox: Some(inbox),
            handler,
            _service: service,
            prometheus,
            holder: None,
            beside: None,
            stranger: None,
            _file: file,
        };
        for by in [Side::Relay, Side::Inbox] {
            scene.answers(by, "200", "").await;
        }
        scene
    }

    async fn stop(&mut self) {
        let relay = self.relay.take().expect("a relay");
        relay.sigterm();
        relay.wait_exit(DEADLINE).await;
    }

    async fn stop_inbox(&mut self) {
        let inbox = self.inbox.take().expect("an inbox");
        inbox.sigterm();
        inbox.wait_exit(DEADLINE).await;
    }

    fn start_inbox(&mut self) {
        self.inbox = Some(run_inbox(&self.env, &self.handler));
    }

    fn start(&mut self) {
        let relay = self.env.relay();
        relay.announce("");
        self.relay = Some(relay);
    }

    /// As who does not want to wait for the breaker does: its pause may be minutes.
    async fn restart(&mut self) {
        self.stop().await;
        self.start();
    }

    /// Holds a lock until it is dropped.
    async fn hold(&mut self, statements: &str) {
        let client = self.env.client().await;
        client.batch_execute(statements).await.expect(statements);
        self.holder = Some(client);
    }

    /// The answer's head and body of `/readyz`.
    async fn readyz(&self, by: Side) -> String {
        let api = match by {
            Side::Relay => &self.relay_api,
            Side::Inbox => &self.inbox_api,
        };
        let headers = format!("Host: {}\r\nAuthorization: Bearer {SCRAPER}", api.addr());
        let Ok(connected) = TcpStream::connect(api.addr()).await else { return String::new() };
        ask(connected, "GET", "/readyz", &headers, "").await.unwrap_or_default()
    }

    /// Waits until `/readyz` answers so.
    async fn answers(&self, by: Side, code: &str, part: &str) -> Duration {
        let (began, mut told) = (Instant::now(), String::new());
        let deadline = if code == "503" { RED_WITHIN } else { DEADLINE };
        until(deadline, &format!("/readyz answers {code} and tells of `{part}`"), async || {
            let answer = self.readyz(by).await;
            let body = answer.lines().last().unwrap_or_default();
            // Seconds pass.
            let shape: String = body.chars().filter(|it| !it.is_ascii_digit()).collect();
            if told != shape {
                eprintln!("{:.1?}: {body}", began.elapsed());
                told = shape;
            }
            answer.starts_with(&format!("HTTP/1.1 {code} ")) && body.contains(part)
        })
        .await;
        began.elapsed()
    }

    async fn stays_ready(&self, told: &Told) {
        let began = Instant::now();
        until(DEADLINE, "it stays ready", async || {
            let answer = self.readyz(told.by).await;
            let is_ready = answer.starts_with("HTTP/1.1 200 ") && answer.contains(told.readyz);
            assert!(is_ready, "after {:.1?}: {answer}", began.elapsed());
            began.elapsed() > STAYS_READY
        })
        .await;
    }

    /// What a command says, however it ends.
    async fn says(&self, args: &[&str]) -> String {
        let process = self.env.spawn(args);
        process.announce("");
        process.wait_exit(DEADLINE).await;
        process.stdout() + &process.log()
    }

    /// Some alerts end by themselves.
    async fn tells(&self, told: &Told) {
        let alerts: Vec<&str> = told.alert.into_iter().collect();
        let commands = async {
            // The worker writes down why it waits when it renews its role.
            until(DEADLINE, &format!("status tells of `{}`", told.status), async || {
                self.says(&["status"]).await.contains(told.status)
            })
            .await;
            if let Some((check, cause)) = told.doctor {
                let said = self.says(&["doctor", "--only", check]).await;
                assert!(!said.contains("0 errors, 0 warnings"), "doctor finds nothing:\n{said}");
                assert!(said.contains(cause), "doctor does not tell of `{cause}`:\n{said}");
            }
        };
        tokio::join!(self.prometheus.wait_firing(&alerts), commands);
    }

    async fn plays(&mut self, fault: &Fault) {
        let Fault { told, .. } = fault;
        (fault.plays)(self, Phase::Break).await;
        let after = self.answers(told.by, told.code, told.readyz).await;
        eprintln!("{}: {} after {after:.1?}", fault.name, told.code);
        self.tells(told).await;
        if told.code == "200" {
            self.stays_ready(told).await;
        }
        (fault.plays)(self, Phase::Mend).await;
        self.answers(Side::Relay, "200", "").await;
        self.answers(Side::Inbox, "200", "").await;
        let before = processed(&self.env).await;
        self.env.insert(3).await;
        wait_processed(&self.env, before + 3).await;
        let alerts: Vec<&str> = told.alert.into_iter().collect();
        self.prometheus.wait_ended(&alerts).await;
        if let Some((check, _)) = told.doctor {
            let said = self.says(&["doctor", "--only", check]).await;
            assert!(said.contains("0 errors, 0 warnings"), "doctor still finds:\n{said}");
        }
        until(DEADLINE, "status tells of nothing more", async || {
            let said = self.says(&["status"]).await;
            let is_kept = KEPT.iter().any(|it| told.status.contains(it));
            let is_well = |it: &str| {
                let is_over = is_kept || !it.contains(told.status);
                is_over && !it.contains("breaker") && !it.contains("paused")
            };
            said.contains("active, 0 in flight") && said.lines().all(is_well)
        })
        .await;
    }
}

fn run_inbox(env: &TestEnv, handler: &Proxy) -> Relay {
    let url = format!("http://{}/events", handler.addr());
    let inbox = env.spawn(&["inbox", "run", "--consumer", "billing", "--handler", &url]);
    inbox.announce("");
    inbox
}

fn reserved() -> Port {
    Port::reserve().expect("a free port")
}

async fn play(fault: &Fault) -> Result<(), String> {
    let played = AssertUnwindSafe(async {
        let mut scene = Scene::new(fault).await;
        Box::pin(scene.plays(fault)).await;
    });
    played.catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        format!("{}: {}", fault.name, text.unwrap_or_default())
    })
}

fn faults() -> impl Iterator<Item = &'static Fault> {
    FAULTS.iter().chain(from_the_field::FAULTS)
}

fn is_of(faults: &[Fault], fault: &Fault) -> bool {
    faults.iter().any(|it| it.name == fault.name)
}

/// `FAULT=name` plays one.
async fn play_all(chosen: impl Fn(&Fault) -> bool) {
    let wanted = std::env::var("FAULT").ok();
    let is_fault = |name: &String| faults().any(|it| it.name == name);
    assert!(wanted.iter().all(is_fault), "there is no fault {wanted:?}");
    let is_wanted =
        |it: &&'static Fault| wanted.as_ref().is_none_or(|name| it.name == name) && chosen(it);
    let played = stream::iter(faults().filter(is_wanted).map(play));
    let failed: Vec<_> =
        played.buffer_unordered(AT_ONCE).filter_map(async |it| it.err()).collect().await;
    assert!(failed.is_empty(), "{} faults:\n{}", failed.len(), failed.join("\n"));
}

/// The alerts are shipped.
#[test]
fn each_alert_of_a_fault_exists() {
    let names = alerts::names();
    for Fault { name, told, .. } in faults() {
        let alert = told.alert.unwrap_or(&names[0]);
        assert!(names.iter().any(|it| it == alert), "{name}: {alert}");
    }
}

mod long {
    use super::*;

    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_stops_events_is_red_names_its_cause_and_ends() {
        play_all(|it| is_of(FAULTS, it)).await;
    }

    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn what_stops_or_misleads_in_the_field_names_its_cause_and_ends() {
        play_all(|it| is_of(from_the_field::FAULTS, it)).await;
    }

    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slot_that_another_program_reads_and_a_paused_consumer_are_red() {
        play_all(|it| ["slot_held_by_another", "consumer_paused"].contains(&it.name)).await;
    }
}
