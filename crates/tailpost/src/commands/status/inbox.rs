//! The consumers of the inbox, running or not.

use std::collections::BTreeMap;

use async_nats::jetstream;
use inbox::{Backlog, Connection, DeadLetters};
use serde::Serialize;
use tracing::debug;

use super::Lines;
use crate::config::Settings;
use crate::output;

/// What is known about a consumer.
#[derive(Debug, Serialize)]
pub(super) struct ConsumerReport {
    pub(super) name: String,
    pub(super) stream: String,
    /// Events that the broker has not delivered yet; unknown if it cannot be asked.
    pub(super) pending: Option<u64>,
    /// Events that it has delivered and that are not answered.
    pub(super) unacknowledged: Option<u64>,
    #[serde(flatten)]
    pub(super) backlog: Figures,
}

/// What the inbox says.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) processing: i64,
    pub(super) failed: i64,
    pub(super) dead: i64,
    pub(super) oldest_seconds: Option<f64>,
    pub(super) last_error: Option<String>,
}

impl From<Backlog> for Figures {
    fn from(it: Backlog) -> Self {
        let Backlog { processing, failed, dead, oldest_seconds, last_error, .. } = it;
        Self { processing, failed, dead, oldest_seconds, last_error }
    }
}

/// The consumers that are configured, or have something before them, by name.
pub(super) async fn inspect(settings: &Settings) -> anyhow::Result<Vec<ConsumerReport>> {
    let configured = settings.consumers()?;
    let (client, task) = settings.postgres_target()?.connect("tailpost status").await?;
    let connection = Connection::with_guard(client, task);
    let backlogs = match DeadLetters::new(connection, &settings.table()?).backlogs().await {
        Ok(backlogs) => backlogs,
        // Who configures no consumer needs neither tables for them nor rights on them.
        Err(error) if configured.is_empty() => {
            debug!(%error, "there is no inbox to look at");
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    let mut reports = BTreeMap::new();
    for consumer in configured {
        reports.insert(consumer.name.clone(), report(consumer.name, consumer.stream));
    }
    for backlog in backlogs {
        let name = backlog.consumer.clone();
        let found = reports.entry(name.clone());
        let found = found.or_insert_with(|| report(name, settings.stream.name.clone()));
        found.backlog = backlog.into();
    }
    let mut reports: Vec<_> = reports.into_values().collect();
    if !reports.is_empty() {
        ask_broker(settings, &mut reports).await?;
    }
    Ok(reports)
}

fn report(name: String, stream: String) -> ConsumerReport {
    let backlog = Figures::default();
    ConsumerReport { name, stream, pending: None, unacknowledged: None, backlog }
}

/// A broker that does not answer is reported by whoever looks at the stream.
async fn ask_broker(settings: &Settings, reports: &mut [ConsumerReport]) -> anyhow::Result<()> {
    let client = match settings.nats_target()?.connect("tailpost status").await {
        Ok(client) => client,
        Err(error) => {
            debug!(%error, "the broker cannot be asked about consumers");
            return Ok(());
        }
    };
    let context = jetstream::new(client);
    for report in reports {
        let found = context.get_consumer_from_stream(&report.name, &report.stream).await;
        let found: Result<jetstream::consumer::PullConsumer, _> = found;
        if let Ok(consumer) = found {
            let info = consumer.cached_info();
            report.pending = Some(info.num_pending);
            report.unacknowledged = Some(info.num_ack_pending as u64);
        }
    }
    Ok(())
}

impl Lines {
    pub(super) fn consumer(&mut self, consumer: &ConsumerReport) {
        let ConsumerReport { name, stream, pending, unacknowledged, backlog } = consumer;
        self.add("consumer", format_args!("{name}, stream {stream}"));
        match (pending, unacknowledged) {
            (Some(pending), Some(held)) => {
                self.add("  pending", format_args!("{pending}, {held} delivered but not answered"));
            }
            _ => self.add("  pending", "unknown: the broker has no such consumer, or is away"),
        }
        let oldest = backlog.oldest_seconds;
        let oldest = oldest.map(|it| format!(", oldest {}", output::duration(it)));
        let oldest = oldest.unwrap_or_default();
        self.add("  processing", format_args!("{}{oldest}", backlog.processing));
        let reason = backlog.last_error.as_deref().and_then(|it| it.lines().next());
        let reason = reason.map(|it| format!(", the latest: {it}")).unwrap_or_default();
        self.add("  failed", format_args!("{}{reason}", backlog.failed));
        self.add("  dead letters", backlog.dead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_is_shown_with_what_is_before_it() {
        let mut lines = Lines::default();
        let backlog = Figures {
            processing: 3,
            failed: 2,
            dead: 1,
            oldest_seconds: Some(61.5),
            last_error: Some("404 Not Found\nmore".into()),
        };
        let known = ConsumerReport {
            pending: Some(12),
            unacknowledged: Some(5),
            backlog,
            ..report("billing".into(), "OUTBOX".into())
        };
        lines.consumer(&known);
        lines.consumer(&report("mail".into(), "OUTBOX".into()));
        let expected = "\
consumer       billing, stream OUTBOX
  pending      12, 5 delivered but not answered
  processing   3, oldest 1m 1s
  failed       2, the latest: 404 Not Found
  dead letters 1
consumer       mail, stream OUTBOX
  pending      unknown: the broker has no such consumer, or is away
  processing   0
  failed       0
  dead letters 0
";
        assert_eq!(lines.0, expected);
    }
}
