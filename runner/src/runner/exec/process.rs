//! A command as a fresh process: its pipes or terminal, its supervisor, and what that reports.

use crate::exec::pty;
use crate::exec::{Exec, State, What, PTY, STDERR, STDOUT};
use crate::poll::{self, Source, Watched};
use crate::server::{Owner, Server, Supervisor};
use crate::supervisor::program::{self, Env, Program, Wiring};
use crate::supervisor::{self, Order, Report};
use crate::sys::{self, Errno};
use crate::wire::handler::Failure;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The child's ends; ours are watched already.
struct Ends {
    stdio: [OwnedFd; 3],
    terminal: bool,
}

/// What a supervisor had to say.
enum Heard {
    Report,
    Nothing,
    /// It is dead; the command that must be started anew, if it held one and had not begun.
    Gone(Option<u64>),
}

impl Server {
    pub fn start_argv(&mut self, number: u64) -> Result<(), Failure> {
        let exec = self.execs.get(&number).ok_or_else(gone)?;
        let argv = match &exec.start.what {
            What::Argv(argv) => argv.clone(),
            What::Shell { .. } => return Err(gone()),
        };
        let mut env: Env = self.config.env.clone();
        for (name, value) in &exec.start.env {
            program::env_set(&mut env, name, value.clone());
        }
        let cwd = self.working_directory(exec);
        let failed = |errno| Failure::from_errno(errno, "cannot prepare the command");
        let program = Program::new(&argv, &env, &cwd).map_err(failed)?;
        let outcome = self.wire(number).map_err(failed).and_then(|ends| {
            let wiring = Wiring {
                stdio: [
                    ends.stdio[0].as_raw_fd(),
                    ends.stdio[1].as_raw_fd(),
                    ends.stdio[2].as_raw_fd(),
                ],
                ninth: None,
                terminal: ends.terminal,
                own_session: true,
            };
            match self.hand_over(number, &program, &wiring) {
                Some(pid) => Ok(pid),
                None => self.supervise(&program, &wiring, Owner::Exec(number)),
            }
        });
        match outcome {
            Ok(pid) => {
                if let Some(exec) = self.execs.get_mut(&number) {
                    exec.supervisor = Some(pid);
                }
                Ok(())
            }
            Err(failure) => {
                self.close_ends(number);
                Err(failure)
            }
        }
    }

    fn working_directory(&self, exec: &Exec) -> Vec<u8> {
        match &exec.start.cwd {
            None => self.config.workspace.clone(),
            Some(cwd) if cwd.starts_with(b"/") => cwd.clone(),
            Some(cwd) => [&self.config.workspace[..], b"/", cwd].concat(),
        }
    }

    pub fn supervise(
        &mut self,
        program: &Program,
        wiring: &Wiring,
        owner: Owner,
    ) -> Result<i32, Failure> {
        let (pid, control) =
            supervisor::start(program, wiring, &self.config.identity, &self.registry)?;
        let control = self
            .poll
            .watch(control, Source::Supervisor(pid), poll::READ)
            .map_err(|errno| Failure::from_errno(errno, "cannot watch a supervisor"))?;
        let supervisor = Supervisor {
            control: Some(control),
            owner,
            handed: false,
        };
        self.supervisors.insert(pid, supervisor);
        Ok(pid)
    }

    fn wire(&mut self, number: u64) -> Result<Ends, Errno> {
        let exec = self.execs.get_mut(&number).ok_or(libc::ESRCH)?;
        let poll = &mut self.poll;
        if let Some(size) = exec.start.pty {
            let pair = pty::open(size)?;
            let input = sys::duplicate(pair.master.as_raw_fd())?;
            attach_terminal(poll, exec, number, pair.master, input)?;
            let copy = |fd: &OwnedFd| sys::duplicate(fd.as_raw_fd());
            return Ok(Ends {
                stdio: [copy(&pair.slave)?, copy(&pair.slave)?, pair.slave],
                terminal: true,
            });
        }
        let stdin = if exec.start.stdin_stream {
            let (theirs, ours) = sys::pipe()?;
            sys::set_nonblocking(ours.as_raw_fd())?;
            exec.input.pipe = Some(poll.watch(ours, Source::Input(number), 0)?);
            theirs
        } else {
            sys::open(b"/dev/null", libc::O_RDONLY, 0)?
        };
        let mut output = |source: u8| -> Result<OwnedFd, Errno> {
            let (ours, theirs) = sys::pipe_to_poll()?;
            let watched = poll.watch(ours, Source::Output(number, source), poll::READ)?;
            exec.outputs[usize::from(source)] = Some(watched);
            Ok(theirs)
        };
        Ok(Ends {
            stdio: [stdin, output(STDOUT)?, output(STDERR)?],
            terminal: false,
        })
    }

    fn close_ends(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            let outputs = exec.outputs.iter_mut().filter_map(Option::take);
            let all: Vec<Watched> = outputs.chain(exec.input.pipe.take()).collect();
            for watched in all {
                drop(self.poll.unwatch(watched));
            }
        }
    }

    pub fn order(&self, supervisor: Option<i32>, order: Order) {
        let known = supervisor.and_then(|pid| self.supervisors.get(&pid));
        if let Some(control) = known.and_then(|known| known.control.as_ref()) {
            // A dead supervisor is noticed elsewhere; a full queue means it is sweeping already.
            let _unheard = supervisor::give(control.raw(), order);
        }
    }

    /// One report: whatever else there is will be noticed on the next turn.
    pub fn hear_supervisor(&mut self, pid: i32) {
        if let Heard::Gone(Some(number)) = self.hear_report(pid) {
            self.start_anew(number);
        }
    }

    fn hear_report(&mut self, pid: i32) -> Heard {
        let supervisor = self.supervisors.get(&pid);
        let (control, owner) = match supervisor.map(|s| (s.control.as_ref(), s.owner)) {
            Some((Some(control), owner)) => (control, owner),
            _ => return Heard::Nothing,
        };
        let report = match supervisor::hear(control.raw()) {
            Ok(Some(report)) => report,
            Err(libc::EAGAIN) => return Heard::Nothing,
            Ok(None) | Err(_) => return Heard::Gone(self.supervisor_gone(pid)),
        };
        match owner {
            Owner::Exec(number) => {
                self.argv_report(number, report);
                if report.is_last() {
                    self.supervisor_free(pid, number);
                }
            }
            Owner::Shell(shell) => self.shell_report(shell, report),
            Owner::Nobody => {}
        }
        Heard::Report
    }

    fn argv_report(&mut self, number: u64, report: Report) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        match report {
            Report::Started { pid } => {
                exec.begin(pid);
                self.changed.insert(number);
                self.arm_deadline(number);
                self.write_input(number, false);
            }
            Report::Failed { stage, errno } => {
                let program = match &exec.start.what {
                    What::Argv(argv) => argv.first().cloned().unwrap_or_default(),
                    What::Shell { .. } => Vec::new(),
                };
                let cwd = self.working_directory(&self.execs[&number]);
                let failure = program::not_started(stage, errno, &program, &cwd);
                self.fail_exec(number, &failure);
            }
            Report::Exited { status, usage, .. } => {
                exec.status = Some(status);
                exec.usage = usage;
                // After a deadline the command is over only when nothing of it is left.
                if !exec.timed_out {
                    self.wind_up(number);
                }
            }
            // Before it has begun, what its supervisor sweeps is an earlier command's.
            Report::Swept if exec.state == State::Queued => {}
            Report::Swept => {
                exec.swept += 1;
                self.changed.insert(number);
            }
            Report::Begun | Report::Free => {}
        }
    }

    /// The supervisor's socket is closed: it was let go, or killed. The command that must be started
    /// anew, when it held one and had not begun.
    fn supervisor_gone(&mut self, pid: i32) -> Option<u64> {
        if self.spare == Some(pid) {
            self.let_spare_go();
        }
        let supervisor = self.supervisors.get_mut(&pid)?;
        let owner = std::mem::replace(&mut supervisor.owner, Owner::Nobody);
        if let Some(control) = supervisor.control.take() {
            drop(self.poll.unwatch(control));
        }
        match owner {
            Owner::Nobody => {}
            Owner::Shell(shell) => self.shell_lost(shell),
            Owner::Exec(number) if self.was_never_begun(pid, number) => return Some(number),
            Owner::Exec(number) => self.carried(number),
        }
        None
    }

    fn start_anew(&mut self, number: u64) {
        self.close_ends(number);
        if let Err(failure) = self.start_argv(number) {
            self.fail_exec(number, &failure);
        }
    }

    /// The command has no supervisor any more: nothing is left below it, or it was killed.
    pub fn carried(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        exec.supervisor = None;
        self.changed.insert(number);
        match (exec.state, exec.status) {
            (State::Running, Some(_)) => {
                self.drain_outputs(number);
                self.conclude(number);
            }
            (State::Queued, _) | (State::Running, None) => {
                if exec.state == State::Queued {
                    // Killed before it said so: the command may have begun, and even be its killer.
                    exec.begin(0);
                }
                self.drain_outputs(number);
                if let Some(exec) = self.execs.get_mut(&number) {
                    exec.state = State::Lost;
                }
                self.finish(number);
            }
            _ => {}
        }
    }

    /// A child of the runner was stopped. Nobody has reason to do that to a supervisor, and one that
    /// stands still ends nothing at its deadline; its death is noticed as any other. Only where user code
    /// may signal us can it happen at all. An orphan's pauses are its own business.
    pub fn supervisor_stopped(&mut self, pid: i32) {
        if self.supervisors.contains_key(&pid) || self.registry.knows(pid) {
            let _gone = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// A child of the runner is dead: a supervisor, or somebody's orphan.
    pub fn supervisor_reaped(&mut self, pid: i32, status: i32) {
        if !self.supervisors.contains_key(&pid) {
            self.registry.strike(pid);
            return;
        }
        let unbegun = loop {
            match self.hear_report(pid) {
                Heard::Report => {}
                Heard::Gone(unbegun) => break unbegun,
                Heard::Nothing => break self.supervisor_gone(pid),
            }
        };
        self.registry.strike(pid);
        self.supervisors.remove(&pid);
        if status != 0 {
            supervisor::sweep_orphans(&self.registry, &self.config.identity);
        }
        // Only now: the new supervisor may get the dead one's pid.
        if let Some(number) = unbegun {
            self.start_anew(number);
        }
    }
}

fn gone() -> Failure {
    Failure::new("internal", "the command is gone")
}

/// Output and input of a terminal are one device, watched through two descriptors.
pub fn attach_terminal(
    poll: &mut poll::Poll,
    exec: &mut Exec,
    number: u64,
    master: OwnedFd,
    input: OwnedFd,
) -> Result<(), Errno> {
    let output = poll.watch(master, Source::Output(number, PTY), poll::READ)?;
    exec.outputs[usize::from(PTY)] = Some(output);
    exec.input.pipe = Some(poll.watch(input, Source::Input(number), 0)?);
    exec.input.terminal = true;
    Ok(())
}
