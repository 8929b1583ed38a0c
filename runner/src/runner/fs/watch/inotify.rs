//! The kernel's inotify queue: watches by descriptor, events as values.

use crate::sys;
use std::os::unix::io::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// The number of a watch.
pub type Wd = i32;

/// Some hundred events with ordinary names: the work of one step.
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
    /// Connects the two halves of a rename.
    pub cookie: u32,
    /// Empty when the event is about the watched object itself.
    pub name: Vec<u8>,
}

pub struct Inotify {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Inotify {
    pub fn new() -> sys::Result<Inotify> {
        // SAFETY: plain system call.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        Ok(Inotify {
            fd: sys::check(fd).map(sys::own)?,
            buffer: vec![0; EVENTS_BYTES],
        })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watch what `fd` holds. inotify takes paths only; `/proc/self/fd/N` is the one that means exactly
    /// `fd`. Without /proc it is `path`.
    pub fn add(&self, fd: BorrowedFd<'_>, path: &[u8]) -> sys::Result<Wd> {
        let (path, extra) = match sys::open_proc_fds() {
            Ok(_) => (sys::fd_path(fd), 0),
            Err(_) => (path.to_vec(), libc::IN_DONT_FOLLOW),
        };
        let path = sys::c_string(&path)?;
        // SAFETY: `path` is NUL-terminated.
        sys::check(unsafe { libc::inotify_add_watch(self.raw(), path.as_ptr(), MASK | extra) })
    }

    /// Remove a watch; it may be gone already.
    pub fn remove(&self, wd: Wd) {
        // SAFETY: plain system call on integers.
        unsafe { libc::inotify_rm_watch(self.raw(), wd) };
    }

    /// Return the queued events, up to one buffer; empty when there are none.
    pub fn read(&mut self) -> sys::Result<Vec<Event>> {
        let fd = self.raw();
        match sys::read(fd, &mut self.buffer) {
            Ok(count) => Ok(parse(&self.buffer[..count])),
            Err(libc::EAGAIN) => Ok(Vec::new()),
            Err(errno) => Err(errno),
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
