-- Code that runs in contexts, and the kernels of contexts, which were commands before.

ALTER TABLE execs ADD COLUMN kind TEXT NOT NULL DEFAULT 'command';
ALTER TABLE execs ADD COLUMN language TEXT;
ALTER TABLE execs ADD COLUMN context_id TEXT;
ALTER TABLE execs ADD COLUMN command_bytes INTEGER;
ALTER TABLE execs ADD COLUMN command_sha256 TEXT;
ALTER TABLE execs ADD COLUMN error_name TEXT;
ALTER TABLE execs ADD COLUMN key_id TEXT;
ALTER TABLE execs ADD COLUMN network TEXT;

UPDATE execs SET kind = 'kernel', context_id = id, stdout_bytes = 0, stderr_bytes = 0,
language = substr(id, 5, instr(substr(id, 5), '_') - 1),
command = substr(id, 5, instr(substr(id, 5), '_') - 1) || ' kernel'
WHERE id GLOB 'ctx_*_*';
