-- Shards of the sandboxes that several daemons share. One daemon at a time looks after a shard:
-- `node`, until `until`. `fence` counts the changes of the holder.

ALTER TABLE nodes ADD COLUMN shares boolean NOT NULL DEFAULT false;

CREATE TABLE shards (
    id integer PRIMARY KEY,
    node text NOT NULL DEFAULT '',
    fence bigint NOT NULL DEFAULT 0,
    until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

INSERT INTO shards (id) SELECT generate_series(0, 127);
