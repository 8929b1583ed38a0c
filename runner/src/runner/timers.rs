//! Timers on two clocks: the boot clock, and the work clock, which stands still while the host has us
//! frozen.

use crate::sys;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A command's deadline, and the end of its grace period. Work clock.
    Deadline(u64),
    Grace(u64),
    /// The time is over in which the shell of a swept command should have answered. Work clock.
    Swept(u64),
    /// The command has ended; its terminal may have had more output. Boot clock, as all without a
    /// remark.
    Settle(u64),
    /// Poll a terminal again that was open in no process.
    Terminal(u64),
    /// Check whether the shell has opened the standard input of its command.
    Reader(u64),
    /// `exec.wait` on this connection and stream.
    Wait(u64, u32),
    /// Try again to hand the shell its command.
    Deliver(u64),
    /// Check whether a running shell has skipped its answer. Work clock: it may have been about to take
    /// its command.
    Watch(u64),
    /// The answer of a shell has begun and must end. Work clock.
    Answer(u64),
    /// Measure the memory of a shell's command.
    Memory(u64),
    Lease,
    Relisten,
    /// The idle supervisor has waited long enough for a command.
    IdleSupervisor,
}

pub type TimerId = (u64, u64);

pub struct Timers {
    boot: BTreeMap<TimerId, Due>,
    work: BTreeMap<TimerId, Due>,
    serial: u64,
    frozen_since: Option<u64>,
    /// Nanoseconds spent frozen so far; the work clock lags the boot clock by this.
    lag: u64,
}

fn is_work(due: Due) -> bool {
    matches!(
        due,
        Due::Deadline(_)
            | Due::Grace(_)
            | Due::Swept(_)
            | Due::Watch(_)
            | Due::Answer(_)
            | Due::Lease
    )
}

impl Timers {
    pub fn new() -> Timers {
        Timers {
            boot: BTreeMap::new(),
            work: BTreeMap::new(),
            serial: 0,
            frozen_since: None,
            lag: 0,
        }
    }

    pub fn work_now(&self) -> u64 {
        self.frozen_since.unwrap_or_else(sys::boot_ns) - self.lag
    }

    pub fn after_ns(&mut self, ns: u64, due: Due) -> TimerId {
        self.serial += 1;
        if is_work(due) {
            let id = (self.work_now().saturating_add(ns), self.serial);
            self.work.insert(id, due);
            id
        } else {
            let id = (sys::boot_ns().saturating_add(ns), self.serial);
            self.boot.insert(id, due);
            id
        }
    }

    pub fn after_ms(&mut self, ms: u64, due: Due) -> TimerId {
        self.after_ns(ms.saturating_mul(1_000_000), due)
    }

    pub fn cancel(&mut self, id: TimerId) {
        self.boot.remove(&id);
        self.work.remove(&id);
    }

    pub fn freeze(&mut self, frozen: bool) {
        match (frozen, self.frozen_since) {
            (true, None) => self.frozen_since = Some(sys::boot_ns()),
            (false, Some(since)) => {
                self.lag += sys::boot_ns().saturating_sub(since);
                self.frozen_since = None;
            }
            _ => {}
        }
    }

    /// Return the nanoseconds until a timer is due; `None` when there is none.
    pub fn next_in(&self) -> Option<u64> {
        let boot = self
            .boot
            .keys()
            .next()
            .map(|id| id.0.saturating_sub(sys::boot_ns()));
        let work = match self.frozen_since {
            Some(_) => None,
            None => self
                .work
                .keys()
                .next()
                .map(|id| id.0.saturating_sub(self.work_now())),
        };
        match (boot, work) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub fn pop_due(&mut self) -> Option<Due> {
        if let Some(due) = pop_before(&mut self.boot, sys::boot_ns()) {
            return Some(due);
        }
        let now = self.work_now();
        match self.frozen_since {
            Some(_) => None,
            None => pop_before(&mut self.work, now),
        }
    }
}

fn pop_before(map: &mut BTreeMap<TimerId, Due>, now: u64) -> Option<Due> {
    let id = *map.keys().next()?;
    if id.0 > now {
        return None;
    }
    map.remove(&id)
}
