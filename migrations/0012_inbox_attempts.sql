-- Attempts that failed, the newest of each event. They go with its record.

CREATE TABLE IF NOT EXISTS {schema}.inbox_attempts (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer   TEXT NOT NULL,
    message_id UUID NOT NULL,
    event_time TIMESTAMPTZ NOT NULL,
    failed_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    attempt    INT NOT NULL,
    code       SMALLINT,
    took_ms    INT NOT NULL,
    reason     TEXT NOT NULL,
    worker     TEXT
);

-- Of an event, and, for retention, of a time.
CREATE INDEX IF NOT EXISTS idx_inbox_attempts_event
    ON {schema}.inbox_attempts (event_time, message_id, consumer);

COMMENT ON COLUMN {schema}.inbox_attempts.attempt IS 'which attempt it was; the next one has the same number if what the handler needs was away';
COMMENT ON COLUMN {schema}.inbox_attempts.code IS 'the status of an HTTP answer';
COMMENT ON COLUMN {schema}.inbox_attempts.reason IS 'one line; what an answer repeats of the request is masked';
