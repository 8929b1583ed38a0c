//! The archive on standard input: large reads, members one after the other, and a limit on how much may
//! be read.

use super::failure::{limit, malformed, Failure, Outcome};
use crate::sys;
use crate::tar::reader::{Item, Member, Reader};
use std::io::{ErrorKind, Read};

/// Large enough that reading costs little, small enough to stay in the cache of a core.
const BUFFER: usize = 256 * 1024;
/// How many bytes may follow the end marker.
const MOST_AFTER: u64 = 64 * 1024 * 1024;

pub struct Archive<R> {
    from: R,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not used.
    start: usize,
    end: usize,
    /// How many bytes may still be read.
    allowed: u64,
    empty: bool,
    reader: Reader,
}

impl<R: Read> Archive<R> {
    pub fn new(from: R, allowed: u64) -> Archive<R> {
        Archive {
            from,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            allowed,
            empty: true,
            reader: Reader::with_sparse_files(),
        }
    }

    /// Return the next member; `None` once the end marker and everything after it was read. What is left
    /// of the member before it is skipped.
    pub fn next(&mut self) -> Outcome<Option<Member>> {
        loop {
            let mut rest = &self.buffer[self.start..self.end];
            let (member, is_used_up) = match self.reader.next(&mut rest)? {
                Item::Member(member) => (Some(member), false),
                Item::More => (None, true),
                Item::Bytes(_) | Item::MemberEnd => (None, false),
            };
            self.start = self.end - rest.len();
            if member.is_some() {
                return Ok(member);
            }
            if is_used_up {
                if self.reader.has_ended() {
                    return self.drain().map(|()| None);
                }
                self.fill_or_stop()?;
            }
        }
    }

    /// Return some bytes of the member's body, `most` at most; `None` at its end.
    pub fn body(&mut self, most: u64) -> Outcome<Option<&[u8]>> {
        let most = most.min(self.reader.left());
        if most == 0 {
            return Ok(None);
        }
        if self.start == self.end {
            self.fill_or_stop()?;
        }
        let count = most.min((self.end - self.start) as u64) as usize;
        let mut piece = &self.buffer[self.start..self.start + count];
        self.start += count;
        match self.reader.next(&mut piece)? {
            Item::Bytes(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    fn fill_or_stop(&mut self) -> Outcome<()> {
        match (self.fill()?, self.empty) {
            (true, _) => Ok(()),
            (false, true) => Err(malformed("the archive is empty")),
            (false, false) => Err(malformed("the archive stops before its end")),
        }
    }

    /// Read once into the buffer, all of which was used; `false` at the end.
    fn fill(&mut self) -> Outcome<bool> {
        self.start = 0;
        self.end = 0;
        loop {
            match self.from.read(&mut self.buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.allowed = self.allowed.checked_sub(count as u64).ok_or_else(|| {
                        limit("the archive is longer than the limits of its content allow")
                    })?;
                    self.end = count;
                    self.empty = false;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Failure::kernel("read the archive", sys::errno_of(&error)))
                }
            }
        }
    }

    /// Read to the end of the input: the process that writes to us hashes all of it. Writers fill a
    /// last record, and none needs more than this.
    fn drain(&mut self) -> Outcome<()> {
        self.allowed = self.allowed.min(MOST_AFTER);
        while self.fill()? {}
        Ok(())
    }
}
