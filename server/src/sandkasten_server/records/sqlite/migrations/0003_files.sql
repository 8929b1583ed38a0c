-- The file store: content lies on disk by its hash, and several keys may lead to the same.

CREATE TABLE files (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX files_of_content ON files (sha256);
CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX files_sizes ON files (tenant, size_bytes);
