//! What all decisions about dead letters have in common, whichever queue they are in: the plan, the
//! question, the progress, the result.

use std::io::{BufRead, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use outbox::dead_letters::{Filter, Overview, Progress};
use serde::Serialize;
use tokio::sync::watch;

use super::dlq::text;
use crate::cli::dlq_args::WorkArgs;
use crate::errors::DlqError;
use crate::output;

/// How many dead letters a plan shows.
pub(super) const FIRST: u32 = 5;

/// What would be done, as JSON.
#[derive(Serialize)]
struct Plan<'a, L> {
    action: &'a str,
    dry_run: bool,
    filter: &'a Filter,
    #[serde(flatten)]
    overview: &'a Overview<L>,
}

/// What was done, as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    action: &'a str,
    total: u64,
    done: u64,
    skipped: u64,
    last_refusal: Option<&'a str>,
    cancelled: bool,
}

/// Shows what an action on many is about, and asks. Whether to go on.
pub(super) fn plan<L: Serialize>(
    args: &WorkArgs,
    verb: &str,
    overview: &Overview<L>,
    line: impl Fn(&L) -> String,
) -> anyhow::Result<bool> {
    let filter = args.filter.filter();
    let told = || text::plan(verb, &filter, overview, line);
    if args.dry_run {
        if args.json {
            output::json(&Plan { action: verb, dry_run: true, filter: &filter, overview })?;
        } else {
            output::text(&told())?;
        }
        return Ok(false);
    }
    output::note(&told());
    if !args.yes && overview.total > 0 {
        confirm(&format!("{verb} {}?", overview.total))?;
    }
    Ok(true)
}

/// Asks, where somebody can be asked.
pub(super) fn confirm(question: &str) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(DlqError::NotConfirmed("--yes is needed where nobody can be asked").into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(DlqError::NotConfirmed("you did not say yes").into()),
    }
}

/// A bar on a terminal, nothing elsewhere.
pub(super) async fn draw(mut progress: watch::Receiver<Progress>) {
    let style = "{bar:40} {pos}/{len}, {per_sec}, {eta} left";
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(style).expect("a valid template"));
    while progress.changed().await.is_ok() {
        let now = progress.borrow_and_update().clone();
        bar.set_length(now.total);
        bar.set_position(now.done + now.skipped);
    }
    bar.finish_and_clear();
}

/// Tells the result of an action, and fails if some were skipped.
pub(super) fn tell(
    args: &WorkArgs,
    verb: &str,
    progress: &Progress,
    said: &str,
) -> anyhow::Result<()> {
    let Progress { total, done, skipped, cancelled, ref last_refusal, .. } = *progress;
    let last_refusal = last_refusal.as_deref();
    if args.json {
        output::json(&Outcome { action: verb, total, done, skipped, last_refusal, cancelled })?;
    } else {
        output::text(said)?;
    }
    match last_refusal {
        Some(why) if skipped > 0 => {
            Err(DlqError::Skipped { skipped, total, why: why.to_owned() }.into())
        }
        Some(why) => Err(anyhow::anyhow!("could not go on: {why}")),
        None => Ok(()),
    }
}

/// As [`tell`], of many.
pub(super) fn tell_many(args: &WorkArgs, verb: &str, progress: &Progress) -> anyhow::Result<()> {
    let Progress { total, done, cancelled, .. } = progress;
    let how = if *cancelled { ", cancelled" } else { "" };
    tell(args, verb, progress, &format!("{} {done} of {total}{how}", past(verb)))
}

/// As [`tell`], of those that were named and are all done.
pub(super) fn all_done(args: &WorkArgs, verb: &str, count: u64, said: &str) -> anyhow::Result<()> {
    let progress = Progress { total: count, done: count, ended: true, ..Progress::default() };
    tell(args, verb, &progress, said)
}

pub(super) fn past(verb: &str) -> String {
    if verb.ends_with('e') { format!("{verb}d") } else { format!("{verb}ed") }
}

/// Who decides: whoever is named, or who is at the terminal.
pub(super) fn decider(by: Option<&String>) -> String {
    let name = by.cloned().or_else(|| whoami::username().ok());
    name.filter(|it| !it.trim().is_empty()).unwrap_or_else(|| "unnamed".into())
}
