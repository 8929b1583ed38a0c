-- In one round trip. The second statement sees commands that were written while the first one waited.
CREATE FUNCTION end_session(ended_id text, how text, at double precision, why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sessions SET status = how, ended_at = at, reason = why
    WHERE id = ended_id AND ended_at IS NULL;
    UPDATE execs SET status = 'lost' WHERE session_id = ended_id AND status = 'running';
END
$$;
