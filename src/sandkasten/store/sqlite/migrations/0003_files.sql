-- The file store: content lies on disk by its hash, and several keys may lead to the same.

CREATE TABLE blobs (
    sha256 TEXT PRIMARY KEY,
    size_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE files (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    sha256 TEXT NOT NULL REFERENCES blobs (sha256),
    size_bytes INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX files_of_blob ON files (sha256);
CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX files_sizes ON files (tenant, size_bytes);
