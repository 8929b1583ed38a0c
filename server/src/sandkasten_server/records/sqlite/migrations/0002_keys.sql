-- API keys by hash; a key itself is never written down.

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    hashed BLOB NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL,
    last_used_at REAL,
    max_sessions INTEGER,
    max_memory_bytes INTEGER,
    max_disk_bytes INTEGER,
    requests_per_second REAL
) STRICT, WITHOUT ROWID;
