//! Where a sandbox may write: an image of its own, a workspace that outlives it, or memory.
//!
//! A volume of the sandbox alone holds host ids and is useless afterwards. A volume that outlives it
//! holds the ids seen inside, shifted by the mount, so that the next sandbox with another range can use
//! it.

use crate::failure::{c_string, check, io_failed, Outcome};
use crate::mounts::{mkdir, mount, QUIET};
use crate::plan::{IdMap, Volume};
use crate::{loopdev, tree};
use std::os::unix::io::RawFd;

const STEP: &str = "mount";
const BYTES_PER_FILE: u64 = 16 * 1024;
const MIN_FILES: u64 = 16 * 1024;

/// Mount the volume at `target` and make `directories` in it, owned by `owner` (an id inside).
pub fn place(
    volume: &Volume,
    target: &str,
    ids: Option<(IdMap, RawFd)>,
    directories: &[&str],
    owner: u32,
) -> Outcome<()> {
    mkdir(target, 0o755)?;
    match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
        } => {
            mount_image(path, target, *reserved)?;
            // The mount holds the file from here on; without a name it goes with the sandbox.
            std::fs::remove_file(path).map_err(io_failed(STEP, &format!("unlink {}", path)))?;
        }
        Volume::Image {
            path,
            keep: true,
            reserved,
        } => {
            let device = loopdev::attach_shared(path)?;
            let mounted = mount(
                "workspace",
                Some(&device.path),
                target,
                Some("ext4"),
                QUIET | libc::MS_NOATIME,
                Some(discard(*reserved)),
            );
            device.close();
            mounted?;
            make_directories(target, directories, owner, ids.is_some())?;
            return shift(target, ids);
        }
        Volume::Directory { path } => {
            tree::bind(path, target, tree::NOSUID | tree::NODEV, None)?;
            make_directories(target, directories, owner, ids.is_some())?;
            return shift(target, ids);
        }
        Volume::Tmpfs { bytes } => mount_memory(target, *bytes, 0o755)?,
    }
    let owner = ids.map_or(owner, |(map, _)| map.base + owner);
    make_directories(target, directories, owner, ids.is_some())
}

/// Mount the volume where the host sees it. An image keeps its name, by which its device is found when
/// it is unmounted, and owners are always set. With `ids`, `owner` is an id inside.
pub fn show(
    volume: &Volume,
    target: &str,
    ids: Option<(IdMap, RawFd)>,
    directories: &[&str],
    owner: u32,
) -> Outcome<()> {
    match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
        } => {
            mkdir(target, 0o755)?;
            mount_image(path, target, *reserved)?;
        }
        kept => place(kept, target, None, &[], owner)?,
    }
    make_directories(target, directories, owner, true)?;
    shift(target, ids)
}

/// Mount an image that no one uses after its sandbox.
fn mount_image(path: &str, target: &str, reserved: bool) -> Outcome<()> {
    let device = loopdev::attach(path)?;
    let mounted = mount(
        "workspace",
        Some(&device.path),
        target,
        Some("ext4"),
        QUIET | libc::MS_NOATIME,
        // No barriers: a flush would wait for the host's journal, for data that is worthless after a
        // crash.
        Some(&format!("{},barrier=0", discard(reserved))),
    );
    device.close();
    mounted
}

/// Blocks of deleted files go back to the host, unless they are to stay reserved.
fn discard(reserved: bool) -> &'static str {
    if reserved {
        "nodiscard"
    } else {
        "discard"
    }
}

/// Mount memory of this size. Empty files take none of it but memory of the kernel, so they are counted
/// too: one for as many bytes as in an image, and enough for a small program's temporary files.
pub fn mount_memory(target: &str, bytes: u64, mode: u32) -> Outcome<()> {
    let files = (bytes / BYTES_PER_FILE).max(MIN_FILES);
    let options = format!("size={},mode={:o},nr_inodes={}", bytes, mode, files);
    let flags = QUIET | libc::MS_NOATIME;
    mount(
        "memory",
        Some("memory"),
        target,
        Some("tmpfs"),
        flags,
        Some(&options),
    )
}

/// Cover the mount with itself, with its ids shifted.
fn shift(target: &str, ids: Option<(IdMap, RawFd)>) -> Outcome<()> {
    let userns = match ids {
        None => return Ok(()),
        Some((_, userns)) => userns,
    };
    tree::bind(target, target, tree::NOSUID | tree::NODEV, Some(userns))
}

fn make_directories(at: &str, names: &[&str], owner: u32, chown: bool) -> Outcome<()> {
    for name in names {
        let path = format!("{}/{}", at, name);
        mkdir(&path, 0o755)?;
        if chown {
            let cpath = c_string(STEP, &path)?;
            check(STEP, "chown the workspace", unsafe {
                libc::lchown(cpath.as_ptr(), owner, owner)
            })?;
        }
    }
    Ok(())
}
