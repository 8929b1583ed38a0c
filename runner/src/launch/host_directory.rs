//! A directory of the host that a sandbox may share: what is mounted is what was checked.
//!
//! A sandbox that writes to a directory can put a symlink in the place of any part of a path below it.
//! So the path is walked here, at the time of the mount, by a call that follows no link and does not
//! leave the directory, and the mount is made of the descriptor that this gives.

use crate::failure::{check, failed, Failure, Outcome};
use crate::mounts::make_target;
use crate::plan::{HostMount, IdMap, Owner};
use crate::{sys, tree, userns};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const STEP: &str = "host mount";
const EXACT: u64 = sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;

/// Show `below` of the source at `target`: read-only, or for writing if the plan names its owner.
/// `user` is the id inside that owns the files of the owner.
pub fn show(
    mount: &HostMount,
    below: &str,
    target: &str,
    ids: Option<(IdMap, RawFd)>,
    user: u32,
) -> Outcome<()> {
    let found = open(&mount.source, below)?;
    let (directory, owner) = look_at(&found)?;
    make_target(target, directory)?;
    let closed = tree::NOSUID | tree::NODEV;
    let copy = tree::copy_of(found.as_raw_fd(), &mount.source)?;
    let restricted = match mount.owner {
        None => tree::restrict(copy, closed | tree::READ_ONLY, None),
        Some(expected) => check_owner(mount, directory, owner, expected, ids.is_some())
            .and_then(|()| restrict_writable(copy, closed, owner, ids, user)),
    };
    if let Err(failure) = restricted {
        sys::close(copy);
        return Err(failure);
    }
    tree::put(copy, target)
}

fn restrict_writable(
    copy: RawFd,
    closed: u64,
    owner: Owner,
    ids: Option<(IdMap, RawFd)>,
    user: u32,
) -> Outcome<()> {
    let shift = match ids {
        // An ordinary user has one id, inside and outside.
        None => return tree::restrict(copy, closed, None),
        Some((map, _)) => userns::of_one_owner(map, owner, user)?,
    };
    let done = tree::restrict(copy, closed, Some(shift)).map_err(|t| Failure { step: STEP, ..t });
    sys::close(shift);
    done
}

fn check_owner(
    mount: &HostMount,
    directory: bool,
    found: Owner,
    expected: Owner,
    shifted: bool,
) -> Outcome<()> {
    // Files of host root that a sandbox writes would be trusted by the host. In the namespace of an
    // ordinary user, who has no other ids, only the user's own group is visible.
    let ordinary = found.uid != 0 && (!shifted || found.gid != 0);
    let same = found.uid == expected.uid && (!shifted || found.gid == expected.gid);
    if directory && same && ordinary {
        return Ok(());
    }
    let message = format!("{} is not the directory that was checked", mount.source);
    Err(Failure::new(STEP, message, libc::ESTALE))
}

fn open(source: &str, below: &str) -> Outcome<OwnedFd> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let start = sys::open_at2(libc::AT_FDCWD, source.as_bytes(), flags, EXACT)
        .map_err(failed(STEP, format!("open {}", source)))?;
    if below.is_empty() {
        return Ok(start);
    }
    let inside = EXACT | sys::RESOLVE_BENEATH | sys::RESOLVE_NO_XDEV;
    sys::open_at2(start.as_raw_fd(), below.as_bytes(), flags, inside)
        .map_err(failed(STEP, format!("open {} below {}", below, source)))
}

/// Return whether it is a directory, and its owner. Anything but a directory and a file is refused.
fn look_at(found: &OwnedFd) -> Outcome<(bool, Owner)> {
    // SAFETY: all zeroes is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    check(STEP, "look at a host mount", unsafe {
        libc::fstat(found.as_raw_fd(), &mut stat)
    })?;
    let owner = Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
    };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Ok((true, owner)),
        libc::S_IFREG => Ok((false, owner)),
        _ => {
            let message = "a host mount is neither a directory nor a file";
            Err(Failure::new(STEP, message, libc::EINVAL))
        }
    }
}
