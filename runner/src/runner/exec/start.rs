//! The `exec.start` request: what to run, where, with which limits.

use crate::ring::SOURCES;
use crate::supervisor::program::Env;
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::{self, Fields};
use serde_json::Value;

pub enum What {
    /// A fresh process. `state_of` names a shell whose directory and exported variables it starts with.
    Argv {
        words: Vec<Vec<u8>>,
        state_of: Option<String>,
    },
    Shell {
        name: String,
        command: Vec<u8>,
    },
}

#[derive(Clone, Copy)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

/// A valid `exec.start`.
pub struct Start {
    pub exec_id: String,
    pub key: Option<String>,
    pub what: What,
    pub env: Env,
    /// What `env` is laid over, if not the runner's own environment.
    pub base_env: Option<Env>,
    pub cwd: Option<Vec<u8>>,
    pub stdin_stream: bool,
    pub pty: Option<Size>,
    pub deadline_ms: Option<u64>,
    pub grace_ms: u64,
    pub caps: [usize; SOURCES],
    pub follow: bool,
    /// It does not count as activity until it gets input.
    pub observe: bool,
    /// Start the program now for a later command; see `held`.
    pub hold: bool,
    /// The held program to use, if it is ready.
    pub held: Option<String>,
}

impl Start {
    pub fn parse(request: &Value) -> Result<Start, Failure> {
        let fields = Fields(request);
        let exec_id = fields
            .name("exec_id", protocol::MAX_EXEC_ID, b"_-")?
            .to_owned();
        let key = fields.text("key")?.map(str::to_owned);
        if key
            .as_ref()
            .is_some_and(|k| k.is_empty() || k.len() > protocol::MAX_KEY)
        {
            return Err(Failure::invalid("key must be 1 to 256 bytes"));
        }
        let what = parse_what(&fields)?;
        let shell = matches!(what, What::Shell { .. });
        let out_cap = cap(&fields, "stdout_cap")?;
        let err_cap = cap(&fields, "stderr_cap")?;
        let hold = fields.flag("hold", false)?;
        let pty = parse_pty(&fields)?;
        if hold && (shell || pty.is_some()) {
            return Err(Failure::invalid("hold requires argv, and no pty"));
        }
        Ok(Start {
            exec_id,
            key,
            env: parse_env(&fields, shell)?,
            base_env: None,
            cwd: fields.bytes("cwd")?,
            stdin_stream: match fields.text("stdin")? {
                None | Some("none") => hold,
                Some("stream") => true,
                Some(_) => return Err(Failure::invalid("stdin must be none or stream")),
            },
            pty,
            deadline_ms: fields.number("deadline_ms")?,
            grace_ms: fields
                .number("grace_ms")?
                .unwrap_or(protocol::DEFAULT_GRACE_MS),
            caps: [out_cap, out_cap, err_cap],
            follow: fields.flag("follow", true)?,
            observe: fields.flag("observe", false)?,
            hold,
            held: fields.text("held")?.map(str::to_owned),
            what,
        })
    }
}

fn cap(fields: &Fields, name: &str) -> Result<usize, Failure> {
    let cap = fields.number(name)?.unwrap_or(protocol::DEFAULT_CAP);
    if cap > protocol::MAX_CAP {
        return Err(Failure::invalid(format!(
            "{name} may be at most {}",
            protocol::MAX_CAP
        )));
    }
    Ok(cap as usize)
}

fn parse_what(fields: &Fields) -> Result<What, Failure> {
    match (fields.get("argv"), fields.get("shell")) {
        (Some(argv), shell) => {
            let words = argv
                .as_array()
                .ok_or_else(|| Failure::invalid("argv must be a list"))?;
            if words.is_empty() {
                return Err(Failure::invalid("argv is empty"));
            }
            let words = words.iter().map(|word| request::byte_string("argv", word));
            Ok(What::Argv {
                words: words.collect::<Result<_, _>>()?,
                state_of: shell.map(|_| shell_name(fields)).transpose()?,
            })
        }
        (None, Some(_)) => {
            let name = shell_name(fields)?;
            let command = fields
                .bytes("command")?
                .ok_or_else(|| request::missing("command"))?;
            if command.len() > protocol::MAX_COMMAND {
                return Err(Failure::new(
                    "too_large",
                    "a shell command may have at most 1 MiB",
                ));
            }
            Ok(What::Shell { name, command })
        }
        (None, None) => Err(Failure::invalid(
            "either argv, or shell and command, is required",
        )),
    }
}

fn shell_name(fields: &Fields) -> Result<String, Failure> {
    let name = fields.name("shell", protocol::MAX_SHELL_NAME, b"_.-")?;
    Ok(name.to_owned())
}

/// Return the variables of the field `env`.
pub fn parse_env(fields: &Fields, shell: bool) -> Result<Env, Failure> {
    let map = match fields.get("env") {
        None => return Ok(Vec::new()),
        Some(value) => value
            .as_object()
            .ok_or_else(|| Failure::invalid("env must be an object"))?,
    };
    let mut env = Vec::with_capacity(map.len());
    for (name, value) in map {
        let fine = if shell {
            is_identifier(name.as_bytes())
        } else {
            !name.is_empty() && !name.bytes().any(|c| c == b'=' || c == 0)
        };
        if !fine {
            return Err(Failure::invalid("env contains an invalid variable name"));
        }
        env.push((
            name.as_bytes().to_vec(),
            request::byte_string("env", value)?,
        ));
    }
    Ok(env)
}

pub fn is_identifier(name: &[u8]) -> bool {
    let first = name
        .first()
        .is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
    first && name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

fn parse_pty(fields: &Fields) -> Result<Option<Size>, Failure> {
    match fields.get("pty") {
        None => Ok(None),
        Some(value) if value.is_object() => parse_size(&Fields(value)).map(Some),
        Some(_) => Err(Failure::invalid("pty must be an object with rows and cols")),
    }
}

pub fn parse_size(fields: &Fields) -> Result<Size, Failure> {
    let side = |name: &str| match fields.needed_number(name)? {
        number @ 1..=10_000 => Ok(number as u16),
        _ => Err(Failure::invalid(format!("{name} must be 1 to 10000"))),
    };
    Ok(Size {
        rows: side("rows")?,
        cols: side("cols")?,
    })
}
