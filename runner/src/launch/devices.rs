//! Device nodes of one sandbox.
//!
//! A bound node shares its inode with the host's `/dev`: every sandbox could see that another process
//! opens `/dev/null`, and locks on it would be common to all. A user namespace cannot make nodes, so they
//! are made before it is entered, and bubblewrap or the runtime finds them where the host's would be.

use crate::failure::{failed, Outcome};
use crate::mounts::{mkdir, mount};
use crate::tree;
use rustix::fs::{chmod, makedev, mknodat, FileType, Mode, CWD};
use rustix::mount::MountFlags;

const STEP: &str = "mount";
const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Cover the usual nodes of `/dev` with new ones. On failure, some of them may still be the host's.
pub fn cover(stage: &str) -> Outcome<()> {
    let at = format!("{}/dev", stage);
    mkdir(&at, 0o755)?;
    // Not noexec: a program may map /dev/zero for code, as it may with the host's.
    let (flags, options) = (MountFlags::NOSUID, "size=64k,mode=755");
    mount("devices", "devices", &at, "tmpfs", flags, options)?;
    for (name, major, minor) in NODES {
        let path = format!("{}/{}", at, name);
        let (kind, device) = (FileType::CharacterDevice, makedev(major, minor));
        mknodat(CWD, &path, kind, Mode::empty(), device)
            .map_err(failed(STEP, format!("make {}", path)))?;
        // Not with mknod, which the umask limits.
        chmod(&path, Mode::from_bits_retain(0o666))
            .map_err(failed(STEP, format!("chmod {}", path)))?;
        let target = format!("/dev/{}", name);
        tree::bind(&path, &target, tree::READ_ONLY, None)?;
    }
    Ok(())
}
