//! A system-call filter that keeps set-user-id and set-group-id bits off every file.
//!
//! For sandboxes that write to a directory of the host: `nosuid` makes the bits useless inside, but the
//! host sees the file through its own mount, where they would count. The runner takes the filter
//! too, so everything it starts has it. The flags of `openat2` are in memory, which a filter cannot read,
//! so that call answers as on a kernel without it; callers use `openat` then.

use super::sys;
use libc::c_long;
use sandkasten_runner::seccomp::{
    answer, apply, jump, jump_over, load, ALLOW, ANY_BIT, ARCH, ARCHITECTURE, ARGUMENTS, EQUAL,
    NUMBER, REFUSE, UNKNOWN,
};

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// O_CREAT, and the bit of O_TMPFILE that no other flag has; both are the same on x86_64 and aarch64.
const CREATES: u32 = 0o100 | 0o20_000_000;
const X32: u32 = 0x4000_0000;
const SYS_FCHMODAT2: c_long = 452;

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
    sys::no_new_privileges()?;
    apply(&program())
}

fn program() -> Vec<libc::sock_filter> {
    let mut made = vec![
        load(ARCH),
        jump(EQUAL, ARCHITECTURE, 1),
        answer(REFUSE),
        load(NUMBER),
        jump_over(ANY_BIT, X32, 1),
        answer(REFUSE),
        jump_over(EQUAL, libc::SYS_openat2 as u32, 1),
        answer(UNKNOWN),
    ];
    // The low half of an argument: modes and flags are 32 bits, and both architectures are little-endian.
    let argument = |index: u32| load(ARGUMENTS + 8 * index);
    for setter in SETTERS {
        let mut checks = Vec::new();
        if let Some(flags) = setter.flags {
            checks.extend([argument(flags), jump_over(ANY_BIT, CREATES, 3)]);
        }
        checks.extend([argument(setter.mode), jump_over(ANY_BIT, SET_ID, 1)]);
        checks.extend([answer(REFUSE), answer(ALLOW)]);
        made.push(jump_over(EQUAL, setter.call as u32, checks.len() as u8));
        made.append(&mut checks);
    }
    made.push(answer(ALLOW));
    made
}
