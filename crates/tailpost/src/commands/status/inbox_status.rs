//! The consumers of the inbox, running or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream;
use inbox::Upkept;
use operate::consumers::{self, Backlog, Consumers, Holder};
use serde::Serialize;
use tracing::debug;

use crate::commands::inbox::builder;
use crate::config::Settings;
use crate::errors;
use crate::output::{self, Lines, if_any};

/// What is known about a consumer.
#[derive(Debug, Default, Serialize)]
pub(super) struct ConsumerReport {
    pub(super) name: String,
    pub(super) stream: String,
    /// Events that the broker has not delivered yet; unknown if it cannot be asked.
    pub(super) pending: Option<u64>,
    /// Events that it has delivered and that are not answered.
    pub(super) unacknowledged: Option<u64>,
    /// The worker that had the consumer last, if any did.
    pub(super) worker: Option<Holder>,
    /// The durable consumers whose partitions no worker has.
    pub(super) unattended: Vec<String>,
    /// Those that have events of which none was delivered or acknowledged for long.
    pub(super) stalled: Vec<Stalled>,
    /// For how many seconds no event was acknowledged although some are delivered, none has a record, and
    /// the worker knows no reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unrecorded_seconds: Option<u64>,
    /// What its stream keeps from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    #[serde(flatten)]
    pub(super) backlog: Backlog,
}

/// A durable consumer that has events and does not move.
#[derive(Debug, Serialize)]
pub(super) struct Stalled {
    durable: String,
    /// Not delivered, or not answered.
    events: u64,
    /// Since it last delivered an event, or took an acknowledgement.
    seconds: u64,
}

/// A consumer's durable consumers, how long its lease or its rate lets an event wait, and its subjects.
type Parts = (Vec<String>, Duration, Vec<String>);

/// What there is of the inbox.
#[derive(Debug, Default)]
pub(super) struct Inspected {
    pub(super) consumers: Vec<ConsumerReport>,
    pub(super) retention: Option<Upkept>,
    /// Why nothing is known of an inbox that the configuration does not name.
    pub(super) unknown: Option<String>,
}

/// The consumers that are configured, or have something before them, by name.
pub(super) async fn inspect(settings: &Settings) -> anyhow::Result<Inspected> {
    let configured = settings.consumers()?;
    let connection = settings.connection("tailpost status").await?;
    let table = settings.table()?;
    if let Some(problem) = operate::exclusive_lock(&connection, &table).await? {
        let hint = "wait for the end of its transaction, or end it";
        return Err(inbox::Error::Refused { problem, hint }.into());
    }
    let tables = Consumers::new(connection, &table);
    let looked = async {
        let (backlogs, holders) = (tables.backlogs().await?, tables.holders().await?);
        let held = tables.held_parts().await?;
        Ok::<_, inbox::Error>((backlogs, holders, held, tables.upkept().await?))
    };
    let (backlogs, holders, held, retention) = match looked.await {
        Ok(found) => found,
        // Who configures no consumer needs neither tables for them nor rights on them.
        Err(error) if configured.is_empty() => {
            debug!(%error, "there is no inbox to look at");
            let error = error.into();
            let unknown = errors::is_forbidden(&error).then(|| errors::chain(&error));
            return Ok(Inspected { unknown, ..Inspected::default() });
        }
        Err(error) => return Err(error.into()),
    };
    let (mut reports, mut durables) = (BTreeMap::new(), BTreeMap::new());
    for consumer in configured {
        let (all, lease) = (builder::durables(&consumer), consumer.settings.lease.0);
        let attended = held.iter().filter(|it| it.consumer == consumer.name);
        let attended = attended.filter(|it| it.is_attended(lease)).map(|it| it.partition as usize);
        let attended: BTreeSet<usize> = attended.collect();
        let mut report = report(&consumer.name, &consumer.stream);
        if all.len() > 1 && !attended.is_empty() {
            let of = all.iter().enumerate().filter(|(it, _)| !attended.contains(it));
            report.unattended = of.map(|(_, it)| it.clone()).collect();
        }
        let interval =
            consumer.settings.rate.as_ref().map(|it| it.0.interval()).unwrap_or_default();
        let parts = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let patience = lease.max(interval.saturating_mul(parts));
        durables.insert(consumer.name.clone(), (all, patience, builder::subjects(&consumer)));
        reports.insert(consumer.name, report);
    }
    let mut of = |name: &str, set: &dyn Fn(&mut ConsumerReport)| {
        let unknown = || report(name, &settings.stream.name);
        set(reports.entry(name.to_owned()).or_insert_with(unknown));
    };
    for backlog in &backlogs {
        of(&backlog.consumer, &|it| it.backlog = backlog.clone());
    }
    for holder in &holders {
        of(&holder.consumer, &|it| it.worker = Some(holder.clone()));
    }
    let mut reports: Vec<_> = reports.into_values().collect();
    if !reports.is_empty() {
        ask_broker(settings, &mut reports, &durables).await?;
    }
    Ok(Inspected { consumers: reports, retention, unknown: None })
}

fn report(name: &str, stream: &str) -> ConsumerReport {
    ConsumerReport { name: name.to_owned(), stream: stream.to_owned(), ..Default::default() }
}

/// The report on the stream says that the broker does not answer.
async fn ask_broker(
    settings: &Settings,
    reports: &mut [ConsumerReport],
    durables: &BTreeMap<String, Parts>,
) -> anyhow::Result<()> {
    let client = match settings.nats_target()?.connect("tailpost status").await {
        Ok(client) => client,
        Err(error) => {
            debug!(%error, "the broker cannot be asked about consumers");
            return Ok(());
        }
    };
    let (context, relay) = (servers::jetstream_of(&client), settings.relay_config()?);
    for report in reports {
        let unknown = (vec![report.name.clone()], Duration::MAX / 2, Vec::new());
        let (mut pending, mut unacknowledged, mut unrecorded) = (Some(0), Some(0), None);
        let (all, lease, subjects) = durables.get(&report.name).unwrap_or(&unknown);
        let looked = consumers::look_at_stream(&relay, &client, &report.stream, subjects).await;
        report.warnings = looked.unwrap_or_default().warnings;
        for durable in all {
            let found = context.get_consumer_from_stream(durable, &report.stream).await;
            let found: Option<jetstream::consumer::PullConsumer> = found.ok();
            let info = found.as_ref().map(|it| it.cached_info());
            pending = pending.zip(info).map(|(sum, it)| sum + it.num_pending);
            unacknowledged =
                unacknowledged.zip(info).map(|(sum, it)| sum + it.num_ack_pending as u64);
            if let Some((events, idle)) = info.and_then(|it| consumers::stalled(it, *lease)) {
                let (durable, seconds) = (durable.clone(), idle.as_secs());
                report.stalled.push(Stalled { durable, events, seconds });
            }
            let idle = info.map(consumers::acknowledged_ago).filter(|it| *it >= 2 * *lease);
            unrecorded = unrecorded.max(idle.map(|it| it.as_secs()));
        }
        (report.pending, report.unacknowledged) = (pending, unacknowledged);
        let is_active = |it: &Holder| it.is_valid && it.reason.is_none();
        let has_none = report.backlog.processing + report.backlog.failed == 0
            && unacknowledged > Some(0)
            && report.worker.as_ref().is_some_and(is_active);
        report.unrecorded_seconds = unrecorded.filter(|_| has_none);
    }
    Ok(())
}

impl Lines {
    pub(super) fn inbox_retention(&mut self, upkept: &Upkept) {
        let deleted = [
            (upkept.records_deleted, "records"),
            (upkept.partitions_dropped, "partitions"),
            (upkept.decisions_deleted, "decisions"),
        ];
        self.last_success("inbox upkeep", upkept.last_success_seconds, &deleted);
        if let Some(failure) = &upkept.failure {
            let text = format!(
                "the inbox's tables could not be looked after: {failure}. `tailpost maintain` \
                 tries again at once"
            );
            self.add("warning", text);
        }
    }

    pub(super) fn consumer(&mut self, consumer: &ConsumerReport) {
        let ConsumerReport { name, stream, pending, unacknowledged, worker, backlog, .. } =
            consumer;
        self.add("consumer", format_args!("{name}, stream {stream}"));
        match worker {
            Some(worker) => self.worker(worker),
            None => self.add("  worker", "none so far"),
        }
        if let Some(why) = worker.as_ref().and_then(|it| it.went_back.as_ref()) {
            self.add("  went back", why);
        }
        self.add_some("  unread", worker.as_ref().and_then(|it| it.unread.as_ref()));
        for warning in &consumer.warnings {
            self.add("  warning", warning);
        }
        if !consumer.unattended.is_empty() {
            self.add("  no worker", format_args!("has {}", consumer.unattended.join(", ")));
        }
        for Stalled { durable, events, seconds } in &consumer.stalled {
            let text = "events, none delivered or acknowledged for";
            self.add("  stalled", format_args!("{durable}: {events} {text} {seconds} s"));
        }
        if let Some(seconds) = consumer.unrecorded_seconds {
            let text = "events are delivered, and none is recorded or acknowledged for";
            self.add(
                "  stalled",
                format_args!("{text} {seconds} s: see the worker's log and `tailpost doctor`"),
            );
        }
        match (pending, unacknowledged) {
            (Some(pending), Some(held)) => {
                self.add("  pending", format_args!("{pending}, {held} delivered but not answered"));
            }
            _ => self.add(
                "  pending",
                "unknown: the broker has no such consumer, is away, or may not be asked",
            ),
        }
        let oldest = if_any(", oldest ", backlog.oldest_seconds.map(output::duration));
        self.add("  processing", format_args!("{}{oldest}", backlog.processing));
        let reason = backlog.last_error.as_deref().and_then(|it| it.lines().next());
        let reason = if_any(", the latest: ", reason);
        self.add("  failed", format_args!("{}{reason}", backlog.failed));
        self.add("  dead letters", backlog.dead);
    }

    fn worker(&mut self, worker: &Holder) {
        let owner = &worker.owner;
        match (worker.is_valid, &worker.expires_at) {
            (true, Some(until)) => {
                let state = worker.state.as_deref().unwrap_or("starting");
                self.add("  worker", format_args!("{owner}, {state}, has the role until {until}"));
            }
            (_, Some(until)) => {
                self.add("  worker", format_args!("none: {owner} had the role until {until}"));
            }
            (_, None) => self.add("  worker", format_args!("none: {owner} gave the role up")),
        }
        if !worker.is_valid {
            return;
        }
        let reason = worker.reason.as_deref().and_then(|it| it.lines().next());
        match worker.breaker.as_deref() {
            None | Some("closed") => {
                if let Some(reason) = reason {
                    self.add("  paused", reason);
                }
            }
            Some(breaker) => {
                let breaker = breaker.replace('_', "-");
                let reason = if_any(": ", reason);
                let probe = if_any(", next probe at ", worker.next_probe_at);
                self.add("  breaker", format_args!("{breaker}{reason}{probe}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> Holder {
        let time = |text: &str| text.parse().expect("a time");
        Holder {
            consumer: "billing".into(),
            owner: "42:a".into(),
            is_valid: true,
            acquired_at: time("2026-10-19T08:00:00Z"),
            expires_at: Some(time("2026-10-19T08:00:30Z")),
            state: Some("paused".into()),
            breaker: Some("open".into()),
            reason: Some("the handler is away: 503\nmore".into()),
            next_probe_at: Some(time("2026-10-19T08:00:09Z")),
            went_back: None,
            unread: None,
        }
    }

    #[test]
    fn a_worker_without_a_valid_lease_is_nobody() {
        let shown = |worker: &Holder| {
            let mut lines = Lines::default();
            lines.worker(worker);
            lines.text
        };
        let over = Holder { is_valid: false, ..holder() };
        let expected = "  worker       none: 42:a had the role until 2026-10-19T08:00:30Z\n";
        assert_eq!(shown(&over), expected);
        let given_up = Holder { expires_at: None, ..over };
        assert_eq!(shown(&given_up), "  worker       none: 42:a gave the role up\n");
        let away = Some("the database is away".into());
        let paused = Holder { breaker: Some("closed".into()), reason: away, ..holder() };
        assert!(shown(&paused).ends_with("  paused       the database is away\n"));
    }

    #[test]
    fn a_consumer_is_shown_with_what_is_before_it() {
        let mut lines = Lines::default();
        let backlog = Backlog {
            processing: 3,
            failed: 2,
            dead: 1,
            oldest_seconds: Some(61.5),
            last_error: Some("404 Not Found\nmore".into()),
            ..Backlog::default()
        };
        let known = ConsumerReport {
            pending: Some(12),
            unacknowledged: Some(5),
            unattended: vec!["billing-3".into(), "billing-7".into()],
            stalled: vec![Stalled { durable: "billing-3".into(), events: 12, seconds: 61 }],
            worker: Some(holder()),
            backlog,
            ..report("billing", "OUTBOX")
        };
        lines.consumer(&known);
        lines.consumer(&report("mail", "OUTBOX"));
        let expected = "\
consumer       billing, stream OUTBOX
  worker       42:a, paused, has the role until 2026-10-19T08:00:30Z
  breaker      open: the handler is away: 503, next probe at 2026-10-19T08:00:09Z
  no worker    has billing-3, billing-7
  stalled      billing-3: 12 events, none delivered or acknowledged for 61 s
  pending      12, 5 delivered but not answered
  processing   3, oldest 1m 1s
  failed       2, the latest: 404 Not Found
  dead letters 1
consumer       mail, stream OUTBOX
  worker       none so far
  pending      unknown: the broker has no such consumer, is away, or may not be asked
  processing   0
  failed       0
  dead letters 0
";
        assert_eq!(lines.text, expected);
    }
}
