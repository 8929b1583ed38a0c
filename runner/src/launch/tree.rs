//! The newer mount calls of the kernel: a mount is a descriptor until it is attached.
//!
//! Used where a mount must have its final attributes before any process can see it, and for shifting
//! ids, which the older call cannot do.

use crate::failure::{failed, Outcome};
use crate::sys;
use rustix::fs::{ResolveFlags, CWD};
use rustix::mount::{
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags,
};
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const STEP: &str = "mount";
/// The same number on every architecture.
const SYS_MOUNT_SETATTR: libc::c_long = 442;
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Neither set-id bits nor devices count.
pub const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
/// Read-only, where devices may still be written to.
pub const READ_ONLY: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_RDONLY.union(MountAttrFlags::MOUNT_ATTR_NOSUID);
pub const CLOSED: MountAttrFlags = PLAIN.union(READ_ONLY);

/// struct mount_attr of <linux/mount.h>.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Return a new mount of a device that is attached nowhere yet. Options without a value are flags.
pub fn of_device(
    kind: &str,
    device: &str,
    options: &[(&str, Option<&str>)],
    attributes: MountAttrFlags,
) -> Outcome<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(failed(STEP, format!("open {}", kind)))?;
    let configure = || {
        fsconfig_set_string(&context, "source", device)?;
        for &(name, value) in options {
            match value {
                Some(value) => fsconfig_set_string(&context, name, value)?,
                None => fsconfig_set_flag(&context, name)?,
            }
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    configure().map_err(failed(STEP, format!("mount {}", device)))
}

/// Return a mount of only `source`, without the mounts below it, that is attached nowhere yet.
pub fn copy(source: &str) -> Outcome<OwnedFd> {
    open_tree(CWD, source, CLONE).map_err(failed(STEP, format!("take a mount of {}", source)))
}

/// Return a mount of what the descriptor refers to, without the mounts below it.
pub fn copy_of(file: impl AsFd, what: &str) -> Outcome<OwnedFd> {
    open_tree(file, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH)
        .map_err(failed(STEP, format!("take a mount of {}", what)))
}

/// Set attributes of a mount. With `userns`, ids of the file system are those inside that namespace.
pub fn restrict(
    mount: &OwnedFd,
    set: MountAttrFlags,
    userns: Option<BorrowedFd<'_>>,
) -> Outcome<()> {
    let shifted = userns.map_or(MountAttrFlags::empty(), |_| {
        MountAttrFlags::MOUNT_ATTR_IDMAP
    });
    let attributes = Attributes {
        set: (set | shifted).bits().into(),
        clear: 0,
        propagation: 0,
        userns: userns.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let (mount, empty, flags) = (mount.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH);
    let size = size_of::<Attributes>();
    // SAFETY: the path ends with a null, and `attributes` is as large as we say.
    let result =
        unsafe { libc::syscall(SYS_MOUNT_SETATTR, mount, empty, flags, &attributes, size) };
    let what = if userns.is_some() {
        "shift the ids of a mount"
    } else {
        "restrict a mount"
    };
    sys::check(result as i32)
        .map(drop)
        .map_err(failed(STEP, what))
}

/// Attach the mount at `target`.
pub fn put(mount: OwnedFd, target: &str) -> Outcome<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount, "", CWD, target, flags)
        .map_err(failed(STEP, format!("put a mount on {}", target)))
}

/// Bind `source` to `target`, with its attributes set before it is attached.
pub fn bind(
    source: &str,
    target: &str,
    set: MountAttrFlags,
    userns: Option<BorrowedFd<'_>>,
) -> Outcome<()> {
    let mount = copy(source)?;
    restrict(&mount, set, userns)?;
    put(mount, target)
}

/// Open a path below `root` that contains no symlink, as O_PATH.
pub fn plain_path(root: &OwnedFd, path: &str, directory: bool) -> sys::Result<OwnedFd> {
    let kind = if directory { libc::O_DIRECTORY } else { 0 };
    let flags = libc::O_PATH | libc::O_NOFOLLOW | kind;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::IN_ROOT;
    sys::open_at2(root.as_raw_fd(), path.as_bytes(), flags, resolve)
}
