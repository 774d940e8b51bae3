-- For relay.mark = "lean": rows are written once, so pages are full. The index of transactions leads to
-- rows that wait, and to those that came back.
DO $layout$
BEGIN
    -- A partitioned table takes no such setting, and what its owner has set stays.
    IF EXISTS (
        SELECT FROM pg_class
        WHERE oid = $name${table}$name$::regclass AND relkind = 'r'
          AND coalesce(array_to_string(reloptions, ' '), '') NOT LIKE '%fillfactor%'
    ) THEN
        ALTER TABLE {table} SET (fillfactor = 100);
    END IF;
END
$layout$;

CREATE INDEX IF NOT EXISTS idx_outbox_occurred_at ON {table} USING brin ({occurred_at});
CREATE INDEX IF NOT EXISTS idx_outbox_txid ON {table} (txid);
