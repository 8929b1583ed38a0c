//! A directory of the host that a sandbox may share: what is mounted is what was checked.
//!
//! A sandbox that writes to a directory can put a symlink in the place of any part of a path below it.
//! So the path is walked here, at the time of the mount, by a call that follows no link and does not
//! leave the directory, and the mount is made of the descriptor that this gives.

use crate::failure::{failed, Failure, Outcome};
use crate::mounts::{make_target, Ids};
use crate::plan::{HostMount, Owner};
use crate::{sys, tree, userns};
use rustix::fs::{ResolveFlags, CWD};
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd};

const STEP: &str = "host mount";
const EXACT: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// Show `below` of the source at `target`: read-only, or for writing if the plan names its owner.
/// `user` is the id inside that owns the files of the owner.
pub fn show(mount: &HostMount, below: &str, target: &str, ids: Ids<'_>, user: u32) -> Outcome<()> {
    let found = open(&mount.source, below)?;
    let (directory, owner) = look_at(&found)?;
    make_target(target, directory)?;
    let copy = tree::copy_of(&found, &mount.source)?;
    match (mount.owner, ids) {
        (None, _) => tree::restrict(&copy, tree::CLOSED, None)?,
        (Some(expected), ids) => {
            check_owner(mount, directory, owner, expected, ids.is_some())?;
            // An ordinary user has one id, inside and outside.
            let shift = ids.map(|(map, _)| userns::of_one_owner(map, owner, user));
            let shift = shift.transpose()?;
            tree::restrict(&copy, tree::PLAIN, shift.as_ref().map(AsFd::as_fd))
                .map_err(|t| Failure { step: STEP, ..t })?;
        }
    }
    tree::put(copy, target)
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
    let start = sys::open_at2(CWD, source.as_bytes(), flags, EXACT)
        .map_err(failed(STEP, format!("open {}", source)))?;
    if below.is_empty() {
        return Ok(start);
    }
    let inside = EXACT | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    sys::open_at2(start.as_raw_fd(), below.as_bytes(), flags, inside)
        .map_err(failed(STEP, format!("open {} below {}", below, source)))
}

/// Return whether it is a directory, and its owner. Anything but a directory and a file is refused.
fn look_at(found: &OwnedFd) -> Outcome<(bool, Owner)> {
    let stat = sys::stat_fd(found.as_raw_fd()).map_err(failed(STEP, "look at a host mount"))?;
    let owner = Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
    };
    match sys::kind(&stat) {
        libc::S_IFDIR => Ok((true, owner)),
        libc::S_IFREG => Ok((false, owner)),
        _ => {
            let message = "a host mount is neither a directory nor a file";
            Err(Failure::new(STEP, message, libc::EINVAL))
        }
    }
}
