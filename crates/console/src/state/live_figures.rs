//! The figures that change every second, by name. A page shows them when it comes, and the stream of
//! changes sends them again.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

use super::answers::ShardStatus;
use super::chart::{self, Paths, Scale};
use super::figures::{ABSENT, bytes, clock, count, counted, latency, rate, rounded, short, span};
use super::history::Reach;
use super::needs::{needs, wait_behind};
use super::picture::{ConsumerView, Picture, consumer_series};
use super::rates::Percentiles;
use super::word::word;

/// Texts and paths by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Figures {
    pub(crate) text: BTreeMap<String, String>,
    /// The `d` of a path.
    pub(crate) path: BTreeMap<String, String>,
    /// What rows there are and what they say: where it changes, the page is to be asked for again.
    pub(crate) shape: String,
}

impl Figures {
    /// A text, or the sign of what is not known.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.text.get(name).map_or(ABSENT, String::as_str)
    }

    pub(crate) fn path(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// What is otherwise than it was.
    pub(crate) fn changed_since(&self, before: &Self) -> Self {
        let differs = |all: &BTreeMap<String, String>, before: &BTreeMap<String, String>| {
            let changed = all.iter().filter(|(name, text)| before.get(*name) != Some(*text));
            changed.map(|(name, text)| (name.clone(), text.clone())).collect()
        };
        Self {
            text: differs(&self.text, &before.text),
            path: differs(&self.path, &before.path),
            shape: self.shape.clone(),
        }
    }

    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.text.insert(name.into(), value.into());
    }

    fn draw(&mut self, name: &str, Paths { line, area }: Paths) {
        self.path.insert(format!("{name}.line"), line);
        self.path.insert(format!("{name}.area"), area);
    }

    /// What is at the top of a chart, and how high a spike is that leaves it.
    fn scale(&mut self, name: &str, Scale { top, peak }: Scale, text: impl Fn(f64) -> String) {
        self.set(format!("{name}.top"), text(top));
        let peak = peak.map_or_else(String::new, |it| format!("peak {}", text(it)));
        self.set(format!("{name}.peak"), peak);
    }
}

/// The name of a figure of a consumer.
pub(crate) fn of_consumer(it: &ConsumerView, what: &str) -> String {
    format!("{}.{}.{what}", it.source, it.name)
}

pub(crate) fn figures(picture: &Picture, now: Timestamp, reach: Reach) -> Figures {
    let mut all = Figures { shape: shape(picture, now), ..Figures::default() };
    let known = |value: Option<String>| value.unwrap_or_else(|| ABSENT.into());
    let it = word(picture, now);
    all.set("word", it.text);
    all.set("as-of", known(picture.at.map(|at| clock(at, now))));
    all.set("counts", picture.counts.to_string());
    let (letters, behind_them) = (picture.dead_letters(), picture.behind_letters());
    all.set("letters", count(letters));
    all.set("all-letters", count(letters + behind_them));
    let wait =
        Some(behind_them).filter(|it| *it > 0).map(|it| format!(", {}", wait_behind(it, letters)));
    all.set("behind-letters", wait.unwrap_or_default());
    let relays = picture.relays.iter().map(|it| (&it.key, it.books.letters.total));
    let inboxes = picture.databases().map(|it| (&it.key, it.books.letters.total));
    for (key, total) in relays.chain(inboxes) {
        all.set(format!("letters.{key}"), count(total));
    }
    all.set("work", count(picture.work() as u64));
    let moment = &picture.moment;
    all.set("rate", known(moment.rate.map(rate)));
    all.set("p50", known(moment.latency.map(|it| latency(it.p50))));
    all.set("p99", known(moment.latency.map(|it| latency(it.p99))));
    let shards: Vec<_> = picture.relays.iter().flat_map(super::picture::Relay::active).collect();
    let in_flight = || count(shards.iter().map(|it| it.in_flight_events).sum());
    let behind = behind(picture, now);
    all.set("lag", known(behind.as_ref().map(|it| it.text.clone())));
    all.set(
        "lag-of",
        behind.filter(|it| it.seconds >= 1.0).map_or_else(String::new, |it| it.whose),
    );
    all.set("in-flight", known((!shards.is_empty()).then(in_flight)));
    let slot = shards.iter().filter_map(|it| it.slot.as_ref()).map(|it| it.retained_bytes).max();
    all.set("slot", known(slot.map(bytes)));
    charts(&mut all, picture, now, reach);
    for it in picture.consumers() {
        consumer(&mut all, &it, picture, now);
    }
    for relay in &picture.relays {
        for replay in &relay.books.replays {
            let of = replay.events.map_or_else(|| "?".into(), count);
            all.set(
                format!("replay.{}", replay.id),
                format!("{} of {of}", count(replay.published)),
            );
        }
    }
    all
}

/// How long the oldest event waits somewhere.
struct Behind {
    /// Infinite if nobody knows.
    seconds: f64,
    text: String,
    whose: String,
}

/// Of relays and consumers the worst.
fn behind(picture: &Picture, now: Timestamp) -> Option<Behind> {
    let consumers = picture.consumers();
    let consumers = consumers.iter().filter_map(consumer_behind);
    let of_relay =
        |it: &super::picture::Relay| relay_behind(&it.key, &it.active().collect::<Vec<_>>(), now);
    let all = consumers.chain(picture.relays.iter().filter_map(of_relay));
    all.max_by(|one, other| one.seconds.total_cmp(&other.seconds))
}

/// A relay that a server is away from does not see all that wait; they came since it last got on.
fn relay_behind(key: &str, shards: &[&ShardStatus], now: Timestamp) -> Option<Behind> {
    let is_cut_off =
        |it: &&&ShardStatus| !it.postgres_connected || !it.nats_connected || it.breaker == "open";
    let lag = shards.iter().map(|it| it.lag_seconds).reduce(f64::max)?;
    // One that has nothing in flight counts as getting on.
    let since = |it: &&ShardStatus| {
        let lost = it.nats_lost_at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        it.last_progress_age_seconds.map(|age| age.max(lost))
    };
    let cut_off: Vec<_> = shards.iter().filter(is_cut_off).map(since).collect();
    let (seconds, text) = match cut_off.into_iter().collect::<Option<Vec<_>>>() {
        None => (f64::INFINITY, ABSENT.into()),
        Some(ages) => match ages.into_iter().reduce(f64::max) {
            Some(most) => (most.max(lag), format!("≤ {}", latency(most.max(lag)))),
            None => (lag, latency(lag)),
        },
    };
    Some(Behind { seconds, text, whose: key.to_owned() })
}

/// What a consumer has not begun has no age here, and waits for long if it does not work.
fn consumer_behind(it: &ConsumerView) -> Option<Behind> {
    let whose = short(&it.name, 24);
    let Some(seconds) = it.oldest_seconds() else {
        if it.waiting().is_none() && matches!(it.state(), "no worker" | "no answer") {
            // Nobody knows. What is known to be worse than a second is told instead.
            return Some(Behind { seconds: 1.0, text: ABSENT.into(), whose });
        }
        let waiting = it.waiting().filter(|many| *many > 0 && it.state() != "working")?;
        let text = counted(waiting, "event", "events");
        return Some(Behind { seconds: f64::INFINITY, text, whose });
    };
    let at_least = if it.is_unanswered { "≥ " } else { "" };
    Some(Behind { seconds, text: format!("{at_least}{}", latency(seconds)), whose })
}

fn charts(all: &mut Figures, picture: &Picture, now: Timestamp, reach: Reach) {
    let window = picture.history.window(reach, now);
    let points = |name: &str| picture.history.points(name, window, now);
    let seconds = window.seconds * i64::try_from(window.count).unwrap_or(0);
    all.set("reach", span(u64::try_from(seconds).unwrap_or(0)));
    let (rates, slots) = (points("rate"), points("slot"));
    let (of_rate, of_slot) = (chart::scale(&rates, 1.0, 10.0), chart::scale(&slots, 1024.0, 2.0));
    all.scale("rate", of_rate, rate);
    all.scale("slot", of_slot, |it| bytes(rounded(it)));
    all.draw("rate", chart::paths(&rates, of_rate.top));
    all.draw("slot", chart::paths(&slots, of_slot.top));
    let (p50, p99) = (points("p50"), points("p99"));
    let of_latency = chart::scale(&p99, 0.001, 10.0);
    all.scale("p99", of_latency, latency);
    all.draw("p50", chart::paths(&p50, of_latency.top));
    all.draw("p99", chart::paths(&p99, of_latency.top));
}

fn consumer(all: &mut Figures, it: &ConsumerView, picture: &Picture, now: Timestamp) {
    let known = |value: Option<String>| value.unwrap_or_else(|| ABSENT.into());
    let of = |what: &str| of_consumer(it, what);
    let status = it.status.as_ref();
    let key = (it.source.clone(), it.name.clone());
    let now_rate = picture.moment.consumers.get(&key);
    all.set(of("rate"), known(now_rate.copied().map(rate)));
    all.set(of("busy"), known(status.map(|it| count(it.busy))));
    all.set(of("each"), known(picture.moment.attempts.get(&key).map(Percentiles::words)));
    let oldest =
        it.oldest_seconds().map(|it| if it < 10.0 { latency(it) } else { span(rounded(it)) });
    all.set(of("oldest"), known(oldest));
    all.set(of("dead"), known(it.dead().map(count)));
    let window = picture.history.window(Reach::QuarterHour, now);
    let series = |what| consumer_series(what, &it.source, &it.name);
    let points = |what| picture.history.points(&series(what), window, now);
    // What nobody knows now was so a while ago.
    let last = |(ago, it): (i64, &Option<f64>)| {
        let age = span((ago * window.seconds).unsigned_abs());
        Some(format!("{}, {age} ago", count(rounded((*it)?))))
    };
    let last = || (0..).zip(points("waiting").iter().rev()).find_map(last);
    all.set(of("waiting"), known(it.waiting().map(count).or_else(last)));
    let points = points("rate");
    let scale = chart::scale(&points, 1.0, 10.0);
    all.scale(&of("rate"), scale, rate);
    all.draw(&of("rate"), chart::paths(&points, scale.top));
}

/// How old figures are at most that stand in a sentence.
const FACTS_SECONDS: i64 = 10;

/// A number that changes with what needs a person, who answers, and what there is to list.
fn shape(picture: &Picture, now: Timestamp) -> String {
    let mut hasher = DefaultHasher::new();
    word(picture, now).text.hash(&mut hasher);
    let needs = needs(picture, now);
    // What they say beside that has figures, which would be old.
    (!needs.is_empty()).then(|| now.as_second() / FACTS_SECONDS).hash(&mut hasher);
    for it in needs {
        (it.subject, it.path).hash(&mut hasher);
    }
    for it in picture.consumers() {
        (&it.source, &it.name, it.state(), it.worker(), it.standbys).hash(&mut hasher);
        for (failing, held_up) in it.failing() {
            let next = failing.next_attempt_at;
            (&failing.event_id, failing.attempts, next, held_up.map(|it| it.waiting))
                .hash(&mut hasher);
        }
    }
    for relay in &picture.relays {
        for (address, it) in relay.shards() {
            (address, &it.role, it.postgres_connected, it.nats_connected).hash(&mut hasher);
        }
        for replay in &relay.books.replays {
            (&replay.id, &replay.status).hash(&mut hasher);
        }
        relay.books.letters.total.hash(&mut hasher);
    }
    for (source, it) in picture.operations() {
        (source, it.operation, it.progress.done, it.progress.ended).hash(&mut hasher);
    }
    for inbox in &picture.inboxes {
        inbox.books.letters.total.hash(&mut hasher);
        inbox.processes.iter().for_each(|it| (&it.address, it.is_up()).hash(&mut hasher));
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::super::answers::Consumer;
    use super::super::picture::Round;
    use super::super::picture::tests::{at, picture, round, with_relay};
    use super::*;

    fn of(picture: &Picture) -> Figures {
        figures(picture, at(9), Reach::QuarterHour)
    }

    #[test]
    fn figures_have_names_and_what_is_unknown_has_a_sign() {
        let later = with_relay(|it, _| it.published_total = 2204);
        let all = of(&picture([round(), later]));
        assert_eq!((all.text("word"), all.text("rate")), ("Working", "1,204"));
        assert_eq!((all.text("slot"), all.text("p99")), ("4.0 KiB", "–"));
        assert_eq!(all.text("inbox.mailer.waiting"), "42");
        assert!(all.path("rate.line").starts_with('M'), "{:?}", all.path);
    }

    /// The first screen would say that all is well.
    #[test]
    fn the_worst_of_relays_and_consumers_is_told_and_whose_it_is() {
        let with = |change: fn(&mut Round)| {
            let mut round = round();
            change(&mut round);
            let all = of(&picture([round]));
            (all.text("lag").to_owned(), all.text("lag-of").to_owned())
        };
        let pair = |lag: &str, of: &str| (lag.to_owned(), of.to_owned());
        assert_eq!(with(|_| ()), pair("1.5 s", "mailer"));
        fn consumers(it: &mut Round) -> &mut Vec<Consumer> {
            &mut it.inboxes[0].books.as_mut().expect("some").as_mut().expect("known").consumers
        }
        let calm = |it: &mut Round| consumers(it)[0].oldest_seconds = Some(0.02);
        assert_eq!(with(calm), pair("20 ms", ""), "nobody has to know whose that is");
        let paused = |it: &mut Round| {
            let consumer = r#"{"name": "mailer", "pause": {"by": "ada"}}"#;
            let consumer = serde_json::from_str(consumer).expect("readable");
            *consumers(it) = vec![consumer];
        };
        assert_eq!(with(paused), pair("42 events", "mailer"));
    }

    #[test]
    fn how_far_behind_a_relay_is_that_was_cut_off_is_bounded_or_unknown() {
        let lag = |nats_connected, age| {
            let mut round = with_relay(|it, _| {
                (it.nats_connected, it.last_progress_age_seconds) = (nats_connected, age);
            });
            round.inboxes.clear();
            of(&picture([round])).text("lag").to_owned()
        };
        assert_eq!(lag(true, Some(42.0)), "0 ms");
        assert_eq!(lag(false, Some(42.0)), "≤ 42 s");
        assert_eq!(lag(false, None), "–");
        let idle = with_relay(|it, _| {
            (it.nats_connected, it.last_progress_age_seconds) = (false, Some(0.0));
            it.nats_lost_at = Some(at(2));
        });
        assert_eq!(of(&picture([Round { inboxes: Vec::new(), ..idle }])).text("lag"), "≤ 7.0 s");
    }

    #[test]
    fn what_waited_is_told_with_its_age_until_it_is_known_again() {
        let mut unknown = round();
        if let Ok((status, _)) = &mut unknown.inboxes[0].processes[0].1 {
            status.consumers.get_mut("mailer").expect("it is there").pending = None;
        }
        let all = of(&picture([round(), unknown.clone()]));
        assert_eq!(all.text("inbox.mailer.waiting"), "42, 9 s ago");
        assert_eq!(of(&picture([unknown])).text("inbox.mailer.waiting"), "–");
    }

    #[test]
    fn a_figure_changes_no_shape_and_a_state_does() {
        let shape = |round| of(&picture([round])).shape;
        assert_eq!(shape(round()), shape(with_relay(|it, _| it.published_total = 7)));
        assert_ne!(shape(round()), shape(with_relay(|it, _| it.nats_connected = false)));
    }
}
