//! `tailpost slot prepare-upgrade`.

use std::fmt::Write;

use operate::UpgradeReport;
use relay::Config;

use crate::cli::PrepareUpgradeArgs;
use crate::errors::{Kind, Refusal};
use crate::output;

pub(super) async fn run(args: &PrepareUpgradeArgs, config: &Config) -> anyhow::Result<()> {
    let report = operate::prepare_upgrade(config, args.timeout).await?;
    output::show(args.json, &report, || report_text(&report))?;
    // Some of it may be over by itself later.
    let kind = if report.timed_out { Kind::TimedOut } else { Kind::Refused };
    match report.open.len() {
        0 => Ok(()),
        open => {
            let problem = format!("{open} open: PostgreSQL is not to be upgraded yet");
            Err(Refusal::new(kind, problem).into())
        }
    }
}

fn report_text(report: &UpgradeReport) -> String {
    let mut text = format!("PostgreSQL {}\n", report.server);
    for slot in &report.slots {
        let state = match (slot.exists, slot.active) {
            (false, _) => "does not exist".to_owned(),
            (true, active) => {
                let reader = if active { "a relay reads it" } else { "no relay reads it" };
                let confirmed = slot.confirmed_flush_lsn.as_deref().unwrap_or("nowhere");
                format!("{reader}, confirmed up to {confirmed}")
            }
        };
        line(&mut text, "slot", &format!("{}: {state}", slot.name));
        if slot.unpublished == 0 {
            let end = &slot.wal_end;
            line(
                &mut text,
                "drained",
                &format!("what was committed before {end} is published and marked"),
            );
        }
    }
    report.open.iter().for_each(|it| line(&mut text, "open", it));
    report.notes.iter().for_each(|it| line(&mut text, "note", it));
    text.push_str(if report.ready {
        "Ready. Next:\n"
    } else {
        "Not ready. Once nothing is open:\n"
    });
    for (number, step) in (1..).zip(&report.next) {
        writeln!(text, "{number}. {}", step.what).expect("writing to a string");
        if let Some(run) = &step.run {
            writeln!(text, "     {run}").expect("writing to a string");
        }
    }
    text
}

fn line(text: &mut String, what: &str, said: &str) {
    writeln!(text, "  {what:<8} {said}").expect("writing to a string");
}

#[cfg(test)]
mod tests {
    use operate::{UpgradeSlot, UpgradeStep};

    use super::*;

    #[test]
    fn what_is_open_and_what_comes_next_is_told() {
        let report = UpgradeReport {
            ready: false,
            server: 16,
            slots: vec![UpgradeSlot {
                name: "tailpost".into(),
                exists: true,
                active: true,
                unpublished: 2,
                wal_end: "0/20".into(),
                confirmed_flush_lsn: Some("0/10".into()),
                is_confirmed: false,
            }],
            open: vec!["2 events are not published".into()],
            notes: vec![],
            next: vec![UpgradeStep { what: "drop".into(), run: Some("tailpost slot drop".into()) }],
            timed_out: true,
        };
        assert_eq!(
            report_text(&report),
            "PostgreSQL 16\n  slot     tailpost: a relay reads it, confirmed up to 0/10\n  \
             open     2 events are not published\nNot ready. Once nothing is open:\n1. drop\n     \
             tailpost slot drop\n"
        );
    }
}
