//! Reports and deaths of supervisors: each goes to the command or the shell that the supervisor carries.

use super::Server;
use crate::supervisor::{Owner, Received};
use crate::sys;
use rustix::process::{wait, WaitOptions};
use std::os::unix::io::AsRawFd;

/// The result of reading from a supervisor.
enum Outcome {
    Nothing,
    Report,
    /// It is dead. The command must be started again if it had one that certainly did not begin.
    Dead {
        restart: Option<u64>,
    },
}

impl Server {
    /// Reap dead children, and kill supervisors that were stopped.
    pub(super) fn handle_signals(&mut self) {
        let mut sink = [0u8; 4096];
        while sys::read(self.signals.as_raw_fd(), &mut sink) == Ok(sink.len()) {}
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if status.stopped() {
                self.cx.supervisors.kill_stopped(pid.as_raw_pid());
            } else {
                self.child_died(pid.as_raw_pid(), status.as_raw());
            }
        }
    }

    /// Handle one report; any further one makes the socket ready again.
    pub(super) fn read_supervisor(&mut self, pid: i32) {
        if let Outcome::Dead {
            restart: Some(number),
        } = self.next_report(pid)
        {
            self.execs.restart_process(number, &mut self.cx);
        }
    }

    fn next_report(&mut self, pid: i32) -> Outcome {
        let (execs, shells, cx) = (&mut self.execs, &mut self.shells, &mut self.cx);
        match cx.supervisors.receive(pid) {
            Received::Nothing => return Outcome::Nothing,
            Received::Closed => {
                return Outcome::Dead {
                    restart: self.supervisor_closed(pid),
                }
            }
            Received::Report(Owner::Exec(number), report) => {
                execs.report(number, report, cx);
                if report.is_last() {
                    execs.supervisor_gone(number, cx);
                    let (poll, timers) = (&mut cx.poll, &mut cx.timers);
                    cx.supervisors.keep_or_release(pid, poll, timers);
                }
            }
            Received::Report(Owner::Shell(shell), report) => {
                shells.report(shell, report, execs, cx)
            }
            Received::Report(Owner::None, _) => {}
        }
        Outcome::Report
    }

    /// The socket of a supervisor is closed: it was let go, or killed. Return the command that must be started
    /// again, if it had one that certainly did not begin.
    fn supervisor_closed(&mut self, pid: i32) -> Option<u64> {
        let (execs, shells, cx) = (&mut self.execs, &mut self.shells, &mut self.cx);
        let owner = cx.supervisors.close(pid, &mut cx.poll, &mut cx.timers);
        match owner {
            Owner::None => {}
            Owner::Shell(shell) => shells.died(shell, None, execs, cx),
            Owner::Exec(number)
                if execs.is_queued(number) && cx.supervisors.never_started(pid, number) =>
            {
                return Some(number)
            }
            Owner::Exec(number) => execs.supervisor_gone(number, cx),
        }
        None
    }

    /// A child of the runner is dead: a supervisor, or an orphan that was reparented to us.
    fn child_died(&mut self, pid: i32, status: i32) {
        let mut restart = None;
        if self.cx.supervisors.contains(pid) {
            restart = loop {
                match self.next_report(pid) {
                    Outcome::Report => {}
                    Outcome::Dead { restart } => break restart,
                    Outcome::Nothing => break self.supervisor_closed(pid),
                }
            };
        }
        let cx = &mut self.cx;
        cx.supervisors.remove(pid, status, &cx.config.identity);
        // Only now: the new supervisor may get the pid of the dead one.
        if let Some(number) = restart {
            self.execs.restart_process(number, &mut self.cx);
        }
    }
}
