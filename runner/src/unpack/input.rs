//! The input as it arrives: large reads, small pieces, and a limit on how much there may be.

use super::failure::{limit, malformed, Failure, Outcome};
use crate::sys;
use crate::tar::BLOCK;
use std::io::{ErrorKind, Read};

/// Large enough that reading costs little, small enough to stay in the cache of a core.
const BUFFER: usize = 256 * 1024;
/// How many bytes may follow the end marker.
const MOST_AFTER: u64 = 64 * 1024 * 1024;

pub struct Input<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How many bytes may still be read.
    allowed: u64,
}

impl<R: Read> Input<R> {
    pub fn new(from: R, allowed: u64) -> Input<R> {
        Input {
            from,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            allowed,
        }
    }

    /// Read once and append to the buffer; `false` at the end.
    fn fill(&mut self) -> Outcome<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.allowed = self.allowed.checked_sub(count as u64).ok_or_else(|| {
                        limit("the archive is longer than the limits of its content allow")
                    })?;
                    self.end += count;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Failure::kernel("read the archive", sys::errno_of(&error)))
                }
            }
        }
    }

    /// Return the next block; `None` if the input ends before it.
    pub fn block(&mut self) -> Outcome<Option<[u8; BLOCK]>> {
        while self.end - self.start < BLOCK {
            if !self.fill()? {
                return match self.end - self.start {
                    0 => Ok(None),
                    _ => Err(stops_early()),
                };
            }
        }
        let mut block = [0; BLOCK];
        block.copy_from_slice(&self.buffer[self.start..self.start + BLOCK]);
        self.start += BLOCK;
        Ok(Some(block))
    }

    /// Return at least one byte and at most `most`, which is not zero.
    pub fn piece(&mut self, most: u64) -> Outcome<&[u8]> {
        if self.start == self.end && !self.fill()? {
            return Err(stops_early());
        }
        let count = most.min((self.end - self.start) as u64) as usize;
        let piece = &self.buffer[self.start..self.start + count];
        self.start += count;
        Ok(piece)
    }

    pub fn skip(&mut self, mut count: u64) -> Outcome<()> {
        while count > 0 {
            count -= self.piece(count)?.len() as u64;
        }
        Ok(())
    }

    /// Read to the end of the input: the process that writes to us hashes all of it. Writers fill a
    /// last record, and none needs more than this.
    pub fn drain(&mut self) -> Outcome<()> {
        self.allowed = self.allowed.min(MOST_AFTER);
        self.start = self.end;
        while self.fill()? {
            self.start = self.end;
        }
        Ok(())
    }
}

pub fn stops_early() -> Failure {
    malformed("the archive stops before its end")
}
