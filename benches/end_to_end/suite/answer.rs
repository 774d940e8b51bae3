//! The answer to a question: what was measured, and how to look at it.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::chart::Chart;
use super::plot;
use crate::measured::Conditions;

/// What was measured for a question.
pub(crate) struct Answer {
    /// The question.
    pub(crate) title: &'static str,
    /// Everything there is, one entry for each measurement.
    pub(crate) points: Vec<Value>,
    /// What of it is shown.
    pub(crate) charts: Vec<Chart>,
}

#[derive(Serialize)]
struct File<'a> {
    question: &'a str,
    conditions: &'a Conditions,
    points: &'a [Value],
    failed: &'a [String],
}

impl Answer {
    /// Writes `<name>.json` and `<name>.svg`.
    pub(crate) fn write(
        &self,
        folder: &Path,
        name: &str,
        conditions: &Conditions,
        failed: &[String],
    ) -> Result<()> {
        let file = File { question: self.title, conditions, points: &self.points, failed };
        let json = serde_json::to_string_pretty(&file).context("print the answer")? + "\n";
        let svg = plot::svg(self.title, &conditions.to_string(), &self.charts);
        for (kind, text) in [("json", json), ("svg", svg)] {
            let path = folder.join(format!("{name}.{kind}"));
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        self.charts.iter().try_for_each(|chart| writeln!(f, "{chart}"))
    }
}
