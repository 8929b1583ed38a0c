//! epoll, with tokens that are never used twice: an event for a closed descriptor finds no source.

use crate::sys::{self, Errno};
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

pub const READ: u32 = libc::EPOLLIN as u32;
pub const WRITE: u32 = libc::EPOLLOUT as u32;

pub struct Ready {
    pub source: Source,
    pub broken: bool,
}

pub struct Poll {
    epoll: OwnedFd,
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
        // SAFETY: plain system call.
        let fd = sys::check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Poll {
            epoll: sys::own(fd),
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
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)?;
        self.sources.insert(token, source);
        Ok(token)
    }

    pub fn change(&mut self, fd: RawFd, token: u64, interest: u32) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    pub fn remove(&mut self, fd: RawFd, token: u64) {
        if self.sources.remove(&token).is_some() {
            let _already_closed = self.control(libc::EPOLL_CTL_DEL, fd, token, 0);
        }
    }

    pub fn unwatch(&mut self, watched: Watched) -> OwnedFd {
        self.remove(watched.fd.as_raw_fd(), watched.token);
        watched.fd
    }

    fn control(&self, how: i32, fd: RawFd, token: u64, interest: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: interest,
            u64: token,
        };
        // SAFETY: `event` is valid for the call.
        sys::check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), how, fd, &mut event) })
            .map(|_| ())
    }

    /// Wait at most `timeout_ns` (forever if `None`) and put the ready sources into `ready`.
    pub fn wait(&mut self, timeout_ns: Option<u64>, ready: &mut Vec<Ready>) {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let count = self.wait_raw(timeout_ns, &mut events);
        for event in &events[..count] {
            let (bits, token) = (event.events, event.u64);
            if let Some(&source) = self.sources.get(&token) {
                let broken = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
                ready.push(Ready {
                    source,
                    broken: bits & broken != 0,
                });
            }
        }
    }

    fn wait_raw(&mut self, timeout_ns: Option<u64>, events: &mut [libc::epoll_event]) -> usize {
        let fd = self.epoll.as_raw_fd();
        if self.fine && matches!(timeout_ns, Some(1..=20_000_000)) {
            let ns = timeout_ns.unwrap_or(0);
            let timeout = libc::timespec {
                tv_sec: 0,
                tv_nsec: ns as libc::c_long,
            };
            // SAFETY: the arrays and the timespec live through the call; no signal mask is given.
            let rc = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    fd,
                    events.as_mut_ptr(),
                    events.len() as libc::c_int,
                    &timeout,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            };
            if rc >= 0 {
                return rc as usize;
            }
            if sys::errno() == libc::EINTR {
                return 0;
            }
            self.fine = false;
        }
        let ms = match timeout_ns {
            None => -1,
            Some(ns) => ns.div_ceil(1_000_000).min(60_000) as libc::c_int,
        };
        // SAFETY: `events` is a valid array of the given length.
        let rc =
            unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), events.len() as libc::c_int, ms) };
        if rc < 0 {
            0
        } else {
            rc as usize
        }
    }
}
