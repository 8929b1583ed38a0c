//! One command: its request, its state, and how it reads as *Exec* of the protocol.
//!
//! `exit_code` is set only from a status that was observed: the kernel's, or the one a shell reported.

use super::pty::Pair;
use super::start::{Start, What};
use crate::poll::{self, Poll, Source, Watched};
use crate::ring::{Ring, SOURCES};
use crate::supervisor::Usage;
use crate::sys::{self, Errno};
use crate::timers::TimerId;
use crate::wire::bytes;
use crate::wire::clients::StreamId;
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::os::unix::io::{AsRawFd, OwnedFd};

pub const PTY: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// In the queue of a shell, or its supervisor has not reported yet.
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

/// Bytes that wait for a command's standard input, and the stream that gets credit for them.
pub(super) struct Pending {
    pub bytes: Vec<u8>,
    pub done: usize,
    /// `None`: the bytes are the runner's own.
    pub owner: Option<StreamId>,
}

#[derive(Default)]
pub(super) struct Input {
    pub pipe: Option<Watched>,
    /// A FIFO that the shell has not opened yet; data written or an end of file sent now would be lost.
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
    pub(super) state: State,
    pub(super) ring: Ring,
    pub(super) outputs: [Option<Watched>; SOURCES],
    pub(super) input: Input,
    /// The other side of a terminal, held open until a shell's command has opened it by path.
    pub(super) terminal: Option<OwnedFd>,
    /// A terminal whose other side is open in no process just now. Closing it would hang up on a command
    /// that is about to exit, or to open it again.
    pub(super) unused_terminal: Option<OwnedFd>,
    pub(super) supervisor: Option<i32>,
    pub(super) pid: i32,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) timed_out: bool,
    /// How often a shell's command was swept without an answer from the shell.
    pub(super) unanswered_sweeps: u32,
    /// Processor time of its shell when that was last expected to answer.
    pub(super) ticks: u64,
    /// How often the shell was given more time because it had not run since.
    pub(super) turns_missed: u32,
    /// Sweeps ordered by `exec.signal`.
    pub(super) sweeps_ordered: u32,
    /// Sweeps that the supervisor reported as done.
    pub(super) sweeps_done: u32,
    /// The last signal that `exec.signal` sent.
    pub(super) sent_signal: Option<i32>,
    /// The runner sent SIGKILL, so a death by it does not point to the OOM killer.
    pub(super) killed_by_us: bool,
    pub(super) shell_reset: bool,
    pub(super) cwd: Option<Vec<u8>>,
    pub(super) usage: Usage,
    /// Processor time that a held program used before it became this command.
    pub(super) cpu_before_ms: u64,
    pub(super) started_ms: u64,
    pub(super) begun_ns: u64,
    pub(super) duration_ms: u64,
    pub(super) timer: Option<TimerId>,
    /// The wait status of the first process, known before the command counts as over.
    pub(super) status: Option<i32>,
    /// The final state of a shell's command, set before its last output is read.
    pub(super) ending: Option<State>,
    /// Streams to serve when something changes.
    pub(super) watchers: Vec<StreamId>,
}

impl Exec {
    pub fn new(start: Start) -> Exec {
        Exec {
            ring: Ring::new(start.caps),
            start,
            state: State::Queued,
            outputs: [None, None, None],
            input: Input::default(),
            terminal: None,
            unused_terminal: None,
            supervisor: None,
            pid: 0,
            exit_code: None,
            signal: None,
            timed_out: false,
            unanswered_sweeps: 0,
            ticks: 0,
            turns_missed: 0,
            sweeps_ordered: 0,
            sweeps_done: 0,
            sent_signal: None,
            killed_by_us: false,
            shell_reset: false,
            cwd: None,
            usage: Usage::default(),
            cpu_before_ms: 0,
            started_ms: sys::unix_ms(),
            begun_ns: sys::boot_ns(),
            duration_ms: 0,
            timer: None,
            status: None,
            ending: None,
            watchers: Vec::new(),
        }
    }

    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    pub fn is_shell(&self) -> bool {
        matches!(self.start.what, What::Shell { .. })
    }

    /// Note the time, just before the command can run: what the network refused to it is found by its
    /// time, and the runner may have to wait for a processor while the command runs already.
    pub fn about_to_begin(&mut self) {
        // In this order, start plus duration is never before the end.
        self.begun_ns = sys::boot_ns();
        self.started_ms = sys::unix_ms();
    }

    pub(super) fn begin(&mut self, pid: i32) {
        self.state = State::Running;
        self.pid = pid;
    }

    /// Set the final state from a wait status.
    pub(super) fn take_status(&mut self, status: i32) {
        if libc::WIFEXITED(status) {
            self.state = State::Exited;
            self.exit_code = Some(libc::WEXITSTATUS(status));
        } else {
            self.state = State::Signaled;
            self.signal = Some(libc::WTERMSIG(status));
        }
    }

    /// Report whether the command takes input on streams.
    pub(super) fn takes_input(&self) -> bool {
        let open = self.input.is_open() || self.state == State::Queued;
        let has_input = self.start.stdin_stream || self.start.pty.is_some();
        open && has_input && !self.input.closing && !self.state.is_over()
    }

    /// Report whether this output is still open, in our hands and in those of the command.
    pub fn has_output(&self, source: u8) -> bool {
        self.outputs[usize::from(source)].is_some()
    }

    pub fn watch_output(
        &mut self,
        number: u64,
        source: u8,
        fd: OwnedFd,
        poll: &mut Poll,
    ) -> Result<(), Errno> {
        let watched = poll.watch(fd, Source::Output(number, source), poll::READ)?;
        self.outputs[usize::from(source)] = Some(watched);
        Ok(())
    }

    /// Read from and write to the master of a terminal: one device, polled through two descriptors.
    pub fn watch_terminal(
        &mut self,
        number: u64,
        master: OwnedFd,
        poll: &mut Poll,
    ) -> Result<(), Errno> {
        let input = sys::duplicate(master.as_raw_fd())?;
        self.watch_output(number, PTY, master, poll)?;
        self.input.pipe = Some(poll.watch(input, Source::Input(number), 0)?);
        self.input.terminal = true;
        Ok(())
    }

    /// Use a terminal that the command opens by path. The other side stays open until it has.
    pub fn offer_terminal(
        &mut self,
        number: u64,
        pair: Pair,
        poll: &mut Poll,
    ) -> Result<(), Errno> {
        self.watch_terminal(number, pair.master, poll)?;
        self.terminal = Some(pair.slave);
        Ok(())
    }

    /// Use a FIFO as standard input that the command has not opened yet.
    pub fn offer_input(&mut self, fifo: OwnedFd) {
        self.input.early = Some(fifo);
    }

    pub fn set_supervisor(&mut self, supervisor: Option<i32>) {
        self.supervisor = supervisor;
    }

    /// Stop polling and close everything between the command and us.
    pub(super) fn close_ends(&mut self, poll: &mut Poll) {
        for output in self.outputs.iter_mut().filter_map(Option::take) {
            drop(poll.unwatch(output));
        }
        if let Some(pipe) = self.input.pipe.take() {
            drop(poll.unwatch(pipe));
        }
    }

    fn ended_by(&self, signal: i32) -> bool {
        self.signal == Some(signal) || (self.is_shell() && self.exit_code == Some(128 + signal))
    }

    fn killed(&self) -> bool {
        let by_signal = |signal| self.state == State::Signaled || self.ended_by(signal);
        self.state.is_over() && self.sent_signal.is_some_and(by_signal)
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
            "oom_suspect": !self.killed_by_us && self.ended_by(libc::SIGKILL),
            "sigsys": self.ended_by(libc::SIGSYS),
        });
        if let What::Shell { name, .. } = &self.start.what {
            body["shell"] = Value::from(name.as_str());
        }
        body
    }
}
