//! `tailpost maintain`.

use inbox::{Connection, Keep, Maintained};
use operate::{MaintainProgress, MaintainReport, PartitionsReport};
use relay::Config;
use serde::Serialize;
use tokio::sync::watch;

use super::progress;
use crate::cli::MaintainArgs;
use crate::config::Settings;
use crate::errors::LacksRights;
use crate::output::Lines;
use crate::refusal::Refusal;
use crate::{exit, output};

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
    let (outbox, inbox, trouble) = match (outbox, inbox) {
        (Ok(outbox), Ok(inbox)) => (Some(outbox), inbox, None),
        // A service that only consumes has an inbox, and no outbox.
        (Err(relay::Error::NotSetUp { .. }), Ok(inbox @ Some(_))) => (None, inbox, None),
        (Err(error), Ok(inbox @ Some(_))) if error.is_forbidden() => {
            (None, inbox, Some(forbidden("outbox", error.into())))
        }
        (Ok(outbox), Err(error)) if exit::is_forbidden(&error) => {
            (Some(outbox), None, Some(forbidden("inbox", error)))
        }
        (_, Err(error)) => return Err(error),
        (Err(error), _) => return Err(error.into()),
    };
    let report = Report { dry_run: args.dry_run, outbox, inbox };
    output::show(args.json, &report, || text(&report))?;
    trouble.map_or(Ok(()), |error| Err(error.into()))
}

/// The role may delete from one of the two only.
fn forbidden(of: &'static str, source: anyhow::Error) -> LacksRights {
    LacksRights { of, needs: "SELECT, INSERT, UPDATE, DELETE", source }
}

async fn outbox(args: &MaintainArgs, config: &Config) -> Result<MaintainReport, relay::Error> {
    let (sender, watcher) = watch::channel(MaintainProgress::default());
    let template = "{bar:30} {human_pos} of {human_len} pages, {eta} left, {msg}";
    let drawing = tokio::spawn(progress::draw(template, watcher, |bar, it: MaintainProgress| {
        progress::set(bar, it.pages_read.min(it.pages), it.pages);
        bar.set_message(format!("{} rows", it.rows));
    }));
    let done = operate::maintain(config, args.dry_run, &sender).await;
    drop(sender);
    // It only draws.
    let _ = drawing.await;
    done
}

async fn inbox(args: &MaintainArgs, settings: &Settings) -> anyhow::Result<Option<Maintained>> {
    let table = settings.table()?;
    let (client, task) = settings.postgres_target()?.connect("tailpost maintain").await?;
    let connection = Connection::with_guard(client, task);
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
