-- Quotas of a tenant's network, and the bytes that its sandboxes exchanged.

ALTER TABLE keys ADD COLUMN max_network_connections INTEGER;
ALTER TABLE keys ADD COLUMN max_network_bandwidth_bps INTEGER;
ALTER TABLE keys ADD COLUMN max_network_bytes_per_day INTEGER;

-- The rows of one sandbox add up to what its egress process has counted, so counting again after a
-- restart of the daemon adds nothing twice.
CREATE TABLE traffic (
    session_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (session_id, day)
) STRICT, WITHOUT ROWID;

CREATE INDEX traffic_of_tenant ON traffic (tenant, day);
