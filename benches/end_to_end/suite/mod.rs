//! One question after the other, each answered in numbers beside their limits.
//!
//! A measurement that fails is reported, and the others go on. Every answer becomes a JSON file
//! and, from the same numbers, a plot.

mod answer;
mod backlog;
mod beside;
mod chart;
mod compare;
mod drains;
mod marks;
mod paced;
mod plot;
mod rates;
mod reading;
mod replication;
mod shards;
mod start;
mod takeover;
mod traffic;
mod verifying;

use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use tokio::time::timeout;

use self::answer::Answer;
use crate::progress;
use crate::servers::{Keeping, Servers};

/// What the suite asks. The name is that of the answer's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// How fast do waiting rows drain, depending on what they look like?
    Drain,
    /// What does it cost to say of each row that it is published?
    Marks,
    /// How long from commit to acknowledgement and consumer at a steady rate?
    Rates,
    /// What do three replicas and flushed writes change?
    Replication,
    /// What does reading the log cost, from a bare socket to the relay's decoder?
    Reading,
    /// Do speed and memory depend on how much waits?
    Backlog,
    /// What do shards bring, and what does it cost to decode the log for each?
    Shards,
    /// How long from the start of the process to the first message?
    Start,
    /// How long until a standby publishes after the active relay was killed?
    Takeover,
    /// How fast does `verify` compare table and stream?
    Verify,
    /// What do a replay at full rate, and retention, cost new events?
    Beside,
}

/// What every measurement is told, and where it reports.
pub(crate) struct Bench {
    /// Only see that it works.
    pub(crate) quick: bool,
    /// With five and ten million rows.
    pub(crate) large: bool,
    failed: Vec<String>,
}

impl Bench {
    /// Measures one thing. If that fails, or takes longer than `limit`, notes it.
    pub(crate) async fn measure<T>(
        &mut self,
        label: &str,
        limit: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Option<T> {
        progress(&format!("  {label}"));
        let done = timeout(limit, Box::pin(work)).await;
        let done = done.unwrap_or_else(|_| anyhow::bail!("not done within {limit:?}"));
        let failure = match done {
            Ok(measured) => return Some(measured),
            Err(error) => format!("{label}: {error:#}"),
        };
        self.fail(failure);
        None
    }

    /// Notes that something is not as it has to be.
    pub(crate) fn fail(&mut self, failure: String) {
        progress(&format!("  failed: {failure}"));
        self.failed.push(failure);
    }
}

/// Where answers go if nobody says where.
pub(crate) fn default_folder(quick: bool) -> PathBuf {
    if quick {
        return std::env::temp_dir().join("tailpost-bench");
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// Asks the questions, all if none is named, and writes the answers. Says whether each was answered
/// in full.
pub(crate) async fn run(
    only: &[Question],
    quick: bool,
    large: bool,
    folder: &Path,
) -> Result<bool> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let conditions = Servers::start(Keeping::DEFAULT).await?.conditions().await?;
    print(&conditions.to_string())?;
    let started = Instant::now();
    let mut failed = Vec::new();
    for &question in Question::value_variants() {
        if !only.is_empty() && !only.contains(&question) {
            continue;
        }
        let name = question.to_possible_value().context("a question has a name")?;
        progress(&format!("{} ({:.0} s so far)", name.get_name(), started.elapsed().as_secs_f64()));
        let mut bench = Bench { quick, large, failed: Vec::new() };
        let answer = ask(question, &mut bench).await;
        answer.write(folder, name.get_name(), &conditions, &bench.failed)?;
        print(&answer.to_string())?;
        failed.append(&mut bench.failed);
    }
    progress(&format!("{:.0} s; answers in {}", started.elapsed().as_secs_f64(), folder.display()));
    for failure in &failed {
        progress(&format!("failed: {failure}"));
    }
    Ok(failed.is_empty())
}

async fn ask(question: Question, bench: &mut Bench) -> Answer {
    match question {
        Question::Drain => drains::answer(bench).await,
        Question::Marks => marks::answer(bench).await,
        Question::Rates => rates::answer(bench).await,
        Question::Replication => replication::answer(bench).await,
        Question::Reading => reading::answer(bench).await,
        Question::Backlog => backlog::answer(bench).await,
        Question::Shards => shards::answer(bench).await,
        Question::Start => start::answer(bench).await,
        Question::Takeover => takeover::answer(bench).await,
        Question::Verify => verifying::answer(bench).await,
        Question::Beside => beside::answer(bench).await,
    }
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("print an answer")
}
