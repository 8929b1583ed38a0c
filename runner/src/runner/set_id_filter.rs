//! A system-call filter that keeps set-user-id and set-group-id bits off every file.
//!
//! For sandboxes that write to a directory of the host: `nosuid` makes the bits useless inside, but the
//! host sees the file through its own mount, where they would count. The runner takes the filter
//! too, so everything it starts has it. The flags of `openat2` are in memory, which a filter cannot read,
//! so that call answers as on a kernel without it; callers use `openat` then.

use super::sys;
use libc::c_long;

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// O_CREAT, and the bit of O_TMPFILE that no other flag has; both are the same on x86_64 and aarch64.
const CREATES: u32 = 0o100 | 0o20_000_000;
const X32: u32 = 0x4000_0000;
const SYS_FCHMODAT2: c_long = 452;
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7FFF_0000;
const ERRNO: u32 = 0x0005_0000;

/// A call that can set a mode: the index of the mode, and of the flags that decide whether it is
/// used.
struct Setter {
    call: c_long,
    mode: u32,
    flags: Option<u32>,
}

const fn setter(call: c_long, mode: u32, flags: Option<u32>) -> Setter {
    Setter { call, mode, flags }
}

const SETTERS: &[Setter] = &[
    setter(libc::SYS_fchmod, 1, None),
    setter(libc::SYS_fchmodat, 2, None),
    setter(SYS_FCHMODAT2, 2, None),
    setter(libc::SYS_mknodat, 2, None),
    setter(libc::SYS_openat, 3, Some(2)),
    #[cfg(target_arch = "x86_64")]
    setter(libc::SYS_chmod, 1, None),
    #[cfg(target_arch = "x86_64")]
    setter(libc::SYS_mknod, 1, None),
    #[cfg(target_arch = "x86_64")]
    setter(libc::SYS_creat, 1, None),
    #[cfg(target_arch = "x86_64")]
    setter(libc::SYS_open, 2, Some(1)),
];

/// Take the filter; it cannot be removed again.
pub fn install() -> sys::Result<()> {
    let mut filter = program();
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    sys::no_new_privileges()?;
    // SAFETY: the program and its instructions are valid for the length of the call.
    sys::check(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER as libc::c_ulong,
            &program as *const libc::sock_fprog,
        )
    })
    .map(drop)
}

fn program() -> Vec<libc::sock_filter> {
    let refuse = ERRNO | libc::EPERM as u32;
    let mut made = vec![
        step(LOAD, ARCH, 0, 0),
        step(IF_EQUAL, ARCHITECTURE, 1, 0),
        step(RETURN, refuse, 0, 0),
        step(LOAD, NUMBER, 0, 0),
        step(IF_ANY_BIT, X32, 0, 1),
        step(RETURN, refuse, 0, 0),
        step(IF_EQUAL, libc::SYS_openat2 as u32, 0, 1),
        step(RETURN, ERRNO | libc::ENOSYS as u32, 0, 0),
    ];
    for one in SETTERS {
        let mut checks = Vec::new();
        if let Some(flags) = one.flags {
            checks.push(step(LOAD, argument(flags), 0, 0));
            checks.push(step(IF_ANY_BIT, CREATES, 0, 3));
        }
        checks.push(step(LOAD, argument(one.mode), 0, 0));
        checks.push(step(IF_ANY_BIT, SET_ID, 0, 1));
        checks.push(step(RETURN, refuse, 0, 0));
        checks.push(step(RETURN, ALLOW, 0, 0));
        made.push(step(IF_EQUAL, one.call as u32, 0, checks.len() as u8));
        made.append(&mut checks);
    }
    made.push(step(RETURN, ALLOW, 0, 0));
    made
}

/// The low half of an argument: modes and flags are 32 bits, and both architectures are little-endian.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const fn step(code: u16, value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: then,
        jf: otherwise,
        k: value,
    }
}
