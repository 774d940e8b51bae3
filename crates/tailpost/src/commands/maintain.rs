//! `tailpost maintain`.

use inbox::{Keep, Maintained};
use indicatif::ProgressBar;
use operate::{MaintainProgress, MaintainReport, PartitionsReport};
use relay::Config;
use serde::Serialize;

use super::progress;
use super::sides::both;
use crate::cli::MaintainArgs;
use crate::config::Settings;
use crate::errors::Refusal;
use crate::output;
use crate::output::Lines;

/// What was deleted, or would be.
#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    /// Nothing if the database has no outbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox: Option<MaintainReport>,
    /// Nothing if it has no inbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<Maintained>,
}

pub(super) async fn run(args: &MaintainArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    let outbox = outbox(args, &config).await;
    let inbox = inbox(args, settings).await;
    let rights = "SELECT, INSERT, UPDATE, DELETE";
    let (outbox, inbox, left_out) = both(outbox, inbox, Option::is_some, rights)?;
    let report = Report { dry_run: args.dry_run, outbox, inbox };
    output::show(args.json, &report, || text(&report))?;
    left_out.map_or(Ok(()), |(_, why)| Err(why.into()))
}

async fn outbox(args: &MaintainArgs, config: &Config) -> Result<MaintainReport, relay::Error> {
    let template = "{bar:30} {human_pos} of {human_len} pages, {eta} left, {msg}";
    let draw = |bar: &ProgressBar, it: MaintainProgress| {
        progress::set(bar, it.pages_read.min(it.pages), it.pages);
        bar.set_message(format!("{} rows", it.rows));
    };
    let work = async |sender: &_| operate::maintain(config, args.dry_run, sender).await;
    progress::shown(template, draw, work).await
}

async fn inbox(args: &MaintainArgs, settings: &Settings) -> anyhow::Result<Option<Maintained>> {
    let table = settings.table()?;
    let connection = settings.connection("tailpost maintain").await?;
    if !operate::consumers::exist(&connection, &table).await? {
        return Ok(None);
    }
    if settings.inbox_retention().is_some() {
        let nats = settings.nats_target()?.connect("tailpost maintain").await?;
        super::inbox::check_retention(settings, &nats).await?;
    }
    let keep = Keep { records: settings.inbox_retention(), decisions: settings.retention().audit };
    let done = inbox::look_after(&connection, table.schema(), keep, args.dry_run).await?;
    done.map(Some).ok_or_else(|| {
        let refusal = Refusal::conflict("another process looks after the inbox's tables");
        let hint = "wait until it is done: pg_stat_activity shows it as `tailpost inbox`";
        refusal.with_hint(hint).into()
    })
}

fn text(report: &Report) -> String {
    let mut lines = Lines::default();
    let mut line = |label: &str, value: &str| lines.add(label, value);
    let done = if report.dry_run { "to delete" } else { "deleted" };
    let told = |count: Option<u64>, what: &str| match count {
        Some(count) => format!("{count} {what} {done}"),
        None => "kept for ever".to_owned(),
    };
    if let Some(outbox) = &report.outbox {
        line("outbox", &outbox.table);
        line("  published", &told(outbox.published, "rows"));
        line("  dead letters", &told(outbox.dead_letters, "discarded ones"));
        line("  audit", &told(outbox.audit, "entries"));
        line("  replays", &told(outbox.replays, "ended ones"));
        if let Some(partitions) = &outbox.partitions {
            line("  partitions", &partitions_text(partitions, report.dry_run));
        }
        if let Some(why) = &outbox.held_by {
            line("  held", why);
        }
    }
    if let Some(Maintained { created, dropped, deleted, decisions }) = &report.inbox {
        let dropped = match dropped {
            0 => String::new(),
            count => format!(", and {count} partitions"),
        };
        line("inbox", &format!("{}{dropped}", told(Some(*deleted), "records")));
        line("  decisions", &told(Some(*decisions), "entries"));
        if *created > 0 {
            line("  partitions", &format!("{created} made"));
        }
    }
    lines.text
}

fn partitions_text(partitions: &PartitionsReport, dry_run: bool) -> String {
    let PartitionsReport { created, dropped, until, held } = partitions;
    let until = until.map_or_else(|| "for ever".into(), |it| format!("until {it}"));
    let dropped = match dry_run {
        true => format!("{dropped} to drop"),
        false => format!("{created} made, {dropped} dropped"),
    };
    format!("{dropped}, {} held; inserts have one {until}", held.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_what_went_and_what_is_kept() {
        let outbox = MaintainReport {
            table: "public.outbox_events".into(),
            published: Some(1200),
            dead_letters: Some(3),
            replays: Some(0),
            held_by: Some("nobody reads slot a".into()),
            ..MaintainReport::default()
        };
        let inbox = Maintained { created: 2, dropped: 1, deleted: 40, decisions: 5 };
        let told = text(&Report { dry_run: false, outbox: Some(outbox), inbox: Some(inbox) });
        let expected = "\
outbox         public.outbox_events
  published    1200 rows deleted
  dead letters 3 discarded ones deleted
  audit        kept for ever
  replays      0 ended ones deleted
  held         nobody reads slot a
inbox          40 records deleted, and 1 partitions
  decisions    5 entries deleted
  partitions   2 made
";
        assert_eq!(told, expected);
    }
}
