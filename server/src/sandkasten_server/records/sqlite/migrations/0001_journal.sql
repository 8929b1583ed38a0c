-- Sessions, what ran in them, and who changed what.

CREATE TABLE state (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO state VALUES ('clean', 'yes');

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    image TEXT NOT NULL,
    backend TEXT NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    session_key TEXT,
    workspace_id TEXT,
    labels TEXT NOT NULL,
    key_id TEXT,
    ended_at REAL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_age ON sessions (created_at, id);
CREATE INDEX sessions_of_tenant ON sessions (tenant, created_at, id);
CREATE INDEX sessions_open ON sessions (created_at) WHERE ended_at IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE execs (
    session_id TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    command TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at REAL NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    duration_ms INTEGER,
    cpu_ms INTEGER,
    peak_memory_bytes INTEGER,
    stdout_bytes INTEGER NOT NULL,
    stderr_bytes INTEGER NOT NULL,
    why TEXT,
    shell TEXT,
    PRIMARY KEY (session_id, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX execs_of_session ON execs (session_id, started_at, id);
CREATE INDEX execs_by_age ON execs (started_at);

-- AUTOINCREMENT: a number that was pruned never comes again, so a follower misses nothing.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    outcome TEXT NOT NULL,
    request_id TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX audit_by_age ON audit (at);
CREATE INDEX audit_of_tenant ON audit (tenant, seq);
CREATE INDEX audit_of_target ON audit (target, seq);
