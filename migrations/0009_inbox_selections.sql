-- Of which events a rewind removes the records.

ALTER TABLE {schema}.inbox_rewinds
    ADD COLUMN IF NOT EXISTS aggregate_type TEXT,
    ADD COLUMN IF NOT EXISTS aggregate_id TEXT,
    ADD COLUMN IF NOT EXISTS event_type TEXT;

COMMENT ON COLUMN {schema}.inbox_rewinds.aggregate_type IS 'with again: only events of this aggregate are handled again';
COMMENT ON COLUMN {schema}.inbox_rewinds.event_type IS 'with again: only events of this type are handled again';
