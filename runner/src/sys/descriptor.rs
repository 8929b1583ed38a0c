//! Calls on open descriptors: reading, writing, pipes, flags, closing.

use super::{borrow, check, plain, retry, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{self, OFlags, SeekFrom};
use rustix::{io, pipe as pipes, process};
use std::os::raw::{c_int, c_uint};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    retry(|| io::read(borrow(&fd), &mut *buffer))
}

pub fn read_at(fd: impl AsRawFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| io::pread(borrow(&fd), &mut *buffer, offset))
}

pub fn write(fd: RawFd, buffer: &[u8]) -> Result<usize> {
    retry(|| io::write(borrow(&fd), buffer))
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
    let position = match whence {
        libc::SEEK_SET => SeekFrom::Start(offset),
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(libc::EINVAL),
    };
    plain(fs::seek(borrow(&fd), position))
}

pub fn truncate(fd: impl AsRawFd, size: u64) -> Result<()> {
    plain(fs::ftruncate(borrow(&fd), size))
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    plain(pipes::pipe_with(pipes::PipeFlags::CLOEXEC))
}

/// Return a pipe whose first end, the one to read from, does not block.
pub fn pipe_to_poll() -> Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe()?;
    // A new pipe has no other flag to keep.
    plain(fs::fcntl_setfl(&ours, OFlags::NONBLOCK))?;
    Ok((ours, theirs))
}

/// Make a pipe hold at least `size` bytes, if `fd` is a pipe and the kernel allows it.
pub fn widen_pipe(fd: RawFd, size: usize) {
    let fd = borrow(&fd);
    if pipes::fcntl_getpipe_size(fd).is_ok_and(|capacity| capacity < size) {
        let _ = pipes::fcntl_setpipe_size(fd, size);
    }
}

/// Return an anonymous file with this content, positioned at its start.
pub fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let fd = plain(fs::memfd_create(name, fs::MemfdFlags::CLOEXEC))?;
    write_all(fd.as_raw_fd(), content)?;
    plain(fs::seek(&fd, SeekFrom::Start(0)))?;
    Ok(fd)
}

pub fn set_nonblocking(fd: RawFd) -> Result<()> {
    let flags = plain(fs::fcntl_getfl(borrow(&fd)))?;
    plain(fs::fcntl_setfl(borrow(&fd), flags | OFlags::NONBLOCK))
}

/// Return a copy of `fd` whose number is `lowest` or higher.
pub fn duplicate_above(fd: impl AsRawFd, lowest: RawFd) -> Result<OwnedFd> {
    plain(io::fcntl_dupfd_cloexec(borrow(&fd), lowest))
}

/// Return a copy of `fd` that is not one of the standard descriptors.
pub fn duplicate(fd: impl AsRawFd) -> Result<OwnedFd> {
    duplicate_above(fd, 3)
}

/// Return how many bytes a read would return now; 0 when that is unknown.
pub fn readable_bytes(fd: RawFd) -> usize {
    io::ioctl_fionread(borrow(&fd)).unwrap_or(0) as usize
}

/// Return which of these events are there now.
fn poll_once(fd: RawFd, events: PollFlags) -> PollFlags {
    let fd = borrow(&fd);
    let mut state = [PollFd::new(&fd, events)];
    let _ = poll(&mut state, Some(&Timespec::default()));
    state[0].revents()
}

/// Report whether the FIFO or socket behind `fd` had writers and has none any more.
pub fn is_hung_up(fd: RawFd) -> bool {
    poll_once(fd, PollFlags::IN).contains(PollFlags::HUP)
}

/// Report whether any process has the FIFO behind this writing end open for reading.
pub fn has_reader(fd: RawFd) -> bool {
    !poll_once(fd, PollFlags::OUT).contains(PollFlags::ERR)
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
    let limit = process::getrlimit(process::Resource::Nofile).current;
    (first..limit.map_or(65_536, |limit| limit.min(65_536)) as RawFd).for_each(close);
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
