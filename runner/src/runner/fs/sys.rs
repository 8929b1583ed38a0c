//! The system calls of the file verbs, as functions over bytes and owned descriptors.
//!
//! No policy here and no protocol: every call answers `io::Result`. Every descriptor made here is
//! close-on-exec. An interrupted call is made again.

use std::ffi::CString;
use std::io::{Error, Result};
use std::os::raw::{c_int, c_long, c_uint};
use std::os::unix::io::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// As many bytes as the kernel takes for one path, its NUL included.
pub const PATH_MAX: usize = 4096;

pub const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const RENAME_NOREPLACE: c_uint = 1;

pub type Stat = libc::stat;

/// What `st_dev` and `st_ino` say together: the same object, as long as somebody holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    dev: u64,
    ino: u64,
}

pub fn identity(stat: &Stat) -> Identity {
    Identity {
        dev: stat.st_dev,
        ino: stat.st_ino,
    }
}

pub fn kind(stat: &Stat) -> libc::mode_t {
    stat.st_mode & libc::S_IFMT
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

pub fn errno(error: &Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub fn os_error(errno: i32) -> Error {
    Error::from_raw_os_error(errno)
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| os_error(libc::EINVAL))
}

fn check(answer: c_int) -> Result<c_int> {
    if answer < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// Repeats `call` while a signal interrupts it.
fn retry(mut call: impl FnMut() -> c_long) -> Result<c_long> {
    loop {
        let answer = call();
        if answer >= 0 {
            return Ok(answer);
        }
        let error = Error::last_os_error();
        if errno(&error) != libc::EINTR {
            return Err(error);
        }
    }
}

fn owned(answer: c_long) -> OwnedFd {
    // SAFETY: the kernel has just handed this descriptor to us and to nobody else.
    unsafe { OwnedFd::from_raw_fd(answer as RawFd) }
}

pub fn open_at(dir: BorrowedFd<'_>, path: &[u8], flags: c_int, mode: u32) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let flags = flags | libc::O_CLOEXEC;
    let answer = retry(|| unsafe {
        c_long::from(libc::openat(dir.as_raw_fd(), path.as_ptr(), flags, mode))
    })?;
    Ok(owned(answer))
}

/// Opens an absolute path.
pub fn open_path(path: &[u8], flags: c_int) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let flags = flags | libc::O_CLOEXEC;
    let answer =
        retry(|| unsafe { c_long::from(libc::openat(libc::AT_FDCWD, path.as_ptr(), flags, 0)) })?;
    Ok(owned(answer))
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub fn open_at2(dir: BorrowedFd<'_>, path: &[u8], flags: c_int, resolve: u64) -> Result<OwnedFd> {
    let path = c_string(path)?;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve,
    };
    let answer = retry(|| unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            &how as *const OpenHow,
            std::mem::size_of::<OpenHow>(),
        )
    })?;
    Ok(owned(answer))
}

pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let answer = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) })?;
    Ok(owned(c_long::from(answer)))
}

pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat> {
    let mut stat = std::mem::MaybeUninit::<Stat>::uninit();
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// Never follows a symlink at `name`.
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat> {
    let name = c_string(name)?;
    let mut stat = std::mem::MaybeUninit::<Stat>::uninit();
    check(unsafe {
        libc::fstatat(
            dir.as_raw_fd(),
            name.as_ptr(),
            stat.as_mut_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    })?;
    // SAFETY: fstatat succeeded, so it filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// The magic number of the file system `fd` lies on.
pub fn file_system(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut answer = std::mem::MaybeUninit::<libc::statfs>::uninit();
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), answer.as_mut_ptr()) })?;
    // SAFETY: fstatfs succeeded, so it filled the whole structure.
    Ok(unsafe { answer.assume_init() }.f_type as u64)
}

pub fn on_proc(fd: BorrowedFd<'_>) -> Result<bool> {
    Ok(file_system(fd)? == PROC_SUPER_MAGIC)
}

/// Bytes an ordinary user may still write, or `None` where the file system does not say.
pub fn free_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), answer.as_mut_ptr()) }).ok()?;
    // SAFETY: fstatvfs succeeded, so it filled the whole structure.
    let answer = unsafe { answer.assume_init() };
    if answer.f_blocks == 0 {
        return None;
    }
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// The text of the symlink `name` in `dir`; `name` may be empty when `dir` is the link itself.
pub fn read_link(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>> {
    let name = c_string(name)?;
    let mut text = vec![0u8; PATH_MAX + 1];
    let answer = unsafe {
        libc::readlinkat(
            dir.as_raw_fd(),
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    if answer < 0 {
        return Err(Error::last_os_error());
    }
    let length = answer as usize;
    if length == text.len() {
        return Err(os_error(libc::ENAMETOOLONG));
    }
    text.truncate(length);
    Ok(text)
}

/// `/proc/self/fd`, only if it truly is procfs.
pub fn proc_fds() -> Result<OwnedFd> {
    let dir = open_path(b"/proc/self/fd", libc::O_PATH | libc::O_DIRECTORY)?;
    if on_proc(as_fd(&dir))? {
        Ok(dir)
    } else {
        Err(os_error(libc::ENOENT))
    }
}

pub fn fd_name(fd: BorrowedFd<'_>) -> Vec<u8> {
    fd.as_raw_fd().to_string().into_bytes()
}

/// `/proc/self/fd/N`: a path that the kernel leads to exactly what `fd` holds.
pub fn fd_path(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

pub fn make_dir(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
    let name = c_string(name)?;
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// A FIFO or a socket; a device needs a privilege that nobody in here has.
pub fn make_node(dir: BorrowedFd<'_>, name: &[u8], mode: u32, dev: libc::dev_t) -> Result<()> {
    let name = c_string(name)?;
    check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, dev) }).map(drop)
}

pub fn make_symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let target = c_string(target)?;
    let name = c_string(name)?;
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// Never follows a symlink at `from`.
pub fn link(
    from_dir: BorrowedFd<'_>,
    from: &[u8],
    to_dir: BorrowedFd<'_>,
    to: &[u8],
) -> Result<()> {
    let from = c_string(from)?;
    let to = c_string(to)?;
    check(unsafe {
        libc::linkat(
            from_dir.as_raw_fd(),
            from.as_ptr(),
            to_dir.as_raw_fd(),
            to.as_ptr(),
            0,
        )
    })
    .map(drop)
}

pub fn unlink(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

pub fn remove_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let name = c_string(name)?;
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

pub fn rename(
    from_dir: BorrowedFd<'_>,
    from: &[u8],
    to_dir: BorrowedFd<'_>,
    to: &[u8],
) -> Result<()> {
    let from = c_string(from)?;
    let to = c_string(to)?;
    check(unsafe {
        libc::renameat(
            from_dir.as_raw_fd(),
            from.as_ptr(),
            to_dir.as_raw_fd(),
            to.as_ptr(),
        )
    })
    .map(drop)
}

/// `EEXIST` when `to` is there. A file system without RENAME_NOREPLACE answers `EINVAL`; there a
/// hard link does the same for files, and nothing atomic does it for directories.
pub fn rename_new(
    from_dir: BorrowedFd<'_>,
    from: &[u8],
    to_dir: BorrowedFd<'_>,
    to: &[u8],
) -> Result<()> {
    let from_c = c_string(from)?;
    let to_c = c_string(to)?;
    let answer = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from_dir.as_raw_fd(),
            from_c.as_ptr(),
            to_dir.as_raw_fd(),
            to_c.as_ptr(),
            RENAME_NOREPLACE,
        )
    };
    if answer >= 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    if !matches!(errno(&error), libc::EINVAL | libc::ENOSYS) {
        return Err(error);
    }
    match stat_at(from_dir, from) {
        Ok(stat) if !is_dir(&stat) => {
            link(from_dir, from, to_dir, to)?;
            unlink(from_dir, from)
        }
        _ => Err(error),
    }
}

pub fn change_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

/// Changes the mode of what an `O_PATH` descriptor holds, and of nothing else.
pub fn change_mode_pinned(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    let fds = proc_fds()?;
    let name = c_string(&fd_name(fd))?;
    check(unsafe { libc::fchmodat(fds.as_raw_fd(), name.as_ptr(), mode, 0) }).map(drop)
}

pub fn change_owner(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<()> {
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

fn now_and(mtime: libc::timespec) -> [libc::timespec; 2] {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    };
    [now, mtime]
}

pub fn timespec(seconds: i64, nanoseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: seconds as libc::time_t,
        tv_nsec: nanoseconds as c_long,
    }
}

pub fn set_mtime(fd: BorrowedFd<'_>, mtime: libc::timespec) -> Result<()> {
    let times = now_and(mtime);
    check(unsafe { libc::futimens(fd.as_raw_fd(), times.as_ptr()) }).map(drop)
}

/// Never follows a symlink at `name`.
pub fn set_mtime_at(dir: BorrowedFd<'_>, name: &[u8], mtime: libc::timespec) -> Result<()> {
    let name = c_string(name)?;
    let times = now_and(mtime);
    check(unsafe {
        libc::utimensat(
            dir.as_raw_fd(),
            name.as_ptr(),
            times.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    })
    .map(drop)
}

pub fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| unsafe {
        libc::pread(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            offset as libc::off_t,
        ) as c_long
    })
    .map(|count| count as usize)
}

pub fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let count = retry(|| unsafe {
            libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) as c_long
        })? as usize;
        if count == 0 {
            return Err(os_error(libc::ENOSPC));
        }
        bytes = &bytes[count..];
    }
    Ok(())
}

pub fn seek(fd: BorrowedFd<'_>, offset: u64, whence: c_int) -> Result<u64> {
    let answer = unsafe { libc::lseek(fd.as_raw_fd(), offset as libc::off_t, whence) };
    if answer < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(answer as u64)
    }
}

pub fn truncate(fd: BorrowedFd<'_>, size: u64) -> Result<()> {
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) }).map(drop)
}

/// Fills `buffer` with directory records; 0 at the end of the directory.
pub fn read_dir(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    retry(|| unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    })
    .map(|count| count as usize)
}

/// The records of a buffer that `read_dir` filled: name and `d_type`, without `.` and `..`.
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

pub fn as_fd(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::unix::io::AsFd::as_fd(fd)
}

/// 16 hexadecimal digits nobody can guess, for names of temporary files.
pub fn random_name() -> Result<String> {
    let mut bytes = [0u8; 8];
    retry(|| unsafe {
        libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) as c_long
    })?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
