-- What the relay must remember of its slot, and what an operator asks about it.

ALTER TABLE {schema}.tailpost_state
    ADD COLUMN IF NOT EXISTS held_lsn       PG_LSN,
    ADD COLUMN IF NOT EXISTS swept_snapshot PG_SNAPSHOT,
    ADD COLUMN IF NOT EXISTS swept_lsn      PG_LSN,
    ADD COLUMN IF NOT EXISTS epoch_reason   TEXT,
    ADD COLUMN IF NOT EXISTS epoch_at       TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS gap_rows       BIGINT,
    ADD COLUMN IF NOT EXISTS gap_filled_at  TIMESTAMPTZ;

COMMENT ON COLUMN {schema}.tailpost_state.held_lsn IS 'a relay had the slot when the log ended here, and confirmed nothing beyond: a slot that is beyond is another one';
COMMENT ON COLUMN {schema}.tailpost_state.swept_snapshot IS 'rows the log brings and visible in it are published and marked';
COMMENT ON COLUMN {schema}.tailpost_state.epoch_reason IS 'why the slot was created anew';
COMMENT ON COLUMN {schema}.tailpost_state.gap_rows IS 'rows published from the table since the slot was created, because the log could not bring them';
COMMENT ON COLUMN {schema}.tailpost_state.gap_filled_at IS 'when none of them was left';
