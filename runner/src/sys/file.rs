//! Calls by path, for paths that this program chose itself. Paths chosen by user code go through `at`.

use super::{as_fd, c_string, check, errno, own, read, retry, stat_fd, Errno, Result, Stat};
use std::os::raw::c_long;
use std::os::unix::io::{AsRawFd, OwnedFd};

pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    let fd = retry(|| unsafe { c_long::from(libc::open(path.as_ptr(), flags, mode)) })?;
    Ok(own(fd as i32))
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

fn stat_with(
    path: &[u8],
    call: unsafe extern "C" fn(*const libc::c_char, *mut Stat) -> libc::c_int,
) -> Result<Stat> {
    let path = c_string(path)?;
    let mut stat = std::mem::MaybeUninit::<Stat>::uninit();
    // SAFETY: both pointers are valid for the call.
    check(unsafe { call(path.as_ptr(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// Follow a symlink at `path`.
pub fn stat(path: &[u8]) -> Result<Stat> {
    stat_with(path, libc::stat)
}

/// Do not follow a symlink at `path`.
pub fn stat_link(path: &[u8]) -> Result<Stat> {
    stat_with(path, libc::lstat)
}

/// Report whether there is a regular file with an execute bit at `path`.
pub fn is_executable(path: &[u8]) -> bool {
    stat(path).is_ok_and(|stat| super::is_file(&stat) && stat.st_mode & 0o111 != 0)
}

pub fn read_link(path: &[u8]) -> Result<Vec<u8>> {
    let path = c_string(path)?;
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as we say.
    let count = unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    if count < 0 {
        return Err(errno());
    }
    target.truncate(count as usize);
    Ok(target)
}

/// Remove a file; it may be missing.
pub fn unlink(path: &[u8]) {
    if let Ok(path) = c_string(path) {
        // SAFETY: `path` is NUL-terminated.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

/// Remove an empty directory; it may be missing or in use.
pub fn remove_dir(path: &[u8]) {
    if let Ok(path) = c_string(path) {
        // SAFETY: `path` is NUL-terminated.
        unsafe { libc::rmdir(path.as_ptr()) };
    }
}

pub fn make_fifo(path: &[u8], mode: u32) -> Result<()> {
    let path = c_string(path)?;
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::mkfifo(path.as_ptr(), mode as libc::mode_t) }).map(drop)
}

pub fn make_dir(path: &[u8], mode: u32) -> Result<()> {
    let path = c_string(path)?;
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::mkdir(path.as_ptr(), mode as libc::mode_t) }).map(drop)
}

/// Change the owner of the directory at `path`, which is not a symlink, unless it is right already.
pub fn own_dir(path: &[u8], uid: u32, gid: u32) -> Result<()> {
    // With O_PATH a directory that is closed to us can be opened, and it need not be read.
    let fd = open(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
    let stat = stat_fd(as_fd(&fd))?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) {
        return Ok(());
    }
    let empty = c"".as_ptr();
    // SAFETY: the empty path is NUL-terminated.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), empty, uid, gid, libc::AT_EMPTY_PATH) }).map(drop)
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
    let file_system = super::stat_file_system(as_fd(&fd))?;
    if super::is_symlink(&stat) {
        return Err(libc::ELOOP);
    }
    if last {
        return Ok(());
    }
    if !super::is_dir(&stat) {
        return Err(libc::ENOTDIR);
    }
    let open_to_others = stat.st_uid != 0 || stat.st_mode & 0o022 != 0;
    if open_to_others && file_system.f_flag & libc::ST_RDONLY == 0 {
        return Err(libc::EPERM);
    }
    Ok(())
}
