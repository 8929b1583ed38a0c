-- Previews: what was said about the ports of a sandbox, and the keys that sign links and tokens.

CREATE TABLE previews (
    sandbox_id text COLLATE "C" PRIMARY KEY REFERENCES ledger ON DELETE CASCADE,
    row text NOT NULL
);

CREATE TABLE signing_keys (
    name text COLLATE "C" PRIMARY KEY,
    key bytea NOT NULL
);
