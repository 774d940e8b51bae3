//! What the demo shows while it runs: a live picture on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::Options;
use super::journal::{Latencies, millis};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Rates are measured over at least this.
const RATE_OVER: Duration = Duration::from_secs(1);

const PICTURE: &str = "  {bar:50} {msg}";

/// How things stand.
pub(super) struct Snapshot {
    pub(super) elapsed: Duration,
    pub(super) committed: u64,
    pub(super) rolled_back: u64,
    pub(super) received: u64,
    /// Events that the inbox has given their effect.
    pub(super) effects: u64,
    pub(super) in_flight: usize,
    pub(super) confirmed: String,
    /// Of the last seconds.
    pub(super) latencies: Latencies,
}

/// Writes to stderr; stdout is for the figures.
pub(super) struct View {
    medium: Medium,
    duration: Duration,
    rate: Mutex<Rate>,
}

enum Medium {
    Silent,
    Lines,
    Picture(ProgressBar),
}

/// Events a second at the consumer.
#[derive(Default)]
struct Rate {
    since: Duration,
    received: u64,
    per_second: f64,
    last_line: Duration,
}

impl View {
    pub(super) fn new(options: &Options) -> Self {
        let medium = if options.quiet {
            Medium::Silent
        } else if std::io::stderr().is_terminal() {
            Medium::Picture(picture(options.duration))
        } else {
            Medium::Lines
        };
        Self { medium, duration: options.duration, rate: Mutex::default() }
    }

    /// Says something that stays.
    pub(super) fn say(&self, text: &str) {
        match &self.medium {
            Medium::Silent => {}
            Medium::Lines => eprintln!("{text}"),
            Medium::Picture(bar) => bar.suspend(|| eprintln!("{text}")),
        }
    }

    /// Shows how things stand.
    pub(super) fn show(&self, snapshot: &Snapshot) {
        let Ok(mut rate) = self.rate.lock() else { return };
        rate.update(snapshot);
        match &self.medium {
            Medium::Silent => {}
            Medium::Lines => {
                if snapshot.elapsed >= rate.last_line + LINE_EVERY {
                    rate.last_line = snapshot.elapsed;
                    eprintln!("{}", line(snapshot, rate.per_second));
                }
            }
            Medium::Picture(bar) => {
                bar.set_position(whole_millis(snapshot.elapsed.min(self.duration)));
                bar.set_message(lines(snapshot, rate.per_second, self.duration));
            }
        }
    }

    /// Takes the picture away; what was said stays.
    pub(super) fn clear(&self) {
        if let Medium::Picture(bar) = &self.medium {
            bar.finish_and_clear();
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Rate {
    #[allow(clippy::cast_precision_loss, reason = "a rate to be shown")]
    fn update(&mut self, snapshot: &Snapshot) {
        let over = snapshot.elapsed.saturating_sub(self.since);
        if over >= RATE_OVER {
            self.per_second = (snapshot.received - self.received) as f64 / over.as_secs_f64();
            (self.since, self.received) = (snapshot.elapsed, snapshot.received);
        }
    }
}

fn picture(duration: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template(PICTURE).expect("a valid template");
    ProgressBar::new(whole_millis(duration)).with_style(style.progress_chars("━╸─"))
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn percentiles(snapshot: &Snapshot) -> [f64; 2] {
    [0.5, 0.99].map(|it| millis(snapshot.latencies.value_at_quantile(it)))
}

fn lines(snapshot: &Snapshot, rate: f64, duration: Duration) -> String {
    let Snapshot { committed, rolled_back, received, effects, in_flight, confirmed, .. } = snapshot;
    let behind = HumanCount(committed.saturating_sub(*received));
    let counts = [*committed, *rolled_back, *received, *effects, *in_flight as u64];
    let [committed, rolled_back, received, effects, in_flight] = counts.map(HumanCount);
    let [p50, p99] = percentiles(snapshot);
    format!(
        "{} of {} s\n  \
         producer  {committed} events committed, {rolled_back} rolled back\n  \
         relay     {in_flight} in flight, confirmed {confirmed}\n  \
         consumer  {received} events, {rate:.0} a second, {behind} behind the producer\n  \
         inbox     {effects} effects\n  \
         latency   p50 {p50:.2} ms, p99 {p99:.2} ms from commit to consumer",
        snapshot.elapsed.as_secs(),
        duration.as_secs()
    )
}

fn line(snapshot: &Snapshot, rate: f64) -> String {
    let Snapshot { committed, rolled_back, received, effects, in_flight, confirmed, .. } = snapshot;
    let (seconds, [p50, p99]) = (snapshot.elapsed.as_secs(), percentiles(snapshot));
    let behind = committed.saturating_sub(*received);
    format!(
        "{seconds:>4} s: {committed} committed, {rolled_back} rolled back, {received} at the consumer \
         ({rate:.0}/s, {behind} behind), {effects} effects, p50 {p50:.2} ms, p99 {p99:.2} ms, \
         {in_flight} in flight, confirmed {confirmed}"
    )
}
