//! Calls relative to an open directory, and calls that change the object behind a descriptor.
//!
//! Names are bytes. No call but `open_at` follows a symlink at the last name, and that one only without
//! `O_NOFOLLOW`.

use super::{c_string, check, errno, is_dir, is_on_proc, open, own, retry, stat_at, Result};
use std::os::raw::{c_int, c_long, c_uint};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// The longest path that the kernel takes, its NUL included.
pub const PATH_MAX: usize = 4096;

pub const RESOLVE_NO_XDEV: u64 = 0x01;
pub const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
pub const RESOLVE_NO_SYMLINKS: u64 = 0x04;
pub const RESOLVE_BENEATH: u64 = 0x08;
pub const RESOLVE_IN_ROOT: u64 = 0x10;
const RENAME_NOREPLACE: c_uint = 1;

pub fn open_at(dir: impl AsRawFd, path: &[u8], flags: c_int, mode: u32) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    let fd = retry(|| unsafe {
        c_long::from(libc::openat(dir.as_raw_fd(), path.as_ptr(), flags, mode))
    })?;
    Ok(own(fd as RawFd))
}

/// Report whether a file may not be written by the ids that this thread uses for files. Where the call
/// does not exist or is filtered, nothing is known and nothing is forbidden.
pub fn forbids_writing(dir: impl AsRawFd, name: &[u8]) -> Result<bool> {
    /// The same number on every architecture.
    const FACCESSAT2: c_long = 439;
    let name = c_string(name)?;
    let flags = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` is NUL-terminated.
    let rc = unsafe {
        libc::syscall(
            FACCESSAT2,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::W_OK,
            flags,
        )
    };
    Ok(rc < 0 && errno() == libc::EACCES)
}

/// Return the names of the extended attributes of a file. The kernel bounds them to 64 KiB.
pub fn attribute_names(fd: impl AsRawFd) -> Result<Vec<Vec<u8>>> {
    const LARGEST: usize = 64 << 10;
    let mut buffer = vec![0u8; LARGEST];
    // SAFETY: `buffer` is as large as we say.
    let count = retry(|| unsafe {
        libc::flistxattr(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) as c_long
    })?;
    let names = buffer[..count as usize].split(|&byte| byte == 0);
    let given = names.filter(|name| !name.is_empty());
    Ok(given.map(<[u8]>::to_vec).collect())
}

/// Return the value of an extended attribute; `ERANGE` if it is longer than `most`.
pub fn attribute(fd: impl AsRawFd, name: &[u8], most: usize) -> Result<Vec<u8>> {
    let name = c_string(name)?;
    // Not empty: the kernel would only return the length.
    let mut buffer = vec![0u8; most.max(1)];
    // SAFETY: `name` is NUL-terminated and `buffer` is as large as we say.
    let count = retry(|| unsafe {
        libc::fgetxattr(
            fd.as_raw_fd(),
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        ) as c_long
    })?;
    buffer.truncate(count as usize);
    Ok(buffer)
}

pub fn set_attribute(fd: impl AsRawFd, name: &[u8], value: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated and `value` is as long as we say.
    check(unsafe {
        libc::fsetxattr(
            fd.as_raw_fd(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    })?;
    Ok(())
}

/// `struct open_how` of <linux/openat2.h>.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Open with rules for the whole path; ENOSYS on an old kernel, EPERM under a strict seccomp filter.
pub fn open_at2(dir: impl AsRawFd, path: &[u8], flags: c_int, resolve: u64) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve,
    };
    // SAFETY: `path` is NUL-terminated and `how` is as large as we say.
    let fd = retry(|| unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            &how as *const OpenHow,
            std::mem::size_of::<OpenHow>(),
        )
    })?;
    Ok(own(fd as RawFd))
}

/// Return the target of the symlink `name` in `dir`; `name` may be empty when `dir` is the link itself.
pub fn read_link_at(dir: impl AsRawFd, name: &[u8]) -> Result<Vec<u8>> {
    let name = c_string(name)?;
    let mut target = vec![0u8; PATH_MAX + 1];
    // SAFETY: `name` is NUL-terminated, and the buffer is as long as we say.
    let count = unsafe {
        libc::readlinkat(
            dir.as_raw_fd(),
            name.as_ptr(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    if count < 0 {
        return Err(errno());
    }
    let length = count as usize;
    if length == target.len() {
        return Err(libc::ENAMETOOLONG);
    }
    target.truncate(length);
    Ok(target)
}

/// Open `/proc/self/fd`, only if it really is procfs.
pub fn open_proc_fds() -> Result<OwnedFd> {
    let dir = open(b"/proc/self/fd", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    if is_on_proc(dir.as_raw_fd())? {
        Ok(dir)
    } else {
        Err(libc::ENOENT)
    }
}

/// Return the name of `fd` in `/proc/self/fd`.
pub fn fd_name(fd: impl AsRawFd) -> Vec<u8> {
    fd.as_raw_fd().to_string().into_bytes()
}

/// Return `/proc/self/fd/N`: a path that leads to exactly the object that `fd` holds.
pub fn fd_path(fd: impl AsRawFd) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

pub fn make_dir_at(dir: impl AsRawFd, name: &[u8], mode: u32) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// Make a FIFO, a socket, or the device 0:0. Any other device needs a capability.
pub fn make_node_at(dir: impl AsRawFd, name: &[u8], mode: u32, dev: libc::dev_t) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, dev) }).map(drop)
}

pub fn symlink_at(target: &[u8], dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    let target = c_string(target)?;
    let name = c_string(name)?;
    // SAFETY: both strings are NUL-terminated.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// Make a second name for `from` itself, even if it is a symlink.
pub fn link_at(from_dir: impl AsRawFd, from: &[u8], to_dir: impl AsRawFd, to: &[u8]) -> Result<()> {
    let from = c_string(from)?;
    let to = c_string(to)?;
    let (from_dir, to_dir) = (from_dir.as_raw_fd(), to_dir.as_raw_fd());
    // SAFETY: both strings are NUL-terminated.
    check(unsafe { libc::linkat(from_dir, from.as_ptr(), to_dir, to.as_ptr(), 0) }).map(drop)
}

pub fn unlink_at(dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

pub fn remove_dir_at(dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

pub fn rename_at(
    from_dir: impl AsRawFd,
    from: &[u8],
    to_dir: impl AsRawFd,
    to: &[u8],
) -> Result<()> {
    let from = c_string(from)?;
    let to = c_string(to)?;
    let (from_dir, to_dir) = (from_dir.as_raw_fd(), to_dir.as_raw_fd());
    // SAFETY: both strings are NUL-terminated.
    check(unsafe { libc::renameat(from_dir, from.as_ptr(), to_dir, to.as_ptr()) }).map(drop)
}

/// Rename without replacing: EEXIST when `to` exists.
///
/// A file system without RENAME_NOREPLACE answers EINVAL. There a hard link does the same for files, and
/// nothing atomic does it for directories.
pub fn rename_new_at(
    from_dir: impl AsRawFd,
    from: &[u8],
    to_dir: impl AsRawFd,
    to: &[u8],
) -> Result<()> {
    let (from_dir, to_dir) = (from_dir.as_raw_fd(), to_dir.as_raw_fd());
    let (from_name, to_name) = (c_string(from)?, c_string(to)?);
    // SAFETY: both strings are NUL-terminated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from_dir,
            from_name.as_ptr(),
            to_dir,
            to_name.as_ptr(),
            RENAME_NOREPLACE,
        )
    };
    let errno = match check(result as c_int) {
        Ok(_) => return Ok(()),
        Err(errno) => errno,
    };
    if !matches!(errno, libc::EINVAL | libc::ENOSYS) {
        return Err(errno);
    }
    match stat_at(from_dir, from) {
        Ok(stat) if !is_dir(&stat) => {
            link_at(from_dir, from, to_dir, to)?;
            unlink_at(from_dir, from)
        }
        _ => Err(errno),
    }
}

/// Wait until the content and the attributes of a file, or the names in a directory, are on disk.
pub fn sync(fd: impl AsRawFd) -> Result<()> {
    // SAFETY: plain system call on an integer.
    retry(|| unsafe { c_long::from(libc::fsync(fd.as_raw_fd())) }).map(drop)
}

/// Wait until everything on the file system of `fd` is on disk.
pub fn sync_file_system(fd: impl AsRawFd) -> Result<()> {
    // SAFETY: plain system call on an integer.
    retry(|| unsafe { c_long::from(libc::syncfs(fd.as_raw_fd())) }).map(drop)
}

/// Start writing a range of a file to the disk.
pub fn start_write_back(fd: impl AsRawFd, from: u64, count: u64) -> Result<()> {
    sync_range(fd, from, count, libc::SYNC_FILE_RANGE_WRITE)
}

/// Wait until a range of a file is written to the disk; the file's attributes may not be yet.
pub fn finish_write_back(fd: impl AsRawFd, from: u64, count: u64) -> Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(fd, from, count, flags)
}

fn sync_range(fd: impl AsRawFd, from: u64, count: u64, flags: c_uint) -> Result<()> {
    if count == 0 {
        // To the kernel that would mean: up to the end.
        return Ok(());
    }
    // SAFETY: plain system call on integers.
    retry(|| unsafe {
        c_long::from(libc::sync_file_range(
            fd.as_raw_fd(),
            from as i64,
            count as i64,
            flags,
        ))
    })
    .map(drop)
}

pub fn set_mode(fd: impl AsRawFd, mode: u32) -> Result<()> {
    // SAFETY: plain system call on integers.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

/// Change the mode of exactly the object that an `O_PATH` descriptor holds.
pub fn set_mode_pinned(fd: impl AsRawFd, mode: u32) -> Result<()> {
    let fds = open_proc_fds()?;
    let name = c_string(&fd_name(fd))?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::fchmodat(fds.as_raw_fd(), name.as_ptr(), mode, 0) }).map(drop)
}

pub fn set_owner(fd: impl AsRawFd, uid: u32, gid: u32) -> Result<()> {
    // SAFETY: plain system call on integers.
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

pub fn set_owner_at(dir: impl AsRawFd, name: &[u8], uid: u32, gid: u32) -> Result<()> {
    let name = c_string(name)?;
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::fchownat(dir.as_raw_fd(), name.as_ptr(), uid, gid, flags) }).map(drop)
}

pub fn timespec(seconds: i64, nanoseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: seconds as libc::time_t,
        tv_nsec: nanoseconds as c_long,
    }
}

/// The two timestamps of a file that can be set.
#[derive(Clone, Copy)]
pub struct Times([libc::timespec; 2]);

impl Times {
    /// Set the time of last access to now, as a program that wrote the file would.
    pub fn accessed_now(modified: libc::timespec) -> Times {
        Times([timespec(0, libc::UTIME_NOW), modified])
    }

    /// Leave the time of last access as it is.
    pub fn modified(modified: libc::timespec) -> Times {
        Times([timespec(0, libc::UTIME_OMIT), modified])
    }
}

pub fn set_times(fd: impl AsRawFd, times: Times) -> Result<()> {
    // SAFETY: two timestamps, as the call expects.
    check(unsafe { libc::futimens(fd.as_raw_fd(), times.0.as_ptr()) }).map(drop)
}

pub fn set_times_at(dir: impl AsRawFd, name: &[u8], times: Times) -> Result<()> {
    let name = c_string(name)?;
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` is NUL-terminated; two timestamps, as the call expects.
    check(unsafe { libc::utimensat(dir.as_raw_fd(), name.as_ptr(), times.0.as_ptr(), flags) })
        .map(drop)
}

pub fn set_xattr(fd: impl AsRawFd, name: &[u8], value: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated; the pointer and length describe `value`.
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

pub fn remove_xattr(fd: impl AsRawFd, name: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    // SAFETY: `name` is NUL-terminated.
    check(unsafe { libc::fremovexattr(fd.as_raw_fd(), name.as_ptr()) }).map(drop)
}

pub fn change_directory(fd: impl AsRawFd) -> Result<()> {
    // SAFETY: plain system call on an integer.
    check(unsafe { libc::fchdir(fd.as_raw_fd()) }).map(drop)
}

/// Make the current directory the root directory.
pub fn chroot_here() -> Result<()> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::chroot(c".".as_ptr()) }).map(drop)
}

/// Fill `buffer` with directory records; 0 at the end of the directory.
pub fn read_dir(fd: impl AsRawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the pointer and length describe `buffer`.
    let count = retry(|| unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    })?;
    Ok(count as usize)
}

/// The records in a buffer that `read_dir` filled: name and `d_type`, without `.` and `..`.
pub struct Records<'a>(pub &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (&'a [u8], u8);

    fn next(&mut self) -> Option<Self::Item> {
        // u64 inode · i64 offset · u16 record length · u8 type · name, NUL
        const NAME: usize = 19;
        loop {
            if self.0.len() <= NAME {
                return None;
            }
            let length = usize::from(u16::from_ne_bytes([self.0[16], self.0[17]]));
            if length <= NAME || length > self.0.len() {
                return None;
            }
            let (record, rest) = self.0.split_at(length);
            self.0 = rest;
            let name = &record[NAME..];
            let end = name.iter().position(|&c| c == 0).unwrap_or(name.len());
            let name = &name[..end];
            if name != b"." && name != b".." {
                return Some((name, record[18]));
            }
        }
    }
}

/// Return 16 random hexadecimal digits, for names of temporary files that cannot be guessed.
pub fn random_name() -> Result<String> {
    let mut bytes = [0u8; 8];
    // SAFETY: the pointer and length describe `bytes`.
    retry(|| unsafe {
        libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) as c_long
    })?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
