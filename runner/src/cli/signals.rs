//! Signals as events: while they are caught, they wait in a descriptor.

use sandkasten_runner::sys::{check, errno, own, Errno};
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
    caught: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Catch those that are not ignored: `nohup` has a program ignore SIGHUP.
    pub fn catch() -> Result<Signals, Errno> {
        let mut caught = empty();
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            if !is_ignored(number)? {
                add(&mut caught, number);
            }
        }
        let before = block(libc::SIG_BLOCK, &caught)?;
        Signals::over(caught, before)
    }

    /// Catch none, for waits that no signal ends.
    pub fn none() -> Result<Signals, Errno> {
        let caught = empty();
        let before = block(libc::SIG_BLOCK, &caught)?;
        Signals::over(caught, before)
    }

    fn over(caught: libc::sigset_t, before: libc::sigset_t) -> Result<Signals, Errno> {
        // SAFETY: `caught` is a whole set of signals.
        let fd = unsafe { libc::signalfd(-1, &caught, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        Ok(Signals {
            fd: own(check(fd)?),
            caught,
            before,
        })
    }

    /// Catch SIGINT even if it was ignored.
    pub fn catch_interrupt(&mut self) -> Result<(), Errno> {
        add(&mut self.caught, libc::SIGINT);
        block(libc::SIG_BLOCK, &self.caught)?;
        // SAFETY: the descriptor is a signalfd, and `caught` a whole set of signals.
        check(unsafe { libc::signalfd(self.fd.as_raw_fd(), &self.caught, 0) }).map(drop)
    }

    /// Have a further signal of this number do what it did before: end the process.
    pub fn let_through(&self, number: c_int) {
        let mut one = empty();
        add(&mut one, number);
        let _ = block(libc::SIG_UNBLOCK, &one);
    }

    /// Wait until one of these events is there for `fd`, or a signal. Signals come first.
    pub fn wait(&self, fd: RawFd, events: i16, limit: Option<Duration>) -> Result<Wait, Errno> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            let mut fds = [
                libc::pollfd {
                    fd: self.fd.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                },
                libc::pollfd {
                    fd,
                    events,
                    revents: 0,
                },
            ];
            let left = end.map_or(-1, |end| {
                end.saturating_duration_since(Instant::now()).as_millis() as c_int
            });
            // SAFETY: `fds` has two entries.
            match unsafe { libc::poll(fds.as_mut_ptr(), 2, left) } {
                0 => return Ok(Wait::Timeout),
                number if number < 0 && errno() != libc::EINTR => return Err(errno()),
                number if number < 0 => {}
                _ => match self.take() {
                    Some(number) => return Ok(Wait::Signal(number)),
                    None if fds[1].revents != 0 => return Ok(Wait::Ready),
                    None => {}
                },
            }
        }
    }

    fn take(&self) -> Option<c_int> {
        // SAFETY: all zeros are a valid value, which the kernel replaces.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        let place = (&mut info as *mut libc::signalfd_siginfo).cast();
        // SAFETY: `info` has room for one record.
        let count = unsafe { libc::read(self.fd.as_raw_fd(), place, size) };
        (count == size as isize).then_some(info.ssi_signo as c_int)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = block(libc::SIG_SETMASK, &self.before);
    }
}

fn empty() -> libc::sigset_t {
    // SAFETY: sigemptyset fills in the set, whatever was in it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    }
}

fn add(set: &mut libc::sigset_t, number: c_int) {
    // SAFETY: the set was made by sigemptyset.
    unsafe { libc::sigaddset(set, number) };
}

/// Change the mask of blocked signals and return the one before.
fn block(how: c_int, set: &libc::sigset_t) -> Result<libc::sigset_t, Errno> {
    let mut before = empty();
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
