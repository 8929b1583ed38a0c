//! Bytes from one socket to another, without a copy in this process.
//!
//! A direction ends when its source has ended and everything was delivered; then the other side gets the end too.
//! Sockets do not block. A call moves a bounded amount, so one fast stream cannot stop the others. A
//! direction has a pipe only while bytes are under way, so idle connections cost no more than their sockets.

use crate::sys::{self, check, Result};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Bytes moved in one turn.
const TURN: usize = 4 << 20;
const PIECE: u64 = 1 << 20;
/// Fewer and larger moves; the kernel may allow less.
const PIPE_SIZE: libc::c_int = 1 << 18;
/// Empty pipes that are kept.
const SPARE: usize = 4;

struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

/// Empty pipes, for whichever direction moves bytes next.
#[derive(Default)]
pub struct Pipes(Vec<Pipe>);

impl Pipes {
    fn take(&mut self) -> Result<Pipe> {
        if let Some(pipe) = self.0.pop() {
            return Ok(pipe);
        }
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors, and the size is one number.
        unsafe {
            check(libc::pipe2(
                ends.as_mut_ptr(),
                libc::O_CLOEXEC | libc::O_NONBLOCK,
            ))?;
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, PIPE_SIZE);
        }
        Ok(Pipe {
            out: sys::own(ends[0]),
            into: sys::own(ends[1]),
        })
    }

    fn put(&mut self, pipe: Pipe) {
        if self.0.len() < SPARE {
            self.0.push(pipe);
        }
    }
}

#[derive(Default)]
pub struct Direction {
    pipe: Option<Pipe>,
    held: usize,
    ended: bool,
    closed: bool,
    /// Bytes that came in; at the end, all of them were delivered.
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    /// Waits for a socket.
    Idle,
    /// There may be more to move at once.
    Busy,
    /// It took as much as it may.
    Held,
    Done,
}

impl Direction {
    /// Move what can be moved now, and take at most `most` bytes in.
    pub fn step(&mut self, from: RawFd, to: RawFd, most: u64, pipes: &mut Pipes) -> Result<Moved> {
        if self.closed {
            return Ok(Moved::Done);
        }
        let pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => pipes.take()?,
        };
        let moved = self.shift(from, to, most, &pipe);
        if self.held > 0 {
            self.pipe = Some(pipe);
        } else {
            pipes.put(pipe);
        }
        moved
    }

    fn shift(&mut self, from: RawFd, to: RawFd, mut most: u64, pipe: &Pipe) -> Result<Moved> {
        let mut turn = 0;
        while turn < TURN {
            if self.held == 0 && !self.ended {
                if most == 0 {
                    return Ok(Moved::Held);
                }
                let piece = most.min(PIECE) as usize;
                match splice(from, pipe.into.as_raw_fd(), piece)? {
                    Some(0) => self.ended = true,
                    Some(n) => {
                        self.held = n;
                        self.bytes += n as u64;
                        most -= n as u64;
                    }
                    None => return Ok(Moved::Idle),
                }
            }
            if self.held == 0 {
                // SAFETY: plain system call; a peer that is gone already needs no notice.
                unsafe { libc::shutdown(to, libc::SHUT_WR) };
                self.closed = true;
                return Ok(Moved::Done);
            }
            match splice(pipe.out.as_raw_fd(), to, self.held)? {
                Some(n) => {
                    self.held -= n;
                    turn += n;
                }
                None => return Ok(Moved::Idle),
            }
        }
        Ok(Moved::Busy)
    }
}

fn splice(from: RawFd, to: RawFd, most: usize) -> Result<Option<usize>> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    loop {
        // SAFETY: no offsets are given, which sockets and pipes do not have.
        let n = unsafe {
            libc::splice(
                from,
                std::ptr::null_mut(),
                to,
                std::ptr::null_mut(),
                most,
                flags,
            )
        };
        match check(n as libc::c_int) {
            Ok(n) => return Ok(Some(n as usize)),
            Err(libc::EAGAIN) => return Ok(None),
            Err(libc::EINTR) => continue,
            Err(errno) => return Err(errno),
        }
    }
}
