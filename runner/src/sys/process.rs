//! Attributes of processes: signals, capabilities, limits.

use super::{check, Result};

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

/// Version 3 of the interface: one header, and two data records of 32 bits each.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Return the capability sets of this process.
pub fn capabilities() -> Result<Capabilities> {
    let mut header = [CAPABILITY_VERSION, 0];
    let mut data = [0u32; 6];
    // SAFETY: the header and both data records are as large as the interface wants.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    check(result as libc::c_int)?;
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(Capabilities {
        effective: join(data[0], data[3]),
        permitted: join(data[1], data[4]),
        inheritable: join(data[2], data[5]),
    })
}

/// Set the capability sets of this process. Allocates nothing: a forked child calls it.
pub fn set_capabilities(sets: Capabilities) -> Result<()> {
    let mut header = [CAPABILITY_VERSION, 0];
    let data = [
        sets.effective as u32,
        sets.permitted as u32,
        sets.inheritable as u32,
        (sets.effective >> 32) as u32,
        (sets.permitted >> 32) as u32,
        (sets.inheritable >> 32) as u32,
    ];
    // SAFETY: as in `capabilities`.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_ptr()) };
    check(result as libc::c_int).map(drop)
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
    // SAFETY: prctl with integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
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

/// Allow as many descriptors as the hard limit does.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid out pointer, then a valid value.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Return the start time of a process in clock ticks since boot. With the pid it names one process only.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid)).ok()?;
    // The command name may contain spaces and parentheses; fields are counted after the last one.
    let rest = &stat[stat.rfind(')')? + 2..];
    rest.split(' ').nth(19)?.parse().ok()
}
