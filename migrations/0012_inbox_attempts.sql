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

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of workers too.
    IF (SELECT count(*) < 3 FROM pg_attribute WHERE attrelid = $name${schema}.inbox_attempts$name$::regclass
            AND attname IN ('code', 'took_ms', 'worker')) THEN
        ALTER TABLE {schema}.inbox_attempts
            ADD COLUMN IF NOT EXISTS code SMALLINT,
            ADD COLUMN IF NOT EXISTS took_ms INT NOT NULL DEFAULT 0,
            ADD COLUMN IF NOT EXISTS worker TEXT;
        ALTER TABLE {schema}.inbox_attempts ALTER COLUMN took_ms DROP DEFAULT;
    END IF;
END
$do$;

-- Of an event, and, for retention, of a time.
CREATE INDEX IF NOT EXISTS idx_inbox_attempts_event
    ON {schema}.inbox_attempts (event_time, message_id, consumer);

COMMENT ON COLUMN {schema}.inbox_attempts.attempt IS 'which attempt it was; the next one has the same number if what the handler needs was away';
COMMENT ON COLUMN {schema}.inbox_attempts.code IS 'the status of an HTTP answer';
COMMENT ON COLUMN {schema}.inbox_attempts.reason IS 'one line; what an answer repeats of the request is masked';
