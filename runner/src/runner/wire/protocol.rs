//! The protocol's tables: kinds, verbs and their fields, events, error codes, limits.
//!
//! `spec/runner/generation-4.json` is the frozen copy; `sandkasten-runner --describe` prints this one,
//! and a test compares the two. Dispatch and error answers use these tables, so a verb or a code that
//! is not listed here does not exist on the wire.

use serde_json::{json, Value};

pub const GENERATION: u64 = 4;

pub const MAX_OPEN_BODY: usize = 8 << 20;
pub const MAX_DATA_BODY: usize = 1 << 20;
/// DATA frames that we make; smaller than the limit so that streams of one connection take turns.
pub const DATA_FRAME: usize = 256 << 10;
pub const INITIAL_CREDIT: u64 = 1 << 20;
pub const MAX_STREAMS: usize = 256;
pub const MAX_CONNECTIONS: usize = 64;
pub const MAX_EXEC_ID: usize = 64;
pub const MAX_SHELL_NAME: usize = 64;
pub const MAX_KEY: usize = 256;
pub const MAX_COMMAND: usize = 1 << 20;
pub const MAX_CAP: u64 = 64 << 20;
pub const DEFAULT_CAP: u64 = 200_000;
pub const DEFAULT_GRACE_MS: u64 = 2_000;
pub const MAX_ACTIVE: usize = 256;
pub const MAX_SHELLS: usize = 64;
pub const KEPT_RESULTS: usize = 256;
pub const KEPT_OUTPUT: usize = 8 << 20;
pub const MAX_PROCESSES: usize = 2_000;
pub const MAX_CMDLINE: usize = 4 << 10;
pub const MAX_SHELL_ANSWER: usize = 4 << 20;
/// The environments of one answer; the rest of it must fit in a frame with them.
pub const MAX_SHELL_STATE: usize = 512 << 10;

/// What this runner can do beyond its generation. `shell_state`: `argv` together with `shell` starts a fresh
/// process with the state of that shell. `file_user`: the field `user` of a file verb runs it as another user.
/// `held_exec`: `exec.start` can start a program for a later command (`hold`), and use it (`held`).
/// `descriptors`: `fs.read` can pass the open file instead of its content.
/// `lease_env`: the field `env` of `lease`, once, adds to the environment of all commands from then on.
/// `observe`: the field `observe` of every request says that its client only looks, which is not activity.
/// `kept_shells`: the field `state` of `shell.list` adds environments to its result, and the field `shells` of
/// `lease`, once, opens shells with a directory and an environment.
pub const FEATURES: &[&str] = &[
    "shell_state",
    "file_user",
    "held_exec",
    "descriptors",
    "lease_env",
    "observe",
    "kept_shells",
];

/// `(number, name, direction)`.
pub const KINDS: &[(u8, &str, &str)] = &[
    (1, "HELLO", "runner"),
    (2, "OPEN", "client"),
    (3, "DATA", "both"),
    (4, "END", "client"),
    (5, "CREDIT", "both"),
    (6, "CANCEL", "client"),
    (7, "EVENT", "runner"),
    (8, "CHUNK", "runner"),
    (9, "RESULT", "runner"),
    (10, "ERROR", "runner"),
];

pub const CODES: &[&str] = &[
    "invalid",
    "not_found",
    "exists",
    "not_regular",
    "not_directory",
    "is_directory",
    "not_empty",
    "permission",
    "blocked",
    "too_large",
    "no_space",
    "too_many_processes",
    "no_memory",
    "loop",
    "name_too_long",
    "busy",
    "cancelled",
    "unsupported",
    "no_shell",
    "unknown_exec",
    "command_not_found",
    "not_executable",
    "connection_refused",
    "closed",
    "io",
    "internal",
];

pub const EVENTS: &[&str] = &[
    "started",
    "open",
    "watching",
    "change",
    "overflow",
    "connected",
    "ending",
];

pub const HELLO_FIELDS: &[&str] = &[
    "generation",
    "version",
    "uid",
    "user_uid",
    "shell",
    "features",
];

pub const EXEC_FIELDS: &[&str] = &[
    "exec_id",
    "kind",
    "shell",
    "state",
    "exit_code",
    "signal",
    "timed_out",
    "killed",
    "shell_reset",
    "cwd",
    "pid",
    "started_ms",
    "duration_ms",
    "cpu_ms",
    "peak_rss_bytes",
    "io_read_bytes",
    "io_write_bytes",
    "stdout_bytes",
    "stderr_bytes",
    "truncated",
    "last_seq",
    "oom_suspect",
    "sigsys",
];

/// `(verb, fields of its request, fields of its result)`; "Exec" and "Entry" stand for those records.
pub const VERBS: &[(&str, &[&str], &[&str])] = &[
    (
        "exec.start",
        &[
            "exec_id",
            "argv",
            "shell",
            "command",
            "env",
            "cwd",
            "stdin",
            "pty",
            "deadline_ms",
            "grace_ms",
            "stdout_cap",
            "stderr_cap",
            "key",
            "follow",
        ],
        &["Exec"],
    ),
    (
        "exec.output",
        &["exec_id", "since_seq", "follow"],
        &["Exec"],
    ),
    ("exec.wait", &["exec_id", "timeout_ms"], &["Exec"]),
    ("exec.signal", &["exec_id", "signal", "tree"], &[]),
    ("exec.stdin", &["exec_id", "close"], &["bytes"]),
    ("exec.resize", &["exec_id", "rows", "cols"], &[]),
    ("exec.list", &[], &["execs"]),
    ("shell.list", &[], &["shells"]),
    ("shell.close", &["name"], &[]),
    ("fs.stat", &["path", "follow", "deny"], &["Entry"]),
    (
        "fs.list",
        &["path", "recursive", "limit", "cursor", "deny"],
        &["entries", "next"],
    ),
    (
        "fs.attributes",
        &["paths", "prefix", "deny"],
        &["attributes"],
    ),
    (
        "fs.read",
        &["path", "offset", "limit", "max", "deny"],
        &["size", "bytes"],
    ),
    (
        "fs.write",
        &[
            "path",
            "mode",
            "overwrite",
            "parents",
            "size",
            "attributes",
            "deny",
            "within",
            "flush",
        ],
        &["Entry"],
    ),
    (
        "fs.mkdir",
        &[
            "path", "parents", "exist_ok", "mode", "deny", "within", "flush",
        ],
        &["Entry"],
    ),
    (
        "fs.move",
        &[
            "source",
            "destination",
            "overwrite",
            "deny",
            "within",
            "flush",
        ],
        &["Entry"],
    ),
    (
        "fs.remove",
        &["path", "recursive", "missing_ok", "deny", "within", "flush"],
        &["removed"],
    ),
    ("fs.watch", &["path", "recursive", "deny"], &[]),
    (
        "fs.tar_in",
        &[
            "path",
            "parents",
            "max_bytes",
            "max_entries",
            "deny",
            "within",
            "flush",
        ],
        &["entries", "bytes"],
    ),
    ("fs.tar_out", &["path", "deny"], &["entries", "bytes"]),
    ("proc.list", &[], &["processes", "truncated"]),
    ("port.connect", &["port", "host"], &["sent", "received"]),
    (
        "stats",
        &[],
        &[
            "uptime_ms",
            "processes",
            "running",
            "shells",
            "connections",
            "disk",
            "load",
        ],
    ),
    ("lease", &["idle_ms", "lifetime_ms", "close_idle"], &[]),
    ("freeze", &["frozen"], &[]),
    ("quiesce", &["ms"], &[]),
    ("ping", &[], &[]),
];

pub fn is_verb(name: &str) -> bool {
    VERBS.iter().any(|(verb, _, _)| *verb == name)
}

/// Return the code itself when it is in the closed set, otherwise `internal`.
pub fn known_code(code: &'static str) -> &'static str {
    if CODES.contains(&code) {
        code
    } else {
        "internal"
    }
}

/// Return all tables as one JSON value.
pub fn describe() -> Value {
    let kinds: Vec<Value> = KINDS
        .iter()
        .map(|(number, name, from)| json!({"kind": number, "name": name, "from": from}))
        .collect();
    let verbs: serde_json::Map<String, Value> = VERBS
        .iter()
        .map(|(verb, fields, result)| {
            (
                (*verb).to_owned(),
                json!({"fields": fields, "result": result}),
            )
        })
        .collect();
    json!({
        "generation": GENERATION,
        "kinds": kinds,
        "verbs": verbs,
        "events": EVENTS,
        "error_codes": CODES,
        "hello": HELLO_FIELDS,
        "exec": EXEC_FIELDS,
        "entry": ["path", "name", "type", "size", "mode", "mtime_unix", "uid", "gid", "target"],
        "states": ["queued", "running", "exited", "signaled", "lost"],
        "sources": {"pty": 0, "stdout": 1, "stderr": 2},
        "limits": {
            "open_body_bytes": MAX_OPEN_BODY,
            "data_body_bytes": MAX_DATA_BODY,
            "other_body_bytes": 1 << 20,
            "chunk_bytes": crate::ring::MAX_CHUNK,
            "initial_credit_bytes": INITIAL_CREDIT,
            "streams_per_connection": MAX_STREAMS,
            "connections": MAX_CONNECTIONS,
            "exec_id_chars": MAX_EXEC_ID,
            "shell_name_chars": MAX_SHELL_NAME,
            "key_bytes": MAX_KEY,
            "command_bytes": MAX_COMMAND,
            "output_cap_bytes": MAX_CAP,
            "default_output_cap_bytes": DEFAULT_CAP,
            "default_grace_ms": DEFAULT_GRACE_MS,
            "active_commands": MAX_ACTIVE,
            "shells": MAX_SHELLS,
            "kept_results": KEPT_RESULTS,
            "kept_output_bytes": KEPT_OUTPUT,
            "processes": MAX_PROCESSES,
            "cmdline_bytes": MAX_CMDLINE,
        },
    })
}
