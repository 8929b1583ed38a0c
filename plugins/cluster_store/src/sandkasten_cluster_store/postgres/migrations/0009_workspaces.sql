-- Named workspaces of backends that every daemon can reach. Their files are the backend's; which
-- sandbox has one is in the ledger.
CREATE TABLE workspaces (
    name text PRIMARY KEY,
    keeper text NOT NULL,
    size_bytes bigint NOT NULL,
    created_at double precision NOT NULL
);
