//! Where a sandbox may write: its own image, a workspace that outlives it, or memory.
//!
//! A volume that only the sandbox uses holds host ids and is useless afterwards. A volume that outlives it
//! holds the ids seen inside, shifted by the mount, so that the next sandbox with another range can use
//! it.

use crate::failure::{c_string, check, io_failed, Failure, Outcome};
use crate::mounts::{mkdir, mount, mount_memory, QUIET};
use crate::plan::{IdMap, Volume};
use crate::{loopdev, sys, tree};
use std::os::unix::io::RawFd;
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
pub struct Mounting(JoinHandle<Outcome<RawFd>>);

/// Begin to mount an image that ends with its sandbox, with `directories` owned by `owner` (an id on
/// the host). Return `None` for other volumes. From now on this process has two threads.
pub fn begin(
    volume: &Volume,
    directories: &'static [&'static str],
    owner: u32,
) -> Option<Mounting> {
    let (path, reserved) = match volume {
        Volume::Image {
            path,
            keep: false,
            reserved,
        } => (path.clone(), *reserved),
        _ => return None,
    };
    let work = move || {
        let mount = mount_image(&path, reserved)?;
        let made = fill(mount, directories, owner).and_then(|()| forget_name(&path));
        if made.is_err() {
            sys::close(mount);
        }
        made.map(|()| mount)
    };
    let builder = std::thread::Builder::new().stack_size(THREAD_STACK);
    builder.spawn(work).ok().map(Mounting)
}

impl Mounting {
    /// Attach the mount at `target`. This process has one thread again.
    pub fn put(self, target: &str) -> Outcome<()> {
        mkdir(target, 0o755)?;
        let ended = || Failure::new(STEP, "the workspace was not mounted", 0);
        tree::put(self.0.join().map_err(|_| ended())??, target)
    }
}

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
            tree::put(mount_image(path, *reserved)?, target)?;
            forget_name(path)?;
        }
        Volume::Image {
            path,
            keep: true,
            reserved,
        } => {
            let device = loopdev::attach_shared(path)?;
            let options = format!("{},{}", discard(*reserved), KEEP_TABLES);
            let mounted = mount(
                "workspace",
                Some(&device.path),
                target,
                Some("ext4"),
                QUIET | libc::MS_NOATIME,
                Some(&options),
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
            tree::put(mount_image(path, *reserved)?, target)?;
        }
        kept => place(kept, target, None, &[], owner)?,
    }
    make_directories(target, directories, owner, true)?;
    shift(target, ids)
}

/// Return a mount of an image that ends with its sandbox.
fn mount_image(path: &str, reserved: bool) -> Outcome<RawFd> {
    let device = loopdev::attach(path)?;
    // No barriers: a flush would wait for the host's journal, for data that is worthless after a crash.
    let options = [
        (discard(reserved), None),
        (KEEP_TABLES, None),
        ("barrier", Some("0")),
    ];
    let attributes = tree::NOSUID | tree::NODEV | tree::NOATIME;
    let mounted = tree::of_device("ext4", &device.path, &options, attributes);
    device.close();
    mounted
}

/// Remove the name of a mounted image: the mount holds the file, which is deleted with the sandbox.
fn forget_name(path: &str) -> Outcome<()> {
    std::fs::remove_file(path).map_err(io_failed(STEP, &format!("unlink {}", path)))
}

/// Give the directories of a new image to their owner, and the current time: the template of the image
/// may be old.
fn fill(mount: RawFd, directories: &[&str], owner: u32) -> Outcome<()> {
    for name in directories {
        let cname = c_string(STEP, name)?;
        let what = format!("make {}", name);
        unsafe {
            if libc::mkdirat(mount, cname.as_ptr(), 0o755) < 0 && sys::errno() != libc::EEXIST {
                return Err(Failure::last(STEP, what));
            }
            let no_follow = libc::AT_SYMLINK_NOFOLLOW;
            let given = libc::fchownat(mount, cname.as_ptr(), owner, owner, no_follow);
            check(STEP, "chown the workspace", given)?;
            let dated = libc::utimensat(mount, cname.as_ptr(), std::ptr::null(), no_follow);
            check(STEP, &what, dated)?;
        }
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
