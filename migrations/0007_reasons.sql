-- Why a row has no mark yet, if not because it was locked; and what was found out about the publication.

ALTER TABLE {schema}.tailpost_owed ADD COLUMN IF NOT EXISTS reason TEXT;

COMMENT ON COLUMN {schema}.tailpost_owed.reason IS 'why the database refuses the mark; none if the row was locked';

ALTER TABLE {schema}.tailpost_state ADD COLUMN IF NOT EXISTS publication_seen TEXT;

COMMENT ON COLUMN {schema}.tailpost_state.publication_seen IS 'the entries of the publication that were found to be older than the slot';
