-- held_lsn under the name that it has elsewhere. Relays write both until no earlier version runs.

ALTER TABLE {schema}.tailpost_state ADD COLUMN IF NOT EXISTS checkpoint_lsn PG_LSN;

UPDATE {schema}.tailpost_state SET checkpoint_lsn = held_lsn WHERE checkpoint_lsn IS NULL;

COMMENT ON COLUMN {schema}.tailpost_state.checkpoint_lsn IS 'end of the WAL when a relay last read the slot; the slot is never confirmed beyond it, so a slot that is beyond is another one';
COMMENT ON COLUMN {schema}.tailpost_state.held_lsn IS 'earlier versions'' name of checkpoint_lsn; the greater of the two counts';
