//! `tailpost replays`, and following them.

use std::fmt::Write;
use std::time::Duration;

use anyhow::bail;
use operate::replays::{ReplayDecision, ReplayEntry, Unreplayed, decide_replay, replay, replays};
use relay::Config;
use serde::Serialize;
use uuid::Uuid;

use super::progress;
use crate::admin::ShownReplay;
use crate::cli::{ReplaysCommand, ReplaysDecideArgs};
use crate::config::Settings;
use crate::output::{Lines, if_any};
use crate::{output, shutdown};

/// How often a replay is looked at that is followed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Events listed that could not be published.
const LISTED: u32 = 100;

#[derive(Serialize)]
struct Replays {
    replays: Vec<ReplayEntry>,
}

pub(super) async fn run(command: &ReplaysCommand, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    match command {
        ReplaysCommand::List(args) => {
            let replays = replays(&config, None, args.limit).await?;
            let shown = Replays { replays };
            output::show(args.json, &shown, || table(&shown.replays))
        }
        ReplaysCommand::Show(args) if args.follow => follow(&config, &[args.id], args.json).await,
        ReplaysCommand::Show(args) => show(&config, args.id, args.json).await.map(|_| ()),
        ReplaysCommand::Pause(args) => decide(&config, ReplayDecision::Pause, args).await,
        ReplaysCommand::Resume(args) => decide(&config, ReplayDecision::Resume, args).await,
        ReplaysCommand::Cancel(args) => decide(&config, ReplayDecision::Cancel, args).await,
    }
}

async fn decide(
    config: &Config,
    decision: ReplayDecision,
    args: &ReplaysDecideArgs,
) -> anyhow::Result<()> {
    let who = args.who.actor();
    let entry = decide_replay(config, args.id, decision, &who.name, who.why()).await?;
    let shown = ShownReplay { replay: entry, failures: Vec::new() };
    let said = || format!("replay {} is {}", shown.replay.id, shown.replay.status);
    output::show(args.json, &shown, said)
}

async fn show(config: &Config, id: Uuid, json: bool) -> anyhow::Result<ReplayEntry> {
    let (entry, failures) = replay(config, id, LISTED).await?;
    let shown = ShownReplay { replay: entry, failures };
    output::show(json, &shown, || text(&shown.replay, &shown.failures))?;
    Ok(shown.replay)
}

/// Waits until all of them have ended, and shows them. Leaving changes nothing.
pub(super) async fn follow(config: &Config, ids: &[Uuid], json: bool) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let bar = progress::bar("{bar:30} {pos}/{len}, {per_sec}, {eta} left");
    let mut pace = tokio::time::interval(LOOK_EVERY);
    let mut has_said = false;
    loop {
        let (mut done, mut of, mut open, mut waits) = (0, 0, 0, false);
        for id in ids {
            let (entry, _) = replay(config, *id, 0).await?;
            let (place, places) = entry.progress();
            (done, of) = (done + place, of + places);
            open += usize::from(!entry.has_ended() && entry.status != "paused");
            waits |= !entry.has_relay;
        }
        progress::set(&bar, done, of);
        if open == 0 {
            break;
        }
        if waits && !std::mem::replace(&mut has_said, true) {
            bar.suspend(|| {
                output::note("no relay reads the slot now: one that does goes on with it")
            });
        }
        tokio::select! {
            _ = pace.tick() => {}
            () = stop.cancelled() => {
                bar.finish_and_clear();
                for id in ids {
                    output::note(&format!("the relay goes on: `tailpost replays show {id} --follow`"));
                }
                return Ok(());
            }
        }
    }
    bar.finish_and_clear();
    let (mut failed, mut unfinished) = (0, 0);
    for id in ids {
        let entry = show(config, *id, json).await?;
        failed += entry.failed;
        unfinished += usize::from(entry.status != "done");
    }
    match (failed, unfinished) {
        (0, 0) => Ok(()),
        (0, _) => bail!("not everything was published again"),
        (failed, _) => bail!("{failed} events could not be published again"),
    }
}

fn table(replays: &[ReplayEntry]) -> String {
    if replays.is_empty() {
        return "nothing was replayed".into();
    }
    let mut text =
        format!("{:<36}  {:<9}  {:<6}  {:>20}  asked\n", "replay", "status", "source", "published");
    for it in replays {
        let of = if_any(" of ", it.events);
        let published = format!("{}{of}", it.published);
        let asked = format!("{} by {}: {}", it.asked_at, it.asked_by, it.reason);
        let line = format!(
            "{:<36}  {:<9}  {:<6}  {published:>20}  {}",
            it.id,
            it.status,
            it.source,
            output::one_line(&asked)
        );
        writeln!(text, "{line}").expect("writing to a string");
    }
    text
}

fn text(entry: &ReplayEntry, failures: &[Unreplayed]) -> String {
    let mut lines = Lines::default();
    let mut line = |label: &str, value: &str| lines.add(label, value);
    let waits = match entry.status.as_str() {
        "asked" | "running" if !entry.has_relay => " (no relay reads the slot now)",
        _ => "",
    };
    line("replay", &format!("{}, {}{waits}", entry.id, entry.status));
    line("stream", &format!("{}, slot {}", entry.stream, entry.slot));
    line("source", &entry.source);
    line("events", &selected(entry));
    let of = if_any(" of ", entry.events);
    line("published", &format!("{}{of}", entry.published));
    if entry.failed > 0 {
        line("failed", &entry.failed.to_string());
    }
    if let Some(why) = entry.waits_for.as_ref().filter(|_| !entry.has_ended()) {
        line("waits for", why);
    }
    line("asked", &format!("{} by {}: {}", entry.asked_at, entry.asked_by, entry.reason));
    for (label, time) in [("started", &entry.started_at), ("ended", &entry.ended_at)] {
        if let Some(time) = time {
            line(label, time);
        }
    }
    for decision in entry.decisions.as_array().into_iter().flatten() {
        let said = |key: &str| decision[key].as_str().unwrap_or_default().to_owned();
        let why = if_any(": ", decision["why"].as_str());
        line(&said("decision"), &format!("{} by {}{why}", said("at"), said("by")));
    }
    for failure in failures {
        line("  failed", &format!("{}: {}", failure.event, failure.reason));
    }
    if entry.failed > failures.len() as u64 {
        line("", &format!("and {} more", entry.failed - failures.len() as u64));
    }
    lines.text
}

fn selected(entry: &ReplayEntry) -> String {
    let ids = entry.event_ids.len();
    let said = [
        entry.from_lsn.as_ref().map(|it| format!("from {it}")),
        entry.to_lsn.as_ref().map(|it| format!("to {it}")),
        entry.since.as_ref().map(|it| format!("since {it}")),
        entry.until.as_ref().map(|it| format!("until {it}")),
        (ids > 0).then(|| format!("{ids} ids")),
        entry
            .aggregate_type
            .as_ref()
            .zip(entry.aggregate_id.as_ref())
            .map(|(a, b)| format!("{a}:{b}")),
        entry.event_type.as_ref().map(|it| format!("type {it}")),
        entry.subject_prefix.as_ref().map(|it| format!("published under {it}.")),
        entry.per_second.map(|it| format!("at most {it}/s")),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    if said.is_empty() { "all".into() } else { said.join(", ") }
}
