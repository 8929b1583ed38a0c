//! Privileges that the process gives up before it reads the first byte, so that a mistake in the parser
//! does little harm: as root it sees only the target and may do little more than change owners.

use super::failure::{Failure, Outcome};
use crate::sys::{self, Capabilities, Errno};
use rustix::fs::Mode;
use rustix::process::{chroot, fchdir, umask};
use std::os::unix::io::OwnedFd;

const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const FOWNER: u64 = 1 << 3;
const SYS_ADMIN: u64 = 1 << 21;
const OWNING: u64 = CHOWN | DAC_OVERRIDE | FOWNER;

/// Make `target` the current directory and, for root, the root directory.
pub fn confine(target: &OwnedFd, root: bool) -> Outcome<()> {
    let failed = |what: &'static str| move |errno: Errno| Failure::kernel(what, errno);
    // Modes come from the archive.
    umask(Mode::empty());
    // A path needs one descriptor for each level: as many as the hard limit allows.
    let _ = sys::lower_limit(libc::RLIMIT_NOFILE, u64::MAX);
    sys::plain(fchdir(target)).map_err(failed("enter the target"))?;
    if root {
        sys::plain(chroot(".")).map_err(failed("make the target the root"))?;
        keep(OWNING, OWNING | SYS_ADMIN).map_err(failed("drop capabilities"))?;
    } else {
        keep(0, 0).map_err(failed("drop capabilities"))?;
    }
    sys::no_new_privileges().map_err(failed("give up new privileges"))
}

/// Reduce the capabilities to these, as far as they are permitted now.
fn keep(effective: u64, permitted: u64) -> sys::Result<()> {
    let present = sys::capabilities()?.permitted;
    sys::set_capabilities(Capabilities {
        effective: effective & present,
        permitted: permitted & present,
        inheritable: 0,
    })
}

/// Run `act` with the capability that only `trusted.*` attributes need.
pub fn as_admin(act: impl FnOnce() -> sys::Result<()>) -> sys::Result<()> {
    keep(OWNING | SYS_ADMIN, OWNING | SYS_ADMIN)?;
    let result = act();
    keep(OWNING, OWNING | SYS_ADMIN)?;
    result
}
