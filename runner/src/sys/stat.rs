//! What the kernel reports about a file and about the file system it lies on.

use super::{borrow, plain, Result};
use rustix::fs;
use std::os::unix::io::AsRawFd;

const PROC_SUPER_MAGIC: u64 = 0x9fa0;

pub use fs::Stat;

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
    fs::major(device)
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
    plain(fs::fstat(borrow(&fd)))
}

/// Does not follow a symlink at `name`.
pub fn stat_at(dir: impl AsRawFd, name: &[u8]) -> Result<Stat> {
    plain(fs::statat(
        borrow(&dir),
        name,
        fs::AtFlags::SYMLINK_NOFOLLOW,
    ))
}

/// Return the magic number of the file system that `fd` lies on.
pub fn file_system_type(fd: impl AsRawFd) -> Result<u64> {
    Ok(plain(fs::fstatfs(borrow(&fd)))?.f_type as u64)
}

pub fn is_on_proc(fd: impl AsRawFd) -> Result<bool> {
    Ok(file_system_type(fd)? == PROC_SUPER_MAGIC)
}

/// Return size, free space and flags of the file system that `fd` lies on.
pub fn stat_file_system(fd: impl AsRawFd) -> Result<fs::StatVfs> {
    plain(fs::fstatvfs(borrow(&fd)))
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
