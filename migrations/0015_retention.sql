-- What retention deleted and when it last did its work; and up to where rows without marks of their
-- own were published at which time.

CREATE TABLE IF NOT EXISTS {schema}.tailpost_retention (
    only_row             BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    deleted_before       TIMESTAMPTZ,
    succeeded_at         TIMESTAMPTZ,
    rows_deleted         BIGINT NOT NULL DEFAULT 0,
    dead_letters_deleted BIGINT NOT NULL DEFAULT 0,
    audit_deleted        BIGINT NOT NULL DEFAULT 0,
    held_by              TEXT,
    failed_at            TIMESTAMPTZ,
    failure              TEXT
);

COMMENT ON COLUMN {schema}.tailpost_retention.deleted_before IS 'rows that were published before this may be gone';
COMMENT ON COLUMN {schema}.tailpost_retention.held_by IS 'why rows were kept that are old enough';
COMMENT ON COLUMN {schema}.tailpost_retention.failure IS 'why the latest pass failed; null if it did not';

CREATE TABLE IF NOT EXISTS {schema}.tailpost_published_history (
    seen_at        TIMESTAMPTZ NOT NULL,
    begun_at       TIMESTAMPTZ NOT NULL,
    start_snapshot PG_SNAPSHOT NOT NULL,
    end_snapshot   PG_SNAPSHOT NOT NULL
);

COMMENT ON TABLE {schema}.tailpost_published_history IS 'tailpost_published as it was at seen_at: what it covered was published before';
