//! `tailpost replay`: the plan, and asking for it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use operate::replays::{
    ReplayPlan, ReplayRequest, ReplaySource, SourceHolds, ask_replay, plan_replay,
};
use serde::Serialize;
use uuid::Uuid;

use super::{replays, status};
use crate::cli::ReplayArgs;
use crate::config::Settings;
use crate::output;

/// What would be done.
#[derive(Serialize)]
struct Plan {
    #[serde(flatten)]
    plan: ReplayPlan,
    events: Option<u64>,
    is_exact: bool,
    per_second: Option<u32>,
    seconds: Option<f64>,
    /// Consumers that have an inbox, which skips what they have processed.
    with_inbox: Vec<String>,
    /// Consumers whose effects are repeated, unless they deduplicate by themselves.
    without_inbox: Vec<String>,
}

#[derive(Serialize)]
struct Plans {
    execute: bool,
    plans: Vec<Plan>,
}

#[derive(Serialize)]
struct Asked {
    replays: Vec<Uuid>,
}

pub(super) async fn run(args: &ReplayArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    let selection = args.which.selection();
    let prefix = args.to_subject_prefix.as_deref();
    let plans = plan_replay(&config, &selection, args.source.source(), prefix).await?;
    let known = known_consumers(settings).await;
    let shown: Vec<Plan> = plans.iter().map(|it| plan(it, args.rate, &known)).collect();
    let is_empty = shown.iter().all(|it| it.events == Some(0));
    if !args.execute {
        let shown = Plans { execute: false, plans: shown };
        let end = match is_empty {
            true => "Nothing is to be done.",
            false => "Nothing was done yet: --execute --why TEXT starts it in the relay.",
        };
        let said = || shown.plans.iter().map(told).chain([end.to_owned()]).collect();
        return output::show(args.json, &shown, said);
    }
    output::note(&shown.iter().map(told).collect::<String>());
    let asker = args.who.actor();
    let request = ReplayRequest {
        selection,
        subject_prefix: args.to_subject_prefix.clone(),
        per_second: args.rate,
        by: asker.name.clone(),
        reason: asker.why().unwrap_or_default().to_owned(),
    };
    let ids = ask_replay(&config, &plans, &request).await?;
    if args.detach || ids.is_empty() {
        let asked = Asked { replays: ids };
        return output::show(args.json, &asked, || match &*asked.replays {
            [] => "Nothing is to be done.".into(),
            ids => ids.iter().map(|id| format!("asked for replay {id}\n")).collect(),
        });
    }
    replays::follow(&config, &ids, args.json).await
}

fn plan(of: &ReplayPlan, rate: Option<u32>, known: &Option<BTreeSet<String>>) -> Plan {
    let (events, is_exact) = of.source().map_or((Some(0), true), |it| (it.events, it.is_exact));
    let has_inbox = |it: &&String| known.as_ref().is_some_and(|known| known.contains(*it));
    let (with, without): (Vec<&String>, Vec<&String>) =
        of.consumers.iter().flatten().partition(has_inbox);
    Plan {
        plan: of.clone(),
        events,
        is_exact,
        per_second: rate,
        seconds: rate.zip(events).map(|(rate, events)| events as f64 / f64::from(rate)),
        with_inbox: with.into_iter().cloned().collect(),
        without_inbox: without.into_iter().cloned().collect(),
    }
}

/// The consumers that have an inbox beside the outbox; `None` if nobody can say.
async fn known_consumers(settings: &Settings) -> Option<BTreeSet<String>> {
    let table = settings.table().ok()?;
    let connection = settings.connection("tailpost replay").await.ok()?;
    let known = operate::explain::consumer_story::consumers(&connection, &table).await.ok()?;
    Some(known.into_iter().collect())
}

fn told(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |it: String| writeln!(text, "{it}").expect("writing to a string");
    line(format!("stream {}, slot {}", plan.plan.stream, plan.plan.slot));
    line(format!("  {:<8} {:<32} events", "source", "holds from"));
    for source in &plan.plan.sources {
        line(source_told(source, plan.plan.chosen));
    }
    if plan.plan.consumers.as_ref().is_some_and(|it| !it.is_empty()) {
        let mut said = Vec::new();
        if !plan.with_inbox.is_empty() {
            let names = plan.with_inbox.join(", ");
            said.push(format!("{names}: the inbox skips what is processed"));
        }
        if !plan.without_inbox.is_empty() {
            let names = plan.without_inbox.join(", ");
            said.push(format!(
                "{names}: no inbox, EFFECTS REPEAT unless it deduplicates by the event's id"
            ));
        }
        line(format!("  consumers: {}", said.join("; ")));
    }
    for warning in &plan.plan.warnings {
        line(format!("  warning: {warning}"));
    }
    if let (Some(rate), Some(seconds)) = (plan.per_second, plan.seconds) {
        let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        line(format!("  {} at {rate}/s", output::duration(seconds.as_secs_f64())));
    }
    text
}

fn source_told(source: &SourceHolds, chosen: ReplaySource) -> String {
    let from = match (&source.from, source.first_sequence) {
        (Some(from), Some(first)) => format!("{from} ({first})"),
        (Some(from), None) => from.clone(),
        (None, _) => "-".to_owned(),
    };
    let up_to = if source.is_exact { "" } else { "up to " };
    let events = source.events.map_or_else(|| "-".to_owned(), |it| format!("{up_to}{it}"));
    let mark = if source.source == chosen.name() { "  <- chosen" } else { "" };
    let kept = source.from_lsn.zip(source.bytes);
    let kept = kept.map(|(lsn, it)| format!("from {lsn}, {} of log kept", status::bytes(it)));
    let said: Vec<String> = kept.into_iter().chain(source.note.clone()).collect();
    let note = if said.is_empty() { String::new() } else { format!("  ({})", said.join("; ")) };
    format!("  {:<8} {from:<32} {events}{mark}{note}", source.source)
}
