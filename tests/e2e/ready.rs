//! What stops events is seen: `/readyz` is red within a bound and says why, `tailpost status`,
//! `tailpost doctor` and an alert say it too, and all of that ends when it is mended.
//!
//! A fault is an entry of [`FAULTS`]: a function that breaks something and mends it, and what is told.

mod what_ends;
mod what_stops;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use lab::{Port, Process, Proxy};
use support::{DEADLINE, Prometheus, Relay, SCRAPER, TestEnv, ask, until};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_postgres::Client;

use self::what_stops::FAULTS;
use crate::alerts;
use crate::inbox::http::{configure, processed, set_up, wait_processed};
use crate::inbox::service::Service;

/// Faults under way at a time.
const AT_ONCE: usize = 3;

/// Red comes within the 30 s that a process may be without progress, and what the look takes.
const RED_WITHIN: Duration = Duration::from_secs(90);

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
    readyz: &'static str,
    status: &'static str,
    /// The check that fails or warns, and what it names. None if `doctor` does not look at it: it calls
    /// no handler, and counts no claims.
    doctor: Option<(&'static str, &'static str)>,
    alert: &'static str,
}

struct Fault {
    name: &'static str,
    plays: for<'a> fn(&'a mut Scene, Phase) -> Steps<'a>,
    told: Told,
}

/// A relay and an inbox at work.
struct Scene {
    env: TestEnv,
    relay_api: Port,
    inbox_api: Port,
    relay: Option<Relay>,
    _inbox: Relay,
    /// The network before the handler.
    handler: Proxy,
    _service: Service,
    prometheus: Prometheus,
    /// Who holds a lock.
    holder: Option<Client>,
    /// A program beside.
    beside: Option<Process>,
    /// The consumer's settings.
    _file: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let mut env = set_up().await;
        let file = configure(&mut env);
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
        let url = format!("http://{}/events", handler.addr());
        let relay = env.relay();
        relay.announce("");
        let inbox = env.spawn(&["inbox", "run", "--consumer", "billing", "--handler", &url]);
        inbox.announce("");
        env.insert(5).await;
        wait_processed(&env, 5).await;
        let scene = Self {
            env,
            relay_api,
            inbox_api,
            relay: Some(relay),
            _inbox: inbox,
            handler,
            _service: service,
            prometheus,
            holder: None,
            beside: None,
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

    /// As who does not want to wait for the breaker does: its pause may be minutes.
    async fn restart(&mut self) {
        self.stop().await;
        let relay = self.env.relay();
        relay.announce("");
        self.relay = Some(relay);
    }

    /// Holds a lock until it is dropped.
    async fn hold(&mut self, statements: &str) {
        let client = self.env.client().await;
        client.batch_execute(statements).await.expect(statements);
        self.holder = Some(client);
    }

    /// Waits until `/readyz` answers so.
    async fn answers(&self, by: Side, code: &str, part: &str) -> Duration {
        let api = match by {
            Side::Relay => &self.relay_api,
            Side::Inbox => &self.inbox_api,
        };
        let (began, mut told) = (Instant::now(), String::new());
        let deadline = if code == "503" { RED_WITHIN } else { DEADLINE };
        until(deadline, &format!("/readyz answers {code} and tells of `{part}`"), async || {
            let headers = format!("Host: {}\r\nAuthorization: Bearer {SCRAPER}", api.addr());
            let Ok(connected) = TcpStream::connect(api.addr()).await else { return false };
            let answer = ask(connected, "GET", "/readyz", &headers, "").await.unwrap_or_default();
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

    /// What a command says, however it ends.
    async fn says(&self, args: &[&str]) -> String {
        let process = self.env.spawn(args);
        process.announce("");
        process.wait_exit(DEADLINE).await;
        process.stdout() + &process.log()
    }

    async fn plays(&mut self, fault: &Fault) {
        let Told { by, readyz, status, doctor, alert } = fault.told;
        (fault.plays)(self, Phase::Break).await;
        let red = self.answers(by, "503", readyz).await;
        eprintln!("{}: red after {red:.1?}", fault.name);
        // The worker writes down why it waits when it renews its role.
        until(DEADLINE, &format!("status tells of `{status}`"), async || {
            self.says(&["status"]).await.contains(status)
        })
        .await;
        if let Some((check, cause)) = doctor {
            let said = self.says(&["doctor", "--only", check]).await;
            assert!(!said.contains("0 errors, 0 warnings"), "doctor finds nothing:\n{said}");
            assert!(said.contains(cause), "doctor does not tell of `{cause}`:\n{said}");
        }
        self.prometheus.wait_firing(&[alert]).await;
        (fault.plays)(self, Phase::Mend).await;
        self.answers(Side::Relay, "200", "").await;
        self.answers(Side::Inbox, "200", "").await;
        let before = processed(&self.env).await;
        self.env.insert(3).await;
        wait_processed(&self.env, before + 3).await;
        self.prometheus.wait_ended(&[alert]).await;
        if let Some((check, _)) = doctor {
            let said = self.says(&["doctor", "--only", check]).await;
            assert!(said.contains("0 errors, 0 warnings"), "doctor still finds:\n{said}");
        }
        until(DEADLINE, "status tells of nothing more", async || {
            let said = self.says(&["status"]).await;
            let is_well = |it: &str| !it.contains("breaker") && !it.contains("paused");
            said.contains("active, 0 in flight") && said.lines().all(is_well)
        })
        .await;
    }
}

fn reserved() -> Port {
    Port::reserve().expect("a free port")
}

async fn play(fault: &Fault) -> Result<(), String> {
    let played = AssertUnwindSafe(async { Box::pin(Scene::new().await.plays(fault)).await });
    played.catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        format!("{}: {}", fault.name, text.unwrap_or_default())
    })
}

/// `FAULT=name` plays one.
async fn play_all(chosen: impl Fn(&Fault) -> bool) {
    let wanted = std::env::var("FAULT").ok();
    let is_fault = |name: &String| FAULTS.iter().any(|it| it.name == name);
    assert!(wanted.iter().all(is_fault), "there is no fault {wanted:?}");
    let is_wanted = |it: &&Fault| wanted.as_ref().is_none_or(|name| it.name == name) && chosen(it);
    let played = stream::iter(FAULTS.iter().filter(is_wanted).map(play));
    let failed: Vec<_> =
        played.buffer_unordered(AT_ONCE).filter_map(async |it| it.err()).collect().await;
    assert!(failed.is_empty(), "{} faults:\n{}", failed.len(), failed.join("\n"));
}

/// The alerts are shipped.
#[test]
fn each_alert_of_a_fault_exists() {
    let names = alerts::names();
    for Fault { name, told, .. } in FAULTS {
        assert!(names.iter().any(|it| it == told.alert), "{name}: {}", told.alert);
    }
}

mod long {
    use super::*;

    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_stops_events_is_red_names_its_cause_and_ends() {
        play_all(|_| true).await;
    }

    // proves: G-SEEN-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slot_that_another_program_reads_and_a_paused_consumer_are_red() {
        play_all(|it| ["slot_held_by_another", "consumer_paused"].contains(&it.name)).await;
    }
}
