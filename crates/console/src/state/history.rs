//! The figures of the last minutes and of the last day, in memory and of fixed size.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// A second each.
const SECONDS: usize = 15 * 60;
/// A minute each.
const MINUTES: usize = 24 * 60;
/// So many series are kept: each has 9 kB.
const SERIES_MAX: usize = 200;
/// Points of a line, at least and at most. The least is a line and not a dot.
const POINTS_MIN: i64 = 30;
const POINTS_MAX: i64 = 180;
/// A figure that is asked for rarely holds until the next, for so long.
const HOLDS_SECONDS: i64 = 30;

/// How far back somebody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    QuarterHour,
    Day,
}

/// Which points a line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    reach: Reach,
    pub(crate) count: usize,
    /// How long each is.
    pub(crate) seconds: i64,
}

impl Window {
    /// When a point begins.
    pub(crate) fn begins(&self, point: usize, now: Timestamp) -> Timestamp {
        let back = i64::try_from(self.count - point).unwrap_or(0);
        let end = now.as_second().div_euclid(self.seconds) + 1;
        Timestamp::from_second((end - back) * self.seconds).unwrap_or(now)
    }
}

/// All series by name.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// When the first figure was noted.
    since: Option<i64>,
    series: BTreeMap<String, Series>,
}

#[derive(Debug)]
struct Series {
    seconds: Ring,
    minutes: Ring,
}

/// Values by their number, which is a time; `NAN` where there is none.
#[derive(Debug)]
struct Ring {
    values: Vec<f32>,
    /// The number behind the newest one.
    end: i64,
}

impl Ring {
    fn new(length: usize) -> Self {
        Self { values: vec![f32::NAN; length], end: 0 }
    }

    fn place(&self, number: i64) -> usize {
        let length = i64::try_from(self.values.len()).unwrap_or(i64::MAX);
        usize::try_from(number.rem_euclid(length)).unwrap_or(0)
    }

    /// Notes a value, and forgets those that are too old by then.
    fn set(&mut self, number: i64, value: f32) {
        let length = i64::try_from(self.values.len()).unwrap_or(i64::MAX);
        for skipped in self.end.max(number - length)..number {
            let place = self.place(skipped);
            self.values[place] = f32::NAN;
        }
        let place = self.place(number);
        self.values[place] = value;
        self.end = self.end.max(number + 1);
    }

    fn get(&self, number: i64) -> f32 {
        let length = i64::try_from(self.values.len()).unwrap_or(i64::MAX);
        let is_kept = number < self.end && number >= self.end - length;
        if is_kept { self.values[self.place(number)] } else { f32::NAN }
    }

    fn most(&self, numbers: std::ops::Range<i64>) -> Option<f64> {
        let known = numbers.map(|it| self.get(it)).filter(|it| !it.is_nan());
        known.reduce(f32::max).map(f64::from)
    }

    fn mean(&self, numbers: std::ops::Range<i64>) -> Option<f64> {
        let known = numbers.map(|it| self.get(it)).filter(|it| !it.is_nan());
        let (count, sum) = known.fold((0, 0.0), |(n, sum), it| (n + 1, sum + f64::from(it)));
        (count > 0).then(|| sum / f64::from(count))
    }
}

impl History {
    /// Notes what a figure is now.
    #[allow(clippy::cast_possible_truncation, reason = "seven digits are enough for a line")]
    pub(crate) fn note(&mut self, name: &str, now: Timestamp, value: f64) {
        if !self.series.contains_key(name) && self.series.len() >= SERIES_MAX {
            return;
        }
        let series = self
            .series
            .entry(name.to_owned())
            .or_insert_with(|| Series { seconds: Ring::new(SECONDS), minutes: Ring::new(MINUTES) });
        let second = now.as_second();
        self.since.get_or_insert(second);
        // Nobody looked for a while: it holds for what lies between.
        let last = series.seconds.end;
        let from =
            if last > 0 && second - last < HOLDS_SECONDS { last.min(second) } else { second };
        for second in from..=second {
            series.seconds.set(second, value as f32);
        }
        let minute = second.div_euclid(60);
        let most = series.seconds.most(minute * 60..second + 1);
        series.minutes.set(minute, most.unwrap_or(value) as f32);
    }

    /// What a figure was on average, between so many seconds ago and so many.
    pub(crate) fn mean(&self, name: &str, now: Timestamp, ago: [i64; 2]) -> Option<f64> {
        let [from, to] = ago.map(|it| now.as_second() + 1 - it);
        self.series.get(name)?.seconds.mean(from..to)
    }

    /// As much of the reach as something is known of: a line fills its picture from the first minute.
    pub(crate) fn window(&self, reach: Reach, now: Timestamp) -> Window {
        let known = now.as_second() - self.since.unwrap_or(now.as_second());
        let seconds = match reach {
            Reach::QuarterHour if known < POINTS_MAX => 1,
            Reach::QuarterHour => 5,
            Reach::Day => (known / POINTS_MAX / 60 + 1).min(8) * 60,
        };
        let count = (known / seconds + 1).clamp(POINTS_MIN, POINTS_MAX);
        Window { reach, count: usize::try_from(count).unwrap_or(0), seconds }
    }

    /// The points of a series, the oldest first. Each is the highest of its time: a peak stays one,
    /// however long ago.
    pub(crate) fn points(&self, name: &str, window: Window, now: Timestamp) -> Vec<Option<f64>> {
        let Window { reach, count, seconds } = window;
        let Some(series) = self.series.get(name) else { return vec![None; count] };
        // Whole steps, so that a point does not change once it is over.
        let end = now.as_second().div_euclid(seconds) + 1;
        let count = i64::try_from(count).unwrap_or(0);
        let point = |step: i64| match reach {
            Reach::QuarterHour => series.seconds.most(step * seconds..(step + 1) * seconds),
            Reach::Day => series.minutes.most(step * seconds / 60..(step + 1) * seconds / 60),
        };
        (end - count..end).map(point).collect()
    }
}

/// The name of a series of a consumer.
pub(crate) fn consumer_series(what: &str, source: &str, name: &str) -> String {
    format!("consumer {source} {name} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn five_seconds() -> Window {
        Window { reach: Reach::QuarterHour, count: 180, seconds: 5 }
    }

    #[test]
    fn a_line_has_as_many_points_as_something_is_known_of() {
        let mut history = History::default();
        history.note("rate", at(10_000), 5.0);
        let of = |reach, second| {
            let window = history.window(reach, at(second));
            (window.count, window.seconds)
        };
        assert_eq!(of(Reach::QuarterHour, 10_000), (30, 1));
        assert_eq!(of(Reach::QuarterHour, 10_099), (100, 1));
        assert_eq!(of(Reach::QuarterHour, 10_599), (120, 5));
        assert_eq!(of(Reach::QuarterHour, 99_000), (180, 5));
        assert_eq!(of(Reach::Day, 13_600), (61, 60));
        assert_eq!(of(Reach::Day, 10_000 + 86_400), (180, 480));
    }

    #[test]
    fn the_newest_point_is_the_last() {
        let mut history = History::default();
        for second in 10_000..10_010 {
            history.note("rate", at(second), 5.0);
        }
        let of = |name| history.points(name, five_seconds(), at(10_009));
        assert_eq!(of("rate")[177..], [None, Some(5.0), Some(5.0)]);
        assert!(of("other").iter().all(Option::is_none));
    }

    #[test]
    fn a_figure_holds_until_the_next_but_not_for_ever() {
        let mut history = History::default();
        history.note("rate", at(10_000), 5.0);
        history.note("rate", at(10_015), 7.0);
        let points = history.points("rate", five_seconds(), at(10_015));
        assert_eq!(points[176..], [Some(7.0), Some(7.0), Some(7.0), Some(7.0)]);
        history.note("rate", at(10_100), 9.0);
        let points = history.points("rate", five_seconds(), at(10_100));
        assert_eq!(points[177..], [None, None, Some(9.0)]);
    }

    #[test]
    fn a_peak_stays_as_high_as_it_was() {
        let mut history = History::default();
        (0..1_200).for_each(|it| history.note("rate", at(10_000 + it), 5.0));
        history.note("rate", at(11_200), 1_002.0);
        (1_201..1_204).for_each(|it| history.note("rate", at(10_000 + it), 5.0));
        let most = |reach, second| {
            let points = history.points("rate", history.window(reach, at(second)), at(second));
            points.into_iter().flatten().reduce(f64::max)
        };
        for reach in [Reach::QuarterHour, Reach::Day] {
            assert_eq!(most(reach, 11_203), Some(1_002.0), "{reach:?}");
        }
    }

    #[test]
    fn what_is_older_than_the_ring_is_gone() {
        let mut history = History::default();
        history.note("rate", at(10_000), 5.0);
        history.note("rate", at(10_000 + 3 * 900), 6.0);
        let now = at(10_000 + 3 * 900);
        let of = |reach| history.points("rate", history.window(reach, now), now);
        assert_eq!(of(Reach::QuarterHour).iter().flatten().count(), 1);
        assert_eq!(of(Reach::Day).iter().flatten().count(), 2);
    }

    #[test]
    fn there_are_at_most_so_many_series() {
        let mut history = History::default();
        for number in 0..SERIES_MAX + 9 {
            history.note(&number.to_string(), at(9), 1.0);
        }
        assert_eq!(history.series.len(), SERIES_MAX);
    }
}
