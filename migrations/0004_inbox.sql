-- The inbox: one row for each event and consumer, for PostgreSQL 14 and later.
--
-- Every statement can run again without harm. Small installations need no partitions: they leave
-- out PARTITION BY.

CREATE TABLE IF NOT EXISTS {schema}.inbox_messages (
    consumer          TEXT NOT NULL,
    message_id        UUID NOT NULL,
    event_time        TIMESTAMPTZ NOT NULL,
    subject           TEXT NOT NULL,
    received_at       TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    processed_at      TIMESTAMPTZ,
    attempts          INT NOT NULL DEFAULT 0,
    last_error        TEXT,
    status            TEXT NOT NULL
        CHECK (status IN ('PROCESSING', 'PROCESSED', 'FAILED', 'DEAD', 'REJECTED')),
    lease_token       UUID,
    lease_owner       TEXT,
    claimed_at        TIMESTAMPTZ,
    expires_at        TIMESTAMPTZ,
    finished_attempts INT NOT NULL DEFAULT 0,
    next_attempt_at   TIMESTAMPTZ,
    stream            TEXT,
    stream_seq        BIGINT,
    outcome           TEXT,
    PRIMARY KEY (consumer, message_id, event_time)
) {partitioning};

CREATE INDEX IF NOT EXISTS idx_inbox_unprocessed ON {schema}.inbox_messages (consumer, event_time)
    WHERE status IN ('PROCESSING', 'FAILED');

COMMENT ON COLUMN {schema}.inbox_messages.event_time IS 'occurred_at of the envelope, never the clock: the same at every delivery';
COMMENT ON COLUMN {schema}.inbox_messages.attempts IS 'attempts started; three more than finished_attempts: the handler kills the process';
COMMENT ON COLUMN {schema}.inbox_messages.lease_token IS 'fences: only who has it may renew, complete or fail';

-- Events that could not be handled, whole, so that they can be handled without the stream.
CREATE TABLE IF NOT EXISTS {schema}.inbox_dead_letter (
    consumer          TEXT NOT NULL,
    message_id        UUID NOT NULL,
    event_time        TIMESTAMPTZ NOT NULL,
    subject           TEXT NOT NULL,
    stream            TEXT NOT NULL,
    stream_seq        BIGINT NOT NULL,
    headers           JSONB NOT NULL,
    payload           BYTEA NOT NULL,
    attempts          INT NOT NULL,
    cause             TEXT NOT NULL
        CHECK (cause IN ('dead', 'max_attempts', 'crashes', 'unreadable', 'forgotten')),
    reason            TEXT NOT NULL,
    dead_at           TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    PRIMARY KEY (consumer, message_id)
);

COMMENT ON COLUMN {schema}.inbox_dead_letter.headers IS 'as they travelled: an object of arrays of strings';
COMMENT ON COLUMN {schema}.inbox_dead_letter.cause IS 'dead: the handler said so; max_attempts: it kept failing; crashes: it killed the process; unreadable: not an event; forgotten: older than the inbox remembers';

-- Rows of events older than this may be gone: such an event is never handled, for it may have been.
CREATE TABLE IF NOT EXISTS {schema}.inbox_retention (
    only_row         BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    forgotten_before TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
);

INSERT INTO {schema}.inbox_retention DEFAULT VALUES ON CONFLICT DO NOTHING;
