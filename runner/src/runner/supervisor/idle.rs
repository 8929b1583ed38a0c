//! One idle supervisor, kept for the next command: forking a process is the dearest part of starting one,
//! above all under gVisor.
//!
//! A supervisor below which nobody is left says so, and waits. It is kept while it is the only one, for a
//! while; letting it go is closing its socket. Whatever goes wrong with it before it has begun to start a
//! command, a fresh one is forked for that command, so nobody learns of it.

use crate::exec::State;
use crate::server::{Owner, Server};
use crate::supervisor::handover;
use crate::supervisor::program::{Program, Wiring};
use crate::timers::Due;

/// Whoever waits longer than this between two commands does not notice a fork.
const KEPT_MS: u64 = 10_000;

impl Server {
    /// Gives the command to the idle supervisor, when there is one that takes it. Its pid.
    pub fn hand_over(&mut self, number: u64, program: &Program, wiring: &Wiring) -> Option<i32> {
        let pid = self.spare?;
        let packet = handover::pack(number, wiring.terminal, program)?;
        let supervisor = self.supervisors.get_mut(&pid)?;
        let control = supervisor.control.as_ref()?;
        if handover::send(control.raw(), &packet, wiring.stdio).is_err() {
            self.let_spare_go();
            return None;
        }
        supervisor.owner = Owner::Exec(number);
        supervisor.handed = true;
        self.spare = None;
        self.forget_spare_timer();
        Some(pid)
    }

    /// Nobody is left below the supervisor of this command.
    pub fn supervisor_free(&mut self, pid: i32, number: u64) {
        self.carried(number);
        let full = self.spare.is_some() || !self.registry.knows(pid);
        if let Some(supervisor) = self.supervisors.get_mut(&pid) {
            supervisor.owner = Owner::Nobody;
            if full {
                if let Some(control) = supervisor.control.take() {
                    drop(self.poll.unwatch(control));
                }
                return;
            }
            self.spare = Some(pid);
            self.spare_timer = Some(self.timers.after_ms(KEPT_MS, Due::Spare));
        }
    }

    pub fn let_spare_go(&mut self) {
        self.forget_spare_timer();
        let spare = self.spare.take();
        if let Some(supervisor) = spare.and_then(|pid| self.supervisors.get_mut(&pid)) {
            if let Some(control) = supervisor.control.take() {
                drop(self.poll.unwatch(control));
            }
        }
    }

    fn forget_spare_timer(&mut self) {
        if let Some(timer) = self.spare_timer.take() {
            self.timers.cancel(timer);
        }
    }

    /// Whether the command was given to this supervisor, now dead, and certainly not begun.
    pub fn was_never_begun(&self, pid: i32, number: u64) -> bool {
        let handed = self.supervisors.get(&pid).map_or(false, |s| s.handed);
        let queued = |state| state == State::Queued;
        let waits = self.execs.get(&number).map_or(false, |e| queued(e.state));
        handed && waits && !self.registry.has_begun(pid, number)
    }
}
