//! The pids of living supervisors, in memory that the sweeper of orphans shares with the runner.
//!
//! When a supervisor is killed, a helper process kills what it left: every child of the runner that is
//! not a supervisor. New supervisors are forked meanwhile, and must not be taken for orphans. So the
//! helper only trusts a look at /proc during which none was being forked and the registry did not
//! change.

use crate::sys;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

const SLOTS: usize = 1000;

#[repr(C)]
struct Shared {
    /// Odd while a supervisor is being forked; every change increments it.
    version: AtomicU32,
    /// There are more supervisors than slots, so orphans cannot be recognised any more.
    overflow: AtomicU32,
    pids: [AtomicI32; SLOTS],
    /// The last command that this supervisor, once idle, began to start.
    started: [AtomicU64; SLOTS],
}

#[derive(Clone, Copy)]
pub struct Registry(&'static Shared);

impl Registry {
    pub fn new() -> Result<Registry, sys::Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let size = std::mem::size_of::<Shared>();
        // SAFETY: a fresh anonymous mapping, zeroed, never unmapped; all-zero atomics are valid.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0);
            if memory == libc::MAP_FAILED {
                return Err(sys::errno());
            }
            Ok(Registry(&*memory.cast::<Shared>()))
        }
    }

    /// Run `fork`, which returns the pid of the new supervisor (0 in the supervisor itself).
    pub fn fork(&self, fork: impl FnOnce() -> i32) -> i32 {
        self.0.version.fetch_add(1, Ordering::SeqCst);
        let pid = fork();
        if pid == 0 {
            return 0;
        }
        if pid > 0 {
            match self.slot(0) {
                Some(slot) => {
                    self.0.started[slot].store(0, Ordering::SeqCst);
                    self.0.pids[slot].store(pid, Ordering::SeqCst);
                }
                None => self.0.overflow.store(1, Ordering::SeqCst),
            }
        }
        self.0.version.fetch_add(1, Ordering::SeqCst);
        pid
    }

    pub fn remove(&self, pid: i32) {
        if let Some(slot) = self.slot(pid) {
            self.0.pids[slot].store(0, Ordering::SeqCst);
            self.0.version.fetch_add(2, Ordering::SeqCst);
        }
    }

    pub fn contains(&self, pid: i32) -> bool {
        self.slot(pid).is_some()
    }

    /// Called by a supervisor before it forks: from here on that command must not be started again.
    pub fn mark_started(&self, pid: i32, command: u64) {
        if let Some(slot) = self.slot(pid) {
            self.0.started[slot].store(command, Ordering::SeqCst);
        }
    }

    pub fn has_started(&self, pid: i32, command: u64) -> bool {
        let started = |slot: usize| self.0.started[slot].load(Ordering::SeqCst) == command;
        self.slot(pid).is_none_or(started)
    }

    fn slot(&self, pid: i32) -> Option<usize> {
        let mut slots = self.0.pids.iter();
        slots.position(|slot| slot.load(Ordering::SeqCst) == pid)
    }

    /// Return what `look` sees, given all living supervisors; `None` when that cannot be trusted.
    pub fn consistent<T>(&self, look: impl FnOnce(Vec<i32>) -> T) -> Option<T> {
        let before = self.0.version.load(Ordering::SeqCst);
        let pids = self.0.pids.iter().map(|slot| slot.load(Ordering::SeqCst));
        let result = look(pids.filter(|&pid| pid > 0).collect());
        let after = self.0.version.load(Ordering::SeqCst);
        (before == after && before % 2 == 0).then_some(result)
    }

    pub fn overflowed(&self) -> bool {
        self.0.overflow.load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_during_a_change_is_not_trusted() {
        let registry = Registry::new().unwrap();
        assert_eq!(registry.consistent(|pids| pids), Some(vec![]));
        registry.fork(|| {
            assert_eq!(registry.consistent(|pids| pids), None);
            7
        });
        assert_eq!(registry.consistent(|pids| pids), Some(vec![7]));
        let spoiled = registry.consistent(|pids| {
            registry.remove(7);
            pids
        });
        assert_eq!(spoiled, None);
        assert_eq!(registry.consistent(|pids| pids), Some(vec![]));
        assert!(!registry.overflowed());
    }

    #[test]
    fn command_has_started_once_its_supervisor_says_so() {
        let registry = Registry::new().unwrap();
        registry.fork(|| 7);
        assert!(!registry.has_started(7, 3));
        registry.mark_started(7, 3);
        assert!(registry.has_started(7, 3));
        assert!(!registry.has_started(7, 4));
        registry.remove(7);
        assert!(registry.has_started(7, 4), "unknown: never start it twice");
        registry.fork(|| 8);
        assert!(!registry.has_started(8, 3), "a reused slot starts empty");
    }

    #[test]
    fn overflow_is_reported() {
        let registry = Registry::new().unwrap();
        for pid in 1..=SLOTS as i32 {
            registry.fork(|| pid);
        }
        assert!(!registry.overflowed());
        registry.fork(|| 5000);
        assert!(registry.overflowed());
    }
}
