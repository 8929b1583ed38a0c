//! The part of `fs.move` that crosses file systems: copy, put in place, remove the source.
//!
//! The copy is written under a temporary name beside the destination and renamed only when it is
//! complete, so the destination is never half made; until then the source is untouched. CANCEL or a
//! failure before that removes the copy, and the source is removed only when the copy is on disk. Kept:
//! content, holes, modes, times, symlinks, FIFOs and sockets, and owners where that is allowed. Not
//! kept: hard links between the files.

use super::flush::{Batches, Flush};
use super::remover::Remover;
use super::resolve::{failed, Place};
use super::temp::{self, Purpose};
use super::walk::{Trail, Visit, Walker};
use super::{entry, names};
use crate::sys::{self, as_fd, Stat, Times};
use crate::wire::handler::{Failure, Handler, Out, Step};
use std::os::unix::io::{BorrowedFd, OwnedFd};

const BUFFER_BYTES: usize = 256 * 1024;
/// A step copies at most this much before other streams have their turn.
const STEP_BYTES: usize = 4 * BUFFER_BYTES;
const STEP_ENTRIES: usize = 128;
const BATCH: usize = 1024;

struct FileCopy {
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
    offset: u64,
}

enum State {
    Copy,
    Remove(Remover),
}

pub struct MoveByCopy {
    source: Place,
    stat: Stat,
    destination: Place,
    overwrite: bool,
    temp: Vec<u8>,
    /// The temporary name exists, and must be removed.
    begun: bool,
    tree: Option<(Walker, Trail)>,
    file: Option<FileCopy>,
    buffer: Vec<u8>,
    state: State,
    flush: Flush,
    batches: Batches,
}

impl MoveByCopy {
    pub fn new(
        source: Place,
        stat: Stat,
        destination: Place,
        overwrite: bool,
        flush: Flush,
    ) -> Result<MoveByCopy, Failure> {
        if names::under(&destination.dir_path, &source.path()) {
            // Possible where another file system is mounted below the source.
            return Err(Failure::invalid(format!(
                "{} cannot be moved into itself",
                names::show(&source.path())
            )));
        }
        let temp = temp::fresh_name(Purpose::New)
            .map_err(|error| failed(error, "move", &source.path()))?;
        let batches = flush.by_batches(destination.dir());
        Ok(MoveByCopy {
            source,
            stat,
            destination,
            overwrite,
            temp,
            begun: false,
            tree: None,
            file: None,
            buffer: Vec::new(),
            state: State::Copy,
            flush,
            batches,
        })
    }

    fn run(&mut self, out: &mut dyn Out) -> Result<Step, Failure> {
        if let State::Remove(remover) = &mut self.state {
            if !remover.step()? {
                return Ok(Step::Again);
            }
            self.flush
                .names(self.source.dir())
                .map_err(|error| failed(error, "remove", &self.source.path()))?;
            let place = &self.destination;
            out.result(entry::of_name(place.dir(), &place.dir_path, &place.name)?);
            return Ok(Step::Done);
        }
        let shown = self.source.path();
        let whole = self
            .copy_some()
            .map_err(|error| failed(error, "copy", &shown))?;
        if whole {
            self.put_in_place()?;
            let dir = sys::duplicate(self.source.dir())
                .map_err(|error| failed(error, "remove", &shown))?;
            self.state = State::Remove(Remover::new(dir, self.source.name.clone()));
        }
        Ok(Step::Again)
    }

    fn put_in_place(&mut self) -> Result<(), Failure> {
        let dir = self.destination.dir();
        let name = &self.destination.name;
        let fail = |error| failed(error, "move to", &self.destination.path());
        self.batches.all().map_err(fail)?;
        let moved = if self.overwrite {
            sys::rename_at(dir, &self.temp, dir, name)
        } else {
            match sys::rename_new_at(dir, &self.temp, dir, name) {
                Err(libc::EINVAL) => sys::rename_at(dir, &self.temp, dir, name),
                answer => answer,
            }
        };
        moved.map_err(fail)?;
        self.begun = false;
        self.flush.names(dir).map_err(fail)
    }

    /// Copy some more; `true` when the copy is complete.
    fn copy_some(&mut self) -> sys::Result<bool> {
        if !self.begun {
            self.begin()?;
        }
        for _ in 0..STEP_ENTRIES {
            if self.file.is_some() {
                if !self.copy_bytes()? {
                    return Ok(false);
                }
                continue;
            }
            if !self.visit()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(&mut self) -> sys::Result<()> {
        self.begun = true;
        if !sys::is_dir(&self.stat) {
            let (from, to) = (self.source.dir(), self.destination.dir());
            self.file = copy_node(from, &self.source.name, &self.stat, to, &self.temp)?;
            return Ok(());
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let from = sys::open_at(self.source.dir(), &self.source.name, flags, 0)?;
        sys::make_dir_at(self.destination.dir(), &self.temp, 0o700)?;
        let to = sys::open_at(self.destination.dir(), &self.temp, flags, 0)?;
        self.tree = Some((Walker::new(from, BATCH)?, Trail::new(to)?));
        Ok(())
    }

    /// Copy one entry of the tree; `false` at its end.
    fn visit(&mut self) -> sys::Result<bool> {
        let (walker, trail) = match &mut self.tree {
            Some(tree) => tree,
            None => return Ok(false),
        };
        match walker.next()? {
            Visit::Pending => {}
            Visit::End => {
                finish_dir(trail.here(), &self.stat)?;
                return Ok(false);
            }
            Visit::Entry { name, stat } if sys::is_dir(&stat) => match walker.enter(&name) {
                Ok(()) => {
                    sys::make_dir_at(trail.here(), &name, 0o700)?;
                    trail.down(&name)?;
                }
                Err(libc::ENOENT) => {}
                Err(error) => return Err(error),
            },
            Visit::Entry { name, stat } => {
                self.file = copy_node(walker.here(), &name, &stat, trail.here(), &name)?;
            }
            Visit::Leave(name) => {
                if let Ok(stat) = sys::stat_at(walker.here(), &name) {
                    finish_dir(trail.here(), &stat)?;
                }
                let parent = trail.depth() - 1;
                trail.up()?;
                if trail.depth() != parent {
                    // Another process moves the unfinished copy.
                    return Err(libc::EBUSY);
                }
            }
        }
        Ok(true)
    }

    /// Copy a piece of the current file; `true` when it is complete.
    fn copy_bytes(&mut self) -> sys::Result<bool> {
        let copy = match &mut self.file {
            Some(copy) => copy,
            None => return Ok(true),
        };
        self.buffer.resize(BUFFER_BYTES, 0);
        let size = copy.stat.st_size as u64;
        let mut left = STEP_BYTES;
        while copy.offset < size && left > 0 {
            copy.offset = skip_hole(&copy.from, &copy.to, copy.offset, size)?;
            let wanted = (size - copy.offset).min(BUFFER_BYTES as u64) as usize;
            let buffer = &mut self.buffer[..wanted];
            let count = sys::read_at(as_fd(&copy.from), buffer, copy.offset)?;
            if count == 0 {
                break;
            }
            sys::write_all(as_fd(&copy.to), &buffer[..count])?;
            copy.offset += count as u64;
            left = left.saturating_sub(count);
        }
        if copy.offset < size && left == 0 {
            return Ok(false);
        }
        let copy = match self.file.take() {
            Some(copy) => copy,
            None => return Ok(true),
        };
        sys::truncate(as_fd(&copy.to), copy.offset)?;
        finish(as_fd(&copy.to), &copy.stat)?;
        self.batches.file(as_fd(&copy.to), copy.offset)?;
        Ok(true)
    }

    fn undo(&mut self) {
        if !self.begun {
            return;
        }
        self.begun = false;
        self.file = None;
        self.tree = None;
        if let Ok(dir) = sys::duplicate(self.destination.dir()) {
            let mut remover = Remover::new(dir, self.temp.clone());
            while let Ok(false) = remover.step() {}
        }
    }
}

/// Return where the next data after `offset` begins, and move the writer there.
fn skip_hole(from: &OwnedFd, to: &OwnedFd, offset: u64, size: u64) -> sys::Result<u64> {
    let next = match sys::seek(as_fd(from), offset, libc::SEEK_DATA) {
        Ok(next) => next.min(size),
        Err(libc::ENXIO) => size,
        // The file system does not support holes.
        Err(_) => offset,
    };
    sys::seek(as_fd(to), next, libc::SEEK_SET)?;
    Ok(next)
}

/// Copy a symlink or special file at once; a regular file is opened and its bytes come later. An entry
/// that vanished meanwhile is left out.
fn copy_node(
    from: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
    to: BorrowedFd<'_>,
    new_name: &[u8],
) -> sys::Result<Option<FileCopy>> {
    if sys::is_symlink(stat) {
        let target = sys::read_link_at(from, name)?;
        sys::symlink_at(&target, to, new_name)?;
        let _ = sys::set_times_at(to, new_name, Times::accessed_now(mtime(stat)));
        return Ok(None);
    }
    if !sys::is_file(stat) {
        sys::make_node_at(to, new_name, stat.st_mode, stat.st_rdev)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let node = sys::open_at(to, new_name, flags, 0)?;
        // Undo the umask; without /proc that is not possible.
        let _ = sys::set_mode_pinned(as_fd(&node), stat.st_mode & 0o7777);
        return Ok(None);
    }
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let source = sys::open_at(from, name, flags, 0)?;
    let stat = sys::stat_fd(as_fd(&source))?;
    if !sys::is_file(&stat) {
        return Err(libc::EBUSY);
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let copy = sys::open_at(to, new_name, flags, 0o600)?;
    Ok(Some(FileCopy {
        from: source,
        to: copy,
        stat,
        offset: 0,
    }))
}

fn mtime(stat: &Stat) -> libc::timespec {
    sys::timespec(stat.st_mtime, stat.st_mtime_nsec)
}

fn finish(file: BorrowedFd<'_>, like: &Stat) -> sys::Result<()> {
    let stat = sys::stat_fd(file)?;
    let same_owner = (stat.st_uid, stat.st_gid) == (like.st_uid, like.st_gid)
        || sys::set_owner(file, like.st_uid, like.st_gid).is_ok();
    // Set-id bits must not pass to another owner.
    let mask = if same_owner { 0o7777 } else { 0o1777 };
    sys::set_mode(file, like.st_mode & mask)?;
    sys::set_times(file, Times::accessed_now(mtime(like)))
}

fn finish_dir(dir: BorrowedFd<'_>, like: &Stat) -> sys::Result<()> {
    finish(dir, like)
}

impl Handler for MoveByCopy {
    fn step(&mut self, out: &mut dyn Out) -> Step {
        self.run(out).unwrap_or_else(|failure| {
            self.undo();
            let what = names::show(&self.destination.path());
            out.error(Failure {
                message: format!("{} (on the way to {})", failure.message, what),
                ..failure
            });
            Step::Done
        })
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Step {
        super::discard(bytes, out)
    }

    fn end(&mut self, _out: &mut dyn Out) -> Step {
        Step::Again
    }

    fn cancel(&mut self) {
        self.undo();
    }
}

impl Drop for MoveByCopy {
    fn drop(&mut self) {
        self.undo();
    }
}
