//! The kernel's inotify queue: watches by descriptor, events as values.

use crate::fs::sys;
use std::ffi::CString;
use std::io;
use std::os::unix::io::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The number of a watch.
pub type Wd = i32;

/// Some hundred events with ordinary names: a step's worth of work.
const EVENTS_BYTES: usize = 16 * 1024;

const MASK: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MODIFY
    | libc::IN_ATTRIB
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF;

pub struct Event {
    pub wd: Wd,
    pub mask: u32,
    /// Ties the two halves of a rename together.
    pub cookie: u32,
    /// Empty when the event is about the watched thing itself.
    pub name: Vec<u8>,
}

pub struct Inotify {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Inotify {
    pub fn new() -> io::Result<Inotify> {
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Inotify {
            // SAFETY: the kernel has just handed this descriptor to us and to nobody else.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            buffer: vec![0; EVENTS_BYTES],
        })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// inotify takes paths only; `/proc/self/fd/N` is the one that means `fd` and nothing else.
    /// Without /proc it is `path`.
    pub fn add(&self, fd: BorrowedFd<'_>, path: &[u8]) -> io::Result<Wd> {
        let (path, extra) = match sys::proc_fds() {
            Ok(_) => (sys::fd_path(fd), 0),
            Err(_) => (path.to_vec(), libc::IN_DONT_FOLLOW),
        };
        let path = CString::new(path).map_err(|_| sys::os_error(libc::EINVAL))?;
        let wd = unsafe { libc::inotify_add_watch(self.raw(), path.as_ptr(), MASK | extra) };
        if wd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(wd)
        }
    }

    /// A watch that is already gone is fine.
    pub fn remove(&self, wd: Wd) {
        unsafe { libc::inotify_rm_watch(self.raw(), wd) };
    }

    /// What the queue holds, up to one buffer; empty when it holds nothing.
    pub fn read(&mut self) -> io::Result<Vec<Event>> {
        loop {
            let count = unsafe {
                libc::read(
                    self.raw(),
                    self.buffer.as_mut_ptr().cast(),
                    self.buffer.len(),
                )
            };
            if count >= 0 {
                return Ok(parse(&self.buffer[..count as usize]));
            }
            let error = io::Error::last_os_error();
            match sys::errno(&error) {
                libc::EINTR => {}
                libc::EAGAIN => return Ok(Vec::new()),
                _ => return Err(error),
            }
        }
    }
}

fn parse(mut bytes: &[u8]) -> Vec<Event> {
    // i32 watch · u32 mask · u32 cookie · u32 length of the name · name, NULs
    const HEAD: usize = 16;
    let word = |bytes: &[u8], at: usize| {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let mut events = Vec::new();
    while bytes.len() >= HEAD {
        let end = HEAD
            .saturating_add(word(bytes, 12) as usize)
            .min(bytes.len());
        let padded = &bytes[HEAD..end];
        let length = padded.iter().position(|&c| c == 0).unwrap_or(padded.len());
        events.push(Event {
            wd: word(bytes, 0) as Wd,
            mask: word(bytes, 4),
            cookie: word(bytes, 8),
            name: padded[..length].to_vec(),
        });
        bytes = &bytes[end..];
    }
    events
}
