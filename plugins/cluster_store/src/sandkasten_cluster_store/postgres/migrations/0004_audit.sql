-- One audit log of all daemons: each line has the hash of the line before.

CREATE TABLE audit (
    seq bigint PRIMARY KEY,
    at double precision NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    session_id text COLLATE "C",
    key_id text,
    line bytea NOT NULL
);

CREATE INDEX audit_of_session ON audit (session_id, seq) WHERE session_id IS NOT NULL;
CREATE INDEX audit_of_tenant ON audit (tenant, seq);
CREATE INDEX audit_by_age ON audit (at);

-- The newest line, and the size of all of them.
CREATE TABLE audit_head (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    seq bigint NOT NULL DEFAULT 0,
    hash text NOT NULL DEFAULT repeat('0', 64),
    size_bytes bigint NOT NULL DEFAULT 0
);

INSERT INTO audit_head DEFAULT VALUES;
