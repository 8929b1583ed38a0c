//! The supervisors as the runner sees them: their pids, their sockets, and which command each one carries.
//!
//! At most one idle supervisor is kept for the next command, because forking a process is the most
//! expensive part of starting one (see the module documentation of `supervisor` for the numbers). A
//! supervisor with no process left below it reports that and waits. It is kept while it is the only idle
//! one, for some seconds; closing its socket lets it go. If it fails before it has begun
//! to start a command, a new supervisor is forked for that command, so the client never notices.

use super::handover;
use super::messages::{self, Order, Report};
use super::process;
use super::program::{Program, Wiring};
use super::registry::Registry;
use crate::identity::Identity;
use crate::poll::{self, Poll, Source, Watched};
use crate::sys::{self, Errno};
use crate::timers::{Due, TimerId, Timers};
use crate::wire::handler::Failure;
use std::collections::HashMap;

/// A client that waits longer than this between two commands does not notice a fork.
const KEPT_MS: u64 = 10_000;

/// The command or shell that a supervisor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Exec(u64),
    Shell(u64),
    /// The command or shell is over; the supervisor only reaps.
    None,
}

struct Supervisor {
    control: Option<Watched>,
    owner: Owner,
    /// It was idle when it got its command, rather than forked for it.
    reused: bool,
}

/// The result of reading from a supervisor's socket.
pub enum Received {
    Nothing,
    Report(Owner, Report),
    /// The supervisor is dead or has let go.
    Closed,
}

pub struct Supervisors {
    by_pid: HashMap<i32, Supervisor>,
    idle: Option<i32>,
    /// When the idle supervisor is let go.
    idle_timer: Option<TimerId>,
    registry: Registry,
}

impl Supervisors {
    pub fn new() -> Result<Supervisors, Errno> {
        Ok(Supervisors {
            by_pid: HashMap::new(),
            idle: None,
            idle_timer: None,
            registry: Registry::new()?,
        })
    }

    /// Fork a supervisor that starts `program`. Return its pid.
    pub fn start(
        &mut self,
        program: &Program,
        wiring: &Wiring,
        owner: Owner,
        identity: &Identity,
        poll: &mut Poll,
    ) -> Result<i32, Failure> {
        let (pid, control) = process::start(program, wiring, identity, &self.registry)?;
        let control = poll
            .watch(control, Source::Supervisor(pid), poll::READ)
            .map_err(|errno| Failure::from_errno(errno, "cannot watch a supervisor"))?;
        let supervisor = Supervisor {
            control: Some(control),
            owner,
            reused: false,
        };
        self.by_pid.insert(pid, supervisor);
        Ok(pid)
    }

    /// Give the command to the idle supervisor, if there is one that takes it. Return its pid.
    pub fn hand_over(
        &mut self,
        number: u64,
        program: &Program,
        wiring: &Wiring,
        poll: &mut Poll,
        timers: &mut Timers,
    ) -> Option<i32> {
        let pid = self.idle?;
        let packet = handover::pack(number, wiring.terminal, program)?;
        let supervisor = self.by_pid.get_mut(&pid)?;
        let control = supervisor.control.as_ref()?;
        if handover::send(control.raw(), &packet, wiring.stdio).is_err() {
            self.release_idle(poll, timers);
            return None;
        }
        supervisor.owner = Owner::Exec(number);
        supervisor.reused = true;
        self.idle = None;
        self.cancel_idle_timer(timers);
        Some(pid)
    }

    pub fn order(&self, pid: Option<i32>, order: Order) {
        let supervisor = pid.and_then(|pid| self.by_pid.get(&pid));
        if let Some(control) = supervisor.and_then(|supervisor| supervisor.control.as_ref()) {
            // A dead supervisor is noticed elsewhere; a full queue means that it is sweeping already.
            let _unsent = messages::send_order(control.raw(), order);
        }
    }

    /// Read one report; any further one makes the socket ready again.
    pub fn receive(&self, pid: i32) -> Received {
        let supervisor = self.by_pid.get(&pid);
        let (control, owner) = match supervisor.map(|s| (s.control.as_ref(), s.owner)) {
            Some((Some(control), owner)) => (control, owner),
            _ => return Received::Nothing,
        };
        match messages::receive_report(control.raw()) {
            Ok(Some(report)) => Received::Report(owner, report),
            Err(libc::EAGAIN) => Received::Nothing,
            Ok(None) | Err(_) => Received::Closed,
        }
    }

    /// Keep a supervisor with no process below it as the idle one, or let it go if there is one already.
    pub fn keep_or_release(&mut self, pid: i32, poll: &mut Poll, timers: &mut Timers) {
        let full = self.idle.is_some() || !self.registry.contains(pid);
        if let Some(supervisor) = self.by_pid.get_mut(&pid) {
            supervisor.owner = Owner::None;
            if full {
                if let Some(control) = supervisor.control.take() {
                    drop(poll.unwatch(control));
                }
                return;
            }
            self.idle = Some(pid);
            self.idle_timer = Some(timers.after_ms(KEPT_MS, Due::IdleSupervisor));
        }
    }

    pub fn release_idle(&mut self, poll: &mut Poll, timers: &mut Timers) {
        self.cancel_idle_timer(timers);
        let idle = self.idle.take();
        if let Some(supervisor) = idle.and_then(|pid| self.by_pid.get_mut(&pid)) {
            if let Some(control) = supervisor.control.take() {
                drop(poll.unwatch(control));
            }
        }
    }

    fn cancel_idle_timer(&mut self, timers: &mut Timers) {
        if let Some(timer) = self.idle_timer.take() {
            timers.cancel(timer);
        }
    }

    /// Forget the owner: the supervisor stays to reap what is left.
    pub fn disown(&mut self, pid: i32) {
        if let Some(supervisor) = self.by_pid.get_mut(&pid) {
            supervisor.owner = Owner::None;
        }
    }

    /// The socket of the supervisor is closed. Return the owner it had.
    pub fn close(&mut self, pid: i32, poll: &mut Poll, timers: &mut Timers) -> Owner {
        if self.idle == Some(pid) {
            self.release_idle(poll, timers);
        }
        match self.by_pid.get_mut(&pid) {
            Some(supervisor) => {
                if let Some(control) = supervisor.control.take() {
                    drop(poll.unwatch(control));
                }
                std::mem::replace(&mut supervisor.owner, Owner::None)
            }
            None => Owner::None,
        }
    }

    /// Report whether the command was handed to this supervisor, now dead, and certainly not started.
    pub fn never_started(&self, pid: i32, number: u64) -> bool {
        let reused = self.by_pid.get(&pid).is_some_and(|s| s.reused);
        reused && !self.registry.has_started(pid, number)
    }

    /// Kill a supervisor that was stopped; other children of the runner are not touched.
    ///
    /// A stopped supervisor enforces no deadline, and nothing has reason to stop one. Only where user code
    /// may signal it can that happen at all. Its death is handled like any other.
    pub fn kill_stopped(&self, pid: i32) {
        if self.contains(pid) || self.registry.contains(pid) {
            let _already_dead = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// Forget a dead child. After a violent death, kill the processes that it left behind.
    pub fn remove(&mut self, pid: i32, status: i32, identity: &Identity) {
        self.registry.remove(pid);
        if self.by_pid.remove(&pid).is_some() && status != 0 {
            process::sweep_orphans(&self.registry, identity);
        }
    }

    pub fn contains(&self, pid: i32) -> bool {
        self.by_pid.contains_key(&pid)
    }

    pub fn owners(&self) -> impl Iterator<Item = (i32, Owner)> + '_ {
        self.by_pid.iter().map(|(&pid, s)| (pid, s.owner))
    }
}
