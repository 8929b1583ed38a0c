//! One command: what was asked, what became of it, and how that reads as *Exec*.
//!
//! `exit_code` is set only from a status that was really seen: the kernel's, or what a shell said.

mod deadline;
pub mod process;
pub mod pty;
mod results;
pub mod ring;
mod stdio;
mod verbs;

use crate::exec::ring::{Ring, SOURCES};
use crate::poll::Watched;
use crate::supervisor::program::Env;
use crate::supervisor::Usage;
use crate::sys;
use crate::timers::TimerId;
use crate::wire::bytes;
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::{self, Fields};
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::os::unix::io::OwnedFd;

pub const PTY: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

pub enum What {
    Argv(Vec<Vec<u8>>),
    Shell { name: String, command: Vec<u8> },
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
    pub cwd: Option<Vec<u8>>,
    pub stdin_stream: bool,
    pub pty: Option<Size>,
    pub deadline_ms: Option<u64>,
    pub grace_ms: u64,
    pub caps: [usize; SOURCES],
    pub follow: bool,
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
            .map_or(false, |k| k.is_empty() || k.len() > protocol::MAX_KEY)
        {
            return Err(Failure::invalid("key must be 1 to 256 bytes"));
        }
        let what = parse_what(&fields)?;
        let shell = matches!(what, What::Shell { .. });
        let out_cap = cap(&fields, "stdout_cap")?;
        let err_cap = cap(&fields, "stderr_cap")?;
        Ok(Start {
            exec_id,
            key,
            env: parse_env(&fields, shell)?,
            cwd: fields.bytes("cwd")?,
            stdin_stream: match fields.text("stdin")? {
                None | Some("none") => false,
                Some("stream") => true,
                Some(_) => return Err(Failure::invalid("stdin must be none or stream")),
            },
            pty: parse_pty(&fields)?,
            deadline_ms: fields.number("deadline_ms")?,
            grace_ms: fields
                .number("grace_ms")?
                .unwrap_or(protocol::DEFAULT_GRACE_MS),
            caps: [out_cap, out_cap, err_cap],
            follow: fields.flag("follow", true)?,
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
        (Some(argv), None) => {
            let words = argv
                .as_array()
                .ok_or_else(|| Failure::invalid("argv must be a list"))?;
            if words.is_empty() {
                return Err(Failure::invalid("argv is empty"));
            }
            let words = words.iter().map(|word| request::byte_string("argv", word));
            Ok(What::Argv(words.collect::<Result<_, _>>()?))
        }
        (None, Some(_)) => {
            let name = fields
                .name("shell", protocol::MAX_SHELL_NAME, b"_.-")?
                .to_owned();
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
        _ => Err(Failure::invalid("give either argv, or shell and command")),
    }
}

fn parse_env(fields: &Fields, shell: bool) -> Result<Env, Failure> {
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
            return Err(Failure::invalid("env has a name that no variable can have"));
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
        .map_or(false, |c| c.is_ascii_alphabetic() || *c == b'_');
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// In a shell's queue, or its supervisor has not answered yet.
    Queued,
    Running,
    Exited,
    Signaled,
    Lost,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Running => "running",
            State::Exited => "exited",
            State::Signaled => "signaled",
            State::Lost => "lost",
        }
    }

    pub fn is_over(self) -> bool {
        matches!(self, State::Exited | State::Signaled | State::Lost)
    }
}

/// Bytes on their way to a command's standard input, and the stream that is owed credit for them.
pub struct Pending {
    pub bytes: Vec<u8>,
    pub done: usize,
    pub owner: (u64, u32),
}

#[derive(Default)]
pub struct Input {
    pub pipe: Option<Watched>,
    /// A FIFO that the shell has not opened yet; what is written or closed now would be lost.
    pub early: Option<OwnedFd>,
    pub armed: bool,
    pub queue: VecDeque<Pending>,
    /// Close once the queue is empty.
    pub closing: bool,
    pub terminal: bool,
}

impl Input {
    pub fn is_open(&self) -> bool {
        self.pipe.is_some() || self.early.is_some()
    }
}

pub struct Exec {
    pub start: Start,
    pub state: State,
    pub ring: Ring,
    pub outputs: [Option<Watched>; SOURCES],
    pub input: Input,
    /// The other side of a terminal that a shell's command opens by itself.
    pub slave: Option<OwnedFd>,
    /// A terminal that nobody has open on the other side just now. Closing it would hang up on a command
    /// that is about to exit, or to open it again.
    pub resting: Option<OwnedFd>,
    pub supervisor: Option<i32>,
    pub pid: i32,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// How often a shell's command was swept without an answer.
    pub sweeps: u32,
    /// Of its shell: what it had used of the processor when it was last to answer, and how often it was
    /// left alone because it had no turn since.
    pub ticks: u64,
    pub turns_missed: u32,
    /// Sweeps ordered by `exec.signal`, and sweeps reported done.
    pub to_sweep: u32,
    pub swept: u32,
    /// The last signal `exec.signal` sent.
    pub sent_signal: Option<i32>,
    /// We have sent SIGKILL ourselves, for whatever reason.
    pub we_killed: bool,
    pub shell_reset: bool,
    pub cwd: Option<Vec<u8>>,
    pub usage: Usage,
    pub started_ms: u64,
    pub begun_ns: u64,
    pub duration_ms: u64,
    pub timer: Option<TimerId>,
    /// The root's wait status, known before the command counts as over.
    pub status: Option<i32>,
    /// The same for a shell's command: how it will read once its terminal has said everything.
    pub ending: Option<State>,
    /// Streams that want to hear of changes.
    pub watchers: Vec<(u64, u32)>,
}

impl Exec {
    pub fn new(start: Start) -> Exec {
        Exec {
            ring: Ring::new(start.caps),
            start,
            state: State::Queued,
            outputs: [None, None, None],
            input: Input::default(),
            slave: None,
            resting: None,
            supervisor: None,
            pid: 0,
            exit_code: None,
            signal: None,
            timed_out: false,
            sweeps: 0,
            ticks: 0,
            turns_missed: 0,
            to_sweep: 0,
            swept: 0,
            sent_signal: None,
            we_killed: false,
            shell_reset: false,
            cwd: None,
            usage: Usage::default(),
            started_ms: sys::unix_ms(),
            begun_ns: sys::boot_ns(),
            duration_ms: 0,
            timer: None,
            status: None,
            ending: None,
            watchers: Vec::new(),
        }
    }

    pub fn is_shell(&self) -> bool {
        matches!(self.start.what, What::Shell { .. })
    }

    pub fn begin(&mut self, pid: i32) {
        self.state = State::Running;
        self.pid = pid;
        self.started_ms = sys::unix_ms();
        self.begun_ns = sys::boot_ns();
    }

    /// Takes a wait status as the end of the command.
    pub fn take_status(&mut self, status: i32) {
        if libc::WIFEXITED(status) {
            self.state = State::Exited;
            self.exit_code = Some(libc::WEXITSTATUS(status));
        } else {
            self.state = State::Signaled;
            self.signal = Some(libc::WTERMSIG(status));
        }
    }

    fn ended_by(&self, signal: i32) -> bool {
        self.signal == Some(signal) || (self.is_shell() && self.exit_code == Some(128 + signal))
    }

    fn killed(&self) -> bool {
        let by_signal = |signal| self.state == State::Signaled || self.ended_by(signal);
        self.state.is_over() && self.sent_signal.map_or(false, by_signal)
    }

    pub fn to_json(&self) -> Value {
        let duration_ms = if self.state == State::Running {
            sys::boot_ns().saturating_sub(self.begun_ns) / 1_000_000
        } else {
            self.duration_ms
        };
        let mut body = json!({
            "exec_id": self.start.exec_id,
            "kind": if self.is_shell() { "shell" } else { "argv" },
            "state": self.state.name(),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "killed": self.killed(),
            "shell_reset": self.shell_reset,
            "cwd": self.cwd.as_deref().map(bytes::to_json),
            "pid": self.pid,
            "started_ms": self.started_ms,
            "duration_ms": duration_ms,
            "cpu_ms": self.usage.cpu_ms,
            "peak_rss_bytes": self.usage.peak_rss_bytes,
            "io_read_bytes": self.usage.read_bytes,
            "io_write_bytes": self.usage.write_bytes,
            "stdout_bytes": self.ring.written(STDOUT) + self.ring.written(PTY),
            "stderr_bytes": self.ring.written(STDERR),
            "truncated": self.ring.truncated(),
            "last_seq": self.ring.last_seq(),
            "oom_suspect": !self.we_killed && self.ended_by(libc::SIGKILL),
            "sigsys": self.ended_by(libc::SIGSYS),
        });
        if let What::Shell { name, .. } = &self.start.what {
            body["shell"] = Value::from(name.as_str());
        }
        body
    }
}
