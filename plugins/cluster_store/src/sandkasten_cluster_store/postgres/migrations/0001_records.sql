-- The records of one or several daemons. Text is compared by bytes, as SQLite does.

-- Sandboxes that exist. `node` is the data directory that has them.
CREATE TABLE ledger (
    id text COLLATE "C" PRIMARY KEY,
    node text NOT NULL,
    key_hash bytea,
    created_at double precision NOT NULL,
    row text NOT NULL
);

CREATE INDEX ledger_of_node ON ledger (node);
CREATE INDEX ledger_of_key ON ledger (key_hash) WHERE key_hash IS NOT NULL;

CREATE TABLE state (
    node text NOT NULL,
    name text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (node, name)
);

CREATE TABLE sessions (
    id text COLLATE "C" PRIMARY KEY,
    node text NOT NULL,
    tenant text NOT NULL,
    image text NOT NULL,
    backend text NOT NULL,
    created_at double precision NOT NULL,
    status text NOT NULL,
    session_key text,
    workspace_id text,
    labels text NOT NULL,
    key_id text,
    ended_at double precision,
    reason text NOT NULL
);

CREATE INDEX sessions_by_age ON sessions (created_at, id);
CREATE INDEX sessions_of_tenant ON sessions (tenant, created_at, id);
CREATE INDEX sessions_open ON sessions (node, created_at) WHERE ended_at IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE execs (
    session_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    tenant text NOT NULL,
    command text NOT NULL,
    status text NOT NULL,
    started_at double precision NOT NULL,
    exit_code bigint,
    signal bigint,
    duration_ms bigint,
    cpu_ms bigint,
    peak_memory_bytes bigint,
    stdout_bytes bigint NOT NULL,
    stderr_bytes bigint NOT NULL,
    why text,
    shell text,
    PRIMARY KEY (session_id, id)
);

CREATE INDEX execs_of_session ON execs (session_id, started_at, id);
CREATE INDEX execs_by_age ON execs (started_at);

CREATE TABLE traffic (
    session_id text COLLATE "C" NOT NULL,
    day bigint NOT NULL,
    tenant text NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (session_id, day)
);

CREATE INDEX traffic_of_tenant ON traffic (tenant, day);

-- Only the hash of a key is stored.
CREATE TABLE keys (
    id text COLLATE "C" PRIMARY KEY,
    hashed bytea NOT NULL UNIQUE,
    tenant text NOT NULL,
    name text NOT NULL,
    scopes text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision,
    revoked_at double precision,
    last_used_at double precision,
    max_sessions bigint,
    max_memory_bytes bigint,
    max_disk_bytes bigint,
    requests_per_second double precision,
    max_network_connections bigint,
    max_network_bandwidth_bps bigint,
    max_network_bytes_per_day bigint
);

CREATE TABLE runs (
    id text COLLATE "C" PRIMARY KEY,
    tenant text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    created_at double precision NOT NULL,
    ended_at double precision,
    last_seq bigint NOT NULL DEFAULT 0,
    row text NOT NULL
);

CREATE INDEX runs_by_age ON runs (created_at, id);
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE run_events (
    run_id text COLLATE "C" NOT NULL REFERENCES runs ON DELETE CASCADE,
    seq bigint NOT NULL,
    at double precision NOT NULL,
    type text NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- The content of a stored file, in pieces. Content that was replaced or deleted is kept for a while
-- for its readers. Content without a file after a day was left by a crash.
CREATE TABLE contents (
    id text COLLATE "C" PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    dropped_at timestamptz
);

CREATE INDEX contents_dropped ON contents (dropped_at) WHERE dropped_at IS NOT NULL;

CREATE TABLE content_pieces (
    content_id text COLLATE "C" NOT NULL REFERENCES contents ON DELETE CASCADE,
    starts_at bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (content_id, starts_at)
);

-- Not compressed: most files that are large are compressed already.
ALTER TABLE content_pieces ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE files (
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    content_id text COLLATE "C" NOT NULL REFERENCES contents,
    sha256 text NOT NULL,
    size_bytes bigint NOT NULL,
    content_type text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision,
    metadata text NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX files_of_content ON files (content_id);
CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL;

-- Values are encrypted by the daemon; the database never has the key.
CREATE TABLE secrets (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    secret text NOT NULL,
    sealed bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);
