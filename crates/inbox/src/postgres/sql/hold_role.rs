use super::handled::SERVER;

/// Marks every connection of a worker, so that others see whether it is there, and can end it.
pub(crate) const MARK_CONNECTION: &str =
    "SELECT pg_advisory_lock_shared(hashtextextended($1::text, 1))";

/// Ends the connections that are marked so: what they have begun and not committed is undone.
pub(crate) const END_CONNECTIONS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1::text, 1)";

/// Who has the role, and whether it is free: its lease is over, or none of the worker's connections
/// is left. And who may not have been ended that had it before.
pub(crate) fn find_role(schema: &str) -> String {
    format!(
        "SELECT token, owner, expires_at <= clock_timestamp()
             OR pg_try_advisory_xact_lock(hashtextextended(owner, 1)), unended
         FROM {schema}.inbox_roles WHERE consumer = $1"
    )
}

pub(crate) fn take_role(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.inbox_roles AS r (consumer, token, owner, expires_at)
         VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
         ON CONFLICT (consumer) DO UPDATE SET token = EXCLUDED.token, owner = EXCLUDED.owner,
             acquired_at = clock_timestamp(), expires_at = EXCLUDED.expires_at,
             state = NULL, breaker = NULL, reason = NULL, next_probe_at = NULL,
             unended = array_append(array_remove(r.unended, r.owner), r.owner)
         WHERE r.token = $5"
    )
}

/// And says how the worker is, and up to where everything is handled, if that is known of this
/// server. Its former workers have been ended.
pub(crate) fn renew_role(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_roles SET expires_at = clock_timestamp() + make_interval(secs => $3),
             state = $4, breaker = $5, reason = $6, next_probe_at = $7, unended = '{{}}',
             {handled}
         WHERE consumer = $1 AND token = $2 RETURNING {SERVER}",
        handled = handled("$8", "$9")
    )
}

pub(crate) fn release_role(schema: &str) -> String {
    format!(
        "UPDATE {schema}.inbox_roles SET expires_at = '-infinity', {handled}
         WHERE consumer = $1 AND token = $2",
        handled = handled("$3", "$4")
    )
}

fn handled(server: &str, seq: &str) -> String {
    format!("handled_to = CASE WHEN {SERVER} = {server} THEN {seq} ELSE handled_to END")
}
