-- What operators want of a consumer, whether a worker runs or not, and who wanted it.

CREATE TABLE IF NOT EXISTS {schema}.inbox_controls (
    consumer         TEXT PRIMARY KEY,
    paused_at        TIMESTAMPTZ,
    paused_by        TEXT,
    reason           TEXT,
    breaker_closings BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS {schema}.inbox_control_audit (
    id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    consumer TEXT NOT NULL,
    action   TEXT NOT NULL,
    actor    TEXT NOT NULL,
    via      TEXT NOT NULL,
    why      TEXT
);

CREATE INDEX IF NOT EXISTS idx_inbox_control_audit ON {schema}.inbox_control_audit (consumer, id);

COMMENT ON COLUMN {schema}.inbox_controls.paused_at IS 'since when no event is begun; NULL: events are handled';
COMMENT ON COLUMN {schema}.inbox_controls.breaker_closings IS 'how often somebody closed the breaker: the worker closes it whenever this changes';
COMMENT ON COLUMN {schema}.inbox_control_audit.action IS 'pause, resume or close_breaker';
