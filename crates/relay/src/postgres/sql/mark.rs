//! How rows are marked, and which are not.

use outbox::{Column, DROPPED, Table};

use crate::config::MarkBy;
use crate::postgres::columns::{BYTEA, JSON, JSONB, TEXT};
use crate::postgres::rows::REQUEUED_TXID;
use crate::routing::{Destination, Glob, Route};
use crate::shards::Shard;

/// That rows are not marked, for statements that look for them by id.
///
/// The planner knows how many rows are unmarked from when the table was analysed last: none, if that
/// was in quiet times. Told plainly, it would go through all of them for every id (5,000 marks took 86 s
/// with 100,000 unmarked rows). So it is told in a way of which it knows nothing, and to which
/// no index leads.
pub const NOT_MARKED: &str = "(published_at IS NULL)::int <> 0";

/// What is said of a mark, or a removal, after which a row is as it was.
pub(super) const UNTAKEN: &str = "a trigger leaves the row as it is";

/// That something can be done about a row of the outbox, called `o` there: it has an id, and is not
/// owed a mark. The latter is looked up row by row, last of all: there are hardly ever
/// any, and a join would take the order away that an index gives.
pub fn not_owed(table: &Table) -> String {
    format!(
        "o.{id} IS NOT NULL AND NOT EXISTS (SELECT FROM {} w WHERE w.id = o.{id} OFFSET 0)",
        table.companion("tailpost_owed"),
        id = table.column(Column::Id)
    )
}

/// The transaction that inserted a row of the outbox, which is called `o` there. The column has a
/// default, but takes a null that somebody gives: then the row's own version tells, unless it was
/// updated since. PostgreSQL keeps 32 bits of that; it is the youngest with these that may be over. In a
/// savepoint it is not the top level's: such a row may be taken for older than a slot that was created
/// meanwhile.
pub fn transaction(o: &str) -> String {
    format!("coalesce({o}.txid, {})", version(o))
}

/// The transaction that wrote the version of a row, as far as 32 bits tell.
pub fn version(row: &str) -> String {
    let next = "pg_snapshot_xmax(pg_current_snapshot())::text::numeric";
    format!(
        "(greatest({next} - mod({next} - {row}.xmin::text::numeric
             + 4294967296, 4294967296), 0))::text::xid8"
    )
}

/// Which rows `o` of an outbox with partitions by day were inserted lately: almost all that are to be
/// marked. The others' partitions are not looked at.
const LATELY: &str = "AND o.inserted_at >= now() - interval '1 day'";

/// As [`mark`], for an outbox with partitions by day: leaves older rows as they are, and says which
/// events it marked. An id may be there twice.
pub(super) fn mark_lately(table: &Table, by: MarkBy) -> String {
    let marks = mark_where(table, by, LATELY);
    match by {
        MarkBy::Delete => marks,
        MarkBy::Row | MarkBy::Lean => {
            format!("{marks} RETURNING o.{}", table.column(Column::Id))
        }
    }
}

/// The one statement that marks rows, whoever asks. Marked ones are left alone.
pub(super) fn mark(table: &Table, by: MarkBy) -> String {
    mark_where(table, by, "")
}

fn mark_where(table: &Table, by: MarkBy, restriction: &str) -> String {
    let (outbox, id) = (table.quoted(), table.column(Column::Id));
    let resolved = "unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, seq, lsn)";
    match by {
        // What the log does not bring has no other mark.
        MarkBy::Row | MarkBy::Lean => format!(
            "UPDATE {outbox} o
             SET published_at = clock_timestamp(), stream_seq = u.seq, commit_lsn = u.lsn,
                 stream = CASE WHEN u.seq IS NOT NULL THEN $4::text END,
                 publish_error = CASE WHEN u.seq IS NULL THEN '{DROPPED}' END,
                 next_attempt_at = NULL
             FROM {resolved}
             WHERE o.{id} = u.id AND o.{id} = ANY($1) AND {NOT_MARKED} {restriction}"
        ),
        // It has the same parameters.
        MarkBy::Delete => format!(
            "DELETE FROM {outbox} o USING {resolved}
             WHERE o.{id} = u.id AND o.{id} = ANY($1) AND {NOT_MARKED} AND $4::text IS NOT NULL
                 {restriction}
             RETURNING o.{id}"
        ),
    }
}

/// Whether a row without a mark, called `o` there, is not published all the same.
pub fn not_published(table: &Table, o: &str) -> String {
    format!(
        "NOT EXISTS (SELECT FROM {} p WHERE NOT pg_visible_in_snapshot({txid}, p.start_snapshot)
             AND pg_visible_in_snapshot({txid}, p.end_snapshot))",
        table.companion("tailpost_published"),
        txid = transaction(o)
    )
}

/// Stores the watermark $3 and $4 of slot $1 as that up to which all rows are published, marked or
/// not. Whoever lost the slot changes nothing: the slot's start $2 is another one, or somebody was
/// further. All in one statement: a new slot's relay reads the stream back to the same place.
pub(super) fn published_to(table: &Table) -> String {
    let state = table.companion("tailpost_state");
    let published = table.companion("tailpost_published");
    format!(
        "WITH own AS (
             SELECT slot, start_snapshot FROM {state}
             WHERE slot = $1 AND start_snapshot::text = $2::text
               AND (watermark_lsn IS NULL OR watermark_lsn <= $4)
             FOR UPDATE
         ), moved AS (
             UPDATE {published} p SET end_snapshot = $3::text::pg_snapshot, moved_at = now()
             FROM own WHERE p.start_snapshot::text = $2::text RETURNING p.moved_at
         ), begun AS (
             INSERT INTO {published} (start_snapshot, end_snapshot)
             SELECT start_snapshot, $3::text::pg_snapshot FROM own
             WHERE NOT EXISTS (SELECT FROM moved)
         )
         UPDATE {state} s SET watermark_snapshot = $3::text::pg_snapshot, watermark_lsn = $4,
             watermark_at = now(), updated_at = now(),
             swept_snapshot = $3::text::pg_snapshot, swept_lsn = $4
         FROM own WHERE s.slot = own.slot
         RETURNING pg_current_xact_id()::text"
    )
}

/// Which rows of the outbox, called `o` there, are the shard's, as a condition. Other shards have other
/// slots: what their logs bring, and their watermarks cover, is nothing to this one.
pub(super) fn owned(table: &Table, shard: Option<Shard>, o: &str) -> String {
    let column = |column| format!("{o}.{}", table.column(column));
    let owns = |it: Shard| it.owns(&column(Column::AggregateType), &column(Column::AggregateId));
    shard.map_or_else(|| "true".to_owned(), owns)
}

/// Moves a row into the dead letters, which keep payloads as `payload_type`. A row that is locked is
/// not waited for, but [owed], as is one that a trigger keeps, and any one that there is unless it
/// `deletes`. A row stays without its letter, which a trigger may keep out. What a column does not take is
/// kept as a text. Nothing happens if slot $16 is read by another process than $17, which may be NULL where
/// there is no slot; and no dead letter is made of a row that is marked. Without $18 the event has no row:
/// one that has its id is another event's, and neither moved nor made a dead letter of. A row that came back
/// is the scanner's: without $19 the event is what its first row said, and that one stays.
pub(super) fn park(table: &Table, payload_type: u32, deletes: bool) -> String {
    let (outbox, dead) = (table.quoted(), table.companion("outbox_dead_letter"));
    let id = table.column(Column::Id);
    let kept = |kind| format!("{}.tailpost_{kind}", table.quoted_schema());
    let (jsonb, text) = (kept("jsonb"), kept("text"));
    let payload = match kept_as(payload_type) {
        BYTEA => "$6::bytea".into(),
        // An event without a payload is an empty message, which is no JSON.
        JSON | JSONB => format!(
            "{}(coalesce({text}(nullif($6::bytea, '')), 'null'))",
            kept(type_name(payload_type))
        ),
        _ => format!("{text}($6::bytea)"),
    };
    let (gone, untaken) = if deletes {
        let gone = format!(
            "DELETE FROM {outbox} WHERE {id} = ANY (ARRAY(SELECT id FROM free)) AND {NOT_MARKED}
                 AND EXISTS (SELECT FROM letter)
             RETURNING {id}"
        );
        (gone, format!("'{UNTAKEN}'"))
    } else {
        // A trigger of the statement fires also where there is no row.
        ("SELECT WHERE false".to_owned(), "NULL".to_owned())
    };
    format!(
        "WITH ours AS MATERIALIZED (
             SELECT $17::int IS NULL OR EXISTS (
                 SELECT FROM pg_replication_slots WHERE slot_name = $16::text AND active_pid = $17
             ) AS is_ours
         ), free AS MATERIALIZED (
             SELECT {id} AS id, publish_attempts FROM {outbox}
             WHERE {id} = $1 AND {NOT_MARKED} AND {is_meant}
                 AND (SELECT is_ours FROM ours) AND $18
             FOR UPDATE SKIP LOCKED
         ), left_there AS MATERIALIZED (
             SELECT FROM {outbox} WHERE {id} = $1 AND {NOT_MARKED} AND {is_meant} AND $18
         ), wanted AS MATERIALIZED (
             SELECT FROM ours WHERE is_ours AND ({deletes} AND EXISTS (SELECT FROM free)
                 OR EXISTS (SELECT FROM left_there)
                     AND NOT EXISTS (SELECT FROM {owed} WHERE id = $1)
                 OR NOT EXISTS (SELECT FROM {outbox} WHERE {id} = $1))
         ), parked AS (
             INSERT INTO {dead} (id, aggregate_type, aggregate_id, event_type, event_version,
                 payload, occurred_at, correlation_id, causation_id, headers, reason, publish_error,
                 publish_attempts, seq, blocks, blocked_by)
             SELECT $1, $2, $3, $4, $5, {payload}, $7, $8, $9, {jsonb}($10::text), $11, $11,
                 greatest($12, (SELECT max(publish_attempts) FROM free)), $13, $14, $15
             FROM wanted
             ON CONFLICT (id) DO NOTHING RETURNING id
         ), letter AS MATERIALIZED (
             SELECT id FROM parked UNION ALL SELECT id FROM {dead} WHERE id = $1
         ), gone AS (
             {gone}
         ), owed AS (
             INSERT INTO {owed} (id, parked, reason)
             SELECT $1, true, CASE WHEN EXISTS (SELECT FROM free) THEN {untaken} END
             FROM ours
             WHERE is_ours AND EXISTS (SELECT FROM letter) AND NOT EXISTS (SELECT FROM gone)
                 AND EXISTS (SELECT FROM left_there)
             ON CONFLICT (id) DO NOTHING RETURNING id
         )
         SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM owed), (SELECT is_ours FROM ours),
             EXISTS (SELECT FROM letter) OR NOT EXISTS (SELECT FROM wanted)",
        owed = table.companion("tailpost_owed"),
        is_meant = format_args!("($19 OR txid IS DISTINCT FROM '{REQUEUED_TXID}'::xid8)"),
    )
}

/// The type in which a dead letter keeps a payload that has another type in the outbox.
pub(super) fn kept_as(payload_type: u32) -> u32 {
    match payload_type {
        JSON | JSONB | BYTEA => payload_type,
        _ => TEXT,
    }
}

/// The name of such a type.
pub fn type_name(payload_type: u32) -> &'static str {
    match kept_as(payload_type) {
        JSON => "json",
        JSONB => "jsonb",
        BYTEA => "bytea",
        _ => "text",
    }
}

/// Whether a route drops a row, as a condition. The sweeper has to judge as the relay does: it marks
/// rows that it has not read.
pub(super) fn dropped(table: &Table, routes: &[Route]) -> String {
    if !routes.iter().any(|it| it.destination == Destination::Drop) {
        return "false".into();
    }
    let cases = routes.iter().map(|route| {
        format!(
            "WHEN {} AND {} THEN {}",
            like(&table.column(Column::AggregateType), &route.aggregate_type),
            like(&table.column(Column::EventType), &route.event_type),
            route.destination == Destination::Drop
        )
    });
    format!("CASE {} ELSE false END", cases.collect::<Vec<_>>().join(" "))
}

/// Byte by byte, whatever the column's type and collation.
fn like(column: &str, glob: &Glob) -> String {
    let pattern = glob.like().replace('\\', r"\\").replace('\'', "''");
    format!(r#"{column}::text COLLATE "C" LIKE E'{pattern}'"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_survive_likes_wildcards_and_quotes() {
        let glob: Glob = r"a%_\'*".parse().expect("every text is a glob");
        assert_eq!(like("x", &glob), r#"x::text COLLATE "C" LIKE E'a\\%\\_\\\\''%'"#);
    }
}
