//! A command as a fresh process: its pipes or terminal, its supervisor, and what that reports.

use super::{pty, Exec, Execs, Start, State, What, STDERR, STDOUT};
use crate::context::{Config, Context};
use crate::poll::{Poll, Source};
use crate::supervisor::program::{self, Env, Program, Wiring};
use crate::supervisor::{Owner, Report};
use crate::sys::{self, Errno};
use crate::wire::handler::Failure;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The command's ends of its standard descriptors; ours are polled already.
struct Ends {
    stdio: [OwnedFd; 3],
    terminal: bool,
}

impl Execs {
    /// Start the command below a supervisor: the idle one, or a new one.
    pub fn start_process(&mut self, number: u64, cx: &mut Context) -> Result<(), Failure> {
        let exec = self.get_mut(number).ok_or_else(gone)?;
        let argv = match &exec.start.what {
            What::Argv { words, .. } => words.clone(),
            What::Shell { .. } => return Err(gone()),
        };
        let env = environment(&exec.start, &cx.config);
        let cwd = working_directory(&exec.start, &cx.config);
        let failed = |errno| Failure::from_errno(errno, "cannot prepare the command");
        let program = Program::new(&argv, &env, &cwd).map_err(failed)?;
        let ends = open_ends(exec, number, &mut cx.poll).map_err(failed);
        let supervisor = ends.and_then(|ends| {
            let wiring = Wiring {
                stdio: [
                    ends.stdio[0].as_raw_fd(),
                    ends.stdio[1].as_raw_fd(),
                    ends.stdio[2].as_raw_fd(),
                ],
                answer: None,
                terminal: ends.terminal,
                own_session: true,
            };
            exec.about_to_begin();
            match cx.hand_over(number, &program, &wiring) {
                Some(pid) => Ok(pid),
                None => cx.start_supervisor(&program, &wiring, Owner::Exec(number)),
            }
        });
        match supervisor {
            Ok(pid) => {
                exec.supervisor = Some(pid);
                Ok(())
            }
            Err(failure) => {
                exec.close_ends(&mut cx.poll);
                Err(failure)
            }
        }
    }

    /// Start a command again whose supervisor died before it began.
    pub fn restart_process(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            exec.close_ends(&mut cx.poll);
        }
        if let Err(failure) = self.start_process(number, cx) {
            self.refuse(number, &failure, cx);
        }
    }

    /// Handle a report of the command's supervisor.
    pub fn report(&mut self, number: u64, report: Report, cx: &mut Context) {
        let Some(exec) = self.by_number.get_mut(&number) else {
            return;
        };
        match report {
            Report::Started { pid } => {
                exec.begin(pid);
                exec.start.base_env = None;
                self.changed.insert(number);
                self.arm_deadline(number, cx);
                self.write_input(number, false, cx);
            }
            Report::Failed { stage, errno } => {
                let program = match &exec.start.what {
                    What::Argv { words, .. } => words.first().cloned().unwrap_or_default(),
                    What::Shell { .. } => Vec::new(),
                };
                let cwd = working_directory(&exec.start, &cx.config);
                let failure = program::not_started(stage, errno, &program, &cwd);
                self.refuse(number, &failure, cx);
            }
            Report::Exited { status, usage, .. } => {
                exec.status = Some(status);
                exec.usage = usage;
                exec.usage.cpu_ms = usage.cpu_ms.saturating_sub(exec.cpu_before_ms);
                // After a deadline the command is over only when no process of it is left.
                if !exec.timed_out {
                    self.wind_up(number, cx);
                }
            }
            // Before the command has started, its supervisor sweeps for an earlier one.
            Report::Swept if exec.state == State::Queued => {}
            Report::Swept => {
                exec.sweeps_done += 1;
                self.changed.insert(number);
            }
            Report::Recorded | Report::Free => {}
        }
    }

    /// The command has no supervisor any more: no process is left below it, or it was killed.
    pub fn supervisor_gone(&mut self, number: u64, cx: &mut Context) {
        let Some(exec) = self.by_number.get_mut(&number) else {
            return;
        };
        exec.supervisor = None;
        self.changed.insert(number);
        match (exec.state, exec.status) {
            (State::Running, Some(_)) => {
                self.drain_outputs(number, cx);
                self.conclude(number, cx);
            }
            (State::Queued, _) | (State::Running, None) => {
                if exec.state == State::Queued {
                    // Killed before it reported: the command may have started, and even be the killer.
                    exec.begin(0);
                }
                self.drain_outputs(number, cx);
                if let Some(exec) = self.get_mut(number) {
                    exec.state = State::Lost;
                }
                self.finish(number, cx);
            }
            _ => {}
        }
    }

    pub fn is_queued(&self, number: u64) -> bool {
        self.get(number)
            .is_some_and(|exec| exec.state == State::Queued)
    }
}

fn gone() -> Failure {
    Failure::new("internal", "the command is gone")
}

pub(super) fn environment(start: &Start, config: &Config) -> Env {
    let mut env: Env = start.base_env.as_ref().unwrap_or(&config.env).clone();
    for (name, value) in &start.env {
        program::env_set(&mut env, name, value.clone());
    }
    env
}

pub(super) fn working_directory(start: &Start, config: &Config) -> Vec<u8> {
    match &start.cwd {
        None => config.workspace.clone(),
        Some(cwd) if cwd.starts_with(b"/") => cwd.clone(),
        Some(cwd) => [&config.workspace[..], b"/", cwd].concat(),
    }
}

fn open_ends(exec: &mut Exec, number: u64, poll: &mut Poll) -> Result<Ends, Errno> {
    if let Some(size) = exec.start.pty {
        let pair = pty::open(size)?;
        exec.watch_terminal(number, pair.master, poll)?;
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
        exec.watch_output(number, source, ours, poll)?;
        Ok(theirs)
    };
    Ok(Ends {
        stdio: [stdin, output(STDOUT)?, output(STDERR)?],
        terminal: false,
    })
}
