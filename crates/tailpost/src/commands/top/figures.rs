//! Figures as people read them.

use std::collections::VecDeque;

/// Events a second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0..10.0 => format!("{rate:.1}/s"),
        10.0..100_000.0 => format!("{rate:.0}/s"),
        _ => format!("{:.0}k/s", rate / 1000.0),
    }
}

/// A time of any length.
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        ..0.0005 if seconds > 0.0 => format!("{:.0} us", seconds * 1e6),
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..60.0 => format!("{seconds:.1} s"),
        _ => crate::output::duration(seconds),
    }
}

/// Ten steps.
pub(super) fn bar(share: f64) -> String {
    let filled = (0..10).filter(|step| f64::from(*step) < share * 10.0).count();
    format!("[{}{}]", "#".repeat(filled), ".".repeat(10 - filled))
}

/// The newest rates, as many as there is room for; the highest of them is the highest sign.
pub(super) fn spark(rates: &VecDeque<f64>, width: usize) -> String {
    const SIGNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = rates.iter().skip(rates.len().saturating_sub(width));
    let most = shown.clone().copied().fold(0.0, f64::max);
    let sign = |rate: &f64| {
        let above =
            SIGNS.iter().zip(1_u8..).find(|(_, step)| *rate <= most * f64::from(*step) / 8.0);
        above.map_or('█', |(sign, _)| *sign)
    };
    shown.map(sign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_length_that_fits() {
        let rates = [(0.0, "0.0/s"), (9.94, "9.9/s"), (1234.5, "1234/s"), (250_000.0, "250k/s")];
        for (value, text) in rates {
            assert_eq!(rate(value), text);
        }
        let times = [
            (0.0, "0.0 ms"),
            (0.000_3, "300 us"),
            (0.0012, "1.2 ms"),
            (0.25, "250 ms"),
            (2.5, "2.5 s"),
        ];
        for (value, text) in times {
            assert_eq!(latency(value), text);
        }
        assert_eq!(
            (&*bar(0.0), &*bar(0.31), &*bar(7.0)),
            ("[..........]", "[####......]", "[##########]")
        );
    }

    #[test]
    fn a_line_of_rates_is_relative_to_the_highest() {
        let rates: VecDeque<f64> = [9.0, 0.0, 50.0, 100.0].into();
        assert_eq!(spark(&rates, 3), "▁▄█");
        assert_eq!(spark(&VecDeque::from([0.0, 0.0]), 9), "▁▁");
        assert_eq!(spark(&rates, 0), "");
    }
}
