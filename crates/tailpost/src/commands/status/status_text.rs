//! What people read.

use jiff::{SignedDuration, Timestamp};
use operate::{
    OutboxReport, PartitionsStatus, RetentionReport, RewindReport, ShardReport, SlotReport,
    StatusReport, StreamReport,
};
use serde_json::Value;

use super::{Report, bytes, shards};
use crate::output;
use crate::output::{Lines, if_any};

/// For so long comparisons may fail before that is a warning.
const UNCOMPARED_MAX: SignedDuration = SignedDuration::from_mins(10);

/// The most frequent reasons. `tailpost outbox dlq list` shows more.
const REASONS_SHOWN: usize = 3;

pub(super) fn all_text(report: &Report) -> String {
    let mut lines = Lines::default();
    if let Some(relay) = &report.relay {
        lines.relays(relay);
    }
    lines.add_some("relay", report.relay_unknown.as_ref());
    if let Some(outbox) = &report.outbox {
        lines.servers(outbox);
    }
    for (side, why) in [("outbox", &report.outbox_unknown), ("inbox", &report.inbox_unknown)] {
        if let Some(why) = why {
            lines.add(side, format_args!("unknown: {why}"));
        }
    }
    for consumer in &report.consumers {
        lines.consumer(consumer);
    }
    if let Some(upkept) = &report.inbox_retention {
        lines.inbox_retention(upkept);
    }
    let dead: i64 = report.consumers.iter().map(|it| it.backlog.dead).sum();
    if dead > 0 {
        let s = if dead == 1 { "" } else { "s" };
        lines.add(
            "warning",
            format_args!("{dead} dead letter{s} of consumers: see `tailpost inbox dlq list`"),
        );
    }
    lines.text
}

impl Lines {
    fn relays(&mut self, relay: &Value) {
        for it in shards(relay) {
            self.relay(&format!("relay{}", if_any(" ", it["shard"].as_u64())), it);
        }
    }

    /// What both servers keep.
    fn servers(&mut self, report: &StatusReport) {
        let is_missing = matches!(report.incomplete, Some(relay::Error::NotSetUp { .. }));
        let is_divided = !report.shards.is_empty();
        if !is_divided {
            self.slot_if_any(report.slot.as_ref());
        }
        self.outbox(&report.outbox);
        if !is_divided {
            self.stream_if_any(report.stream.as_ref(), is_missing);
        }
        for ShardReport { shard, slot, unpublished, stream } in &report.shards {
            self.add(&format!("shard {shard}"), format_args!("{unpublished} unpublished"));
            self.slot_if_any(slot.as_ref());
            self.stream_if_any(stream.as_ref(), is_missing);
        }
        if let Some(retention) = &report.retention {
            self.retention(retention);
        }
        if let Some(partitions) = &report.partitions {
            self.partitions(partitions);
        }
        for warning in &report.warnings {
            self.add("warning", warning);
        }
    }

    /// What a relay, or a shard of it, says of itself.
    pub(in crate::commands) fn relay(&mut self, label: &str, relay: &Value) {
        let role = relay["role"].as_str().unwrap_or("unknown");
        let breaker = match (relay["breaker"].as_str(), relay["breaker_retry_in_seconds"].as_f64())
        {
            (Some("open"), Some(wait)) => format!(", breaker open, next try in {wait:.0} s"),
            (Some("half_open"), _) => ", breaker half-open".into(),
            _ => String::new(),
        };
        let waiting = relay["in_flight_events"].as_u64().unwrap_or(0);
        let process = if_any(", process ", relay["process_id"].as_u64());
        let lost = |key: &str, server: &str| match &relay[key] {
            Value::Bool(false) if role == "active" => format!(", {server} lost"),
            _ => String::new(),
        };
        let postgres = lost("postgres_connected", "PostgreSQL");
        let lost = format!("{postgres}{}", lost("nats_connected", "NATS"));
        self.add(label, format_args!("{role}{lost}{breaker}, {waiting} in flight{process}"));
        if let Some(why) = relay["keyed_because"].as_str() {
            self.add("  mode", format_args!("keyed instead of fenced: {why}"));
        }
        self.add_some("  waits", relay["waiting_for"].as_str());
        // Of rows that others marked meanwhile nothing is said.
        if relay["unpublished"].as_u64() != Some(0) {
            self.add_some("  no marks", relay["marks_failing"].as_str());
        }
        if let (Some(count), Some(why)) =
            (relay["strangers_total"].as_u64(), relay["stranger"].as_str())
        {
            self.add(
                "  strangers",
                format_args!("{count} answers that are not the stream's: {why}"),
            );
        }
        // An old error is no news.
        if let (true, Some(error)) = (waiting > 0 || role != "active", relay["last_error"].as_str())
        {
            self.add("  trouble", error);
        }
        self.history(&relay["history"]);
    }

    fn history(&mut self, history: &Value) {
        if let Some(at) = history["compared_at"].as_str() {
            let rows = history["rows"].as_u64().unwrap_or(0);
            let s = if rows == 1 { "" } else { "s" };
            self.add("  compared", format_args!("with the stream at {at}: its end, {rows} row{s}"));
        }
        self.add_some("  missing", history["missing"].as_str());
        let Some(since) = history["failing_since"].as_str() else { return };
        let failing_for = since.parse().map(|it| Timestamp::now().duration_since(it));
        if failing_for.is_ok_and(|it| it > UNCOMPARED_MAX) {
            let why = history["failing"].as_str().unwrap_or_default();
            let told = format_args!("rows cannot be compared with the stream since {since}: {why}");
            self.add("warning", told);
        }
    }

    fn slot_if_any(&mut self, slot: Option<&SlotReport>) {
        match slot {
            Some(slot) => self.slot(slot),
            None => self.add("slot", "does not exist"),
        }
    }

    fn stream_if_any(&mut self, stream: Option<&StreamReport>, is_missing: bool) {
        match stream {
            Some(stream) => self.stream(stream),
            None if is_missing => self.add("stream", "does not exist"),
            None => self.add("stream", "unknown"),
        }
    }

    fn slot(&mut self, slot: &SlotReport) {
        let state = if slot.active { "active" } else { "not active" };
        let wal = slot.wal_status.as_deref().unwrap_or("unknown");
        self.add("slot", format_args!("{}, {state}, WAL {wal}", slot.name));
        let confirmed = slot.confirmed_flush_lsn.as_deref().unwrap_or("none");
        self.add("  confirmed", format_args!("{confirmed}, {} behind", bytes(slot.lag_bytes)));
        self.add("  server at", &slot.current_lsn);
        let limit = slot.safe_wal_bytes.map(|left| {
            let left = u64::try_from(left).unwrap_or(0);
            format!(", lost after {} more", bytes(left))
        });
        let limit = limit.unwrap_or_else(|| ", without limit".into());
        self.add("  retains", format_args!("{}{limit}", bytes(slot.retained_bytes)));
        if let (Some(at), Some(reason)) = (&slot.created_at, &slot.created_because) {
            self.add("  created", format_args!("{at}, because {reason}"));
        }
        match (slot.gap_rows, &slot.gap_filled_at) {
            (Some(rows @ 1..), Some(at)) => {
                self.add("  gap", format_args!("filled from the table at {at}: {rows} events"));
            }
            (Some(_), None) => self.add("  gap", "being filled from the table, once a relay runs"),
            _ => {}
        }
        if let Some(rewind) = &slot.rewind {
            self.rewind(rewind);
        }
    }

    fn rewind(&mut self, rewind: &RewindReport) {
        let made = match (rewind.notes.made, &rewind.notes.made_at, &rewind.notes.made_because) {
            (2.., Some(at), Some(why)) => format!(", made anew at {at}: {why}"),
            _ => String::new(),
        };
        let (true, Some(lsn)) = (rewind.exists, &rewind.from_lsn) else {
            return self.add("  rewind", "not there");
        };
        let age = rewind.from_seconds.map(|it| format!(", {} ago", output::duration(it)));
        let (age, kept) = (age.unwrap_or_default(), bytes(rewind.retained_bytes));
        let held = if_any(", held by replay ", rewind.notes.held_by);
        self.add("  rewind", format_args!("from {lsn}{age}, keeps {kept}{held}{made}"));
    }

    fn outbox(&mut self, outbox: &OutboxReport) {
        self.add("outbox", &outbox.table);
        let least = if outbox.unpublished_is_capped { "at least " } else { "" };
        let oldest = if_any(", oldest ", outbox.oldest_unpublished_seconds.map(output::duration));
        self.add("  unpublished", format_args!("{least}{}{oldest}", outbox.unpublished));
        if let Some(dropped) = outbox.dropped {
            self.add("  dropped", format_args!("{dropped} by a route"));
        }
        let reason = if_any(", the latest: ", outbox.latest_dead_letter_reason.as_deref());
        let oldest = if_any(", oldest ", outbox.oldest_dead_letter_seconds.map(output::duration));
        self.add("  dead letters", format_args!("{}{oldest}{reason}", outbox.dead_letters));
        for group in outbox.dead_letter_reasons.iter().take(REASONS_SHOWN) {
            self.add("", format_args!("{} × {}", group.count, group.fingerprint));
        }
        if outbox.blocked_aggregates > 0 {
            let s = if outbox.blocked_aggregates == 1 { "" } else { "s" };
            self.add("  blocked", format_args!("{} aggregate{s}", outbox.blocked_aggregates));
        }
    }

    fn retention(&mut self, retention: &RetentionReport) {
        let deleted = [
            (retention.rows_deleted, "rows"),
            (retention.dead_letters_deleted, "dead letters"),
            (retention.audit_deleted, "audit entries"),
            (retention.partitions_dropped, "partitions"),
        ];
        self.last_success("retention", retention.last_success_seconds, &deleted);
        self.add_some("  held", retention.held_by.as_ref());
    }

    fn partitions(&mut self, partitions: &PartitionsStatus) {
        let until = match (&partitions.until, partitions.horizon_seconds) {
            (Some(until), Some(seconds)) => {
                format!("until {until}, {} ahead", output::duration(seconds.max(0.0)))
            }
            _ => "for ever".into(),
        };
        self.add("partitions", format_args!("{}, {until}", partitions.count));
    }

    /// When old rows were last deleted, and what was so far.
    pub(super) fn last_success(
        &mut self,
        label: &str,
        seconds: Option<f64>,
        deleted: &[(u64, &str)],
    ) {
        let deleted = deleted.iter().filter(|it| it.0 > 0);
        let deleted: Vec<_> = deleted.map(|(count, what)| format!("{count} {what}")).collect();
        let deleted = match &*deleted {
            [] => "nothing deleted so far".to_owned(),
            some => format!("{} deleted so far", some.join(", ")),
        };
        match seconds {
            Some(it) => {
                self.add(label, format_args!("{} ago, {deleted}", output::duration(it)));
            }
            None => self.add(label, format_args!("no success so far, {deleted}")),
        }
    }

    fn stream(&mut self, stream: &StreamReport) {
        let s = if stream.replicas == 1 { "" } else { "s" };
        self.add("stream", format_args!("{}, {} replica{s}", stream.name, stream.replicas));
        self.add("  messages", format_args!("{}, {}", stream.messages, bytes(stream.bytes)));
        let position = if_any(", from ", stream.last_position.as_deref());
        self.add("  last", format_args!("sequence {}{position}", stream.last_sequence));
        if let Some(lost) = &stream.lost {
            let (at, messages, rows) = (lost.at, lost.messages, lost.rows);
            let text = format_args!("{messages} messages, found at {at}: {rows} rows named them");
            self.add("  lost", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use operate::RewindNotes;

    use super::*;

    fn text(report: &StatusReport) -> String {
        let mut lines = Lines::default();
        lines.servers(report);
        lines.text
    }

    fn report() -> StatusReport {
        StatusReport {
            slot: Some(SlotReport {
                name: "tailpost".into(),
                active: true,
                wal_status: Some("reserved".into()),
                confirmed_flush_lsn: Some("0/19212B0".into()),
                current_lsn: "0/19222B0".into(),
                lag_bytes: 4096,
                retained_bytes: 65_536,
                safe_wal_bytes: None,
                invalidation_reason: None,
                waits_for: None,
                created_because: Some("the replication slot is gone".into()),
                created_at: Some("2026-10-19T08:00:00Z".into()),
                gap_rows: Some(120),
                gap_filled_at: Some("2026-10-19T08:00:02Z".into()),
                rewind: Some(RewindReport {
                    exists: true,
                    from_lsn: Some("0/16B3748".into()),
                    from_seconds: Some(61.5),
                    retained_bytes: 4096,
                    notes: RewindNotes {
                        made: 2,
                        made_at: "2026-10-19T09:00:00Z".parse().ok(),
                        made_because: Some("PostgreSQL had no room for its log".into()),
                        ..RewindNotes::default()
                    },
                    ..RewindReport::default()
                }),
            }),
            outbox: OutboxReport {
                table: "public.outbox_events".into(),
                unpublished: 3,
                unpublished_is_capped: false,
                dropped: Some(2),
                oldest_unpublished_seconds: Some(61.5),
                dead_letters: 1,
                latest_dead_letter_reason: Some("payload too large".into()),
                ..OutboxReport::default()
            },
            retention: Some(RetentionReport {
                last_success_seconds: Some(303.0),
                rows_deleted: 120,
                audit_deleted: 2,
                held_by: Some("nobody reads slot a".into()),
                ..RetentionReport::default()
            }),
            stream: Some(StreamReport {
                name: "OUTBOX".into(),
                messages: 12,
                bytes: 1_572_864,
                last_sequence: 12,
                last_position: Some("7/1/0-19212B0/0".into()),
                lost: None,
                replicas: 1,
            }),
            partitions: Some(PartitionsStatus {
                count: 9,
                until: Some("2026-10-21T00:00:00Z".into()),
                horizon_seconds: Some(144_000.0),
            }),
            shards: Vec::new(),
            unread: Vec::new(),
            warnings: vec!["1 dead letter".into()],
            incomplete: None,
        }
    }

    #[test]
    fn the_text_is_aligned_and_complete() {
        let expected = "\
slot           tailpost, active, WAL reserved
  confirmed    0/19212B0, 4.0 KiB behind
  server at    0/19222B0
  retains      64.0 KiB, without limit
  created      2026-10-19T08:00:00Z, because the replication slot is gone
  gap          filled from the table at 2026-10-19T08:00:02Z: 120 events
  rewind       from 0/16B3748, 1m 1s ago, keeps 4.0 KiB, made anew at 2026-10-19T09:00:00Z: PostgreSQL had no room for its log
outbox         public.outbox_events
  unpublished  3, oldest 1m 1s
  dropped      2 by a route
  dead letters 1, the latest: payload too large
stream         OUTBOX, 1 replica
  messages     12, 1.5 MiB
  last         sequence 12, from 7/1/0-19212B0/0
retention      5m 3s ago, 120 rows, 2 audit entries deleted so far
  held         nobody reads slot a
partitions     9, until 2026-10-21T00:00:00Z, 1d 16h ahead
warning        1 dead letter
";
        assert_eq!(text(&report()), expected);
    }

    #[test]
    fn each_shard_is_told_below_the_outbox() {
        let StatusReport { slot, stream, .. } = report();
        let shard =
            |shard, slot| ShardReport { shard, slot, unpublished: 2, stream: stream.clone() };
        let shards = vec![shard(0, slot), shard(1, None)];
        let text = text(&StatusReport { shards, slot: None, stream: None, ..report() });
        let labels: Vec<&str> = text.lines().filter(|it| !it.starts_with(' ')).collect();
        let expected = [
            "outbox         public.outbox_events",
            "shard 0        2 unpublished",
            "slot           tailpost, active, WAL reserved",
            "stream         OUTBOX, 1 replica",
            "shard 1        2 unpublished",
            "slot           does not exist",
            "stream         OUTBOX, 1 replica",
            "retention      5m 3s ago, 120 rows, 2 audit entries deleted so far",
            "partitions     9, until 2026-10-21T00:00:00Z, 1d 16h ahead",
            "warning        1 dead letter",
        ];
        assert_eq!(labels, expected, "{text}");
    }

    #[test]
    fn comparisons_that_fail_for_long_are_a_warning() {
        let told = |minutes| {
            let since = Timestamp::now() - SignedDuration::from_mins(minutes);
            let mut lines = Lines::default();
            lines.history(&serde_json::json!({ "failing_since": since, "failing": "no reply" }));
            lines.text
        };
        assert_eq!(told(9), "");
        let text = told(11);
        assert!(text.starts_with("warning        rows cannot be compared"), "{text}");
        assert!(text.ends_with("Z: no reply\n"), "{text}");
    }

    #[test]
    fn what_does_not_exist_is_said() {
        let missing = relay::Error::NotSetUp { missing: "stream \"OUTBOX\"".into() };
        let text = text(&StatusReport { incomplete: Some(missing), ..StatusReport::default() });
        assert!(text.starts_with("slot           does not exist\n"), "{text}");
        assert!(text.contains("\nstream         does not exist\n"), "{text}");
    }

    #[test]
    fn what_the_broker_cannot_tell_is_not_said_to_be_missing() {
        let text = text(&StatusReport::default());
        assert!(text.contains("\nstream         unknown\n"), "{text}");
    }

    #[test]
    fn the_json_has_a_version_and_stable_names() {
        let json = output::to_json(&report()).expect("serialisable");
        let json: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(json["schema_version"], 1);
        assert_eq!(json["slot"]["confirmed_flush_lsn"], "0/19212B0");
        assert_eq!(json["outbox"]["unpublished"], 3);
        assert_eq!(json["stream"]["last_sequence"], 12);
        assert_eq!(json["warnings"][0], "1 dead letter");
    }
}
