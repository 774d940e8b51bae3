//! A line that repeats is logged a few times, then counted.
//!
//! A statement that logs has ten lines a minute, twenty if they are no more than news, for each kind of
//! line: another consumer or another reason is another kind. What it logs beyond that is left out; a
//! line says how often. As long as it goes on the minutes become longer, up to an hour, and have one
//! line each. Errors are always told.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, warn};
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one statement before any is left out.
const BURST: u32 = 10;
const BURST_OF_NEWS: u32 = 20;
const PERIOD: Duration = Duration::from_mins(1);
const PERIOD_MAX: Duration = Duration::from_hours(1);
/// How often it is looked for lines that were left out.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What somebody did over HTTP is told each time.
const TOLD_ALWAYS: &str = "tailpost::admin";

/// What tells kinds of one statement's lines apart.
const KINDS_BY: [&str; 8] =
    ["error", "reason", "consumer", "shard", "slot", "stream", "setting", "hint"];

/// Kinds of one statement's lines with budgets of their own. Further ones share one: somebody else
/// may choose what a reason says.
const KINDS_MAX: usize = 16;

/// What was logged so far, by statement and kind.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<HashMap<Identifier, HashMap<u64, Statement>>>);

/// What one statement logged of one kind.
#[derive(Debug)]
struct Statement {
    level: Level,
    began: Instant,
    period: Duration,
    burst: u32,
    lines: u32,
    left_out: u64,
    message: String,
}

impl Statement {
    fn new(level: Level, now: Instant) -> Self {
        let burst = if level >= Level::INFO { BURST_OF_NEWS } else { BURST };
        let message = String::new();
        Self { level, began: now, period: PERIOD, burst, lines: 0, left_out: 0, message }
    }

    /// Whether its next line is logged.
    fn admits(&mut self, now: Instant) -> bool {
        if self.left_out == 0 && now.duration_since(self.began) >= self.period {
            *self = Self::new(self.level, now);
        }
        self.lines = self.lines.saturating_add(1);
        let admits = self.lines <= self.burst;
        self.left_out += u64::from(!admits);
        admits
    }

    /// At the end of a period: how many lines were left out in it.
    fn end(&mut self, now: Instant) -> Option<(u64, Duration)> {
        let period = self.period;
        if self.left_out == 0 || now.duration_since(self.began) < period {
            return None;
        }
        let left_out = std::mem::take(&mut self.left_out);
        (self.began, self.lines, self.burst) = (now, 0, 1);
        self.period = (period * 2).min(PERIOD_MAX);
        Some((left_out, period))
    }

    /// When nothing comes any more: how many lines were left out, and since when, in seconds.
    fn rest(&mut self, now: Instant) -> Option<(u64, Duration)> {
        let seconds = now.duration_since(self.began).as_secs() + 1;
        let left_out = std::mem::take(&mut self.left_out);
        (left_out > 0).then_some((left_out, Duration::from_secs(seconds)))
    }
}

impl Repeats {
    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let mut statements = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = event.metadata();
        let begun = || Statement::new(*metadata.level(), now);
        let kinds = statements.entry(metadata.callsite()).or_default();
        let kind = kind_of(event);
        let is_own = kinds.contains_key(&kind) || kinds.len() < KINDS_MAX;
        let known = kinds.entry(if is_own { kind } else { 0 }).or_insert_with(begun);
        let admits = known.admits(now);
        if !admits && known.message.is_empty() {
            event.record(&mut Message(&mut known.message));
        }
        admits
    }

    /// Says what was left out, for as long as the process lives.
    pub(super) fn tell(&self) -> ! {
        loop {
            std::thread::sleep(LOOK_EVERY);
            self.tell_of(Statement::end);
        }
    }

    /// Says what was left out and has not been told. The process ends.
    pub(super) fn tell_rest(&self) {
        self.tell_of(Statement::rest);
    }

    fn tell_of(&self, left_out: impl Fn(&mut Statement, Instant) -> Option<(u64, Duration)>) {
        for (line, left_out, period) in self.left_out(left_out) {
            warn!(left_out, line, "lines were left out: the same as others of the last {period:?}");
        }
    }

    fn left_out(
        &self,
        of: impl Fn(&mut Statement, Instant) -> Option<(u64, Duration)>,
    ) -> Vec<(String, u64, Duration)> {
        let now = Instant::now();
        let mut statements = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told =
            |it: &mut Statement| of(it, now).map(|(n, period)| (it.message.clone(), n, period));
        statements.values_mut().flat_map(HashMap::values_mut).filter_map(told).collect()
    }
}

impl<S> Filter<S> for &'static Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let is_error = *metadata.level() == Level::ERROR;
        let is_detail = *metadata.level() > Level::INFO;
        let is_told =
            *metadata.level() == Level::INFO && metadata.target().starts_with(TOLD_ALWAYS);
        // What tells of the others is not one of them, here and in `lines`.
        is_detail
            || is_error
            || is_told
            || [module_path!(), "tailpost::telemetry::lines"].contains(&metadata.target())
            || self.admits(event, Instant::now())
    }
}

/// Never 0, which is what all others share.
fn kind_of(event: &Event<'_>) -> u64 {
    let mut kind = Kind(DefaultHasher::new());
    event.record(&mut kind);
    kind.0.finish().max(1)
}

struct Kind(DefaultHasher);

impl Visit for Kind {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if KINDS_BY.contains(&field.name()) {
            (field.name(), format!("{value:?}")).hash(&mut self.0);
        }
    }
}

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::{Layer, SubscriberExt};

    use super::*;

    #[test]
    fn what_goes_on_is_said_less_and_less_often() {
        let began = Instant::now();
        let mut statement = Statement::new(Level::WARN, began);
        let mut said = 0;
        let mut told = Vec::new();
        for second in 0..24 * 3600 {
            let now = began + Duration::from_secs(second);
            said += u32::from(statement.admits(now));
            told.extend(statement.end(now));
        }
        assert!((30..45).contains(&said), "{said}");
        let left_out: u64 = told.iter().map(|(count, _)| count).sum();
        assert_eq!(told[0], (50 + 1, PERIOD));
        assert_eq!(u64::from(said) + left_out + statement.left_out, 24 * 3600);
    }

    /// How many lines get through, when `log` logs.
    fn told(log: impl FnOnce()) -> usize {
        struct Count(Arc<AtomicUsize>);
        impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Count {
            fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let repeats: &'static Repeats = Box::leak(Box::default());
        let layer = Count(Arc::clone(&count)).with_filter(repeats);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        count.load(Ordering::Relaxed)
    }

    #[test]
    fn another_reason_or_consumer_is_told_and_errors_always_are() {
        let away = |consumer: &str, error: &str| warn!(consumer, error, "away");
        let burst = BURST as usize;
        let repeated = told(|| (0..100).for_each(|_| away("billing", "refused")));
        assert_eq!(repeated, burst);
        let others = told(|| {
            (0..100).for_each(|_| away("billing", "refused"));
            away("billing", "who are you?");
            away("mail", "refused");
        });
        assert_eq!(others, burst + 2);
        let endless = told(|| (0..1_000).for_each(|n| away("billing", &n.to_string())));
        assert_eq!(endless, KINDS_MAX + burst, "all further reasons share one budget");
        assert_eq!(told(|| (0..100).for_each(|_| tracing::error!("the end"))), 100);
    }

    #[test]
    fn what_is_not_told_yet_is_told_at_the_end_once() {
        let repeats: &'static Repeats = Box::leak(Box::default());
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(repeats));
        let rest = || repeats.left_out(Statement::rest);
        tracing::subscriber::with_default(subscriber, || {
            (0..100).for_each(|_| warn!(consumer = "billing", "away"));
            (0..BURST).for_each(|_| warn!(consumer = "mail", "away"));
            let told = rest();
            let [(line, left_out, period)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((&**line, *left_out), ("away", u64::from(100 - BURST)));
            assert!(*period >= Duration::from_secs(1), "{period:?}");
            assert!(rest().is_empty(), "once");
        });
    }

    #[test]
    fn what_comes_back_after_a_while_is_news_again() {
        let began = Instant::now();
        let mut statement = Statement::new(Level::WARN, began);
        for _ in 0..BURST {
            assert!(statement.admits(began));
        }
        assert!(!statement.admits(began));
        let later = began + PERIOD;
        assert_eq!(statement.end(later), Some((1, PERIOD)));
        assert_eq!(statement.end(later + 2 * PERIOD), None, "nothing more came");
        for _ in 0..BURST {
            assert!(statement.admits(later + 2 * PERIOD));
        }
    }
}
