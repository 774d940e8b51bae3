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
    outcome           TEXT
);

CREATE UNIQUE INDEX IF NOT EXISTS idx_inbox_rewinds_pending ON {schema}.inbox_rewinds (consumer)
    WHERE ended_at IS NULL;

COMMENT ON COLUMN {schema}.inbox_rewinds.until_seq IS 'what the broker had delivered when it was requested: later events are not handled again';
COMMENT ON COLUMN {schema}.inbox_rewinds.reset_seq IS 'where the consumer begins: at from_seq, or before it at the first event that was not acknowledged';
COMMENT ON COLUMN {schema}.inbox_rewinds.again IS 'events that were processed are handled again: their records are removed';
COMMENT ON COLUMN {schema}.inbox_rewinds.removed_to IS 'up to this sequence the records of processed events are removed';
COMMENT ON COLUMN {schema}.inbox_rewinds.outcome IS 'rewound, cancelled, or why it could not be carried out';

-- Later versions may have other decisions.
ALTER TABLE {schema}.inbox_decisions DROP CONSTRAINT IF EXISTS inbox_decisions_decision_check;

COMMENT ON COLUMN {schema}.inbox_decisions.decision IS 'requeue, reject, discard, mark_processed, purge (nobody decided for too long), rewind (handled again)';
