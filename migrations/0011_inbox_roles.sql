-- Which worker handles the events of a consumer: a lease, which its worker renews.
CREATE TABLE IF NOT EXISTS {schema}.inbox_roles (
    consumer      TEXT PRIMARY KEY,
    token         UUID NOT NULL,
    owner         TEXT NOT NULL,
    acquired_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at    TIMESTAMPTZ NOT NULL,
    state         TEXT,
    breaker       TEXT,
    reason        TEXT,
    next_probe_at TIMESTAMPTZ
) WITH (fillfactor = 50);

COMMENT ON COLUMN {schema}.inbox_roles.token IS 'fences: without it no event is claimed or recorded';
COMMENT ON COLUMN {schema}.inbox_roles.state IS 'what the worker said when it renewed the lease: state, breaker, reason, next_probe_at';
