//! Faults, planted one after the other, and their remedies, applied as they are printed.

use std::pin::Pin;
use std::time::Instant;

use async_nats::jetstream::stream::Config;
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, until};

use super::nats_commands;

/// Something done to the servers or to the settings.
pub(super) enum Step {
    /// Statements, one at a time, by an administrator.
    Sql(&'static [&'static str]),
    /// A setting's variable; none if it is empty.
    Set(&'static str, &'static str),
    /// A change of the stream `OUTBOX`.
    Edit(fn(&mut Config)),
    /// A new stream in place of `OUTBOX`.
    Replace(fn() -> Config),
    /// A stream is deleted.
    Delete(&'static str),
    /// `tailpost` with these arguments, as the owner of the tables.
    Tailpost(&'static [&'static str]),
    /// PostgreSQL is restarted.
    Restart,
    /// Relays that a remedy started are stopped.
    StopRelays,
    /// Anything else.
    Do(for<'a> fn(&'a mut Clinic) -> Pin<Box<dyn Future<Output = ()> + 'a>>),
}

/// A fault: how it is planted, what finds it, and what mends it.
pub(super) struct Fault {
    /// The check that finds it.
    pub(super) id: &'static str,
    pub(super) severity: &'static str,
    pub(super) plant: &'static [Step],
    /// The texts of the remedies, in order; `*` stands for anything.
    pub(super) remedies: &'static [&'static str],
    /// What somebody does who follows an advice.
    pub(super) by_hand: &'static [Step],
    /// What brings the servers back to where they were.
    pub(super) after: &'static [Step],
    pub(super) args: &'static [&'static str],
}

impl Fault {
    pub(super) const fn new(
        id: &'static str,
        severity: &'static str,
        plant: &'static [Step],
        remedies: &'static [&'static str],
    ) -> Self {
        Self { id, severity, plant, remedies, by_hand: &[], after: &[], args: &[] }
    }

    pub(super) const fn by_hand(mut self, steps: &'static [Step]) -> Self {
        self.by_hand = steps;
        self
    }

    pub(super) const fn after(mut self, steps: &'static [Step]) -> Self {
        self.after = steps;
        self
    }

    pub(super) const fn with(mut self, args: &'static [&'static str]) -> Self {
        self.args = args;
        self
    }
}

/// Servers with an outbox, and the role of a relay that owns nothing.
pub(super) struct Clinic {
    pub(super) env: TestEnv,
    pub(super) owner: String,
    pub(super) courier: String,
    relays: Vec<Relay>,
}

const COURIER: &[&str] = &[
    "CREATE ROLE courier LOGIN REPLICATION",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public
     GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO courier",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO courier",
];

impl Clinic {
    /// With an outbox that is set up.
    pub(super) async fn open(mut env: TestEnv) -> Self {
        env.setup().await;
        for sql in COURIER {
            env.execute(sql).await;
        }
        let owner = env.postgres.url("postgres");
        let courier = owner.replace("postgres@", "courier@");
        env.set("DATABASE_URL", &courier);
        Self { env, owner, courier, relays: Vec::new() }
    }

    /// What `tailpost doctor` says, as the role of the relay.
    pub(super) async fn doctor(&self, args: &[&str]) -> Vec<Value> {
        let args = [&["doctor", "--json"], args].concat();
        let process = self.env.spawn(&args);
        process.announce("");
        let code = process.wait_exit(DEADLINE).await.code();
        let report = process.stdout();
        let report: Value = serde_json::from_str(&report)
            .unwrap_or_else(|error| panic!("{error}: {report}{}", process.log()));
        let checks = report["checks"].as_array().expect("checks").clone();
        let fails = checks.iter().any(|it| it["severity"] == "error");
        assert_eq!(code, Some(i32::from(fails)), "{}", process.log());
        checks
    }

    /// Plants each, and applies what is printed.
    pub(super) async fn treat(&mut self, faults: &[Fault]) {
        for fault in faults {
            let began = Instant::now();
            self.treat_one(fault).await;
            eprintln!("{:>5} ms  {} {:?}", began.elapsed().as_millis(), fault.id, fault.remedies);
        }
    }

    async fn treat_one(&mut self, fault: &Fault) {
        let Fault { id, severity, plant, remedies, by_hand, after, args } = fault;
        self.steps(plant).await;
        let found = self.find(id, args).await;
        assert_eq!(found["severity"], **severity, "{id} when planted: {found:#}");
        let printed = found["remedies"].as_array().expect("remedies");
        let texts: Vec<&str> = printed.iter().filter_map(|it| it["text"].as_str()).collect();
        let fits = texts.len() == remedies.len()
            && texts.iter().zip(*remedies).all(|(text, wanted)| is_like(text, wanted));
        assert!(fits, "{id}: {texts:#?} is not {remedies:#?}");
        assert!(!found["evidence"].as_str().expect("evidence").is_empty(), "{id}: {found:#}");
        for remedy in printed {
            self.apply(remedy).await;
        }
        self.steps(by_hand).await;
        let mut mended = self.find(id, args).await;
        if !self.relays.is_empty() {
            until(DEADLINE, &format!("a relay mends {id}"), async || {
                mended = self.find(id, args).await;
                mended["severity"] == "ok"
            })
            .await;
        }
        assert_eq!(mended["severity"], "ok", "{id} when mended: {mended:#}");
        self.steps(after).await;
    }

    async fn find(&self, id: &str, args: &[&str]) -> Value {
        let checks = self.doctor(args).await;
        let found = checks.iter().find(|it| it["id"] == id && it["severity"] != "ok");
        let any = || checks.iter().find(|it| it["id"] == id);
        found.or_else(any).unwrap_or_else(|| panic!("no check {id}: {checks:#?}")).clone()
    }

    /// As somebody who copies it from the screen. An advice is for the test to follow.
    async fn apply(&mut self, remedy: &Value) {
        let text = remedy["text"].as_str().expect("a text");
        match remedy["kind"].as_str() {
            Some("sql") => self.env.execute(text).await,
            Some("restart") => self.restart().await,
            Some("setting") => {
                let (key, value) = text.split_once(" = ").expect("key = value");
                let name = format!("TAILPOST_{}", key.to_uppercase().replace('.', "__"));
                self.env.set(&name, value.trim_matches('"'));
            }
            Some("shell") => match text.split_once(' ') {
                Some(("tailpost", "relay")) => {
                    let relay = self.env.relay();
                    relay.announce("keeps more of the log than relay.wal_limit");
                    self.relays.push(relay);
                }
                Some(("tailpost", args)) => {
                    let args: Vec<&str> = args.split(' ').collect();
                    self.tailpost(&args).await;
                }
                Some(("nats", _)) => nats_commands::run(&self.env, text).await,
                _ => panic!("no such command here: {text}"),
            },
            Some("advice") => {}
            other => panic!("{other:?}: {text}"),
        }
    }

    pub(super) async fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Sql(all) => {
                    for sql in *all {
                        self.env.execute(sql).await;
                    }
                }
                Step::Set(name, value) => self.env.set(name, value),
                Step::Edit(edit) => nats_commands::edit(&self.env, "OUTBOX", edit).await,
                Step::Replace(config) => {
                    let jetstream = self.env.nats.jetstream().await.expect("connect to NATS");
                    let _ = jetstream.delete_stream("OUTBOX").await;
                    let mut config = config();
                    let sealed = std::mem::take(&mut config.sealed);
                    // The server removes the files of a deleted stream later, and cannot store its
                    // successor until then (error 10049).
                    until(DEADLINE, "the stream is created", async || {
                        jetstream.create_stream(config.clone()).await.is_ok()
                    })
                    .await;
                    if sealed {
                        config.sealed = true;
                        jetstream.update_stream(config).await.expect("seal the stream");
                    }
                }
                Step::Delete(stream) => {
                    let jetstream = self.env.nats.jetstream().await.expect("connect to NATS");
                    jetstream.delete_stream(stream).await.expect("delete a stream");
                }
                Step::Tailpost(args) => self.tailpost(args).await,
                Step::Restart => self.restart().await,
                Step::StopRelays => {
                    for relay in self.relays.drain(..) {
                        relay.sigterm();
                        assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
                    }
                }
                Step::Do(work) => work(self).await,
            }
        }
    }

    async fn tailpost(&mut self, args: &[&str]) {
        self.env.set("DATABASE_URL", &self.owner);
        self.env.ends_with(0, args).await;
        self.env.set("DATABASE_URL", &self.courier);
    }

    async fn restart(&mut self) {
        self.env.postgres.stop_fast().await.expect("stop PostgreSQL");
        self.env.postgres.start_again().await.expect("start PostgreSQL");
    }
}

/// Whether `text` is `wanted`, in which `*` stands for anything.
fn is_like(text: &str, wanted: &str) -> bool {
    let mut pieces = wanted.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut ends_open = !wanted.contains('*') && rest.is_empty();
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        ends_open = piece.is_empty() || rest.is_empty();
    }
    ends_open
}
