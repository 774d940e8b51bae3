-- What an operator needs to find and mend dead letters.

ALTER TABLE {schema}.outbox_dead_letter
    ADD COLUMN IF NOT EXISTS blocks     BOOLEAN NOT NULL DEFAULT FALSE,
    ADD COLUMN IF NOT EXISTS blocked_by UUID;

COMMENT ON COLUMN {schema}.outbox_dead_letter.blocks IS 'later events of its aggregate wait (relay.on_park = "block_key")';
COMMENT ON COLUMN {schema}.outbox_dead_letter.blocked_by IS 'the event that this one waits for: nothing is wrong with this one';

CREATE INDEX IF NOT EXISTS idx_outbox_dead_letter_dead_at ON {schema}.outbox_dead_letter (dead_at);
CREATE INDEX IF NOT EXISTS idx_outbox_dead_letter_blocks ON {schema}.outbox_dead_letter (aggregate_type, aggregate_id)
    WHERE blocks AND discarded_at IS NULL;

-- Who did what to a dead letter, when and why. Rows stay when the dead letter goes.
CREATE TABLE IF NOT EXISTS {schema}.outbox_dead_letter_audit (
    id             BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    action         TEXT NOT NULL,
    event_id       UUID NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    actor          TEXT NOT NULL,
    via            TEXT NOT NULL,
    why            TEXT,
    reason         TEXT,
    old_payload    TEXT
);

COMMENT ON COLUMN {schema}.outbox_dead_letter_audit.action IS 'requeue, release, discard, purge, or found: the stream had it already';
COMMENT ON COLUMN {schema}.outbox_dead_letter_audit.reason IS 'why it was a dead letter';
COMMENT ON COLUMN {schema}.outbox_dead_letter_audit.old_payload IS 'the payload that a requeue replaced';

CREATE INDEX IF NOT EXISTS idx_outbox_dead_letter_audit_event ON {schema}.outbox_dead_letter_audit (event_id);
