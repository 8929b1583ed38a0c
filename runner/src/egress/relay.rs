//! Bytes from one socket to another, without a copy in this process.
//!
//! A direction ends when its source has ended and everything was delivered; then the other side gets the end too.
//! Sockets do not block. A call moves a bounded amount, so one fast stream cannot stop the others. A
//! direction has a pipe only while bytes are under way, so idle connections cost no more than their sockets.

use crate::sys::{plain, Result};
use rustix::io::Errno;
use rustix::net::{shutdown, Shutdown};
use rustix::pipe::{self, fcntl_setpipe_size, pipe_with, PipeFlags, SpliceFlags};
use std::os::unix::io::{AsFd, OwnedFd};

/// Bytes moved in one turn.
const TURN: usize = 4 << 20;
const PIECE: u64 = 1 << 20;
/// Fewer and larger moves; the kernel may allow less.
const PIPE_SIZE: usize = 1 << 18;
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
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (out, into) = plain(pipe_with(flags))?;
        let _smaller = fcntl_setpipe_size(&into, PIPE_SIZE);
        Ok(Pipe { out, into })
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
    pub fn step(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        most: u64,
        pipes: &mut Pipes,
    ) -> Result<Moved> {
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

    fn shift(&mut self, from: &OwnedFd, to: &OwnedFd, mut most: u64, pipe: &Pipe) -> Result<Moved> {
        let mut turn = 0;
        while turn < TURN {
            if self.held == 0 && !self.ended {
                if most == 0 {
                    return Ok(Moved::Held);
                }
                let piece = most.min(PIECE) as usize;
                match splice(from, &pipe.into, piece)? {
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
                // A peer that is gone already needs no notice.
                let _gone = shutdown(to, Shutdown::Write);
                self.closed = true;
                return Ok(Moved::Done);
            }
            match splice(&pipe.out, to, self.held)? {
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

fn splice(from: impl AsFd, to: impl AsFd, most: usize) -> Result<Option<usize>> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    match rustix::io::retry_on_intr(|| pipe::splice(&from, None, &to, None, most, flags)) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.raw_os_error()),
    }
}
