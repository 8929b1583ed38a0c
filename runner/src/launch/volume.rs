//! Where a sandbox may write: its own image, a workspace that outlives it, or memory.
//!
//! A volume that only the sandbox uses holds host ids and is useless afterwards. A volume that outlives it
//! holds the ids seen inside, shifted by the mount, so that the next sandbox with another range can use
//! it.

use crate::failure::{failed, Failure, Outcome};
use crate::mounts::{mkdir, mount, mount_memory, Ids, QUIET};
use crate::plan::{IdMap, Volume};
use crate::root::give;
use crate::{loopdev, sys, tree, userns};
use rustix::fs::{utimensat, AtFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::mount::{MountAttrFlags, MountFlags};
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd};
use std::thread::JoinHandle;

const STEP: &str = "mount";
/// Within seconds of the first mount the kernel would clear the unused inode tables, and a loop device
/// does that by giving their blocks back to the host, reserved or not. If its disk is full by then, a
/// table that is written later is lost.
const KEEP_TABLES: &str = "noinit_itable";
/// More than the calls of `begin` need.
const THREAD_STACK: usize = 128 << 10;

/// A workspace that another thread mounts. Attaching and mounting its image takes about as long as the
/// other preparations, and depends on none of them.
pub struct Mounting {
    thread: JoinHandle<Outcome<OwnedFd>>,
    /// Where the ids on the image begin, if it is a copy.
    first_id: Option<u32>,
    map: IdMap,
}

/// Begin to mount an image that ends with its sandbox, with `directories` owned by `owner` (an id
/// inside) if it is new. Return `None` for other volumes. From now on this process has two threads.
pub fn begin(
    volume: &Volume,
    directories: &'static [&'static str],
    map: IdMap,
    owner: u32,
) -> Option<Mounting> {
    let (path, reserved, first_id) = match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
            first_id,
        } => (path.clone(), *reserved, *first_id),
        _ => return None,
    };
    let work = move || {
        let mount = mount_image(&path, reserved)?;
        if first_id.is_none() {
            fill(&mount, directories, map.base + owner)?;
        }
        Ok(mount)
    };
    let builder = std::thread::Builder::new().stack_size(THREAD_STACK);
    let thread = builder.spawn(work).ok()?;
    Some(Mounting {
        thread,
        first_id,
        map,
    })
}

impl Mounting {
    /// Attach the mount at `target`. This process has one thread again.
    pub fn put(self, target: &str) -> Outcome<()> {
        mkdir(target, 0o755)?;
        let ended = || Failure::new(STEP, "the workspace was not mounted", 0);
        let mount = self.thread.join().map_err(|_| ended())??;
        match self.first_id {
            Some(first) => put_copy(mount, target, first, self.map),
            None => tree::put(mount, target),
        }
    }
}

/// Mount the volume at `target` and make `directories` in it, owned by `owner` (an id inside).
pub fn place(
    volume: &Volume,
    target: &str,
    ids: Ids<'_>,
    directories: &[&str],
    owner: u32,
) -> Outcome<()> {
    mkdir(target, 0o755)?;
    match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
            first_id,
        } => {
            let mount = mount_image(path, *reserved)?;
            if let (Some(first), Some((map, _))) = (first_id, ids) {
                return put_copy(mount, target, *first, map);
            }
            tree::put(mount, target)?;
        }
        Volume::Image {
            path,
            keep: true,
            reserved,
            ..
        } => {
            let device = loopdev::attach_shared(path)?;
            let options = format!("{},{}", discard(*reserved), KEEP_TABLES);
            let flags = QUIET | MountFlags::NOATIME;
            mount("workspace", &device.path, target, "ext4", flags, &options)?;
            drop(device);
            make_directories(target, directories, owner, ids.is_some())?;
            return shift(target, ids);
        }
        Volume::Directory { path } => {
            tree::bind(path, target, tree::PLAIN, None)?;
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
    ids: Ids<'_>,
    directories: &[&str],
    owner: u32,
) -> Outcome<()> {
    match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
            ..
        } => {
            mkdir(target, 0o755)?;
            tree::put(mount_image(path, *reserved)?, target)?;
        }
        kept => place(kept, target, None, &[], owner)?,
    }
    make_directories(target, directories, owner, true)?;
    shift(target, ids)
}

/// Return a mount of an image that ends with its sandbox.
fn mount_image(path: &str, reserved: bool) -> Outcome<OwnedFd> {
    let device = loopdev::attach(path)?;
    // No barriers: a flush would wait for the host's journal, for data that is worthless after a crash.
    let options = [
        (discard(reserved), None),
        (KEEP_TABLES, None),
        ("barrier", Some("0")),
    ];
    let attributes = tree::PLAIN | MountAttrFlags::MOUNT_ATTR_NOATIME;
    tree::of_device("ext4", &device.path, &options, attributes)
}

/// Attach the copy of another sandbox's volume. The ids on it begin at `first`, and are shown as this
/// sandbox's.
fn put_copy(mount: OwnedFd, target: &str, first: u32, map: IdMap) -> Outcome<()> {
    if first != map.base {
        let userns = userns::of_other_range(map, first)?;
        tree::restrict(&mount, MountAttrFlags::empty(), Some(userns.as_fd()))?;
    }
    tree::put(mount, target)?;
    // The mark of an overlay without flushes: the copy was flushed, and the mark forbids another mount.
    let mark = format!("{}/over/work/work/incompat/volatile", target);
    match std::fs::remove_dir_all(&mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed(STEP, format!("remove {}", mark))(error))
        }
        _ => Ok(()),
    }
}

/// Give the directories of a new image to their owner, and the current time: the template of the image
/// may be old.
fn fill(mount: &OwnedFd, directories: &[&str], owner: u32) -> Outcome<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let now = Timestamps {
        last_access: now,
        last_modification: now,
    };
    for name in directories {
        let what = format!("make {}", name);
        match sys::make_dir_at(mount.as_raw_fd(), name.as_bytes(), 0o755) {
            Ok(()) | Err(libc::EEXIST) => {}
            Err(errno) => return Err(Failure::new(STEP, what, errno)),
        }
        sys::set_owner_at(mount.as_raw_fd(), name.as_bytes(), owner, owner)
            .map_err(failed(STEP, "chown the workspace"))?;
        utimensat(mount, *name, &now, AtFlags::SYMLINK_NOFOLLOW).map_err(failed(STEP, what))?;
    }
    Ok(())
}

/// Blocks of deleted files go back to the host, unless they are to stay reserved.
fn discard(reserved: bool) -> &'static str {
    if reserved {
        "nodiscard"
    } else {
        "discard"
    }
}

/// Cover the mount with itself, with its ids shifted.
fn shift(target: &str, ids: Ids<'_>) -> Outcome<()> {
    let userns = match ids {
        None => return Ok(()),
        Some((_, userns)) => userns,
    };
    tree::bind(target, target, tree::PLAIN, Some(userns))
}

fn make_directories(at: &str, names: &[&str], owner: u32, chown: bool) -> Outcome<()> {
    for name in names {
        let path = format!("{}/{}", at, name);
        mkdir(&path, 0o755)?;
        if chown {
            give(STEP, &path, owner)?;
        }
    }
    Ok(())
}
