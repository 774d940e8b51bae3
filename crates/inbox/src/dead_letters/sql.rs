//! The statements behind the decisions. Each does all of what it does, or nothing, and writes down
//! who wanted it.

use outbox::dead_letters::{FINGERPRINT, GROUPED_MAX, GROUPS_MAX};
use outbox::{Column, Table};
use serde::Serialize;

/// Causes that no further attempt removes.
pub(super) const HOPELESS: [&str; 3] = ["unreadable", "forgotten", "gone"];

/// Attempts after which an event deserves somebody's attention.
const STUBBORN_OVER: i32 = 3;

/// What to do with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Give them another set of attempts.
    Requeue,
    /// Refuse them for good.
    Reject,
    /// Drop them.
    Discard,
}

impl Decision {
    /// As in `inbox_decisions`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Reject => "reject",
            Self::Discard => "discard",
        }
    }
}

/// The statements for one schema.
pub(super) struct Texts {
    messages: String,
    letters: String,
    /// Asks an outbox for the time of the event `$2`.
    outbox: String,
    requeue: String,
    reject: String,
    discard: String,
    pub(super) list: String,
    pub(super) originals: String,
    pub(super) count: String,
    pub(super) groups: String,
    /// Those that are dead since `$8` at most, behind the place `$9`, `$10`, `$11`.
    pub(super) page: String,
    pub(super) backlogs: String,
    pub(super) holders: String,
    pub(super) has_outbox: String,
    pub(super) mark_processed: String,
}

/// Letters `d` with the records `m` of their events. A record may be gone with its partition.
/// What a selection means. Its parameters are always $1 to $7.
const MEANT: &str = "($1::text IS NULL OR d.consumer = $1)
    AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
    AND ($3::text IS NULL OR d.headers->'Aggregate-Type'->>0 = $3)
    AND ($4::text IS NULL OR d.headers->'Aggregate-Id'->>0 = $4)
    AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
    AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
    AND ($7::timestamptz IS NULL OR d.dead_at >= $7)";

const SAME: &str = "m.consumer = d.consumer AND m.message_id = d.message_id
    AND m.event_time = d.event_time";

const SHOWN: &str = "d.consumer, d.message_id, d.event_time, d.subject, d.stream, d.stream_seq,
    d.attempts, d.cause, d.reason, d.dead_at, octet_length(d.payload) AS payload_bytes,
    extract(epoch FROM clock_timestamp() - d.dead_at)::float8 AS age_seconds,
    coalesce(m.status IN ('FAILED', 'PROCESSING'), FALSE) AS requeued,
    m.status IS NOT NULL AS recorded, d.headers->'Aggregate-Type'->>0 AS aggregate_type,
    d.headers->'Aggregate-Id'->>0 AS aggregate_id, d.headers->'Event-Type'->>0 AS event_type,
    coalesce(d.headers->'Tailpost-Escaped'->>0, '') AS escaped";

impl Texts {
    pub(super) fn new(outbox: &Table) -> Self {
        let [messages, letters, decisions, roles] =
            ["inbox_messages", "inbox_dead_letter", "inbox_decisions", "inbox_roles"]
                .map(|it| outbox.companion(it));
        let literal = outbox.quoted().replace('\'', "''");
        let outbox = format!(
            "SELECT {} FROM {} WHERE {} = $2",
            outbox.column(Column::OccurredAt),
            outbox.quoted(),
            outbox.column(Column::Id)
        );
        let open = format!(
            "FROM {letters} d LEFT JOIN {messages} m ON {SAME}
             WHERE {MEANT} AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING')"
        );
        Self {
            list: format!("SELECT {SHOWN} {open} ORDER BY d.dead_at DESC, d.message_id LIMIT $8"),
            originals: format!(
                "SELECT {SHOWN}, d.headers, d.payload {open} ORDER BY d.dead_at, d.message_id LIMIT $8"
            ),
            count: format!(
                "SELECT count(*),
                     extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 {open}"
            ),
            groups: format!(
                "SELECT {FINGERPRINT} AS fingerprint, count(*), count(DISTINCT aggregate),
                     min(dead_at), max(dead_at)
                 FROM (SELECT d.reason, d.dead_at, coalesce(
                           d.headers->'Aggregate-Type'->>0 || ':' || (d.headers->'Aggregate-Id'->>0),
                           d.message_id::text) AS aggregate
                       {open} ORDER BY d.dead_at DESC LIMIT {GROUPED_MAX}) newest
                 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {GROUPS_MAX}"
            ),
            page: format!(
                "SELECT d.dead_at, d.message_id, d.consumer {open} AND d.dead_at <= $8
                     AND (d.dead_at, d.message_id, d.consumer) > ($9, $10, $11)
                 ORDER BY d.dead_at, d.message_id, d.consumer LIMIT $12"
            ),
            requeue: requeue(&messages, &letters, &decisions),
            reject: settle(&messages, &letters, &decisions, Decision::Reject),
            discard: settle(&messages, &letters, &decisions, Decision::Discard),
            backlogs: backlogs(&messages, &letters),
            holders: super::holders::text(&roles),
            has_outbox: format!("SELECT to_regclass('{literal}') IS NOT NULL"),
            mark_processed: mark_processed(&messages, &letters, &decisions),
            messages,
            letters,
            outbox,
        }
    }

    pub(super) fn decide(&self, decision: Decision) -> &str {
        match decision {
            Decision::Requeue => &self.requeue,
            Decision::Reject => &self.reject,
            Decision::Discard => &self.discard,
        }
    }

    /// When an event happened, by whoever knows it. `outbox` says whether there is one to ask.
    pub(super) fn time_of(&self, outbox: bool) -> String {
        let Self { messages, letters, .. } = self;
        let outbox = if outbox { format!("({}),", self.outbox) } else { String::new() };
        format!(
            "SELECT coalesce(
                 (SELECT event_time FROM {messages} WHERE consumer = $1 AND message_id = $2
                  ORDER BY event_time LIMIT 1),
                 (SELECT event_time FROM {letters} WHERE consumer = $1 AND message_id = $2),
                 {outbox} $3::timestamptz)"
        )
    }
}

fn mark_processed(messages: &str, letters: &str, decisions: &str) -> String {
    format!(
        "WITH marked AS (
             INSERT INTO {messages} AS m (consumer, message_id, event_time, subject, status,
                 processed_at, outcome)
             VALUES ($1::text, $2::uuid, $3::timestamptz, '', 'PROCESSED', clock_timestamp(),
                 'marked_processed')
             ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
                 status = 'PROCESSED', processed_at = clock_timestamp(),
                 outcome = 'marked_processed', lease_token = NULL, expires_at = NULL,
                 next_attempt_at = NULL
             WHERE m.status IN ('FAILED', 'DEAD', 'REJECTED')
                 OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp()
             RETURNING m.*
         ), letter AS (
             DELETE FROM {letters} d USING marked
             WHERE d.consumer = $1 AND d.message_id = $2
             RETURNING d.cause, d.reason
         ), noted AS (
             INSERT INTO {decisions} (decision, decided_by, reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts, cause, failure)
             SELECT 'mark_processed', session_user || ' (' || $4::text || ')', $5::text, $1, $2,
                 event_time, subject, stream, stream_seq, attempts, letter.cause,
                 coalesce(letter.reason, last_error)
             FROM marked LEFT JOIN letter ON TRUE
         )
         SELECT CASE
             WHEN EXISTS (SELECT FROM marked) THEN 'marked'
             WHEN EXISTS (SELECT FROM {messages} WHERE consumer = $1 AND message_id = $2
                 AND event_time = $3 AND status = 'PROCESSED') THEN 'processed'
             ELSE 'leased'
         END"
    )
}

/// What an inbox at work asks about requeued letters.
pub(crate) struct Redrive {
    /// Letters that are due, or whose worker died: the first of each aggregate, then the second of
    /// each, and so on.
    pub(crate) due: String,
    /// One of them, whole.
    pub(crate) letter: String,
    /// Events without a letter that are long due, or whose worker died long ago: nobody has them.
    pub(crate) orphans: String,
    /// Letters whose events have had their effect meanwhile.
    pub(crate) sweep: String,
    /// Letters that nobody decided about for too long.
    pub(crate) purge: String,
}

impl Redrive {
    /// `schema` is not quoted.
    pub(crate) fn new(schema: &str) -> Self {
        let schema = crate::tables::quote(schema);
        let messages = format!("{schema}.inbox_messages");
        let letters = format!("{schema}.inbox_dead_letter");
        let decisions = format!("{schema}.inbox_decisions");
        Self {
            due: format!(
                "WITH due AS (
                     SELECT d.message_id, d.stream_seq, row_number() OVER (
                         PARTITION BY d.headers->'Aggregate-Type', d.headers->'Aggregate-Id'
                         ORDER BY d.stream_created_at NULLS FIRST, d.stream_seq) AS turn
                     FROM {letters} d JOIN {messages} m ON {SAME}
                     WHERE d.consumer = $1 AND d.stream = $2 AND (
                         m.status = 'FAILED'
                             AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                         OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())
                 )
                 SELECT message_id, stream_seq, turn FROM due
                 ORDER BY turn, stream_seq <= $4, stream_seq LIMIT $3"
            ),
            letter: format!("SELECT * FROM {letters} WHERE consumer = $1 AND message_id = $2"),
            orphans: format!(
                "SELECT m.message_id, m.event_time, m.subject, m.stream_seq FROM {messages} m
                 WHERE m.consumer = $1 AND m.stream = $2 AND m.stream_seq IS NOT NULL
                     AND (m.status = 'FAILED' AND m.next_attempt_at < clock_timestamp()
                             - make_interval(secs => $3::float8)
                         OR m.status = 'PROCESSING' AND m.expires_at < clock_timestamp()
                             - make_interval(secs => $3::float8))
                     AND (m.event_time, m.message_id) > ($4::timestamptz, $5::uuid)
                     AND NOT EXISTS (SELECT FROM {letters} d WHERE {SAME})
                 ORDER BY m.event_time, m.message_id LIMIT $6"
            ),
            sweep: format!(
                "DELETE FROM {letters} d USING {messages} m
                 WHERE d.consumer = $1 AND {SAME} AND m.status IN ('PROCESSED', 'REJECTED')"
            ),
            purge: format!(
                "WITH done AS (
                     DELETE FROM {letters} d
                     WHERE d.consumer = $1
                         AND d.dead_at < clock_timestamp() - make_interval(secs => $2::float8)
                         AND NOT EXISTS (SELECT FROM {messages} m
                             WHERE {SAME} AND m.status IN ('FAILED', 'PROCESSING'))
                     RETURNING d.*
                 ), {}",
                note(&decisions, "purge", ["$3", "$4"])
            ),
        }
    }
}

/// The end of each decision: `done` holds the letters that it was done to.
fn note(decisions: &str, decision: &str, [by, why]: [&str; 2]) -> String {
    format!(
        "noted AS (
             INSERT INTO {decisions} (decision, decided_by, reason, consumer, message_id,
                 event_time, subject, stream, stream_seq, attempts, cause, failure)
             SELECT '{decision}', session_user || ' (' || {by}::text || ')', {why}::text, consumer,
                 message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
             FROM done
         )
         SELECT consumer, message_id FROM done"
    )
}

/// Who decides, and why, behind the selection.
const AUTHOR: [&str; 2] = ["$8", "$9"];

/// The record is due at once, with no attempt on its account; the letter stays, since it has what
/// the attempts need, until the record is processed.
fn requeue(messages: &str, letters: &str, decisions: &str) -> String {
    let hopeless = HOPELESS.map(|it| format!("'{it}'")).join(", ");
    format!(
        "WITH done AS (
             UPDATE {messages} m SET status = 'FAILED', attempts = 0, finished_attempts = 0,
                 next_attempt_at = clock_timestamp(), lease_token = NULL, expires_at = NULL
             FROM {letters} d
             WHERE {SAME} AND {MEANT} AND m.status = 'DEAD' AND d.cause NOT IN ({hopeless})
             RETURNING d.*
         ), {}",
        note(decisions, "requeue", AUTHOR)
    )
}

/// Nothing more will be tried: the letter goes. A record that is gone already needs no status.
fn settle(messages: &str, letters: &str, decisions: &str, decision: Decision) -> String {
    let (name, status) = match decision {
        Decision::Reject => ("reject", "REJECTED"),
        _ => ("discard", "DEAD"),
    };
    format!(
        "WITH settled AS (
             UPDATE {messages} m SET status = '{status}', outcome = '{name}'
             FROM {letters} d
             WHERE {SAME} AND {MEANT} AND m.status = 'DEAD'
             RETURNING m.consumer, m.message_id
         ), done AS (
             DELETE FROM {letters} d
             WHERE {MEANT} AND (
                 EXISTS (SELECT FROM settled s
                         WHERE s.consumer = d.consumer AND s.message_id = d.message_id)
                 OR NOT EXISTS (SELECT FROM {messages} m WHERE {SAME}))
             RETURNING d.*
         ), {}",
        note(decisions, name, AUTHOR)
    )
}

fn backlogs(messages: &str, letters: &str) -> String {
    format!(
        "WITH begun AS (
             SELECT consumer,
                 count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
                 count(*) FILTER (WHERE status = 'FAILED') AS failed,
                 count(*) FILTER (WHERE attempts > {STUBBORN_OVER}) AS stubborn,
                 extract(epoch FROM clock_timestamp() - min(event_time))::float8 AS oldest_seconds,
                 (array_agg(last_error ORDER BY claimed_at DESC NULLS LAST)
                     FILTER (WHERE status = 'FAILED'))[1] AS last_error
             FROM {messages} WHERE status IN ('PROCESSING', 'FAILED') GROUP BY consumer
         ), dead AS (
             SELECT d.consumer, count(*) AS dead
             FROM {letters} d LEFT JOIN {messages} m ON {SAME}
             WHERE coalesce(m.status, 'DEAD') = 'DEAD' GROUP BY d.consumer
         )
         SELECT consumer, coalesce(processing, 0) AS processing, coalesce(failed, 0) AS failed,
             coalesce(stubborn, 0) AS stubborn, coalesce(dead, 0) AS dead, oldest_seconds, last_error
         FROM begun FULL JOIN dead USING (consumer) ORDER BY consumer"
    )
}
