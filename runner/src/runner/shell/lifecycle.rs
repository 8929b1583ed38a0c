//! The process of a shell: started, given commands, read from, replaced.
//!
//! Its death is learned from its supervisor, never from an end of file. Anything unexpected (an answer that
//! was not asked for, an answer that cannot be parsed, a shell that reads the next command without having
//! answered) ends it, and the next command gets a new one at the last directory with the last exported
//! environment.

use super::answer::{self, Parsed};
use super::files::{self, Directory};
use super::{Phase, Shells};
use crate::context::Context;
use crate::exec::{Execs, ShellEnd};
use crate::poll::{self, Source, Watched};
use crate::processes;
use crate::supervisor::program::{self, Program, Wiring};
use crate::supervisor::{Order, Owner, Report, Usage};
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
/// How often a running shell is checked for having skipped its answer.
const WATCH_MS: u64 = 500;
/// An answer that has begun is written in one go.
const ANSWER_MS: u64 = 1_000;
const READ_BLOCK: usize = 64 << 10;

impl Shells {
    /// Start the process of a shell.
    pub(super) fn launch(&mut self, id: u64, cx: &mut Context) -> Result<(), Failure> {
        let failed = |errno| Failure::from_errno(errno, "cannot start a shell");
        let directory = self.make_directory(cx).map_err(failed)?;
        let Some(shell) = self.by_id.get_mut(&id) else {
            return Ok(());
        };
        if !files::is_directory(&shell.cwd) {
            shell.cwd = cx.config.workspace.clone();
        }
        let env = files::start_env(&cx.config.env, shell.env.as_ref(), &shell.cwd);
        let argv = files::start_argv(&shell.program, &directory);
        let program = Program::new(&argv, &env, &shell.cwd).map_err(failed)?;
        let null = sys::open(b"/dev/null", libc::O_RDWR, 0).map_err(failed)?;
        let (ours, theirs) = sys::pipe().map_err(failed)?;
        sys::set_nonblocking(ours.as_raw_fd()).map_err(failed)?;
        let wiring = Wiring {
            stdio: [null.as_raw_fd(); 3],
            answer: Some(theirs.as_raw_fd()),
            terminal: false,
            own_session: false,
        };
        let answer = cx.poll.watch(ours, Source::ShellAnswer(id), poll::READ);
        let answer = answer.map_err(failed)?;
        match cx.start_supervisor(&program, &wiring, Owner::Shell(id)) {
            Ok(supervisor) => {
                shell.supervisor = Some(supervisor);
                shell.answer = Some(answer);
                shell.received.clear();
                shell.directory = Some(directory);
                shell.used = Usage::default();
                shell.memory = Default::default();
                shell.phase = Phase::Starting;
                Ok(())
            }
            Err(failure) => {
                drop(cx.poll.unwatch(answer));
                directory.remove(&cx.config.identity);
                Err(failure)
            }
        }
    }

    /// Make the directory of a new shell. Where user code can change the state directory, that may be gone or
    /// no longer ours; then another one beside it is used from now on.
    fn make_directory(&mut self, cx: &mut Context) -> Result<Directory, Errno> {
        let serial = cx.next_serial();
        let identity = &cx.config.identity;
        let refused = match Directory::make(identity, &self.state_dir, serial) {
            Err(errno) if errno != libc::ENOSPC => errno,
            other => return other,
        };
        let other = [&self.state_dir[..], format!("-{serial}").as_bytes()].concat();
        identity
            .as_runner(|| sys::make_dir(&other, 0o711))
            .map_err(|_| refused)?;
        let directory = Directory::make(identity, &other, serial)?;
        self.state_dir = other;
        Ok(directory)
    }

    /// Handle a report of the shell's supervisor.
    pub fn report(&mut self, id: u64, report: Report, execs: &mut Execs, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        match report {
            Report::Started { pid } => {
                shell.pid = pid;
                if shell.phase == Phase::Starting {
                    // A new shell has no jobs to spare.
                    self.prepare(id, execs, cx);
                }
            }
            Report::Recorded => {
                if shell.phase == Phase::Recording {
                    self.prepare(id, execs, cx);
                }
            }
            Report::Failed { stage, errno } => {
                let mut failure = program::not_started(stage, errno, &shell.program, &shell.cwd);
                if matches!(failure.code, "command_not_found" | "not_executable") {
                    failure.code = "no_shell";
                }
                let first = shell.restarts == 0;
                shell.restarts += 1;
                // The environment may be too large or the directory gone: try once more without them.
                shell.env = None;
                shell.cwd = cx.config.workspace.clone();
                self.clear_process(id, cx);
                if !first {
                    self.refuse_current(id, &failure, execs, cx);
                }
                self.advance(id, execs, cx);
            }
            Report::Swept => {
                if let Some(number) = shell.current {
                    let ordered = execs.count_sweep(number);
                    if shell.phase == Phase::Settling {
                        self.take_late_answer(id, execs, cx);
                    } else if ordered {
                        execs.expect_answer(number, cx);
                    }
                }
            }
            // The supervisor ends with its shell.
            Report::Free => {}
            Report::Exited { status, .. } => self.died(id, Some(status), execs, cx),
        }
    }

    /// Write the files of the current command and hand it over.
    pub(super) fn prepare(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let outcome = self.write_files(id, execs, cx);
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        let failure = match outcome {
            Ok(()) => {
                shell.phase = Phase::Delivering;
                shell.retries = 0;
                return self.deliver(id, execs, cx);
            }
            Err(failure) => failure,
        };
        let tampered = matches!(
            failure.code,
            "not_found" | "exists" | "permission" | "not_directory" | "invalid"
        );
        if tampered && shell.restarts == 0 {
            // Where uids are equal, or the user is root, user code can change the directory of its
            // shell: a new shell has a new one.
            shell.restarts += 1;
            cx.supervisors.order(shell.supervisor, Order::End);
            self.clear_process(id, cx);
        } else {
            shell.phase = Phase::Idle;
            if let Some(directory) = shell.directory.as_mut() {
                // Half-written files would be in the way of the next command.
                directory.clean(&cx.config.identity, None);
            }
            self.refuse_current(id, &failure, execs, cx);
        }
        self.advance(id, execs, cx);
    }

    fn write_files(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) -> Result<(), Failure> {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return Ok(());
        };
        let number = shell.current.unwrap_or(0);
        let (Some(directory), Some(exec)) = (&mut shell.directory, execs.get_mut(number)) else {
            return Err(Failure::new("internal", "the command is gone"));
        };
        exec.set_supervisor(shell.supervisor);
        let (identity, poll) = (&cx.config.identity, &mut cx.poll);
        let bash = files::is_bash(&shell.program);
        directory
            .write_command(identity, poll, number, exec, shell.last_code, bash)
            .map_err(|errno| Failure::from_errno(errno, "cannot hand the command to the shell"))
    }

    /// Hand the command over as soon as the shell reads.
    pub fn deliver(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let shell = match self.by_id.get_mut(&id) {
            Some(shell) if shell.phase == Phase::Delivering => shell,
            _ => return,
        };
        let Some(directory) = shell.directory.as_mut() else {
            return;
        };
        if let Some(exec) = execs.get_mut(shell.current.unwrap_or(0)) {
            exec.about_to_begin();
        }
        match directory.deliver(&cx.config.identity) {
            Ok(()) => {
                shell.phase = Phase::Running;
                shell.lost_state |= shell.restarts > 0;
                let reset = std::mem::replace(&mut shell.lost_state, false);
                shell.watch_timer = Some(cx.timers.after_ms(WATCH_MS, Due::Watch(id)));
                shell.memory.start(id, cx);
                execs.begin_in_shell(shell.current.unwrap_or(0), shell.pid, reset, cx);
            }
            Err(libc::ENXIO) if shell.retries < MAX_RETRIES => {
                shell.retries += 1;
                if shell.retries < FAST_RETRIES {
                    cx.timers.after_ns(RETRY_NS, Due::Deliver(id));
                } else {
                    cx.timers.after_ms(SLOW_RETRY_MS, Due::Deliver(id));
                }
            }
            Err(_) => self.kill(id, execs, cx),
        }
    }

    /// Read what the shell has written of its answer.
    pub fn read_answer(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let mut block = cx.take_block(READ_BLOCK);
        let mut parsed = None;
        if let Some(shell) = self.by_id.get_mut(&id) {
            let fd = shell.answer.as_ref().map(Watched::raw);
            match fd.map_or(Err(libc::EBADF), |fd| sys::read(fd, &mut block)) {
                Ok(0) | Err(libc::EAGAIN) => {}
                Err(_) => parsed = Some(Parsed::Invalid),
                Ok(count) => {
                    shell.received.extend_from_slice(&block[..count]);
                    let too_long = shell.received.len() > protocol::MAX_SHELL_ANSWER;
                    parsed = Some(if too_long || shell.phase != Phase::Running {
                        Parsed::Invalid
                    } else {
                        answer::parse(&shell.received)
                    });
                }
            }
            if parsed.is_none() && shell.phase == Phase::Absent {
                // The shell and all writers are gone: stop polling.
                if let Some(answer) = shell.answer.take() {
                    drop(cx.poll.unwatch(answer));
                }
            }
        }
        cx.return_block(block);
        match parsed {
            None => {}
            Some(Parsed::Partial) => self.expect_rest(id, cx),
            Some(Parsed::Invalid) => self.kill(id, execs, cx),
            Some(Parsed::Complete(answer)) => self.command_done(id, answer, execs, cx),
        }
    }

    fn expect_rest(&mut self, id: u64, cx: &mut Context) {
        if let Some(shell) = self.by_id.get_mut(&id) {
            if shell.answer_timer.is_none() {
                shell.answer_timer = Some(cx.timers.after_ms(ANSWER_MS, Due::Answer(id)));
            }
        }
    }

    /// An answer has begun and not ended in time.
    pub fn answer_overdue(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        if let Some(shell) = self.by_id.get_mut(&id) {
            shell.answer_timer = None;
            if !shell.received.is_empty() {
                self.kill(id, execs, cx);
            }
        }
    }

    /// The shell cannot be trusted to go on: kill it and every process that it started. The report of its
    /// death does the rest.
    fn kill(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        self.take_late_answer(id, execs, cx);
        let shell = match self.by_id.get_mut(&id) {
            Some(shell) if !matches!(shell.phase, Phase::Absent | Phase::Ending) => shell,
            _ => return,
        };
        // Its status from here on is our doing, not the command's.
        let delivered = shell.phase == Phase::Running;
        shell.phase = Phase::Ending;
        shell.lost_state = !(delivered && shell.current.is_some());
        cx.supervisors.order(shell.supervisor, Order::End);
        if delivered {
            let peak_rss_bytes = shell.memory.peak_bytes;
            let status = None;
            let end = ShellEnd::Died {
                status,
                peak_rss_bytes,
            };
            self.end_command(id, end, execs, cx);
        }
    }

    /// The shell is dead. `status` is `None` when even its supervisor is gone.
    pub fn died(&mut self, id: u64, status: Option<i32>, execs: &mut Execs, cx: &mut Context) {
        self.take_late_answer(id, execs, cx);
        // It may have written a last answer before its end.
        self.read_answer(id, execs, cx);
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        let delivered = shell.phase == Phase::Running;
        shell.lost_state = !(delivered && shell.current.is_some());
        shell.last_code = 0;
        let supervisor = shell.supervisor;
        if delivered {
            let peak_rss_bytes = shell.memory.peak_bytes;
            let end = ShellEnd::Died {
                status,
                peak_rss_bytes,
            };
            self.end_command(id, end, execs, cx);
        }
        if let Some(shell) = self.by_id.get_mut(&id) {
            shell.restarts += u32::from(shell.current.is_some());
        }
        // No process that it started outlives it.
        cx.supervisors.order(supervisor, Order::End);
        self.clear_process(id, cx);
        let (hopeless, closing) = match self.by_id.get(&id) {
            Some(shell) => (shell.restarts > 2, shell.closing),
            None => return,
        };
        if hopeless {
            let failure = Failure::new("internal", "the shell dies before it takes a command");
            self.refuse_current(id, &failure, execs, cx);
        }
        if closing {
            self.remove(id, execs, cx);
        } else {
            self.advance(id, execs, cx);
        }
    }

    /// Back to no process: the supervisor is left to reap, the directory is removed.
    fn clear_process(&mut self, id: u64, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        shell.phase = Phase::Absent;
        if let Some(timer) = shell.answer_timer.take() {
            cx.timers.cancel(timer);
        }
        if let Some(answer) = shell.answer.take() {
            drop(cx.poll.unwatch(answer));
        }
        if let Some(directory) = shell.directory.take() {
            directory.remove(&cx.config.identity);
        }
        if let Some(pid) = shell.supervisor.take() {
            cx.supervisors.disown(pid);
        }
    }

    /// Kill a shell that reads its FIFO while its command runs: it has skipped the answer.
    ///
    /// Only bash can be made to do that (`enable -n`), and only bash has closed the FIFO by the time the
    /// command runs.
    pub fn check_running(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let shell = match self.by_id.get_mut(&id) {
            Some(shell) if shell.phase == Phase::Running => shell,
            _ => return,
        };
        // A waiting shell sleeps. One that runs may have read its command, and not yet closed the FIFO.
        let asleep = processes::stat(shell.pid).is_some_and(|process| process.state == b'S');
        let bash = files::is_bash(&shell.program);
        if let Some(directory) = shell.directory.as_mut().filter(|_| bash && asleep) {
            if let Ok(fifo) = directory.open_command_fifo(&cx.config.identity) {
                let answer = shell.answer.as_ref().map(Watched::raw);
                let answered = answer.map_or(0, sys::readable_bytes) > 0;
                if !shell.received.is_empty() || answered {
                    // It has just answered, and we have not read that yet.
                    directory.hold(fifo);
                } else if sys::readable_bytes(fifo.as_raw_fd()) == 0 {
                    return self.kill(id, execs, cx);
                }
                // Otherwise it is slow, and has still to read the command.
            }
        }
        shell.watch_timer = Some(cx.timers.after_ms(WATCH_MS, Due::Watch(id)));
    }
}
