//! Calls by path, for paths that this program chose itself. Paths chosen by user code go through `at`.

use super::{as_fd, is_dir, is_file, is_symlink, open_at, plain, read, stat_fd, stat_file_system};
use super::{Errno, Result, Stat};
use rustix::fs::{self, AtFlags, Gid, Mode, StatVfsMountFlags, Uid, CWD};
use std::os::unix::io::{AsRawFd, OwnedFd};

pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<OwnedFd> {
    open_at(CWD, path, flags, mode)
}

/// Read a small file of at most `limit` bytes; for /proc, where sizes are unknown.
pub fn read_file(path: &[u8], limit: usize) -> Result<Vec<u8>> {
    let file = open(path, libc::O_RDONLY, 0)?;
    let mut content = Vec::new();
    let mut block = [0u8; 4096];
    while content.len() < limit {
        let room = block.len().min(limit - content.len());
        let count = read(file.as_raw_fd(), &mut block[..room])?;
        if count == 0 {
            break;
        }
        content.extend_from_slice(&block[..count]);
    }
    Ok(content)
}

/// Follow a symlink at `path`.
pub fn stat(path: &[u8]) -> Result<Stat> {
    plain(fs::stat(path))
}

/// Do not follow a symlink at `path`.
pub fn stat_link(path: &[u8]) -> Result<Stat> {
    plain(fs::lstat(path))
}

/// Report whether there is a regular file with an execute bit at `path`.
pub fn is_executable(path: &[u8]) -> bool {
    stat(path).is_ok_and(|stat| is_file(&stat) && stat.st_mode & 0o111 != 0)
}

pub fn read_link(path: &[u8]) -> Result<Vec<u8>> {
    Ok(plain(fs::readlink(path, Vec::new()))?.into_bytes())
}

/// Remove a file; it may be missing.
pub fn unlink(path: &[u8]) {
    let _ = fs::unlink(path);
}

/// Remove an empty directory; it may be missing or in use.
pub fn remove_dir(path: &[u8]) {
    let _ = fs::rmdir(path);
}

pub fn make_fifo(path: &[u8], mode: u32) -> Result<()> {
    plain(fs::mkfifoat(CWD, path, Mode::from_bits_retain(mode)))
}

pub fn make_dir(path: &[u8], mode: u32) -> Result<()> {
    plain(fs::mkdir(path, Mode::from_bits_retain(mode)))
}

/// Change the owner of the directory at `path`, which is not a symlink, unless it is right already.
pub fn own_dir(path: &[u8], uid: u32, gid: u32) -> Result<()> {
    // With O_PATH a directory that is closed to us can be opened, and it need not be read.
    let fd = open(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
    let stat = stat_fd(as_fd(&fd))?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw_unchecked(uid), Gid::from_raw_unchecked(gid));
    plain(fs::chownat(
        fd,
        "",
        Some(uid),
        Some(gid),
        AtFlags::EMPTY_PATH,
    ))
}

/// Check that only root can replace the object at the absolute `path`: neither it nor a parent is a
/// symlink, and each parent is writable only by root or not at all. The error names the first path that
/// fails.
pub fn check_only_root_can_replace(path: &[u8]) -> std::result::Result<(), (Vec<u8>, Errno)> {
    let mut ends: Vec<usize> = (1..path.len()).filter(|&at| path[at] == b'/').collect();
    ends.push(path.len());
    check_component(b"/", false).map_err(|errno| (b"/".to_vec(), errno))?;
    for end in ends {
        let component = &path[..end];
        check_component(component, end == path.len())
            .map_err(|errno| (component.to_vec(), errno))?;
    }
    Ok(())
}

fn check_component(path: &[u8], last: bool) -> Result<()> {
    let fd = open(path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let stat = stat_fd(as_fd(&fd))?;
    let file_system = stat_file_system(as_fd(&fd))?;
    if is_symlink(&stat) {
        return Err(libc::ELOOP);
    }
    if last {
        return Ok(());
    }
    if !is_dir(&stat) {
        return Err(libc::ENOTDIR);
    }
    let open_to_others = stat.st_uid != 0 || stat.st_mode & 0o022 != 0;
    if open_to_others && !file_system.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(libc::EPERM);
    }
    Ok(())
}
