//! Thin, checked calls to the kernel, each relative to a directory's descriptor; no decisions.

use super::pax::Time;
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 {
        return Err(Error::last_os_error());
    }
    Ok(result)
}

fn owned(result: libc::c_int) -> Result<OwnedFd> {
    // Safety: a descriptor that was just made, and is nobody else's.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A directory itself, never what a symlink of that name leads to.
pub fn open_directory(at: RawFd, name: &CStr) -> Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    owned(unsafe { libc::openat(at, name.as_ptr(), flags) })
}

/// A file that was not there.
pub fn create(at: RawFd, name: &CStr, mode: u32) -> Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    owned(unsafe { libc::openat(at, name.as_ptr(), flags, mode) })
}

pub fn make_directory(at: RawFd, name: &CStr, mode: u32) -> Result<()> {
    check(unsafe { libc::mkdirat(at, name.as_ptr(), mode) }).map(drop)
}

pub fn symlink(target: &CStr, at: RawFd, name: &CStr) -> Result<()> {
    check(unsafe { libc::symlinkat(target.as_ptr(), at, name.as_ptr()) }).map(drop)
}

/// Another name for `from` itself, were it a symlink.
pub fn link(from: RawFd, old: &CStr, at: RawFd, name: &CStr) -> Result<()> {
    check(unsafe { libc::linkat(from, old.as_ptr(), at, name.as_ptr(), 0) }).map(drop)
}

/// The one device that nobody needs a capability for: 0:0, by which overlay hides a name.
pub fn make_whiteout(at: RawFd, name: &CStr) -> Result<()> {
    check(unsafe { libc::mknodat(at, name.as_ptr(), libc::S_IFCHR, 0) }).map(drop)
}

pub fn unlink(at: RawFd, name: &CStr) -> Result<()> {
    check(unsafe { libc::unlinkat(at, name.as_ptr(), 0) }).map(drop)
}

pub fn stat_at(at: RawFd, name: &CStr) -> Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    check(unsafe { libc::fstatat(at, name.as_ptr(), stat.as_mut_ptr(), flags) })?;
    // Safety: the kernel filled it.
    Ok(unsafe { stat.assume_init() })
}

pub fn stat(fd: &OwnedFd) -> Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::uninit();
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // Safety: the kernel filled it.
    Ok(unsafe { stat.assume_init() })
}

pub fn set_mode(fd: &OwnedFd, mode: u32) -> Result<()> {
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

pub fn set_owner(fd: &OwnedFd, uid: u32, gid: u32) -> Result<()> {
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

pub fn set_owner_at(at: RawFd, name: &CStr, uid: u32, gid: u32) -> Result<()> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    check(unsafe { libc::fchownat(at, name.as_ptr(), uid, gid, flags) }).map(drop)
}

fn times(mtime: Time) -> [libc::timespec; 2] {
    [
        libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        },
        libc::timespec {
            tv_sec: mtime.seconds,
            tv_nsec: mtime.nanoseconds,
        },
    ]
}

pub fn set_time(fd: &OwnedFd, mtime: Time) -> Result<()> {
    check(unsafe { libc::futimens(fd.as_raw_fd(), times(mtime).as_ptr()) }).map(drop)
}

pub fn set_time_at(at: RawFd, name: &CStr, mtime: Time) -> Result<()> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    check(unsafe { libc::utimensat(at, name.as_ptr(), times(mtime).as_ptr(), flags) }).map(drop)
}

pub fn set_xattr(fd: &OwnedFd, name: &CStr, value: &[u8]) -> Result<()> {
    check(unsafe {
        libc::fsetxattr(
            fd.as_raw_fd(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    })
    .map(drop)
}

pub fn remove_xattr(fd: &OwnedFd, name: &CStr) -> Result<()> {
    check(unsafe { libc::fremovexattr(fd.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// Whether the file system has next to no room left.
pub fn is_full(fd: &OwnedFd) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    if unsafe { libc::fstatvfs(fd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // Safety: the kernel filled it.
    unsafe { stat.assume_init() }.f_bavail < 64
}

pub fn change_directory(fd: &OwnedFd) -> Result<()> {
    check(unsafe { libc::fchdir(fd.as_raw_fd()) }).map(drop)
}

pub fn chroot_here() -> Result<()> {
    check(unsafe { libc::chroot(b".\0".as_ptr().cast()) }).map(drop)
}

pub fn no_new_privileges() -> Result<()> {
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Effective, permitted and inheritable sets, as far as they were permitted before.
pub fn set_capabilities(effective: u64, permitted: u64) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0u32];
    let mut data = [0u32; 6];
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    check(got as libc::c_int)?;
    let had = u64::from(data[1]) | u64::from(data[4]) << 32;
    let (effective, permitted) = (effective & had, permitted & had);
    // (effective, permitted, inheritable) twice, for the low and the high 32.
    let new = [
        effective as u32,
        permitted as u32,
        0,
        (effective >> 32) as u32,
        (permitted >> 32) as u32,
        0,
    ];
    header[0] = VERSION_3;
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), new.as_ptr()) };
    check(set as libc::c_int).map(drop)
}

/// As many descriptors as the hard limit allows: a path needs one for each level.
pub fn raise_descriptors() {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) == 0 {
            now.rlim_cur = now.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &now);
        }
    }
}
