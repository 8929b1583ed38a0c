//! Copies a tree of files in small steps: into a temporary directory (`copy`), or from one volume to
//! another (`--copy`). Kept: content, holes, modes, times, symlinks, FIFOs and sockets, and owners
//! where that is allowed. Not kept: hard links between the files.

use super::flush::Batches;
use super::walk::{Trail, Visit, Walker};
use crate::sys::{self, as_fd, Stat, Times};
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

pub struct TreeCopy {
    tree: Option<(Walker, Trail)>,
    /// What the directory itself becomes like at the end; `None` leaves it as it is.
    root: Option<Stat>,
    file: Option<FileCopy>,
    buffer: Vec<u8>,
    pub batches: Batches,
}

impl TreeCopy {
    pub fn new(batches: Batches) -> TreeCopy {
        TreeCopy {
            tree: None,
            root: None,
            file: None,
            buffer: Vec::new(),
            batches,
        }
    }

    /// Begin with what a directory contains.
    pub fn directory(&mut self, from: OwnedFd, to: OwnedFd, root: Option<Stat>) -> sys::Result<()> {
        self.tree = Some((Walker::new(from, BATCH)?, Trail::new(to)?));
        self.root = root;
        Ok(())
    }

    /// Begin with an entry that is not a directory.
    pub fn node(
        &mut self,
        from: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        to: BorrowedFd<'_>,
        new_name: &[u8],
    ) -> sys::Result<()> {
        self.file = copy_node(from, name, stat, to, new_name)?;
        Ok(())
    }

    /// Copy some more; `true` when the copy is complete.
    pub fn step(&mut self) -> sys::Result<bool> {
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

    pub fn close(&mut self) {
        self.file = None;
        self.tree = None;
    }

    /// Copy one entry of the tree; `false` at its end.
    fn visit(&mut self) -> sys::Result<bool> {
        let Some((walker, trail)) = &mut self.tree else {
            return Ok(false);
        };
        match walker.next()? {
            Visit::Pending => {}
            Visit::End => {
                if let Some(stat) = &self.root {
                    finish(trail.here(), stat)?;
                }
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
                    finish(trail.here(), &stat)?;
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
        let Some(copy) = &mut self.file else {
            return Ok(true);
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
        let Some(copy) = self.file.take() else {
            return Ok(true);
        };
        sys::truncate(as_fd(&copy.to), copy.offset)?;
        finish(as_fd(&copy.to), &copy.stat)?;
        self.batches.file(as_fd(&copy.to), copy.offset)?;
        Ok(true)
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

fn mtime(stat: &Stat) -> rustix::fs::Timespec {
    sys::timespec(stat.st_mtime, stat.st_mtime_nsec as i64)
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
