//! Figures as people read them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// What stands where nothing is known.
pub(crate) const ABSENT: &str = "–";

/// A number with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and what it counts.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Events a second.
pub(crate) fn rate(rate: f64) -> String {
    if rate < 10.0 && rate.fract() > 0.0 { format!("{rate:.1}") } else { count(rounded(rate)) }
}

pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (as_f64(bytes) / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if value < 10.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// A short time: a latency, a lag.
pub(crate) fn latency(seconds: f64) -> String {
    match seconds {
        ..0.0 => ABSENT.into(),
        0.0 => "0 ms".into(),
        ..0.0005 => format!("{:.0} µs", seconds * 1e6),
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..10.0 => format!("{seconds:.1} s"),
        _ => span(rounded(seconds)),
    }
}

/// A time in its two largest units.
pub(crate) fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let both = |large: u64, unit: &str, small: u64, of: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {of}"),
    };
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{minutes} min"),
        7_200..172_800 => both(hours, "h", minutes % 60, "min"),
        _ => both(days, "d", if days < 10 { hours % 24 } else { 0 }, "h"),
    }
}

/// How long ago that was.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second().saturating_sub(at.as_second())).unwrap_or(0);
    match seconds {
        0 => "now".into(),
        seconds => format!("{} ago", span(seconds)),
    }
}

/// How long until then.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    match u64::try_from(at.as_second().saturating_sub(now.as_second())) {
        Err(_) | Ok(0) => "now".into(),
        Ok(seconds) => format!("in {}", span(seconds)),
    }
}

/// The time of the day, in UTC, with the day if that is not today's.
pub(crate) fn clock(at: Timestamp, now: Timestamp) -> String {
    let (then, today) = (at.to_zoned(TimeZone::UTC), now.to_zoned(TimeZone::UTC));
    if then.date() == today.date() {
        return then.strftime("%H:%M:%S").to_string();
    }
    if then.year() == today.year() {
        return then.strftime("%-d %b %H:%M").to_string();
    }
    then.strftime("%-d %b %Y").to_string()
}

/// At most so many characters, with a sign that some are missing.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Of an error with a trace, what it begins with.
pub(crate) fn first_line(text: &str) -> String {
    short(text.lines().find(|it| !it.trim().is_empty()).unwrap_or(ABSENT).trim(), 200)
}

/// What a person reads is rounded anyway.
#[allow(clippy::cast_precision_loss, reason = "what a person reads is rounded anyway")]
pub(crate) fn as_f64(number: u64) -> f64 {
    number as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates at 0 and at the largest number"
)]
pub(crate) fn rounded(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1204, "1,204"), (12_345_678, "12,345,678")]
        {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "event", "events"), "1 event");
        assert_eq!((&*rate(0.0), &*rate(0.25), &*rate(1204.4)), ("0", "0.2", "1,204"));
    }

    #[test]
    fn sizes_and_times_have_a_unit_that_fits() {
        for (size, text) in [(5, "5 B"), (2048, "2.0 KiB"), (12_025_908_429, "11 GiB")] {
            assert_eq!(bytes(size), text);
        }
        for (seconds, text) in [(0.000_3, "300 µs"), (0.000_8, "0.8 ms"), (0.25, "250 ms")] {
            assert_eq!(latency(seconds), text);
        }
        for (seconds, text) in
            [(19, "19 s"), (1140, "19 min"), (20_400, "5 h 40 min"), (518_400, "6 d")]
        {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn a_clock_has_the_day_unless_it_is_today() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let now = at("2026-11-26T09:31:07Z");
        assert_eq!(clock(at("2026-11-26T09:12:00Z"), now), "09:12:00");
        assert_eq!(clock(at("2026-11-24T09:12:00Z"), now), "24 Nov 09:12");
        assert_eq!(clock(at("2025-11-24T09:12:00Z"), now), "24 Nov 2025");
        assert_eq!(age(at("2026-11-26T09:12:07Z"), now), "19 min ago");
        assert_eq!(until(at("2026-11-26T09:31:49Z"), now), "in 42 s");
        assert_eq!(until(at("2026-11-26T09:31:06Z"), now), "now");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(short("größer", 3), "grö…");
        assert_eq!(short("so", 3), "so");
    }
}
