//! epoll, with tokens that are never used twice: an event for a closed descriptor finds no source.

use crate::sys::{self, plain, Errno};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::Timespec;
use std::collections::HashMap;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Signals,
    Listener,
    Giver,
    Connection(u64),
    ConnectionWrite(u64),
    Handler(u64, u32),
    Supervisor(i32),
    Output(u64, u8),
    Input(u64),
    ShellAnswer(u64),
}

pub const READ: u32 = EventFlags::IN.bits();
pub const WRITE: u32 = EventFlags::OUT.bits();

pub struct Ready {
    pub source: Source,
    pub broken: bool,
}

pub struct Poll {
    epoll: OwnedFd,
    /// Those of the last wait.
    events: Vec<Event>,
    sources: HashMap<u64, Source>,
    serial: u64,
    /// epoll_pwait2 takes nanoseconds; older kernels and strict filters do not have it.
    fine: bool,
}

/// A descriptor that is being polled; closing it ends that.
pub struct Watched {
    pub fd: OwnedFd,
    pub token: u64,
}

impl Watched {
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Poll {
    pub fn new() -> Result<Poll, Errno> {
        Ok(Poll {
            epoll: plain(epoll::create(epoll::CreateFlags::CLOEXEC))?,
            events: Vec::with_capacity(64),
            sources: HashMap::new(),
            serial: 0,
            fine: true,
        })
    }

    pub fn watch(&mut self, fd: OwnedFd, source: Source, interest: u32) -> Result<Watched, Errno> {
        let token = self.add(fd.as_raw_fd(), source, interest)?;
        Ok(Watched { fd, token })
    }

    pub fn add(&mut self, fd: RawFd, source: Source, interest: u32) -> Result<u64, Errno> {
        self.serial += 1;
        let token = self.serial;
        let (data, interest) = (
            EventData::new_u64(token),
            EventFlags::from_bits_retain(interest),
        );
        plain(epoll::add(&self.epoll, sys::borrow(&fd), data, interest))?;
        self.sources.insert(token, source);
        Ok(token)
    }

    pub fn change(&mut self, fd: RawFd, token: u64, interest: u32) -> Result<(), Errno> {
        let (data, interest) = (
            EventData::new_u64(token),
            EventFlags::from_bits_retain(interest),
        );
        plain(epoll::modify(&self.epoll, sys::borrow(&fd), data, interest))
    }

    pub fn remove(&mut self, fd: RawFd, token: u64) {
        if self.sources.remove(&token).is_some() {
            let _already_closed = epoll::delete(&self.epoll, sys::borrow(&fd));
        }
    }

    pub fn unwatch(&mut self, watched: Watched) -> OwnedFd {
        self.remove(watched.fd.as_raw_fd(), watched.token);
        watched.fd
    }

    /// Wait at most `timeout_ns` (forever if `None`) and put the ready sources into `ready`.
    pub fn wait(&mut self, timeout_ns: Option<u64>, ready: &mut Vec<Ready>) {
        ready.clear();
        self.events.clear();
        if !(matches!(timeout_ns, Some(1..=20_000_000)) && self.wait_fine(timeout_ns)) {
            let timeout = timeout_ns.map(|ns| Timespec {
                tv_sec: (ns / 1_000_000_000).min(60) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            });
            let events = spare_capacity(&mut self.events);
            let _interrupted = epoll::wait(&self.epoll, events, timeout.as_ref());
        }
        for event in &self.events {
            let (flags, data) = (event.flags, event.data);
            if let Some(&source) = self.sources.get(&data.u64()) {
                ready.push(Ready {
                    source,
                    broken: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                });
            }
        }
    }

    /// Wait with nanoseconds, for which rustix would round up. Return false where that is not possible.
    fn wait_fine(&mut self, timeout_ns: Option<u64>) -> bool {
        if !self.fine {
            return false;
        }
        let timeout = libc::timespec {
            tv_sec: 0,
            tv_nsec: timeout_ns.unwrap_or(0) as libc::c_long,
        };
        // SAFETY: the kernel fills in at most as many events as there is room for, in the layout that
        // these have; no signal mask is given.
        let rc = unsafe {
            let count = libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.capacity() as libc::c_int,
                &timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            );
            self.events.set_len(count.max(0) as usize);
            count
        };
        self.fine = rc >= 0 || sys::errno() == libc::EINTR;
        self.fine
    }
}
