//! All faults, mixed at random, for as long as one likes.
//!
//! Two relays and two inboxes run throughout. The soak goes in rounds: a load, faults one after the
//! other, some of them before the relays have recovered from the last one, then the reckoning over
//! everything since the start. So a mistake is found at the end of the round that it was made in.

mod faults;
mod handler;
mod history;
mod hostile_input;
mod locks;
mod settings;
mod silence;
mod stopped;
mod stream_changes;
mod table;

use std::time::{Duration, Instant};

use crate::hostile::{Messages, Rows, Shape};
use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::daemon::Daemon;
use super::lab::Lab;
use super::outcome::Outcome;
use super::scenarios::{Daemons, LITTLE_PAYLOADS};

pub(super) use faults::GENERATORS;
use table::Changed;

/// Committed events a second: fewer than in a scenario, so that the inbox catches up in a round.
const RATE: f64 = 150.0;

/// Unless the command line says otherwise.
const DURATION: Duration = Duration::from_secs(60);

const ROUND: Duration = Duration::from_secs(60);

/// Of load alone, between two faults, in milliseconds.
const CALM: std::ops::Range<u64> = 100..1_500;

/// How often the next fault meets relays that still recover.
const UPON_EACH_OTHER: f64 = 0.5;

/// Shorter than in earnest, so that a minute has room for take-overs.
const SETTINGS: &[(&str, &str)] = &[
    ("TAILPOST_RELAY__ACK_TIMEOUT", "1s"),
    ("TAILPOST_INBOX__LEASE", "6s"),
    ("TAILPOST_INBOX__TIMEOUT", "3s"),
    ("TAILPOST_INBOX__BACKOFF", "1s,2s,4s,8s,16s,32s,64s,128s,5m"),
    // While hardly an event comes, a service that answers 500 for 15 s costs one five attempts.
    ("TAILPOST_INBOX__MAX_ATTEMPTS", "8"),
];

/// Servers, relays, and what was done to them.
struct Soak {
    lab: Lab,
    relays: Daemons,
    inboxes: Daemons,
    random: StdRng,
    rows: Rows,
    messages: Messages,
    // When another client last wrote to the stream.
    foreign: Option<Instant>,
    // The relays do not hear from NATS while the fault of the moment lasts.
    unanswered: bool,
    // The generators to draw from; all if there are none.
    only: Vec<String>,
    has_note: bool,
    changed: Changed,
    // What happened in this round, for the case that it ends badly.
    told: Vec<String>,
}

/// Runs for as long as asked, or until the first signal: then what happened so far is checked.
///
/// # Errors
///
/// As for a scenario.
pub(super) async fn run(options: &Options, seed: u64, stop: &CancellationToken) -> Result<()> {
    let duration = options.duration.unwrap_or(DURATION);
    eprintln!("soak: seed {seed}, for {duration:?}");
    let mut soak = tokio::select! {
        soak = Box::pin(Soak::open(seed, &options.only)) => soak?,
        () = stop.cancelled() => bail!("stopped before anything was written"),
    };
    let ends = Instant::now() + duration;
    loop {
        let round_ends = ends.min(Instant::now() + ROUND);
        let outcome = Box::pin(soak.round(round_ends, stop)).await;
        let verdict = outcome.as_ref().map_or(Ok(()), Outcome::verdict);
        let is_last = stop.is_cancelled() || Instant::now() >= ends;
        if outcome.is_err() || verdict.is_err() {
            soak.mourn(seed)?;
        }
        match outcome {
            Ok(outcome) if is_last || verdict.is_err() => options.print(&outcome)?,
            Ok(outcome) => soak.lab.say(&outcome.line()),
            Err(error) => return Err(error).with_context(|| format!("the soak with seed {seed}")),
        }
        verdict.with_context(|| format!("the soak with seed {seed}"))?;
        if is_last {
            return Ok(());
        }
    }
}

impl Soak {
    async fn open(seed: u64, only: &[String]) -> Result<Self> {
        let mut lab = Lab::open(&LITTLE_PAYLOADS).await?;
        for (name, value) in SETTINGS {
            lab.set(name, value);
        }
        lab.start_load(RATE, seed).await?; // makes the table of orders
        lab.stop_load().await?;
        lab.open_shipping().await?;
        lab.watch_waits();
        let relays = vec![lab.start_relay()?, lab.start_relay()?];
        let inboxes = vec![lab.start_inbox()?, lab.start_inbox()?];
        Ok(Self {
            lab,
            relays,
            inboxes,
            random: StdRng::seed_from_u64(seed),
            rows: Rows::new(Shape::Documented, seed).with_bookkeeping(),
            // Of the same seed, a message would have the id of a row now and then.
            messages: Messages::new(!seed),
            foreign: None,
            unanswered: false,
            only: only.to_vec(),
            has_note: false,
            changed: Changed::default(),
            told: Vec::new(),
        })
    }

    /// Load and faults until `ends`, then the reckoning over everything since the start.
    async fn round(&mut self, ends: Instant, stop: &CancellationToken) -> Result<Outcome> {
        self.told.clear();
        let load_seed = self.random.random();
        self.lab.start_load(RATE, load_seed).await?;
        while Instant::now() < ends && !stop.is_cancelled() {
            let calm = Duration::from_millis(self.random.random_range(CALM));
            tokio::time::sleep(calm).await;
            self.fault().await?;
            if self.random.random_bool(UPON_EACH_OTHER) {
                continue;
            }
            let took = self.lab.recover().await?;
            self.tell(&format!("  recovered after {took:.2?}: {}", self.counts().await?));
            self.check()?;
        }
        let tally = self.lab.finish().await?;
        let (effects, expected) = self.lab.effects().await?;
        let edges = self.lab.edges().await?;
        self.check()?;
        self.lab.check_logs()?;
        self.tell(&self.changed.to_string());
        let outcome = Outcome::new("soak", &tally, self.lab.recovered(), self.lab.elapsed());
        Ok(outcome.with_effects(effects, expected).with_edges(edges))
    }

    /// Fails if a relay or an inbox ended by itself.
    fn check(&mut self) -> Result<()> {
        let mut all = self.relays.iter_mut().chain(&mut self.inboxes);
        all.try_for_each(Daemon::check)
    }

    async fn counts(&self) -> Result<String> {
        let parked: i64 = self.lab.query("SELECT count(*) FROM outbox_dead_letter").await?;
        let (committed, stored) = (self.lab.committed(), self.lab.stored().await?);
        Ok(format!("{committed} committed, {stored} stored, {parked} parked"))
    }

    /// Says what happens, and remembers it until the end of the round.
    fn tell(&mut self, text: &str) {
        self.lab.say(text);
        self.told.push(format!("{:.2} s  {text}", self.lab.elapsed().as_secs_f64()));
    }

    /// Says all that there is to say about a failure.
    fn mourn(&mut self, seed: u64) -> Result<()> {
        eprintln!("the soak with seed {seed} failed in a round of\n{}", self.told.join("\n"));
        // Dropped, they hand in their logs.
        self.relays.clear();
        self.inboxes.clear();
        self.lab.keep_logs("soak")
    }
}
