//! Attributes of processes: signals, capabilities, limits.

use super::{check, plain, Result};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

pub fn kill(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: plain system call on integers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// The three capability sets of a process, one bit for each capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
}

/// Return the capability sets of this process.
pub fn capabilities() -> Result<Capabilities> {
    let sets = plain(thread::capabilities(None))?;
    Ok(Capabilities {
        effective: sets.effective.bits(),
        permitted: sets.permitted.bits(),
        inheritable: sets.inheritable.bits(),
    })
}

/// Set the capability sets of this process. Allocates nothing: a forked child calls it.
pub fn set_capabilities(sets: Capabilities) -> Result<()> {
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(sets.effective),
        permitted: CapabilitySet::from_bits_retain(sets.permitted),
        inheritable: CapabilitySet::from_bits_retain(sets.inheritable),
    };
    plain(thread::set_capabilities(None, sets))
}

/// Make every permitted capability effective again, as it was before a change of ids.
pub fn raise_permitted() -> Result<()> {
    let sets = capabilities()?;
    set_capabilities(Capabilities {
        effective: sets.permitted,
        ..sets
    })
}

pub fn no_new_privileges() -> Result<()> {
    plain(thread::set_no_new_privs(true))
}

/// Set the soft and the hard limit to `value`, or to the present hard limit where that is lower:
/// raising it needs a capability that the caller may not have.
pub fn lower_limit(resource: libc::__rlimit_resource_t, value: u64) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid out pointer, then a valid value.
    unsafe {
        check(libc::getrlimit(resource, &mut limit))?;
        limit.rlim_max = value.min(limit.rlim_max);
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(resource, &limit)).map(drop)
    }
}

/// Return the start time of a process in clock ticks since boot. With the pid it names one process only.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid)).ok()?;
    // The command name may contain spaces and parentheses; fields are counted after the last one.
    let rest = &stat[stat.rfind(')')? + 2..];
    rest.split(' ').nth(19)?.parse().ok()
}
