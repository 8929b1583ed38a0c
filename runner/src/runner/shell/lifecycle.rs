//! The life of one shell process: started, given commands, heard, replaced.
//!
//! Its death is learned from its supervisor, never from an end of file. Whatever does not fit (an answer
//! nobody asked for, an answer that is none, a shell that reads the next command without having answered)
//! ends it, and the next command gets a fresh one at the last directory with the last exported environment.

use crate::exec::State;
use crate::poll::{self, Source, Watched};
use crate::processes;
use crate::server::{Owner, Server};
use crate::shell::answer::{self, Heard};
use crate::shell::files::{self, Directory};
use crate::shell::Phase;
use crate::supervisor::program::{self, Program, Wiring};
use crate::supervisor::{Order, Report, Usage};
use crate::sys::{self, Errno};
use crate::timers::Due;
use crate::wire::handler::Failure;
use crate::wire::protocol;
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

impl Server {
    pub fn launch(&mut self, id: u64) -> Result<(), Failure> {
        let failed = |errno| Failure::from_errno(errno, "cannot start a shell");
        let serial = self.next_serial();
        let directory = self.shell_directory(serial).map_err(failed)?;
        let shell = match self.shells.get_mut(&id) {
            Some(shell) => shell,
            None => return Ok(()),
        };
        if !files::is_directory(&shell.cwd) {
            shell.cwd = self.config.workspace.clone();
        }
        let env = files::start_env(&self.config.env, shell.env.as_ref(), &shell.cwd);
        let argv = files::start_argv(&shell.program, &directory);
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

    /// Where user code may do as it likes with our state directory, it may be gone or no longer ours; one
    /// beside it does as well.
    fn shell_directory(&mut self, serial: u64) -> Result<Directory, Errno> {
        let identity = &self.config.identity;
        let first = Directory::make(identity, &self.config.state_dir, serial);
        let refused = match first {
            Err(errno) if errno != libc::ENOSPC => errno,
            other => return other,
        };
        let other = [&self.config.state_dir[..], format!("-{serial}").as_bytes()].concat();
        identity
            .as_runner(|| sys::make_dir(&other, 0o711))
            .map_err(|_| refused)?;
        let made = Directory::make(identity, &other, serial)?;
        self.config.state_dir = other;
        Ok(made)
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
                let mut failure = program::not_started(stage, errno, &shell.program, &shell.cwd);
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
                    let mut ordered = false;
                    if let Some(exec) = self.execs.get_mut(&number) {
                        exec.swept += 1;
                        // A late report of a sweep for the command before is not about this one.
                        ordered = exec.timed_out || exec.to_sweep > 0;
                    }
                    self.changed.insert(number);
                    if shell.phase == Phase::Settling {
                        self.settled(id);
                    } else if ordered {
                        self.expect_answer(number);
                    }
                }
            }
            // Its supervisor goes with it.
            Report::Free => {}
            Report::Exited { status, .. } => self.shell_died(id, Some(status)),
        }
    }

    /// Lays out the files of the current command.
    pub fn prepare(&mut self, id: u64) {
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
                let shell = match self.shells.get_mut(&id) {
                    Some(shell) => shell,
                    None => return,
                };
                let tampered = matches!(
                    failure.code,
                    "not_found" | "exists" | "permission" | "not_directory" | "invalid"
                );
                if tampered && shell.restarts == 0 {
                    // Where uids are equal, or the user is root, user code can do as it likes with
                    // the directory of its shell: a fresh shell has a fresh one.
                    shell.restarts += 1;
                    let supervisor = shell.supervisor;
                    self.order(supervisor, Order::End);
                    self.clear_shell(id);
                } else {
                    shell.phase = Phase::Idle;
                    if let Some(directory) = shell.directory.as_mut() {
                        // What was half written would be in the way of the next command.
                        directory.clean(&self.config.identity, None);
                    }
                    self.refuse_current(id, &failure);
                }
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
            .map_err(|errno| Failure::from_errno(errno, "cannot hand the command to the shell"))?;
        if files::is_bash(&shell.program) {
            directory.untrace();
        }
        Ok(())
    }

    /// Hands the command over as soon as the shell reads.
    pub fn deliver(&mut self, id: u64) {
        let shell = match self.shells.get_mut(&id) {
            Some(shell) if shell.phase == Phase::Delivering => shell,
            _ => return,
        };
        let directory = match shell.directory.as_mut() {
            Some(directory) => directory,
            None => return,
        };
        match directory.deliver(&self.config.identity) {
            Ok(()) => {
                shell.phase = Phase::Running;
                shell.lost_state |= shell.restarts > 0;
                let pid = shell.pid;
                let reset = std::mem::replace(&mut shell.lost_state, false);
                let number = shell.current.unwrap_or(0);
                if let Some(exec) = self.execs.get_mut(&number) {
                    exec.shell_reset |= reset;
                    exec.begin(pid);
                }
                shell.watch = Some(self.timers.after_ms(WATCH_MS, Due::Watch(id)));
                self.changed.insert(number);
                self.arm_deadline(number);
                self.look_for_reader(number);
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
                        answer::hear(&shell.heard)
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

    /// The shell cannot be trusted to go on: kill it and all it has started. Its death does the rest.
    fn end_shell(&mut self, id: u64) {
        self.settled(id);
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
        self.settled(id);
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
        // Whoever waits is asleep. One that is not may have read its command, and not yet closed the FIFO.
        let asleep = processes::stat(shell.pid).map_or(false, |process| process.state == b'S');
        let bash = files::is_bash(&shell.program);
        if let Some(directory) = shell.directory.as_mut().filter(|_| bash && asleep) {
            if let Ok(fifo) = directory.reach(identity) {
                let answer = shell.answer.as_ref().map_or(-1, Watched::raw);
                if !shell.heard.is_empty() || sys::readable_bytes(answer) > 0 {
                    // It has just answered, and we have not heard it yet.
                    directory.hold(fifo);
                } else if sys::readable_bytes(fifo.as_raw_fd()) == 0 {
                    return self.end_shell(id);
                }
                // Otherwise it is slow, and has still to read the command.
            }
        }
        shell.watch = Some(self.timers.after_ms(WATCH_MS, Due::Watch(id)));
    }
}
