//! A line over time as SVG, drawn here and not in the browser.

use std::fmt::Write;

use super::figures::as_f64;

/// The picture's own units. The page scales it.
pub(crate) const WIDTH: f64 = 360.0;
pub(crate) const HEIGHT: f64 = 64.0;
/// So that the highest point is not cut.
const TOP: f64 = 3.0;

/// The paths of a chart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) line: String,
    /// From the line to the ground.
    pub(crate) area: String,
}

/// Draws points whose highest place is `most`. Where one is missing there is a gap.
pub(crate) fn paths(points: &[Option<f64>], most: f64) -> Paths {
    let step = WIDTH / as_f64(points.len().saturating_sub(1).max(1) as u64);
    let mut paths = Paths::default();
    let mut run: Vec<(f64, f64)> = Vec::new();
    for (number, point) in points.iter().enumerate() {
        match point {
            Some(value) => {
                let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
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

/// The highest of these, at least `least`.
pub(crate) fn most(points: &[Option<f64>], least: f64) -> f64 {
    points.iter().flatten().copied().fold(least, f64::max)
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
        assert!((most(&[Some(2.0), None], 1.0) - 2.0).abs() < f64::EPSILON);
        assert!((most(&[None], 1.0) - 1.0).abs() < f64::EPSILON);
    }
}
