-- Room for the mark. Every row is written again once, when it is published. In a page that is half
-- full there is room for that. Where there is none PostgreSQL first locks the row, one more record
-- in the log, and puts it on another page. Pages that are full already stay as they are.

DO $migration$
BEGIN
    -- A partitioned table takes no such setting, and what its owner has set stays.
    IF EXISTS (
        SELECT FROM pg_class
        WHERE oid = $name${table}$name$::regclass AND relkind = 'r'
          AND coalesce(array_to_string(reloptions, ' '), '') NOT LIKE '%fillfactor%'
    ) THEN
        ALTER TABLE {table} SET (fillfactor = 50);
    END IF;
END
$migration$;
