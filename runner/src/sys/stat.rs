//! What the kernel reports about a file and about the file system it lies on.

use super::{c_string, check, Result};
use std::mem::MaybeUninit;
use std::os::unix::io::AsRawFd;

const PROC_SUPER_MAGIC: u64 = 0x9fa0;

pub type Stat = libc::stat;

/// Device and inode: two equal values are the same object as long as one process holds it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    dev: u64,
    ino: u64,
}

pub fn identity(stat: &Stat) -> FileIdentity {
    FileIdentity {
        dev: stat.st_dev,
        ino: stat.st_ino,
    }
}

pub fn kind(stat: &Stat) -> libc::mode_t {
    stat.st_mode & libc::S_IFMT
}

/// Return the number of the driver behind a device.
pub fn major(device: libc::dev_t) -> u32 {
    libc::major(device)
}

pub fn is_dir(stat: &Stat) -> bool {
    kind(stat) == libc::S_IFDIR
}

pub fn is_file(stat: &Stat) -> bool {
    kind(stat) == libc::S_IFREG
}

pub fn is_symlink(stat: &Stat) -> bool {
    kind(stat) == libc::S_IFLNK
}

pub fn is_fifo(stat: &Stat) -> bool {
    kind(stat) == libc::S_IFIFO
}

pub fn stat_fd(fd: impl AsRawFd) -> Result<Stat> {
    let mut stat = MaybeUninit::<Stat>::uninit();
    // SAFETY: `stat` is a valid out pointer.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// Does not follow a symlink at `name`.
pub fn stat_at(dir: impl AsRawFd, name: &[u8]) -> Result<Stat> {
    let name = c_string(name)?;
    let mut stat = MaybeUninit::<Stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` is NUL-terminated and `stat` is a valid out pointer.
    check(unsafe { libc::fstatat(dir.as_raw_fd(), name.as_ptr(), stat.as_mut_ptr(), flags) })?;
    // SAFETY: fstatat succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// Return the magic number of the file system that `fd` lies on.
pub fn file_system_type(fd: impl AsRawFd) -> Result<u64> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `stat` is a valid out pointer.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstatfs succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() }.f_type as u64)
}

pub fn is_on_proc(fd: impl AsRawFd) -> Result<bool> {
    Ok(file_system_type(fd)? == PROC_SUPER_MAGIC)
}

/// Return size, free space and flags of the file system that `fd` lies on.
pub fn stat_file_system(fd: impl AsRawFd) -> Result<libc::statvfs> {
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `stat` is a valid out pointer.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstatvfs succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// Return how many bytes an ordinary user may still write; `None` where the file system does not
/// report it.
pub fn free_bytes(fd: impl AsRawFd) -> Option<u64> {
    let stat = stat_file_system(fd).ok()?;
    if stat.f_blocks == 0 {
        return None;
    }
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
