-- What counts for the quota of a tenant, kept by the database itself, so that a count reads an index
-- and daemons of an earlier version need not know it.

-- NULL if the row is not valid JSON, which then counts for no tenant.
CREATE FUNCTION ledger_field(row_text text, VARIADIC place text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN row_text::json #>> place;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION ledger_number(row_text text, VARIADIC place text[]) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN row_text::json #>> place;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- `counts_for`: the tenant, NULL for a sandbox that is lost, of the warm pool or internal.
ALTER TABLE ledger
    ADD COLUMN counts_for text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN ledger_field(row, 'state') <> 'lost'
            AND coalesce(ledger_field(row, 'acquired'), 'cold') NOT IN ('spare', 'internal')
        THEN coalesce(ledger_field(row, 'tenant'), 'default') END
    ) STORED,
    ADD COLUMN memory_bytes bigint GENERATED ALWAYS AS (
        ledger_number(row, 'limits', 'memory_bytes')
    ) STORED,
    -- A named workspace is counted by itself.
    ADD COLUMN disk_bytes bigint GENERATED ALWAYS AS (
        CASE WHEN ledger_field(row, 'workspace_id') IS NULL
        THEN ledger_number(row, 'limits', 'workspace_bytes') END
    ) STORED;

CREATE INDEX ledger_of_tenant ON ledger (counts_for)
    INCLUDE (node, shared, memory_bytes, disk_bytes) WHERE counts_for IS NOT NULL;
