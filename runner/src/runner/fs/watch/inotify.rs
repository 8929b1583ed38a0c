//! The kernel's inotify queue: watches by descriptor, events as values.

use crate::sys::{self, plain};
use rustix::fs::inotify::{self, WatchFlags};
use std::mem::MaybeUninit;
use std::os::unix::io::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// The number of a watch.
pub type Wd = i32;

/// Some hundred events with ordinary names: the work of one step.
const EVENTS_BYTES: usize = 16 * 1024;

const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

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
    buffer: Vec<MaybeUninit<u8>>,
}

impl Inotify {
    pub fn new() -> sys::Result<Inotify> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Ok(Inotify {
            fd: plain(inotify::init(flags))?,
            buffer: vec![MaybeUninit::uninit(); EVENTS_BYTES],
        })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watch what `fd` holds. inotify takes paths only; `/proc/self/fd/N` is the one that means exactly
    /// `fd`. Without /proc it is `path`.
    pub fn add(&self, fd: BorrowedFd<'_>, path: &[u8]) -> sys::Result<Wd> {
        plain(match sys::open_proc_fds() {
            Ok(_) => inotify::add_watch(&self.fd, sys::fd_path(fd), MASK),
            Err(_) => inotify::add_watch(&self.fd, path, MASK | WatchFlags::DONT_FOLLOW),
        })
    }

    /// Remove a watch; it may be gone already.
    pub fn remove(&self, wd: Wd) {
        let _gone = inotify::remove_watch(&self.fd, wd);
    }

    /// Return the queued events, up to one buffer; empty when there are none.
    pub fn read(&mut self) -> sys::Result<Vec<Event>> {
        let mut reader = inotify::Reader::new(&self.fd, &mut self.buffer);
        let mut events = Vec::new();
        loop {
            match plain(reader.next()) {
                Ok(event) => events.push(Event {
                    wd: event.wd(),
                    mask: event.events().bits(),
                    cookie: event.cookie(),
                    name: event
                        .file_name()
                        .map_or_else(Vec::new, |n| n.to_bytes().to_vec()),
                }),
                Err(libc::EINTR) => continue,
                Err(libc::EAGAIN) => return Ok(events),
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(events);
            }
        }
    }
}
