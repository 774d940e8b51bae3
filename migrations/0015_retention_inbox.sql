-- When the inbox's tables were last looked after, and what that deleted.

ALTER TABLE {schema}.inbox_retention
    ADD COLUMN IF NOT EXISTS succeeded_at       TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS records_deleted    BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS partitions_dropped BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS decisions_deleted  BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS failed_at          TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS failure            TEXT;

COMMENT ON COLUMN {schema}.inbox_retention.failure IS 'why the latest pass failed; null if it did not';
