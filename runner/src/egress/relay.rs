//! Bytes from one socket to another, without a copy of ours.
//!
//! A direction ends when its source has ended and everything was delivered; then the other side is told.
//! Sockets do not block. A call moves a bounded amount, so one fast stream cannot stop the others.

use crate::sys::{self, check, Result};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Bytes moved in one turn.
const TURN: usize = 4 << 20;
const PIECE: u64 = 1 << 20;

pub struct Direction {
    pipe: (OwnedFd, OwnedFd),
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
    pub fn new() -> Result<Direction> {
        let pipe = sys::pipe()?;
        for end in [&pipe.0, &pipe.1] {
            sys::set_nonblocking(end.as_raw_fd())?;
        }
        Ok(Direction {
            pipe,
            held: 0,
            ended: false,
            closed: false,
            bytes: 0,
        })
    }

    /// Move what can be moved now, and take at most `most` bytes in.
    pub fn step(&mut self, from: RawFd, to: RawFd, mut most: u64) -> Result<Moved> {
        if self.closed {
            return Ok(Moved::Done);
        }
        let mut turn = 0;
        while turn < TURN {
            if self.held == 0 && !self.ended {
                if most == 0 {
                    return Ok(Moved::Held);
                }
                let piece = most.min(PIECE) as usize;
                match splice(from, self.pipe.1.as_raw_fd(), piece)? {
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
            match splice(self.pipe.0.as_raw_fd(), to, self.held)? {
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
