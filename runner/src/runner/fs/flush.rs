//! What a verb has acknowledged stays: its bytes and names are written to the disk before the answer.
//!
//! A request may forgo it (`flush: false`). A file system that has nothing to flush, such as a tmpfs,
//! answers at once. Where a disk is full or broken, the verb fails instead of losing data later.

use super::request::Request;
use crate::sys::{self, as_fd};
use crate::wire::handler::Failure;
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// A file is written back in pieces of this size while it arrives, so that the end of a large one does
/// not hold up other streams for long.
const WINDOW_BYTES: u64 = 4 << 20;
/// The same for many small files, on a file system that only the sandbox uses.
const BATCH_BYTES: u64 = 64 << 20;
/// <linux/major.h>
const LOOP_MAJOR: u32 = 7;

#[derive(Clone, Copy)]
pub struct Flush(bool);

impl Flush {
    pub fn of(request: &Request<'_>) -> Result<Flush, Failure> {
        Ok(Flush(request.flag("flush", true)?))
    }

    /// For work that no request asks for.
    pub fn always() -> Flush {
        Flush(true)
    }

    /// Write the bytes of a file that has no name yet. A full disk is noticed here; the file's
    /// attributes follow with `file`, so that one commit of a journal is enough for both.
    pub fn bytes(self, file: BorrowedFd<'_>, size: u64) -> sys::Result<()> {
        if !self.0 {
            return Ok(());
        }
        unless_useless(sys::finish_write_back(file, 0, size))
    }

    pub fn file(self, file: BorrowedFd<'_>) -> sys::Result<()> {
        if !self.0 {
            return Ok(());
        }
        unless_useless(sys::sync(file))
    }

    /// Write the names in a directory. One that may not be read cannot be flushed; the usual file systems
    /// write a name with its file.
    pub fn names(self, dir: BorrowedFd<'_>) -> sys::Result<()> {
        if !self.0 {
            return Ok(());
        }
        match readable(dir) {
            Ok(dir) => unless_useless(sys::sync(as_fd(&dir))),
            Err(libc::EACCES) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn by_windows(self) -> Windows {
        Windows {
            wanted: self.0,
            written: 0,
            begun: 0,
        }
    }

    pub fn by_batches(self, dir: BorrowedFd<'_>) -> Batches {
        let whole = if self.0 { readable(dir).ok() } else { None };
        let alone = whole
            .as_ref()
            .and_then(|dir| sys::stat_fd(as_fd(dir)).ok())
            .is_some_and(|stat| sys::major(stat.st_dev) == LOOP_MAJOR);
        Batches {
            flush: self,
            whole,
            alone,
            waiting: 0,
        }
    }
}

/// How far a growing file has been written back.
pub struct Windows {
    wanted: bool,
    written: u64,
    begun: u64,
}

impl Windows {
    /// Note that `count` bytes were appended.
    pub fn wrote(&mut self, file: BorrowedFd<'_>, count: usize) -> sys::Result<()> {
        self.written += count as u64;
        if !self.wanted || self.written - self.begun < WINDOW_BYTES {
            return Ok(());
        }
        // Wait for the window before this one, so that one is always on its way.
        let before = self.begun.saturating_sub(WINDOW_BYTES);
        unless_useless(sys::finish_write_back(file, before, self.begun - before))?;
        unless_useless(sys::start_write_back(
            file,
            self.begun,
            self.written - self.begun,
        ))?;
        self.begun = self.written;
        Ok(())
    }
}

/// Many files that are acknowledged together: one flush of their file system instead of one for each.
pub struct Batches {
    flush: Flush,
    /// Opened before the first file: the kernel reports failures since then.
    whole: Option<OwnedFd>,
    /// The file system belongs to this sandbox, so that flushing it often disturbs no other.
    alone: bool,
    waiting: u64,
}

impl Batches {
    /// Note a complete file.
    pub fn file(&mut self, file: BorrowedFd<'_>, bytes: u64) -> sys::Result<()> {
        if self.whole.is_none() {
            return self.flush.file(file);
        }
        self.waiting += bytes;
        if self.alone && self.waiting >= BATCH_BYTES {
            return self.all();
        }
        Ok(())
    }

    /// Flush everything that was noted, and every name.
    pub fn all(&mut self) -> sys::Result<()> {
        self.waiting = 0;
        match &self.whole {
            Some(dir) => unless_useless(sys::sync_file_system(as_fd(dir))),
            None => Ok(()),
        }
    }
}

fn readable(dir: BorrowedFd<'_>) -> sys::Result<OwnedFd> {
    sys::open_at(dir, b".", libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// A file system that cannot flush has nothing to lose, or is read-only.
fn unless_useless(answer: sys::Result<()>) -> sys::Result<()> {
    match answer {
        Err(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::ESPIPE) => Ok(()),
        answer => answer,
    }
}
