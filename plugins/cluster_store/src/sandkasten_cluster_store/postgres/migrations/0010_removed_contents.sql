-- Content of removed files stays for a while, for those who read it. What a tenant has of it is
-- bounded. Content from before has no tenant and is removed by its age.
ALTER TABLE contents ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE contents ADD COLUMN size_bytes bigint NOT NULL DEFAULT 0;

CREATE INDEX contents_removed ON contents (tenant) WHERE dropped_at IS NOT NULL;
