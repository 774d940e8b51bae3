use super::handled_up_to::SERVER;

/// Marks every connection of a worker, so that others see whether it is there, and can end it.
pub(crate) const MARK_CONNECTION: &str =
    "SELECT pg_advisory_lock_shared(hashtextextended($1::text, 1))";

/// Ends the connections that are marked so: what they have begun and not committed is undone.
pub(crate) const END_CONNECTIONS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1::text, 1)";

/// The lease of `r` is over, or none of its worker's connections is left.
const FREE: &str = "(r.expires_at <= clock_timestamp()
             OR pg_try_advisory_xact_lock(hashtextextended(r.owner, 1)))";

/// Who has the role, whether it is free, who may not have been ended that had it before, and of which
/// stream events were handled last.
pub(crate) fn find_role(schema: &str) -> String {
    format!(
        "SELECT token, owner, {FREE}, unended, handled_stream
         FROM {schema}.inbox_roles AS r WHERE consumer = $1 AND partition = $2"
    )
}

/// Says that the worker `$2` is there for another `$3` seconds, if it joins; otherwise that it is not.
/// And how many others are there, how many of them came before it, which of the `$5` partitions are
/// free, and how many of the others are not paused. Whoever has no connection is not there.
pub(crate) fn look_around(schema: &str) -> String {
    format!(
        "WITH joined AS (
             INSERT INTO {schema}.inbox_workers AS w (consumer, owner, expires_at)
             SELECT $1, $2, clock_timestamp() + make_interval(secs => $3) WHERE $4
             ON CONFLICT (consumer, owner) DO UPDATE SET expires_at = EXCLUDED.expires_at
             RETURNING joined_at
         ), others AS MATERIALIZED (
             SELECT owner, joined_at, {FREE} AS is_gone
             FROM {schema}.inbox_workers AS r WHERE consumer = $1 AND owner <> $2
         ), gone AS (
             DELETE FROM {schema}.inbox_workers AS w WHERE consumer = $1 AND owner IN (
                 SELECT owner FROM {schema}.inbox_workers WHERE consumer = $1 AND (owner = $2 AND NOT $4
                     OR owner IN (SELECT owner FROM others WHERE is_gone))
                 FOR UPDATE SKIP LOCKED) -- two that take each other for gone do not wait
         )
         SELECT count(*), count(*) FILTER (WHERE (joined_at, owner) < (SELECT joined_at, $2::text FROM joined)),
             ARRAY(SELECT p FROM generate_series(0, $5 - 1) AS p
                 LEFT JOIN {schema}.inbox_roles AS r ON r.consumer = $1 AND r.partition = p
                 WHERE r.owner IS NULL OR {FREE} ORDER BY p),
             count(*) FILTER (WHERE NOT EXISTS (SELECT FROM {schema}.inbox_roles AS r
                 WHERE r.consumer = $1 AND r.owner = others.owner AND r.state = 'paused'))
         FROM others WHERE NOT is_gone"
    )
}

/// The worker is gone.
pub(crate) fn leave(schema: &str) -> String {
    format!("DELETE FROM {schema}.inbox_workers WHERE consumer = $1 AND owner = $2")
}

/// Only as it was found: under the token `$5`, and still free.
pub(crate) fn take_role(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.inbox_roles AS r (consumer, token, owner, expires_at, partition)
         VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), $6)
         ON CONFLICT (consumer, partition) DO UPDATE SET token = EXCLUDED.token, owner = EXCLUDED.owner,
             acquired_at = clock_timestamp(), expires_at = EXCLUDED.expires_at,
             state = NULL, breaker = NULL, reason = NULL, next_probe_at = NULL,
             unended = array_remove(array_append(array_remove(r.unended, r.owner), r.owner), '')
         WHERE r.token = $5 AND {FREE}"
    )
}

/// And says how the worker is in each partition, and up to where everything is handled, if that is
/// known of this server. Its former workers have been ended. Of those partitions that are still its
/// own, whether that was done: not where somebody has the row locked.
pub(crate) fn renew_roles(schema: &str) -> String {
    format!(
        "WITH said AS (
             SELECT * FROM unnest($2::int[], $3::uuid[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
                 $9::text[], $10::timestamptz[], $11::timestamptz[])
                 AS s (partition, token, server, handled, state, breaker, reason, next_probe_at, stored_at)
         ), free AS MATERIALIZED (
             SELECT partition FROM {schema}.inbox_roles AS r JOIN said AS s USING (partition, token)
             WHERE consumer = $1 FOR NO KEY UPDATE OF r SKIP LOCKED
         ), renewed AS (
             UPDATE {schema}.inbox_roles AS r
             SET expires_at = clock_timestamp() + make_interval(secs => $4), state = s.state,
                 breaker = s.breaker, reason = s.reason, next_probe_at = s.next_probe_at,
                 unended = '{{}}', {handled}
             FROM free JOIN said AS s USING (partition)
             WHERE r.consumer = $1 AND r.partition = s.partition AND r.token = s.token
             RETURNING r.partition
         )
         SELECT partition, partition IN (SELECT partition FROM renewed), {SERVER}
         FROM {schema}.inbox_roles JOIN said USING (partition, token) WHERE consumer = $1",
        handled = handled()
    )
}

/// Where nothing of it is under way (`$4`) the next worker has nothing to end.
pub(crate) fn release_roles(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_roles AS r SET {handled},
             expires_at = CASE WHEN $4 THEN clock_timestamp() ELSE '-infinity' END,
             owner = CASE WHEN $4 THEN '' ELSE owner END
         FROM unnest($2::int[], $3::uuid[], $5::bigint[], $6::bigint[], $7::timestamptz[])
             AS s (partition, token, server, handled, stored_at)
         WHERE r.consumer = $1 AND r.partition = s.partition AND r.token = s.token",
        handled = handled()
    )
}

/// Of the row `r`, as `s` says it.
fn handled() -> String {
    format!(
        "handled_to = CASE WHEN {SERVER} = s.server THEN s.handled ELSE r.handled_to END,
             handled_stored_at =
                 CASE WHEN {SERVER} = s.server THEN s.stored_at ELSE r.handled_stored_at END"
    )
}
