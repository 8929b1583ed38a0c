//! Signals as events: while they are caught, they wait in a descriptor.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use sandkasten_runner::sys::{self, check, own, Errno};
use std::os::raw::c_int;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Wait {
    Ready,
    Signal(c_int),
    Timeout,
}

/// SIGINT, SIGTERM and SIGHUP, which are blocked until this is dropped.
pub struct Signals {
    fd: OwnedFd,
    caught: Vec<c_int>,
    before: libc::sigset_t,
}

impl Signals {
    /// Catch those that are not ignored: `nohup` has a program ignore SIGHUP.
    pub fn catch() -> Result<Signals, Errno> {
        let mut caught = Vec::new();
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            if !is_ignored(number)? {
                caught.push(number);
            }
        }
        Signals::of(caught)
    }

    /// Catch none, for waits that no signal ends.
    pub fn none() -> Result<Signals, Errno> {
        Signals::of(Vec::new())
    }

    fn of(caught: Vec<c_int>) -> Result<Signals, Errno> {
        let before = block(libc::SIG_BLOCK, &set(&caught))?;
        Ok(Signals {
            fd: own(descriptor(-1, &caught)?),
            caught,
            before,
        })
    }

    /// Catch SIGINT even if it was ignored.
    pub fn catch_interrupt(&mut self) -> Result<(), Errno> {
        self.caught.push(libc::SIGINT);
        block(libc::SIG_BLOCK, &set(&self.caught))?;
        descriptor(self.fd.as_raw_fd(), &self.caught).map(drop)
    }

    /// Have a further signal of this number do what it did before: end the process.
    pub fn let_through(&self, number: c_int) {
        let _ = block(libc::SIG_UNBLOCK, &set(&[number]));
    }

    /// Wait until one of these events is there for `fd`, or a signal. Signals come first.
    pub fn wait(&self, fd: RawFd, events: i16, limit: Option<Duration>) -> Result<Wait, Errno> {
        let end = limit.map(|limit| Instant::now() + limit);
        let fd = sys::borrow(&fd);
        let events = PollFlags::from_bits_retain(events as u16);
        loop {
            let mut fds = [
                PollFd::new(&self.fd, PollFlags::IN),
                PollFd::new(&fd, events),
            ];
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            match sys::plain(poll(&mut fds, left.as_ref())) {
                Ok(0) => return Ok(Wait::Timeout),
                Ok(_) => match self.take() {
                    Some(number) => return Ok(Wait::Signal(number)),
                    None if !fds[1].revents().is_empty() => return Ok(Wait::Ready),
                    None => {}
                },
                Err(libc::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn take(&self) -> Option<c_int> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        let count = sys::read(self.fd.as_raw_fd(), &mut record).ok()?;
        // The number comes first.
        let number = record[..count].first_chunk()?;
        Some(c_int::from_ne_bytes(*number))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = block(libc::SIG_SETMASK, &self.before);
    }
}

fn set(numbers: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigemptyset fills in the set, whatever was in it, and sigaddset refuses other numbers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &number in numbers {
            libc::sigaddset(&mut set, number);
        }
        set
    }
}

/// Return a descriptor of these signals: a new one, or `fd` if it is one.
fn descriptor(fd: RawFd, caught: &[c_int]) -> Result<RawFd, Errno> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is initialised.
    check(unsafe { libc::signalfd(fd, &set(caught), flags) })
}

/// Change the mask of blocked signals and return the one before.
fn block(how: c_int, set: &libc::sigset_t) -> Result<libc::sigset_t, Errno> {
    let mut before = self::set(&[]);
    // SAFETY: both are whole sets of signals.
    check(unsafe { libc::sigprocmask(how, set, &mut before) })?;
    Ok(before)
}

fn is_ignored(number: c_int) -> Result<bool, Errno> {
    // SAFETY: all zeros are a valid value, which the kernel replaces; no handler is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        check(libc::sigaction(number, std::ptr::null(), &mut action))?;
        Ok(action.sa_sigaction == libc::SIG_IGN)
    }
}
