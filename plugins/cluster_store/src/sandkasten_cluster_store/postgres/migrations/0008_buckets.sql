-- Buckets for the content of stored files. `folder` is part of the names of all objects, so that
-- two databases that use one bucket do not remove each other's objects.
CREATE TABLE buckets (
    location text COLLATE "C" PRIMARY KEY,
    folder text NOT NULL,
    swept_at timestamptz NOT NULL DEFAULT now()
);

-- Where the pieces of a content are: in content_pieces, or objects in a bucket. It is set before the
-- first object is written, and its row is deleted after the last object.
ALTER TABLE contents ADD COLUMN location text COLLATE "C" REFERENCES buckets;

CREATE TABLE content_objects (
    content_id text COLLATE "C" NOT NULL REFERENCES contents ON DELETE CASCADE,
    starts_at bigint NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 text NOT NULL,
    PRIMARY KEY (content_id, starts_at)
);
