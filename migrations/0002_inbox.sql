-- The inbox: one row for each event and consumer, for PostgreSQL 14 and later.
--
-- Every statement can run again without harm.

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
    PRIMARY KEY (consumer, message_id, event_time),
    -- A claim that was given back has an end, which is over, and no token any more.
    CONSTRAINT inbox_claimed_until CHECK ((status = 'PROCESSING') = (expires_at IS NOT NULL)),
    CONSTRAINT inbox_claimed_by CHECK (status = 'PROCESSING' OR lease_token IS NULL),
    CONSTRAINT inbox_processed_when CHECK ((status = 'PROCESSED') = (processed_at IS NOT NULL)),
    CONSTRAINT inbox_tried_again CHECK (status = 'FAILED' OR next_attempt_at IS NULL),
    CONSTRAINT inbox_attempts_end CHECK (finished_attempts BETWEEN 0 AND attempts),
    CONSTRAINT inbox_place CHECK ((stream IS NULL) = (stream_seq IS NULL))
) PARTITION BY RANGE (event_time);

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
    cause             TEXT NOT NULL,
    reason            TEXT NOT NULL,
    dead_at           TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    raw_headers       BYTEA,
    stream_created_at TIMESTAMPTZ,
    PRIMARY KEY (consumer, message_id)
);

-- The order in which they are listed and worked through.
CREATE INDEX IF NOT EXISTS idx_inbox_dead_letter_dead_at
    ON {schema}.inbox_dead_letter (dead_at, message_id, consumer);

COMMENT ON COLUMN {schema}.inbox_dead_letter.headers IS 'as they travelled: an object of arrays of strings';
COMMENT ON COLUMN {schema}.inbox_dead_letter.raw_headers IS 'the header block as it travelled, where headers cannot hold it';
COMMENT ON COLUMN {schema}.inbox_dead_letter.stream_created_at IS 'when the stream was created: one of the same name that was created later has other messages of the same sequences';
COMMENT ON COLUMN {schema}.inbox_dead_letter.cause IS 'dead: the handler said so; max_attempts: it kept failing; crashes: it killed the process; unreadable: not an event; forgotten: older than the inbox remembers; unrecordable: the database refuses its record; gone: it left the stream before it was handled';

-- Rows of events older than forgotten_before may be gone: such an event is never handled, for it may have
-- been. And when the tables were last looked after, and what that deleted.
CREATE TABLE IF NOT EXISTS {schema}.inbox_retention (
    only_row           BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    forgotten_before   TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    succeeded_at       TIMESTAMPTZ,
    records_deleted    BIGINT NOT NULL DEFAULT 0,
    partitions_dropped BIGINT NOT NULL DEFAULT 0,
    decisions_deleted  BIGINT NOT NULL DEFAULT 0,
    failed_at          TIMESTAMPTZ,
    failure            TEXT,
    CONSTRAINT inbox_retention_failed CHECK ((failed_at IS NULL) = (failure IS NULL))
);

COMMENT ON COLUMN {schema}.inbox_retention.failure IS 'why the latest pass failed; null if it did not';

INSERT INTO {schema}.inbox_retention DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Who decided what about an event of the inbox, and why. Payloads are left out: this is kept longer
-- than they may be.
CREATE TABLE IF NOT EXISTS {schema}.inbox_decisions (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decided_at    TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    decision      TEXT NOT NULL,
    decided_by    TEXT NOT NULL,
    reason        TEXT,
    consumer      TEXT NOT NULL,
    message_id    UUID NOT NULL,
    event_time    TIMESTAMPTZ NOT NULL,
    subject       TEXT,
    stream        TEXT,
    stream_seq    BIGINT,
    attempts      INT,
    cause         TEXT,
    failure       TEXT
);

CREATE INDEX IF NOT EXISTS idx_inbox_decisions_event ON {schema}.inbox_decisions (message_id);

COMMENT ON COLUMN {schema}.inbox_decisions.decision IS 'requeue, reject, discard, mark_processed, purge (nobody decided for too long), rewind (handled again)';
COMMENT ON COLUMN {schema}.inbox_decisions.decided_by IS 'the role in the database, and who the client says it is';
COMMENT ON COLUMN {schema}.inbox_decisions.cause IS 'cause and failure: why it was a dead letter, if it was';

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

-- Consumers that are to go back in their stream. The worker that has the consumer carries them out.

CREATE TABLE IF NOT EXISTS {schema}.inbox_rewinds (
    id                BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer          TEXT NOT NULL,
    stream            TEXT NOT NULL,
    stream_created_at TIMESTAMPTZ,
    from_seq          BIGINT NOT NULL,
    until_seq         BIGINT NOT NULL,
    again             BOOLEAN NOT NULL,
    requested_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    requested_by      TEXT NOT NULL,
    reason            TEXT,
    begun_at          TIMESTAMPTZ,
    reset_seq         BIGINT,
    removed_to        BIGINT NOT NULL,
    removed           BIGINT NOT NULL DEFAULT 0,
    ended_at          TIMESTAMPTZ,
    outcome           TEXT,
    CONSTRAINT inbox_rewinds_begun CHECK ((begun_at IS NULL) = (reset_seq IS NULL)),
    CONSTRAINT inbox_rewinds_ended CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

CREATE UNIQUE INDEX IF NOT EXISTS idx_inbox_rewinds_pending ON {schema}.inbox_rewinds (consumer)
    WHERE ended_at IS NULL;

COMMENT ON COLUMN {schema}.inbox_rewinds.until_seq IS 'what the broker had delivered when it was requested: later events are not handled again';
COMMENT ON COLUMN {schema}.inbox_rewinds.reset_seq IS 'where the consumer begins: at from_seq, or before it at the first event that was not acknowledged';
COMMENT ON COLUMN {schema}.inbox_rewinds.again IS 'events that were processed are handled again: their records are removed';
COMMENT ON COLUMN {schema}.inbox_rewinds.removed_to IS 'up to this sequence the records of processed events are removed';
COMMENT ON COLUMN {schema}.inbox_rewinds.outcome IS 'rewound, cancelled, or why it could not be carried out';

-- What operators want of a consumer, whether a worker runs or not, and who wanted it.

CREATE TABLE IF NOT EXISTS {schema}.inbox_controls (
    consumer         TEXT PRIMARY KEY,
    paused_at        TIMESTAMPTZ,
    paused_by        TEXT,
    reason           TEXT,
    breaker_closings BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT inbox_controls_paused CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CONSTRAINT inbox_controls_reason CHECK (paused_at IS NOT NULL OR reason IS NULL)
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
