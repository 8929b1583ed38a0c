//! Persistent shells: one process per name that runs one command after the other and remembers.
//!
//! A shell is told what to do through a FIFO and answers on a private descriptor (`shell_script`,
//! `shell_words`); both are closed for what it starts. Its death is learned from its supervisor, never
//! from an end of file. Whatever does not fit (an answer nobody asked for, an answer that is none, a shell
//! that reads the next command without having answered) ends that shell, and the next command gets a
//! fresh one at the last directory with the last exported environment.

use crate::connection::empty;
use crate::exec::State;
use crate::handler::Failure;
use crate::poll::{self, Source, Watched};
use crate::protocol;
use crate::request::Fields;
use crate::serve::{Owner, Server};
use crate::shell_files::{self, Directory};
use crate::shell_words::{self, Answer, Heard};
use crate::spawn::{self, Env, Program, Wiring};
use crate::supervise::{Order, Report, Usage};
use crate::sys;
use crate::timers::{Due, TimerId};
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::os::unix::io::AsRawFd;

/// The shell opens its FIFO within microseconds of its answer, and some milliseconds after its start.
const RETRY_NS: u64 = 60_000;
const SLOW_RETRY_MS: u64 = 2;
const FAST_RETRIES: u32 = 100;
const MAX_RETRIES: u32 = 5_000;
/// How often a running shell is checked for having lost its way.
const WATCH_MS: u64 = 500;
/// An answer that has begun is written in one go.
const ANSWER_MS: u64 = 1_000;

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
    supervisor: Option<i32>,
    answer: Option<Watched>,
    heard: Vec<u8>,
    directory: Option<Directory>,
    env: Option<Env>,
    last_code: i32,
    /// What it had used before the current command.
    used: Usage,
    /// It died since its last command: the next one must be told.
    lost_state: bool,
    restarts: u32,
    retries: u32,
    timer: Option<TimerId>,
    watch: Option<TimerId>,
    closing: bool,
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
    fn advance(&mut self, id: u64) {
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

    fn refuse_current(&mut self, id: u64, failure: &Failure) {
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
        match sys::identity_of(&path) {
            Ok((_, _, mode)) if mode & libc::S_IFMT == libc::S_IFDIR => None,
            Ok(_) => Some(Failure::from_errno(
                libc::ENOTDIR,
                format!("cannot enter {shown}"),
            )),
            Err(errno) => Some(Failure::from_errno(errno, format!("cannot enter {shown}"))),
        }
    }

    fn launch(&mut self, id: u64) -> Result<(), Failure> {
        let failed = |errno| Failure::from_errno(errno, "cannot start a shell");
        let serial = self.next_serial();
        let identity = &self.config.identity;
        let directory =
            Directory::make(identity, &self.config.state_dir, serial).map_err(failed)?;
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return Ok(()),
        };
        if !shell_files::is_directory(&shell.cwd) {
            shell.cwd = self.config.workspace.clone();
        }
        let env = shell_files::start_env(&self.config.env, shell.env.as_ref(), &shell.cwd);
        let argv = shell_files::start_argv(&shell.program, &directory);
        let cwd = shell.cwd.clone();
        let program = Program::new(&argv, &env, &cwd).map_err(failed)?;
        let null = sys::open(b"/dev/null", libc::O_RDWR, 0).map_err(failed)?;
        let (ours, theirs) = sys::pipe().map_err(failed)?;
        sys::set_nonblocking(ours.as_raw_fd()).map_err(failed)?;
        let wiring = Wiring {
            stdio: [null.as_raw_fd(); 3],
            ninth: Some(theirs.as_raw_fd()),
            terminal: false,
            own_session: false,
        };
        let answer = self.poll.watch(ours, Source::ShellAnswer(id), poll::READ);
        let answer = answer.map_err(failed)?;
        let supervisor = match self.supervise(&program, &wiring, Owner::Shell(id)) {
            Ok(pid) => pid,
            Err(failure) => {
                drop(self.poll.unwatch(answer));
                directory.remove(&self.config.identity);
                return Err(failure);
            }
        };
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.supervisor = Some(supervisor);
            shell.answer = Some(answer);
            shell.heard.clear();
            shell.directory = Some(directory);
            shell.used = Usage::default();
            shell.phase = Phase::Starting;
        }
        Ok(())
    }

    fn arm(&mut self, id: u64) {
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.phase = Phase::Arming;
            let supervisor = shell.supervisor;
            self.order(supervisor, Order::Begin);
        }
    }

    pub fn shell_report(&mut self, id: u64, report: Report) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        match report {
            Report::Started { pid } => {
                shell.pid = pid;
                if shell.phase == Phase::Starting {
                    // A fresh shell has no jobs to spare.
                    self.prepare(id);
                }
            }
            Report::Begun => {
                if shell.phase == Phase::Arming {
                    self.prepare(id);
                }
            }
            Report::Failed { stage, errno } => {
                let mut failure = spawn::not_started(stage, errno, &shell.program, &shell.cwd);
                if matches!(failure.code, "command_not_found" | "not_executable") {
                    failure.code = "no_shell";
                }
                let first = shell.restarts == 0;
                shell.restarts += 1;
                // An environment grown too large, a directory gone: try once more without them.
                shell.env = None;
                shell.cwd = self.config.workspace.clone();
                self.clear_shell(id);
                if !first {
                    self.refuse_current(id, &failure);
                }
                self.advance(id);
            }
            Report::Swept => {
                if let Some(number) = shell.current {
                    self.expect_answer(number);
                }
            }
            Report::Exited { status, .. } => self.shell_died(id, Some(status)),
        }
    }

    /// Lays out the files of the current command.
    fn prepare(&mut self, id: u64) {
        let outcome = self.lay_out(id);
        match outcome {
            Ok(()) => {
                if let Some(shell) = self.shells.get_mut(&id) {
                    shell.phase = Phase::Delivering;
                    shell.retries = 0;
                }
                self.deliver(id);
            }
            Err(failure) => {
                if let Some(shell) = self.shells.get_mut(&id) {
                    shell.phase = Phase::Idle;
                }
                self.refuse_current(id, &failure);
                self.advance(id);
            }
        }
    }

    fn lay_out(&mut self, id: u64) -> Result<(), Failure> {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return Ok(()),
        };
        let number = shell.current.unwrap_or(0);
        let (directory, exec) = match (&mut shell.directory, self.execs.get_mut(&number)) {
            (Some(directory), Some(exec)) => (directory, exec),
            _ => return Err(Failure::new("internal", "the command is gone")),
        };
        exec.supervisor = shell.supervisor;
        directory
            .lay_out(
                &self.config.identity,
                &mut self.poll,
                number,
                exec,
                shell.last_code,
            )
            .map_err(|errno| Failure::from_errno(errno, "cannot hand the command to the shell"))
    }

    /// Hands the command over as soon as the shell reads.
    pub fn deliver(&mut self, id: u64) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) if shell.phase == Phase::Delivering => shell,
            _ => return,
        };
        let directory = match &shell.directory {
            Some(directory) => directory,
            None => return,
        };
        match directory.deliver(&self.config.identity) {
            Ok(()) => {
                shell.phase = Phase::Running;
                shell.lost_state |= shell.restarts > 0;
                let pid = shell.pid;
                let reset = std::mem::replace(&mut shell.lost_state, false);
                let io = shell_files::io_counts(pid);
                shell.used.read_bytes = io.0;
                shell.used.write_bytes = io.1;
                let number = shell.current.unwrap_or(0);
                if let Some(exec) = self.execs.get_mut(&number) {
                    exec.shell_reset |= reset;
                    exec.begin(pid);
                }
                shell.watch = Some(self.timers.after_ms(WATCH_MS, Due::Watch(id)));
                self.changed.insert(number);
                self.arm_deadline(number);
                self.write_input(number, false);
            }
            Err(libc::ENXIO) if shell.retries < MAX_RETRIES => {
                shell.retries += 1;
                if shell.retries < FAST_RETRIES {
                    self.timers.after_ns(RETRY_NS, Due::Deliver(id));
                } else {
                    self.timers.after_ms(SLOW_RETRY_MS, Due::Deliver(id));
                }
            }
            Err(_) => self.end_shell(id),
        }
    }

    pub fn hear_shell(&mut self, id: u64) {
        let mut block = std::mem::take(&mut self.scratch);
        block.resize(block.len().max(64 << 10), 0);
        let mut verdict = None;
        if let Some(shell) = self.shells.get_mut(&id) {
            let fd = shell.answer.as_ref().map_or(-1, Watched::raw);
            match sys::read(fd, &mut block) {
                Ok(0) | Err(libc::EAGAIN) => {}
                Err(_) => verdict = Some(Heard::Broken),
                Ok(count) => {
                    shell.heard.extend_from_slice(&block[..count]);
                    let over = shell.heard.len() > protocol::MAX_SHELL_ANSWER;
                    verdict = Some(if over || shell.phase != Phase::Running {
                        Heard::Broken
                    } else {
                        shell_words::hear(&shell.heard)
                    });
                }
            }
            if verdict.is_none() && shell.phase == Phase::Absent {
                // The writers are gone, and so is the shell: stop watching.
                if let Some(answer) = shell.answer.take() {
                    drop(self.poll.unwatch(answer));
                }
            }
        }
        self.scratch = block;
        match verdict {
            None => {}
            Some(Heard::Partial) => self.expect_rest(id),
            Some(Heard::Broken) => self.end_shell(id),
            Some(Heard::Whole(answer)) => self.command_done(id, answer),
        }
    }

    fn expect_rest(&mut self, id: u64) {
        if let Some(shell) = self.shells.get_mut(&id) {
            if shell.timer.is_none() {
                shell.timer = Some(self.timers.after_ms(ANSWER_MS, Due::Answer(id)));
            }
        }
    }

    pub fn answer_overdue(&mut self, id: u64) {
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.timer = None;
            if !shell.heard.is_empty() {
                self.end_shell(id);
            }
        }
    }

    fn command_done(&mut self, id: u64, answer: Answer) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        shell.heard.clear();
        shell.heard.shrink_to(64 << 10);
        if let Some(timer) = shell.timer.take() {
            self.timers.cancel(timer);
        }
        shell.phase = Phase::Idle;
        shell.last_code = answer.exit_code;
        shell.cwd = shell_files::current_directory(shell.pid, answer.pwd);
        shell.env = Some(answer.env);
        let io = shell_files::io_counts(shell.pid);
        let usage = Usage {
            cpu_ms: answer.cpu_ms.saturating_sub(shell.used.cpu_ms),
            peak_rss_bytes: 0,
            read_bytes: io.0.saturating_sub(shell.used.read_bytes),
            write_bytes: io.1.saturating_sub(shell.used.write_bytes),
        };
        shell.used.cpu_ms = answer.cpu_ms;
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
    fn close_command(&mut self, id: u64, number: u64, state: State) {
        if let Some(shell) = self.shells.get_mut(&id) {
            if let Some(directory) = &mut shell.directory {
                directory.clean(&self.config.identity);
            }
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
    }

    /// The shell cannot be trusted to go on: kill it and all it has started. Its death does the rest.
    fn end_shell(&mut self, id: u64) {
        if let Some(shell) = self.shells.get_mut(&id) {
            if matches!(shell.phase, Phase::Absent | Phase::Ending) {
                return;
            }
            // Its status from here on is ours, not the command's.
            let delivered = shell.phase == Phase::Running;
            shell.phase = Phase::Ending;
            let supervisor = shell.supervisor;
            let current = if delivered {
                shell.current.take()
            } else {
                None
            };
            shell.lost_state = true;
            self.order(supervisor, Order::End);
            if let Some(number) = current {
                let cwd = self.shells.get(&id).map(|shell| shell.cwd.clone());
                if let Some(exec) = self.execs.get_mut(&number) {
                    exec.shell_reset = true;
                    exec.cwd = cwd;
                }
                if let Some(shell) = self.shells.get_mut(&id) {
                    shell.lost_state = false;
                }
                self.close_command(id, number, State::Lost);
            }
        }
    }

    /// `status` is `None` when even the supervisor is gone.
    fn shell_died(&mut self, id: u64, status: Option<i32>) {
        // A last answer may have been written before the end.
        self.hear_shell(id);
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        let phase = shell.phase;
        shell.lost_state = true;
        shell.last_code = 0;
        let supervisor = shell.supervisor;
        let cwd = shell.cwd.clone();
        let running = phase == Phase::Running;
        let current = if running { shell.current.take() } else { None };
        if let Some(number) = current {
            shell.lost_state = false;
            let mut state = State::Lost;
            if let Some(exec) = self.execs.get_mut(&number) {
                exec.shell_reset = true;
                exec.cwd = Some(cwd);
                if let Some(status) = status {
                    exec.take_status(status);
                    state = exec.state;
                }
            }
            self.close_command(id, number, state);
        }
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.restarts += u32::from(shell.current.is_some());
        }
        // Nothing it started outlives it.
        self.order(supervisor, Order::End);
        self.clear_shell(id);
        let hopeless = self
            .shells
            .get(&id)
            .map_or(false, |shell| shell.restarts > 2);
        if hopeless {
            let failure = Failure::new("internal", "the shell dies before it takes a command");
            self.refuse_current(id, &failure);
        }
        if self.shells.get(&id).map_or(false, |shell| shell.closing) {
            self.bury(id);
        } else {
            self.advance(id);
        }
    }

    /// Back to no process: the supervisor is left to reap, the directory goes.
    fn clear_shell(&mut self, id: u64) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return,
        };
        shell.phase = Phase::Absent;
        if let Some(timer) = shell.timer.take() {
            self.timers.cancel(timer);
        }
        if let Some(answer) = shell.answer.take() {
            drop(self.poll.unwatch(answer));
        }
        if let Some(directory) = shell.directory.take() {
            directory.remove(&self.config.identity);
        }
        if let Some(pid) = shell.supervisor.take() {
            if let Some(supervisor) = self.supervisors.get_mut(&pid) {
                supervisor.owner = Owner::Nobody;
            }
        }
    }

    pub fn shell_lost(&mut self, id: u64) {
        self.shell_died(id, None);
    }

    /// A shell that reads its FIFO while its command runs has skipped the answer. Only bash can be led to
    /// do that (`enable -n`), and only bash has closed the FIFO by the time the command runs.
    pub fn watch_shell(&mut self, id: u64) {
        let identity = &self.config.identity;
        let shell = match self.shells.get_mut(&id) {
            Some(shell) if shell.phase == Phase::Running => shell,
            _ => return,
        };
        let bash = shell_files::is_bash(&shell.program);
        let directory = shell.directory.as_ref().filter(|_| bash);
        let reads = directory.map_or(false, |directory| directory.has_reader(identity));
        let fd = shell.answer.as_ref().map_or(-1, Watched::raw);
        if reads && shell.heard.is_empty() && sys::readable_bytes(fd) == 0 {
            self.end_shell(id);
        } else {
            shell.watch = Some(self.timers.after_ms(WATCH_MS, Due::Watch(id)));
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
                    "cwd": crate::bytes::to_json(&shell.cwd),
                    "program": crate::bytes::to_json(&shell.program),
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

    fn bury(&mut self, id: u64) {
        let failure = Failure::new("closed", "the shell was closed");
        self.refuse_current(id, &failure);
        self.shells.remove(&id);
    }
}
