//! Persistent shells: one per name, which runs one command after the other and remembers.
//!
//! This file is about names, queues and results; `shell_life` about the process behind them. A shell is
//! told what to do through a FIFO and answers on a private descriptor (`shell_script`, `shell_words`),
//! both closed for what it starts.

mod answer;
pub mod files;
mod lifecycle;
mod script;

use crate::exec::State;
use crate::poll::Watched;
use crate::processes;
use crate::server::Server;
use crate::shell::answer::Answer;
use crate::shell::files::Directory;
use crate::supervisor::program::Env;
use crate::supervisor::{Order, Usage};
use crate::sys;
use crate::timers::TimerId;
use crate::wire::connection::empty;
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::Fields;
use serde_json::{json, Value};
use std::collections::VecDeque;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No process.
    Absent,
    Starting,
    Idle,
    /// The supervisor is noting who is there before the command.
    Arming,
    Delivering,
    Running,
    /// It has answered after its deadline; what the command left behind is being killed.
    Settling,
    /// Told to end; only its death counts now.
    Ending,
}

pub struct Shell {
    pub name: String,
    pub program: Vec<u8>,
    pub phase: Phase,
    pub pid: i32,
    pub current: Option<u64>,
    pub queue: VecDeque<u64>,
    pub cwd: Vec<u8>,
    pub supervisor: Option<i32>,
    pub answer: Option<Watched>,
    pub heard: Vec<u8>,
    /// The answer of a command past its deadline, kept until everything it started is dead.
    pub kept: Option<Answer>,
    pub directory: Option<Directory>,
    pub env: Option<Env>,
    pub last_code: i32,
    /// What it had used before the current command.
    pub used: Usage,
    /// It died since its last command: the next one must be told.
    pub lost_state: bool,
    pub restarts: u32,
    pub retries: u32,
    pub timer: Option<TimerId>,
    pub watch: Option<TimerId>,
    pub closing: bool,
}

impl Server {
    /// Puts a command into the queue of its shell, which is started on first use.
    pub fn queue_command(&mut self, name: &str, number: u64) -> Result<(), Failure> {
        let program = self.config.shell.clone();
        let program = program.ok_or_else(|| Failure::new("no_shell", "the image has no shell"))?;
        let found = self
            .shells
            .iter()
            .find(|(_, s)| s.name == name && !s.closing);
        let id = match found.map(|(id, _)| *id) {
            Some(id) => id,
            None => {
                if self.shells.len() >= protocol::MAX_SHELLS {
                    return Err(Failure::new("busy", "64 shells are open"));
                }
                let id = self.next_serial();
                self.shells.insert(id, self.new_shell(name, program));
                id
            }
        };
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.queue.push_back(number);
        }
        self.advance(id);
        Ok(())
    }

    fn new_shell(&self, name: &str, program: Vec<u8>) -> Shell {
        Shell {
            name: name.to_owned(),
            program,
            phase: Phase::Absent,
            pid: 0,
            current: None,
            queue: VecDeque::new(),
            cwd: self.config.workspace.clone(),
            supervisor: None,
            answer: None,
            heard: Vec::new(),
            kept: None,
            directory: None,
            env: None,
            last_code: 0,
            used: Usage::default(),
            lost_state: false,
            restarts: 0,
            retries: 0,
            timer: None,
            watch: None,
            closing: false,
        }
    }

    /// Takes the next command, if the shell is free for it.
    pub fn advance(&mut self, id: u64) {
        loop {
            let shell = match self.shells.get_mut(&id) {
                Some(shell) => shell,
                None => return,
            };
            if shell.current.is_none() {
                match shell.queue.pop_front() {
                    Some(number) => shell.current = Some(number),
                    None => return,
                }
                shell.restarts = 0;
                if let Some(failure) = self.wrong_directory(id) {
                    self.refuse_current(id, &failure);
                    continue;
                }
            }
            let phase = self.shells.get(&id).map(|shell| shell.phase);
            let outcome = match phase {
                Some(Phase::Absent) => self.launch(id),
                Some(Phase::Idle) => {
                    self.arm(id);
                    Ok(())
                }
                _ => Ok(()),
            };
            match outcome {
                Ok(()) => return,
                Err(failure) => self.refuse_current(id, &failure),
            }
        }
    }

    pub fn refuse_current(&mut self, id: u64, failure: &Failure) {
        let current = self
            .shells
            .get_mut(&id)
            .and_then(|shell| shell.current.take());
        if let Some(number) = current {
            self.fail_exec(number, failure);
        }
    }

    /// The request's directory is checked before anything runs, so that a bad one is an error.
    fn wrong_directory(&self, id: u64) -> Option<Failure> {
        let shell = self.shells.get(&id)?;
        let exec = self.execs.get(&shell.current?)?;
        let cwd = exec.start.cwd.as_ref()?;
        let path = if cwd.starts_with(b"/") {
            cwd.clone()
        } else {
            [&shell.cwd[..], b"/", cwd].concat()
        };
        let shown = String::from_utf8_lossy(cwd);
        match sys::stat(&path) {
            Ok(stat) if sys::is_dir(&stat) => None,
            Ok(_) => Some(Failure::from_errno(
                libc::ENOTDIR,
                format!("cannot enter {shown}"),
            )),
            Err(errno) => Some(Failure::from_errno(errno, format!("cannot enter {shown}"))),
        }
    }

    pub fn arm(&mut self, id: u64) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        let childless = |pid| processes::children(pid).map_or(false, |list| list.is_empty());
        let only = |pid| processes::children(pid).map_or(false, |list| list == [shell.pid]);
        if childless(shell.pid) && shell.supervisor.map_or(false, only) {
            // Nobody to spare: no need to wait for the supervisor to note it.
            self.prepare(id);
        } else {
            shell.phase = Phase::Arming;
            let supervisor = shell.supervisor;
            self.order(supervisor, Order::Begin);
        }
    }

    pub fn command_done(&mut self, id: u64, answer: Answer) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        shell.heard.clear();
        shell.heard.shrink_to(64 << 10);
        if let Some(timer) = shell.timer.take() {
            self.timers.cancel(timer);
        }
        let current = shell.current.and_then(|number| self.execs.get_mut(&number));
        let late = current.filter(|exec| exec.timed_out);
        if let Some(exec) = late {
            if let Some(timer) = exec.timer.take() {
                self.timers.cancel(timer);
            }
            shell.phase = Phase::Settling;
            shell.kept = Some(answer);
            let supervisor = shell.supervisor;
            self.order(supervisor, Order::Sweep);
        } else {
            self.take_answer(id, answer);
        }
    }

    /// What a command past its deadline had started is dead; its answer counts now.
    pub fn settled(&mut self, id: u64) {
        let kept = self.shells.get_mut(&id).and_then(|shell| shell.kept.take());
        if let Some(answer) = kept {
            self.take_answer(id, answer);
        }
    }

    fn take_answer(&mut self, id: u64, answer: Answer) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        shell.phase = Phase::Idle;
        shell.last_code = answer.exit_code;
        shell.cwd = files::current_directory(shell.pid, answer.pwd);
        shell.env = Some(answer.env);
        let io = files::io_counts(shell.pid);
        let usage = Usage {
            cpu_ms: answer.cpu_ms.saturating_sub(shell.used.cpu_ms),
            peak_rss_bytes: 0,
            read_bytes: io.0.saturating_sub(shell.used.read_bytes),
            write_bytes: io.1.saturating_sub(shell.used.write_bytes),
        };
        shell.used = Usage {
            cpu_ms: answer.cpu_ms,
            peak_rss_bytes: 0,
            read_bytes: io.0,
            write_bytes: io.1,
        };
        let cwd = shell.cwd.clone();
        let current = shell.current.take();
        if let Some(number) = current {
            if let Some(exec) = self.execs.get_mut(&number) {
                exec.exit_code = Some(answer.exit_code);
                exec.usage = usage;
                exec.cwd = Some(cwd);
            }
            self.close_command(id, number, State::Exited);
        }
        self.advance(id);
    }

    /// The current command is over; its files are removed, what it wrote is taken.
    pub fn close_command(&mut self, id: u64, number: u64, state: State) {
        if let Some(shell) = self.shells.get_mut(&id) {
            if let Some(timer) = shell.watch.take() {
                self.timers.cancel(timer);
            }
        }
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.slave = None;
            // `take_status` may have set it already; until everything is read it is not over.
            exec.state = State::Running;
            exec.ending = Some(state);
            exec.supervisor = None;
            if let Some(timer) = exec.timer.take() {
                self.timers.cancel(timer);
            }
        }
        self.wind_up(number);
        let shell = self.shells.get_mut(&id);
        if let Some(directory) = shell.and_then(|shell| shell.directory.as_mut()) {
            directory.clean(&self.config.identity, self.execs.get(&number));
        }
    }

    /// A command that still stands in the queue is signalled by taking it out.
    pub fn withdraw(&mut self, number: u64, signal: i32) {
        for shell in self.shells.values_mut() {
            shell.queue.retain(|queued| *queued != number);
        }
        let current = self
            .shells
            .values()
            .any(|shell| shell.current == Some(number));
        if let Some(exec) = self.execs.get_mut(&number).filter(|_| !current) {
            exec.signal = Some(signal);
            exec.state = State::Signaled;
            exec.begun_ns = sys::boot_ns();
            self.finish(number);
        }
    }

    /// Before the end: what lies in the state directory goes, and the directory if nothing else is in it.
    pub fn tidy(&mut self) {
        let identity = &self.config.identity;
        for shell in self.shells.values_mut() {
            if let Some(directory) = shell.directory.take() {
                directory.remove(identity);
            }
        }
        identity.as_runner(|| sys::remove_dir(&self.config.state_dir));
    }

    pub fn shell_list(&self) -> Value {
        let shells: Vec<Value> = self
            .shells
            .values()
            .map(|shell| {
                json!({
                    "name": shell.name,
                    "pid": shell.pid,
                    "busy": shell.current.is_some(),
                    "queued": shell.queue.len(),
                    "cwd": crate::wire::bytes::to_json(&shell.cwd),
                    "program": crate::wire::bytes::to_json(&shell.program),
                })
            })
            .collect();
        json!({ "shells": shells })
    }

    pub fn shell_close(&mut self, fields: &Fields) -> Result<Value, Failure> {
        let name = fields.name("name", protocol::MAX_SHELL_NAME, b"_.-")?;
        let found = self
            .shells
            .iter()
            .find(|(_, s)| s.name == name && !s.closing);
        let id = match found {
            Some((id, _)) => *id,
            None => return Err(Failure::new("not_found", "no shell has that name")),
        };
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.closing = true;
            let waiting: Vec<u64> = shell.queue.drain(..).collect();
            let (absent, supervisor) = (shell.phase == Phase::Absent, shell.supervisor);
            if let Some(exec) = shell.current.and_then(|n| self.execs.get_mut(&n)) {
                exec.we_killed = true;
                exec.sent_signal = Some(libc::SIGKILL);
            }
            let failure = Failure::new("closed", "the shell was closed");
            for number in waiting {
                self.fail_exec(number, &failure);
            }
            if absent {
                self.bury(id);
            } else {
                self.order(supervisor, Order::End);
            }
        }
        Ok(empty())
    }

    pub fn bury(&mut self, id: u64) {
        let failure = Failure::new("closed", "the shell was closed");
        self.refuse_current(id, &failure);
        self.shells.remove(&id);
    }
}
