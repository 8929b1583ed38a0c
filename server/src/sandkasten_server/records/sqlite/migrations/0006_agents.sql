-- Which agent's tool call started a command or a piece of code, and in which run.

ALTER TABLE execs ADD COLUMN agent TEXT;
ALTER TABLE execs ADD COLUMN run_id TEXT;
