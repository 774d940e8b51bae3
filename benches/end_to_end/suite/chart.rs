//! A table of numbers that can be drawn.

use std::fmt;

use crate::figures::median;

/// Groups of bars, one group for each measurement, one bar for each series.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) series: &'static [&'static str],
    pub(crate) scale: Scale,
    pub(crate) decimals: usize,
    /// What was measured, and its values in the order of the series.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
}

/// How long a bar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// As its value.
    Linear,
    /// As its value's logarithm: for what differs by orders of magnitude.
    Logarithmic,
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = self.decimals;
        write!(f, "{:38}", self.title)?;
        for series in self.series {
            write!(f, " {series:>14}")?;
        }
        writeln!(f)?;
        for (label, values) in &self.rows {
            write!(f, "  {label:36}")?;
            for value in values {
                write!(f, " {value:>14.decimals$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A row of a chart: its label, and the figure that it shows of each measurement.
type Row<'a, T> = (&'a str, fn(&T) -> f64);

impl Chart {
    /// Measurements that were repeated, in milliseconds: their median and the longest.
    pub(crate) fn repeated<T>(title: &'static str, measured: &[T], rows: &[Row<'_, T>]) -> Self {
        let row = |(label, of): &Row<'_, T>| {
            let values: Vec<f64> = measured.iter().map(of).collect();
            let max = values.iter().copied().fold(0.0, f64::max);
            ((*label).to_owned(), vec![median(values), max])
        };
        let rows = if measured.is_empty() { Vec::new() } else { rows.iter().map(row).collect() };
        Self { title, series: &["median", "max"], scale: Scale::Linear, decimals: 1, rows }
    }
}
