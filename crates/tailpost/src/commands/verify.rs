use std::time::Instant;

use anyhow::bail;
use indicatif::ProgressBar;
use operate::verify_rules::Finding;
use operate::{Repair, VerifyProgress, VerifyReport};
use serde::Serialize;

use super::status::bytes;
use super::{progress, repair_text};
use crate::cli::VerifyArgs;
use crate::config::Settings;
use crate::output;
use crate::output::Lines;

/// Findings of each kind that are shown to people.
const SHOWN: usize = 5;

pub(super) async fn run(args: &VerifyArgs, settings: &Settings) -> anyhow::Result<()> {
    let (config, began) = (settings.relay_config()?, Instant::now());
    let options = args.options();
    let work = async |sender: &_| operate::verify(&config, &options, sender).await;
    let template = "{bar:30} {human_pos} of {human_len}, {per_sec}, {eta} left {msg}";
    let report = progress::shown(template, draw, work).await?;
    if !args.json {
        output::text(&text(&report))?;
    }
    let repair = match args.repair {
        true => Some(repaired(args, &config, &report, began).await?),
        false => None,
    };
    if args.json {
        output::json(&Told { report: &report, repair: repair.as_ref() })?;
    } else if let Some(repair) = &repair {
        output::text(&repair_text::text(repair))?;
    }
    let found = report.counts.iter().map(|it| it.count).sum::<u64>();
    match repair.filter(|it| it.executed).map_or(found, |it| it.left()) {
        0 => Ok(()),
        1 => bail!("1 finding"),
        found => bail!("{found} findings"),
    }
}

/// A report as JSON, and what is done about it.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a VerifyReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<&'a Repair>,
}

async fn repaired(
    args: &VerifyArgs,
    config: &relay::Config,
    report: &VerifyReport,
    began: Instant,
) -> anyhow::Result<Repair> {
    let work =
        async |sender: &_| operate::repair(config, report, began, args.execute, sender).await;
    let template = "{bar:30} {human_pos} of {human_len}";
    Ok(progress::shown(template, repair_text::draw, work).await?)
}

/// Says how much room is needed, then how far it is.
fn draw(bar: &ProgressBar, now: VerifyProgress) {
    if bar.length() == Some(0) && now.expected > 0 {
        bar.suspend(|| {
            output::note(&format!(
                "reading about {} rows and messages; at most {} of temporary files in {}",
                now.expected,
                bytes(now.disk_bytes),
                now.folder.display()
            ));
        });
    }
    progress::set(bar, now.read, now.expected);
    if now.compares {
        bar.set_message("(comparing)");
    }
}

fn text(report: &VerifyReport) -> String {
    let mut lines = Lines::default();
    let mut line = |label: &str, value: &str| lines.add(label, value);
    let sample = match report.sample {
        0 | 1 => String::new(),
        of => format!(", one event of {of}"),
    };
    let dead = report.dead_letters;
    line("table", &format!("{}, {} rows, {dead} dead letters{sample}", report.table, report.rows));
    for stream in &report.streams {
        let (first, last) = (stream.first_sequence, stream.last_sequence);
        let messages = stream.messages;
        line("stream", &format!("{}, {messages} messages of {first} to {last}", stream.name));
    }
    line("  matched", &format!("{} rows with their messages", report.matched));
    if report.pending > 0 {
        let age = report.oldest_pending_seconds.map(output::duration);
        let age = age.map(|it| format!(", the oldest {it} old")).unwrap_or_default();
        line("  pending", &format!("{} rows to be published{age}", report.pending));
    }
    for unjudged in &report.unjudged {
        line("  not judged", &format!("{}: {}", unjudged.count, unjudged.why));
    }
    if report.counts.is_empty() {
        line("findings", "none");
    }
    for count in &report.counts {
        line(count.kind.name(), &format!("{}: {}", count.count, count.kind.title()));
        let of_kind = || report.findings.iter().filter(|it| it.kind == count.kind);
        for finding in of_kind().take(SHOWN) {
            line("", &told(finding));
        }
        if count.count > SHOWN as u64 {
            line("", &format!("and {} more: --json lists them", count.count - SHOWN as u64));
        }
        line("  what to do", count.kind.remedy());
    }
    line("took", &format!("{:.1} s", report.seconds));
    lines.text
}

/// A finding in one line.
fn told(finding: &Finding) -> String {
    let id = finding.id.map_or_else(|| "no id".to_owned(), |it| it.to_string());
    let place = |stream: Option<&String>, sequence: Option<u64>| match (stream, sequence) {
        (Some(stream), Some(sequence)) => format!(" {stream} {sequence}"),
        (Some(stream), None) => format!(" {stream}"),
        (None, Some(sequence)) => format!(" {sequence}"),
        (None, None) => String::new(),
    };
    let at = place(finding.stream.as_ref(), finding.sequence);
    let other = place(finding.other_stream.as_ref(), finding.other_sequence);
    let other = if other.is_empty() { other } else { format!(", see{other}") };
    format!("{id}{at}{other}: {}", finding.why)
}

#[cfg(test)]
mod tests {
    use operate::StreamRead;
    use operate::verify_rules::{Kind, KindCount, Unjudged};

    use super::*;

    fn report() -> VerifyReport {
        let finding = |kind, sequence, other_sequence| Finding {
            kind,
            id: Some("0190a0e8-0000-7000-8000-000000000001".parse().expect("an id")),
            stream: Some("OUTBOX".into()),
            sequence,
            other_stream: None,
            other_sequence,
            why: "for a reason",
        };
        VerifyReport {
            table: "public.outbox_events".into(),
            sample: 1,
            rows: 10,
            dead_letters: 1,
            streams: vec![StreamRead {
                name: "OUTBOX".into(),
                first_sequence: 1,
                last_sequence: 9,
                messages: 8,
            }],
            matched: 7,
            pending: 2,
            oldest_pending_seconds: Some(61.0),
            counts: vec![
                KindCount { kind: Kind::Gap, count: 6 },
                KindCount { kind: Kind::Duplicate, count: 1 },
            ],
            findings: [
                vec![finding(Kind::Gap, None, None); 6],
                vec![finding(Kind::Duplicate, Some(9), Some(3))],
            ]
            .concat(),
            unjudged: vec![Unjudged {
                what: "foreign",
                count: 1,
                why: "messages of others".into(),
            }],
            seconds: 0.25,
        }
    }

    #[test]
    fn people_see_the_first_of_each_kind_and_what_to_do() {
        let text = text(&report());
        let expected = "\
table          public.outbox_events, 10 rows, 1 dead letters
stream         OUTBOX, 8 messages of 1 to 9
  matched      7 rows with their messages
  pending      2 rows to be published, the oldest 1m 1s old
  not judged   1: messages of others
gap            6: events that the stream lacks
               0190a0e8-0000-7000-8000-000000000001 OUTBOX: for a reason
";
        assert!(text.starts_with(expected), "{text}");
        let duplicate = "0190a0e8-0000-7000-8000-000000000001 OUTBOX 9, see 3: for a reason\n";
        assert!(text.contains(duplicate), "{text}");
        assert!(text.contains("and 1 more: --json lists them\n"), "{text}");
        assert_eq!(text.matches("  what to do").count(), 2, "{text}");
        assert!(text.ends_with("took           0.2 s\n"), "{text}");
    }

    #[test]
    fn the_json_has_stable_names() {
        let json = output::to_json(&report()).expect("serialisable");
        let json: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(json["counts"][0], serde_json::json!({ "kind": "gap", "count": 6 }));
        assert_eq!(json["findings"][6]["sequence"], 9);
        assert_eq!(json["findings"][6]["other_sequence"], 3);
        assert_eq!(json["streams"][0]["last_sequence"], 9);
        assert_eq!(json["unjudged"][0]["what"], "foreign");
    }
}
