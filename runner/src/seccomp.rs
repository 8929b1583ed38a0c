//! System-call filters: the instructions that they are made of, and taking one.

use crate::sys::{check, Result};

#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: u32 = 0xc000_00b7;

pub const ALLOW: u32 = 0x7fff_0000;
pub const KILL: u32 = 0x8000_0000;
pub const REFUSE: u32 = error(libc::EPERM);
pub const UNKNOWN: u32 = error(libc::ENOSYS);

const LOAD: u16 = 0x20;
pub const EQUAL: u16 = 0x15;
pub const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// Offsets in the kernel's description of a call.
pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;
pub const ARGUMENTS: u32 = 16;

/// The answer that lets a call fail with this error.
pub const fn error(errno: i32) -> u32 {
    0x0005_0000 | errno as u32
}

/// Take a filter. May be called between fork and exec: it allocates nothing.
pub fn apply(program: &[libc::sock_filter]) -> Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr() as *mut libc::sock_filter,
    };
    // SAFETY: `filter` describes a program that lives until the call returns; the kernel only copies it.
    check(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &filter as *const libc::sock_fprog,
        )
    })
    .map(|_| ())
}

/// Decide one call by an argument; what `body` does not answer gets `otherwise`.
pub fn with_argument(
    number: libc::c_long,
    argument: u32,
    body: &[libc::sock_filter],
    otherwise: u32,
) -> Vec<libc::sock_filter> {
    let mut made = vec![
        jump_over(EQUAL, number as u32, body.len() as u8 + 2),
        load(ARGUMENTS + 8 * argument),
    ];
    made.extend_from_slice(body);
    made.push(answer(otherwise));
    made
}

pub fn load(place: u32) -> libc::sock_filter {
    instruction(LOAD, 0, 0, place)
}

/// Skip `count` instructions if the test holds.
pub fn jump(test: u16, value: u32, count: u8) -> libc::sock_filter {
    instruction(test, count, 0, value)
}

/// Skip `count` instructions unless the test holds.
pub fn jump_over(test: u16, value: u32, count: u8) -> libc::sock_filter {
    instruction(test, 0, count, value)
}

pub fn answer(action: u32) -> libc::sock_filter {
    instruction(RETURN, 0, 0, action)
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
