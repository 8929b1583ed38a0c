-- Code that runs in contexts, and the kernels of contexts, which were commands before.

ALTER TABLE execs ADD COLUMN kind text NOT NULL DEFAULT 'command';
ALTER TABLE execs ADD COLUMN language text;
ALTER TABLE execs ADD COLUMN context_id text;
ALTER TABLE execs ADD COLUMN command_bytes bigint;
ALTER TABLE execs ADD COLUMN command_sha256 text;
ALTER TABLE execs ADD COLUMN error_name text;
ALTER TABLE execs ADD COLUMN key_id text;
ALTER TABLE execs ADD COLUMN network text;

UPDATE execs SET kind = 'kernel', context_id = id, stdout_bytes = 0, stderr_bytes = 0,
language = split_part(id, '_', 2), command = split_part(id, '_', 2) || ' kernel'
WHERE id LIKE 'ctx\_%\_%';
