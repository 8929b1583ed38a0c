//! Calls on open descriptors: reading, writing, pipes, flags, closing.

use super::{c_string, check, errno, own, retry, Result};
use std::os::raw::{c_int, c_long, c_uint};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the pointer and length describe one live buffer.
    let count =
        retry(|| unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) as c_long })?;
    Ok(count as usize)
}

pub fn read_at(fd: impl AsRawFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the pointer and length describe one live buffer.
    let count = retry(|| unsafe {
        libc::pread(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            offset as libc::off_t,
        ) as c_long
    })?;
    Ok(count as usize)
}

pub fn write(fd: RawFd, buffer: &[u8]) -> Result<usize> {
    // SAFETY: the pointer and length describe one live buffer.
    let count =
        retry(|| unsafe { libc::write(fd, buffer.as_ptr().cast(), buffer.len()) as c_long })?;
    Ok(count as usize)
}

pub fn write_all(fd: impl AsRawFd, mut buffer: &[u8]) -> Result<()> {
    while !buffer.is_empty() {
        let count = write(fd.as_raw_fd(), buffer)?;
        if count == 0 {
            return Err(libc::ENOSPC);
        }
        buffer = &buffer[count..];
    }
    Ok(())
}

pub fn seek(fd: impl AsRawFd, offset: u64, whence: c_int) -> Result<u64> {
    // SAFETY: plain system call on integers.
    let position = unsafe { libc::lseek(fd.as_raw_fd(), offset as libc::off_t, whence) };
    if position < 0 {
        Err(errno())
    } else {
        Ok(position as u64)
    }
}

pub fn truncate(fd: impl AsRawFd, size: u64) -> Result<()> {
    // SAFETY: plain system call on integers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) }).map(drop)
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(ends[0]), own(ends[1])))
}

/// Return a pipe whose first end, the one to read from, does not block.
pub fn pipe_to_poll() -> Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe()?;
    // SAFETY: plain fcntl on an integer descriptor; a new pipe has no other flag to keep.
    check(unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok((ours, theirs))
}

/// Make a pipe hold at least `size` bytes, if `fd` is a pipe and the kernel allows it.
pub fn widen_pipe(fd: RawFd, size: usize) {
    // SAFETY: plain fcntl on an integer descriptor; anything but a pipe is refused.
    unsafe {
        let capacity = libc::fcntl(fd, libc::F_GETPIPE_SZ);
        if capacity >= 0 && (capacity as usize) < size {
            libc::fcntl(fd, libc::F_SETPIPE_SZ, size as c_int);
        }
    }
}

/// Return an anonymous file with this content, positioned at its start.
pub fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let name = c_string(name.as_bytes())?;
    // SAFETY: `name` is NUL-terminated.
    let fd = own(check(unsafe {
        libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)
    })?);
    write_all(fd.as_raw_fd(), content)?;
    seek(fd.as_raw_fd(), 0, libc::SEEK_SET)?;
    Ok(fd)
}

pub fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: plain fcntl on an integer descriptor.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Return a copy of `fd` whose number is `lowest` or higher.
pub fn duplicate_above(fd: impl AsRawFd, lowest: RawFd) -> Result<OwnedFd> {
    // SAFETY: plain fcntl on an integer descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) }).map(own)
}

/// Return a copy of `fd` that is not one of the standard descriptors.
pub fn duplicate(fd: impl AsRawFd) -> Result<OwnedFd> {
    duplicate_above(fd, 3)
}

/// Return how many bytes a read would return now; 0 when that is unknown.
pub fn readable_bytes(fd: RawFd) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let result = unsafe { libc::ioctl(fd, libc::FIONREAD, &mut count) };
    if result == 0 && count > 0 {
        count as usize
    } else {
        0
    }
}

fn poll_once(fd: RawFd, events: libc::c_short) -> libc::c_short {
    let mut state = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut state, 1, 0) };
    state.revents
}

/// Report whether the FIFO or socket behind `fd` had writers and has none any more.
pub fn is_hung_up(fd: RawFd) -> bool {
    poll_once(fd, libc::POLLIN) & libc::POLLHUP != 0
}

/// Report whether any process has the FIFO behind this writing end open for reading.
pub fn has_reader(fd: RawFd) -> bool {
    poll_once(fd, libc::POLLOUT) & libc::POLLERR == 0
}

pub fn close(fd: RawFd) {
    // SAFETY: the caller owns the descriptor and does not use it again.
    unsafe { libc::close(fd) };
}

fn close_range(first: c_uint, last: c_uint) -> Result<()> {
    // By number: the C library's wrapper is newer than some libraries that we are linked with.
    // SAFETY: closes descriptors by number; the callers own none of them any more.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    check(result as c_int).map(drop)
}

/// Close every descriptor from `first` on.
pub fn close_from(first: RawFd) {
    if close_range(first as c_uint, c_uint::MAX).is_ok() {
        return;
    }
    // A kernel without close_range, such as gVisor's: close what is listed as open.
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        let number = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok()
        };
        // Collected first: the descriptor of the listing is in the list, and closed by then.
        let mut open: Vec<RawFd> = entries.filter_map(number).collect();
        open.retain(|fd| *fd >= first);
        open.into_iter().for_each(close);
        return;
    }
    // Without /proc: close every number that the limit allows.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid out pointer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (first..limit.rlim_cur.min(65_536) as RawFd).for_each(close);
}

/// Close the descriptors `first..=last`.
pub fn close_between(first: RawFd, last: RawFd) {
    if first <= last && close_range(first as c_uint, last as c_uint).is_err() {
        (first..=last.min(65_536)).for_each(close);
    }
}

/// Close every descriptor that is not in `keep`; fails on a kernel without close_range.
pub fn close_all_but(keep: &[RawFd]) -> Result<()> {
    let mut sorted: Vec<c_uint> = keep.iter().map(|&fd| fd as c_uint).collect();
    sorted.sort_unstable();
    let mut next = 0;
    for fd in sorted {
        if fd > next {
            close_range(next, fd - 1)?;
        }
        next = fd + 1;
    }
    close_range(next, c_uint::MAX)
}
