//! The newer mount calls of the kernel: a mount is a descriptor until it is attached.
//!
//! Used where a mount must have its final attributes before any process can see it, and for shifting
//! ids, which the older call cannot do. Call numbers are written out: they are the same on every
//! architecture, and newer than some bindings we build with.

use crate::failure::{c_string, check, Outcome};
use crate::sys;
use std::ffi::CString;
use std::os::unix::io::{AsRawFd, IntoRawFd, RawFd};
use std::ptr;

const STEP: &str = "mount";
const SYS_OPEN_TREE: libc::c_long = 428;
const SYS_MOVE_MOUNT: libc::c_long = 429;
const SYS_FSOPEN: libc::c_long = 430;
const SYS_FSCONFIG: libc::c_long = 431;
const SYS_FSMOUNT: libc::c_long = 432;
const FD_CLOEXEC_FLAG: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const SYS_MOUNT_SETATTR: libc::c_long = 442;
const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const ATTR_IDMAP: u64 = 0x0010_0000;

pub const READ_ONLY: u64 = 1;
pub const NOSUID: u64 = 2;
pub const NODEV: u64 = 4;
pub const NOATIME: u64 = 0x10;

/// struct mount_attr of <linux/mount.h>.
#[repr(C)]
#[derive(Default)]
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
    attributes: u64,
) -> Outcome<RawFd> {
    let ckind = c_string(STEP, kind)?;
    let opened = unsafe { libc::syscall(SYS_FSOPEN, ckind.as_ptr(), FD_CLOEXEC_FLAG) };
    let context = sys::own(check(STEP, &format!("open {}", kind), opened as i32)?);
    let what = format!("mount {}", device);
    let configure = |command: libc::c_uint, key: Option<&str>, value: Option<&str>| {
        let own = |text: Option<&str>| text.map(|text| c_string(STEP, text)).transpose();
        let (key, value) = (own(key)?, own(value)?);
        let raw = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let r = unsafe {
            libc::syscall(
                SYS_FSCONFIG,
                context.as_raw_fd(),
                command,
                raw(&key),
                raw(&value),
                0,
            )
        };
        check(STEP, &what, r as i32)
    };
    configure(FSCONFIG_SET_STRING, Some("source"), Some(device))?;
    for &(name, value) in options {
        let command = match value {
            Some(_) => FSCONFIG_SET_STRING,
            None => FSCONFIG_SET_FLAG,
        };
        configure(command, Some(name), value)?;
    }
    configure(FSCONFIG_CMD_CREATE, None, None)?;
    let r = unsafe {
        libc::syscall(
            SYS_FSMOUNT,
            context.as_raw_fd(),
            FD_CLOEXEC_FLAG,
            attributes as libc::c_uint,
        )
    };
    check(STEP, &what, r as i32)
}

/// Return a mount of only `source`, without the mounts below it, that is attached nowhere yet.
pub fn copy(source: &str) -> Outcome<RawFd> {
    let csource = c_string(STEP, source)?;
    let fd = unsafe {
        libc::syscall(
            SYS_OPEN_TREE,
            libc::AT_FDCWD,
            csource.as_ptr(),
            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC,
        )
    };
    check(STEP, &format!("take a mount of {}", source), fd as i32)
}

/// Return a mount of what the descriptor refers to, without the mounts below it.
pub fn copy_of(file: impl AsRawFd, what: &str) -> Outcome<RawFd> {
    let fd = unsafe {
        libc::syscall(
            SYS_OPEN_TREE,
            file.as_raw_fd(),
            c"".as_ptr(),
            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint,
        )
    };
    check(STEP, &format!("take a mount of {}", what), fd as i32)
}

/// Set attributes of a mount. With `userns`, ids of the file system are those inside that namespace.
pub fn restrict(mount: RawFd, set: u64, userns: Option<RawFd>) -> Outcome<()> {
    let mut attributes = Attributes {
        set,
        ..Attributes::default()
    };
    if let Some(fd) = userns {
        attributes.set |= ATTR_IDMAP;
        attributes.userns = fd as u64;
    }
    let r = unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            mount,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &attributes,
            std::mem::size_of::<Attributes>(),
        )
    };
    let what = if userns.is_some() {
        "shift the ids of a mount"
    } else {
        "restrict a mount"
    };
    check(STEP, what, r as i32).map(|_| ())
}

/// Attach the mount at `target` and close the descriptor.
pub fn put(mount: RawFd, target: &str) -> Outcome<()> {
    let ctarget = c_string(STEP, target)?;
    let r = unsafe {
        libc::syscall(
            SYS_MOVE_MOUNT,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            ctarget.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    let done = check(STEP, &format!("put a mount on {}", target), r as i32);
    sys::close(mount);
    done.map(|_| ())
}

/// Bind `source` to `target`, with its attributes set before it is attached.
pub fn bind(source: &str, target: &str, set: u64, userns: Option<RawFd>) -> Outcome<()> {
    let mount = copy(source)?;
    if let Err(trouble) = restrict(mount, set, userns) {
        sys::close(mount);
        return Err(trouble);
    }
    put(mount, target)
}

/// Open a path below `root` that contains no symlink, as O_PATH.
pub fn plain_path(root: RawFd, path: &str, directory: bool) -> Result<RawFd, i32> {
    let kind = if directory { libc::O_DIRECTORY } else { 0 };
    let flags = libc::O_PATH | libc::O_NOFOLLOW | kind;
    let resolve = sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_IN_ROOT;
    Ok(sys::open_at2(root, path.as_bytes(), flags, resolve)?.into_raw_fd())
}
