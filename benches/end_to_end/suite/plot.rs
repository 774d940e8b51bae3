//! Draws charts as SVG: horizontal bars with their values beside them.

use std::fmt::Write;

use super::chart::{Chart, Scale};

const WIDTH: f64 = 860.0;
const LABELS_WIDTH: f64 = 270.0;
const VALUES_WIDTH: f64 = 80.0;
const BARS_WIDTH: f64 = WIDTH - LABELS_WIDTH - VALUES_WIDTH;
const BAR: f64 = 13.0;
const GAP: f64 = 7.0;
const LINE: f64 = 18.0;
const MARGIN: f64 = 16.0;

/// Told apart by those who see colours differently too (Okabe and Ito).
const COLOURS: [&str; 5] = ["#999999", "#0072b2", "#e69f00", "#009e73", "#cc79a7"];

/// Below its smallest value a logarithmic axis begins at this fraction of it.
const LOGARITHMIC_START: f64 = 0.5;

/// The charts, one below the other.
pub(crate) fn svg(title: &str, subtitle: &str, charts: &[Chart]) -> String {
    let mut page = Page { body: String::new(), y: MARGIN };
    page.text(MARGIN, "bold 15px", "start", title);
    for line in subtitle.lines() {
        page.text(MARGIN, "11px", "start", line);
    }
    for chart in charts {
        page.chart(chart);
    }
    let (height, body) = (page.y + MARGIN, page.body);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

struct Page {
    body: String,
    /// Where the next thing goes.
    y: f64,
}

impl Page {
    fn chart(&mut self, chart: &Chart) {
        self.y += LINE;
        self.text(MARGIN, "bold 13px", "start", chart.title);
        for (series, colour) in chart.series.iter().zip(COLOURS) {
            self.bar(MARGIN, BAR, colour);
            self.put(MARGIN + BAR + GAP, 10.0, "11px", "start", series);
            self.y += LINE;
        }
        for (label, values) in &chart.rows {
            self.put(LABELS_WIDTH - GAP, 10.0, "11px", "end", label);
            for (value, colour) in values.iter().zip(COLOURS) {
                let length = BARS_WIDTH * chart.length(*value);
                self.bar(LABELS_WIDTH, length, colour);
                let text = format!("{value:.*}", chart.decimals);
                self.put(LABELS_WIDTH + length + 4.0, 10.0, "10px", "start", &text);
                self.y += BAR;
            }
            self.y += GAP;
        }
    }

    /// A line of its own.
    fn text(&mut self, x: f64, font: &str, anchor: &str, text: &str) {
        self.put(x, 12.0, font, anchor, text);
        self.y += LINE;
    }

    fn put(&mut self, x: f64, below: f64, font: &str, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let y = self.y + below;
        self.line(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             style=\"font:{font} sans-serif\">{text}</text>"
        ));
    }

    fn bar(&mut self, x: f64, length: f64, colour: &str) {
        let (y, height) = (self.y, BAR - 1.0);
        self.line(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{height}\" \
             fill=\"{colour}\"/>"
        ));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let written = writeln!(self.body, "{line}");
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
}

impl Chart {
    /// Of a bar, from 0 to 1.
    fn length(&self, value: f64) -> f64 {
        let values = || self.rows.iter().flat_map(|row| &row.1).copied().filter(|it| *it > 0.0);
        let max = values().fold(0.0, f64::max);
        if value <= 0.0 || max <= 0.0 {
            return 0.0;
        }
        match self.scale {
            Scale::Linear => value / max,
            Scale::Logarithmic => {
                let start = values().fold(max, f64::min) * LOGARITHMIC_START;
                (value / start).ln() / (max / start).ln()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale) -> Chart {
        let rows = vec![("a<b".to_owned(), vec![1.0, 0.0]), ("c".to_owned(), vec![8.0, 4.0])];
        Chart { title: "t", series: &["x", "y"], scale, decimals: 0, rows }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let linear = chart(Scale::Linear);
        assert_eq!([8.0, 4.0, 0.0].map(|value| linear.length(value)), [1.0, 0.5, 0.0]);
        let logarithmic = chart(Scale::Logarithmic);
        assert_eq!([8.0, 2.0, 0.0].map(|value| logarithmic.length(value)), [1.0, 0.5, 0.0]);
    }

    #[test]
    fn a_plot_shows_every_value_and_escapes_its_text() {
        let plot = svg("title & all", "one\ntwo", &[chart(Scale::Linear)]);
        assert!(plot.contains("title &amp; all") && plot.contains("a&lt;b"), "{plot}");
        assert_eq!(plot.matches("<rect").count(), 1 + 2 + 4, "{plot}");
        assert!(plot.contains(">8</text>") && plot.ends_with("</svg>\n"), "{plot}");
    }
}
