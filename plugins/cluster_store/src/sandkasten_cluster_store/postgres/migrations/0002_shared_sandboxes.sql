-- Sandboxes that every daemon can reach, and which daemons live.

ALTER TABLE ledger ADD COLUMN shared boolean NOT NULL DEFAULT false;
CREATE INDEX ledger_shared ON ledger (created_at) WHERE shared;

CREATE TABLE nodes (
    id text PRIMARY KEY,
    seen_at timestamptz NOT NULL
);
