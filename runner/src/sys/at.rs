//! Calls relative to an open directory, and calls that change the object behind a descriptor.
//!
//! Names are bytes. No call but `open_at` follows a symlink at the last name, and that one only without
//! `O_NOFOLLOW`.

use super::{borrow, check, is_dir, is_on_proc, open, plain, retry, stat_at, Result};
use rustix::buffer::spare_capacity;
use rustix::fs::{
    self, Access, AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid,
};
use rustix::{io, rand};
use std::os::raw::c_int;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The longest path that the kernel takes, its NUL included.
pub const PATH_MAX: usize = 4096;

pub fn open_at(dir: impl AsRawFd, path: &[u8], flags: c_int, mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    retry(|| fs::openat(borrow(&dir), path, flags, Mode::from_bits_retain(mode)))
}

/// Report whether a file may not be written by the ids that this thread uses for files. Where the call
/// does not exist or is filtered, nothing is known and nothing is forbidden.
pub fn forbids_writing(dir: impl AsRawFd, name: &[u8]) -> Result<bool> {
    let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
    let outcome = fs::accessat(borrow(&dir), name, Access::WRITE_OK, flags);
    Ok(outcome == Err(io::Errno::ACCESS))
}

/// Return the names of the extended attributes of a file. The kernel bounds them to 64 KiB.
pub fn attribute_names(fd: impl AsRawFd) -> Result<Vec<Vec<u8>>> {
    let mut buffer = Vec::with_capacity(64 << 10);
    retry(|| fs::flistxattr(borrow(&fd), spare_capacity(&mut buffer)))?;
    let names = buffer.split(|&byte| byte == 0);
    Ok(names
        .filter(|n| !n.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

/// Return the value of an extended attribute; `ERANGE` if it is longer than `most`.
pub fn attribute(fd: impl AsRawFd, name: &[u8], most: usize) -> Result<Vec<u8>> {
    // Not empty: the kernel would only return the length.
    let mut value = Vec::with_capacity(most.max(1));
    retry(|| fs::fgetxattr(borrow(&fd), name, spare_capacity(&mut value)))?;
    Ok(value)
}

pub fn set_attribute(fd: impl AsRawFd, name: &[u8], value: &[u8]) -> Result<()> {
    plain(fs::fsetxattr(
        borrow(&fd),
        name,
        value,
        fs::XattrFlags::empty(),
    ))
}

/// Open with rules for the whole path; ENOSYS on an old kernel, EPERM under a strict seccomp filter.
pub fn open_at2(
    dir: impl AsRawFd,
    path: &[u8],
    flags: c_int,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    retry(|| fs::openat2(borrow(&dir), path, flags, Mode::empty(), resolve))
}

/// Return the target of the symlink `name` in `dir`; `name` may be empty when `dir` is the link itself.
pub fn read_link_at(dir: impl AsRawFd, name: &[u8]) -> Result<Vec<u8>> {
    let target = plain(fs::readlinkat(borrow(&dir), name, Vec::new()))?.into_bytes();
    if target.len() > PATH_MAX {
        return Err(libc::ENAMETOOLONG);
    }
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
    plain(fs::mkdirat(
        borrow(&dir),
        name,
        Mode::from_bits_retain(mode),
    ))
}

/// Make a FIFO, a socket, or the device 0:0. Any other device needs a capability.
pub fn make_node_at(dir: impl AsRawFd, name: &[u8], mode: u32, dev: libc::dev_t) -> Result<()> {
    let (kind, mode) = (fs::FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
    plain(fs::mknodat(borrow(&dir), name, kind, mode, dev))
}

pub fn symlink_at(target: &[u8], dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    plain(fs::symlinkat(target, borrow(&dir), name))
}

/// Make a second name for `from` itself, even if it is a symlink.
pub fn link_at(from_dir: impl AsRawFd, from: &[u8], to_dir: impl AsRawFd, to: &[u8]) -> Result<()> {
    let (from_dir, to_dir) = (borrow(&from_dir), borrow(&to_dir));
    plain(fs::linkat(from_dir, from, to_dir, to, AtFlags::empty()))
}

pub fn unlink_at(dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    plain(fs::unlinkat(borrow(&dir), name, AtFlags::empty()))
}

pub fn remove_dir_at(dir: impl AsRawFd, name: &[u8]) -> Result<()> {
    plain(fs::unlinkat(borrow(&dir), name, AtFlags::REMOVEDIR))
}

pub fn rename_at(
    from_dir: impl AsRawFd,
    from: &[u8],
    to_dir: impl AsRawFd,
    to: &[u8],
) -> Result<()> {
    plain(fs::renameat(borrow(&from_dir), from, borrow(&to_dir), to))
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
    let (from_dir, to_dir) = (borrow(&from_dir), borrow(&to_dir));
    let flags = fs::RenameFlags::NOREPLACE;
    let errno = match plain(fs::renameat_with(from_dir, from, to_dir, to, flags)) {
        Ok(()) => return Ok(()),
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
    retry(|| fs::fsync(borrow(&fd)))
}

/// Wait until everything on the file system of `fd` is on disk.
pub fn sync_file_system(fd: impl AsRawFd) -> Result<()> {
    retry(|| fs::syncfs(borrow(&fd)))
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

fn sync_range(fd: impl AsRawFd, from: u64, count: u64, flags: libc::c_uint) -> Result<()> {
    if count == 0 {
        // To the kernel that would mean: up to the end.
        return Ok(());
    }
    let (fd, from, count) = (fd.as_raw_fd(), from as i64, count as i64);
    // SAFETY: plain system call on integers.
    let call = || check(unsafe { libc::sync_file_range(fd, from, count, flags) });
    while let Err(errno) = call() {
        if errno != libc::EINTR {
            return Err(errno);
        }
    }
    Ok(())
}

pub fn set_mode(fd: impl AsRawFd, mode: u32) -> Result<()> {
    plain(fs::fchmod(borrow(&fd), Mode::from_bits_retain(mode)))
}

/// Change the mode of exactly the object that an `O_PATH` descriptor holds.
pub fn set_mode_pinned(fd: impl AsRawFd, mode: u32) -> Result<()> {
    let (fds, name) = (open_proc_fds()?, fd_name(fd));
    plain(fs::chmodat(
        fds,
        name,
        Mode::from_bits_retain(mode),
        AtFlags::empty(),
    ))
}

pub fn set_owner(fd: impl AsRawFd, uid: u32, gid: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw_unchecked(uid), Gid::from_raw_unchecked(gid));
    plain(fs::fchown(borrow(&fd), Some(uid), Some(gid)))
}

pub fn set_owner_at(dir: impl AsRawFd, name: &[u8], uid: u32, gid: u32) -> Result<()> {
    let (uid, gid) = (
        Some(Uid::from_raw_unchecked(uid)),
        Some(Gid::from_raw_unchecked(gid)),
    );
    plain(fs::chownat(
        borrow(&dir),
        name,
        uid,
        gid,
        AtFlags::SYMLINK_NOFOLLOW,
    ))
}

pub fn timespec(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    }
}

/// The two timestamps of a file that can be set.
#[derive(Clone)]
pub struct Times(Timestamps);

impl Times {
    /// Set the time of last access to now, as a program that wrote the file would.
    pub fn accessed_now(modified: Timespec) -> Times {
        Times::new(fs::UTIME_NOW, modified)
    }

    /// Leave the time of last access as it is.
    pub fn modified(modified: Timespec) -> Times {
        Times::new(fs::UTIME_OMIT, modified)
    }

    fn new(accessed: i64, last_modification: Timespec) -> Times {
        Times(Timestamps {
            last_access: timespec(0, accessed),
            last_modification,
        })
    }
}

pub fn set_times(fd: impl AsRawFd, times: Times) -> Result<()> {
    plain(fs::futimens(borrow(&fd), &times.0))
}

pub fn set_times_at(dir: impl AsRawFd, name: &[u8], times: Times) -> Result<()> {
    plain(fs::utimensat(
        borrow(&dir),
        name,
        &times.0,
        AtFlags::SYMLINK_NOFOLLOW,
    ))
}

/// Fill `buffer` with directory records; 0 at the end of the directory.
pub fn read_dir(fd: impl AsRawFd, buffer: &mut [u8]) -> Result<usize> {
    let (fd, size) = (fd.as_raw_fd(), buffer.len());
    // SAFETY: the pointer and length describe `buffer`.
    let count = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), size) };
    Ok(check(count as c_int)? as usize)
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
    retry(|| rand::getrandom(&mut bytes, rand::GetRandomFlags::empty()))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
