//! What the process gives up before it reads the first byte, so that a mistake in the rest of it
//! could not reach far either: as root it sees only the target and can do little more than own files.

use super::failure::{Failure, Outcome};
use super::sys;
use std::io;
use std::os::unix::io::OwnedFd;

const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const FOWNER: u64 = 1 << 3;
const SYS_ADMIN: u64 = 1 << 21;
const OWNING: u64 = CHOWN | DAC_OVERRIDE | FOWNER;

/// Makes `target` the current directory, and for root the only one there is.
pub fn confine(target: &OwnedFd, root: bool) -> Outcome<()> {
    let failed = |what: &'static str| move |error: io::Error| Failure::kernel(what, &error);
    // Safety: changes a number of this process alone. Modes are the archive's.
    unsafe { libc::umask(0) };
    sys::raise_descriptors();
    sys::change_directory(target).map_err(failed("enter the target"))?;
    if root {
        sys::chroot_here().map_err(failed("make the target the root"))?;
        sys::set_capabilities(OWNING, OWNING | SYS_ADMIN).map_err(failed("drop capabilities"))?;
    } else {
        sys::set_capabilities(0, 0).map_err(failed("drop capabilities"))?;
    }
    sys::no_new_privileges().map_err(failed("give up new privileges"))
}

/// Only `trusted.*` attributes need more, so only they have it, and only while they are set.
pub fn as_admin(act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    sys::set_capabilities(OWNING | SYS_ADMIN, OWNING | SYS_ADMIN)?;
    let done = act();
    sys::set_capabilities(OWNING, OWNING | SYS_ADMIN)?;
    done
}
