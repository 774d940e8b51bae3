//! A line over time as SVG, drawn here and not in the browser.

use std::fmt::Write;

use super::figures::as_f64;

/// The picture's own units. The page scales it.
pub(crate) const WIDTH: f64 = 360.0;
pub(crate) const HEIGHT: f64 = 64.0;
/// So that the highest point is not cut.
const TOP: f64 = 3.0;
/// What is so many times as high as nine of ten points is a spike.
const SPIKE: f64 = 4.0;

/// How high a chart goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    pub(crate) top: f64,
    /// The highest point, if that is beyond.
    pub(crate) peak: Option<f64>,
}

/// Up to the highest point and at least `least`, unless that is a spike which is over: beside it all
/// others would be a flat line. The top is a round number, of bytes if `base` is 2.
pub(crate) fn scale(points: &[Option<f64>], least: f64, base: f64) -> Scale {
    let mut values: Vec<_> = points.iter().flatten().copied().filter(|it| *it > 0.0).collect();
    // While nobody answers, the last answer is the newest.
    let newest = points.iter().rev().flatten().next().copied().unwrap_or(0.0);
    values.sort_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or(0.0);
    let usual = values.get(values.len() * 9 / 10).copied().unwrap_or(most) * SPIKE / 2.0;
    let peak = Some(most).filter(|it| *it > usual * 2.0 && newest <= usual);
    let top = peak.map_or(most, |_| usual).max(least);
    let unit = base.powf(top.log(base).floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0].map(|it| it * unit);
    let top = steps.into_iter().find(|it| *it >= top).unwrap_or(base * unit);
    Scale { top, peak }
}

/// The paths of a chart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) line: String,
    /// From the line to the ground.
    pub(crate) area: String,
}

/// Draws points up to `top`, and what is higher beyond the picture, where the page cuts it. Where one is
/// missing there is a gap.
pub(crate) fn paths(points: &[Option<f64>], top: f64) -> Paths {
    let step = WIDTH / as_f64(points.len().saturating_sub(1).max(1) as u64);
    let mut paths = Paths::default();
    let mut run: Vec<(f64, f64)> = Vec::new();
    for (number, point) in points.iter().enumerate() {
        match point {
            Some(value) => {
                let share = if top > 0.0 { (value / top).clamp(0.0, 1.5) } else { 0.0 };
                let y = HEIGHT - 1.0 - share * (HEIGHT - 1.0 - TOP);
                run.push((as_f64(number as u64) * step, y));
            }
            None => paths.end(&mut run),
        }
    }
    paths.end(&mut run);
    paths
}

impl Paths {
    fn end(&mut self, run: &mut Vec<(f64, f64)>) {
        let (Some(first), Some(last)) = (run.first().copied(), run.last().copied()) else { return };
        let mut line = String::new();
        for (number, (x, y)) in run.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(line, "{}{x:.0} {y:.1}", if number == 0 { 'M' } else { 'L' });
        }
        if run.len() == 1 {
            line.push_str("h0");
        }
        let _ = write!(self.area, "{line}L{:.0} {HEIGHT}L{:.0} {HEIGHT}Z", last.0, first.0);
        self.line.push_str(&line);
        run.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_point_is_at_the_top_and_nothing_is_at_the_bottom() {
        let drawn = paths(&[Some(0.0), Some(5.0), Some(10.0)], 10.0);
        assert_eq!(drawn.line, "M0 63.0L180 33.0L360 3.0");
        assert_eq!(drawn.area, "M0 63.0L180 33.0L360 3.0L360 64L0 64Z");
    }

    #[test]
    fn a_missing_point_is_a_gap() {
        let drawn = paths(&[Some(1.0), None, Some(1.0)], 1.0);
        assert_eq!(drawn.line, "M0 3.0h0M360 3.0h0");
        assert_eq!(paths(&[None, None], 1.0), Paths::default());
        assert_eq!(paths(&[], 1.0), Paths::default());
    }

    #[test]
    fn nothing_at_all_lies_on_the_ground() {
        assert_eq!(paths(&[Some(0.0), Some(0.0)], 0.0).line, "M0 63.0L360 63.0");
    }

    #[test]
    fn a_scale_ends_at_a_round_number_above_the_highest_point() {
        let of = |points: &[f64], least, base| {
            let points: Vec<_> = points.iter().copied().map(Some).collect();
            let Scale { top, peak } = scale(&points, least, base);
            (top.round(), peak.map(f64::round))
        };
        assert_eq!(of(&[], 1.0, 10.0), (1.0, None));
        assert_eq!(of(&[7.0, 1204.0], 1.0, 10.0), (1500.0, None));
        assert_eq!(of(&[9.5], 1.0, 10.0), (10.0, None));
        assert_eq!(of(&[11.2 * 1024.0], 1024.0, 2.0), (12.0 * 1024.0, None));
        let mut points = vec![100.0; 40];
        points[20] = 12_400.0;
        assert_eq!(of(&points, 1.0, 10.0), (200.0, Some(12_400.0)), "the rest is no flat line");
        points.rotate_right(19);
        assert_eq!(of(&points, 1.0, 10.0).1, None, "what is so now is shown");
        let mut away: Vec<_> = vec![Some(100.0); 40];
        (away[37], away[38], away[39]) = (Some(12_400.0), None, None);
        assert_eq!(scale(&away, 1.0, 10.0).peak, None, "what was so last is shown");
        points = vec![0.0; 40];
        points[20] = 12_400.0;
        assert_eq!(of(&points, 1.0, 10.0), (15_000.0, None), "there is nothing beside it");
    }

    #[test]
    fn a_spike_leaves_the_picture() {
        assert_eq!(paths(&[Some(0.0), Some(90.0)], 10.0).line, "M0 63.0L360 -27.0");
    }
}
