//! Removal of one tree of any depth, in small steps, without recursion and in bounded memory.
//!
//! Names are read a buffer at a time and removed; a directory that is not empty is entered, and removed
//! on the way back. When a directory seems empty it is read once more from its beginning, so that
//! entries that appeared meanwhile are removed too. The first entry that cannot be removed ends it.

use super::resolve::failed;
use super::walk::{Trail, RECORDS_BYTES};
use crate::sys::{self, as_fd, Errno, Records};
use crate::wire::handler::Failure;
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// Entries of one step.
const STEP_ENTRIES: usize = 256;
/// Names kept over all levels; beyond it the topmost levels read theirs again.
const HELD_BYTES: usize = 4 * 1024 * 1024;
/// How often a directory may fill up again behind us before the answer is `not_empty`.
const MOST_REFILLS: usize = 1000;

struct Name {
    name: Vec<u8>,
    is_dir: bool,
}

/// Removes one tree; also used to remove half-made copies.
pub struct Remover {
    parent: OwnedFd,
    name: Vec<u8>,
    trail: Option<Trail>,
    levels: Vec<Vec<Name>>,
    held: usize,
    /// No entry was seen since the current directory was read from its beginning.
    clean: bool,
    refills: usize,
    records: Vec<u8>,
    pub removed: u64,
}

impl Remover {
    pub fn new(parent: OwnedFd, name: Vec<u8>) -> Remover {
        Remover {
            parent,
            name,
            trail: None,
            levels: Vec::new(),
            held: 0,
            clean: true,
            refills: 0,
            records: Vec::new(),
            removed: 0,
        }
    }

    /// Do a bounded piece of work; `true` when everything is removed.
    pub fn step(&mut self) -> Result<bool, Failure> {
        for _ in 0..STEP_ENTRIES {
            let done = match &self.trail {
                None => self.begin(),
                Some(_) => self.proceed(),
            };
            if done? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(&mut self) -> Result<bool, Failure> {
        let parent = as_fd(&self.parent);
        if remove_simple(parent, &self.name).map_err(|error| failed(error, "remove", &self.name))? {
            self.removed += 1;
            return Ok(true);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let base = with_access(parent, &self.name, || {
            sys::open_at(parent, &self.name, flags, 0)
        })
        .and_then(Trail::new)
        .map_err(|error| failed(error, "remove", &self.name))?;
        self.trail = Some(base);
        self.levels.push(Vec::new());
        self.records = vec![0; RECORDS_BYTES];
        Ok(false)
    }

    fn proceed(&mut self) -> Result<bool, Failure> {
        let next = self.levels.last_mut().and_then(Vec::pop);
        match next {
            Some(entry) => {
                self.held -= entry.name.len();
                self.remove(&entry)
                    .map_err(|error| failed(error, "remove", &entry.name))?;
                Ok(false)
            }
            None => self
                .read_or_leave()
                .map_err(|error| failed(error, "remove", &self.here_name())),
        }
    }

    fn here_name(&self) -> Vec<u8> {
        let name = self.trail.as_ref().and_then(Trail::name);
        name.unwrap_or(&self.name).to_vec()
    }

    fn remove(&mut self, entry: &Name) -> sys::Result<()> {
        let Some(trail) = &mut self.trail else {
            return Ok(());
        };
        let gone = if entry.is_dir {
            remove_empty(trail.here(), &entry.name)
        } else {
            remove_simple(trail.here(), &entry.name)
        };
        let gone = match gone {
            Err(libc::EACCES) => {
                // Our own directory, closed to us: open it. A directory of another user refuses that.
                if sys::set_mode(trail.here(), 0o700).is_err() {
                    return Err(libc::EACCES);
                }
                remove_simple(trail.here(), &entry.name)?
            }
            Err(libc::ENOENT) => return Ok(()),
            answer => answer?,
        };
        if gone {
            self.removed += 1;
            return Ok(());
        }
        match enter(trail, &entry.name) {
            Ok(()) => {
                self.levels.push(Vec::new());
                self.clean = true;
                self.forget_if_many();
                Ok(())
            }
            // Gone or replaced since; the next reading of this directory will show.
            Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn read_or_leave(&mut self) -> sys::Result<bool> {
        let Some(trail) = &mut self.trail else {
            return Ok(true);
        };
        let count = sys::read_dir(trail.here(), &mut self.records)?;
        if count > 0 {
            let mut found = Vec::new();
            for (name, kind) in Records(&self.records[..count]) {
                self.held += name.len();
                found.push(Name {
                    name: name.to_vec(),
                    is_dir: kind == libc::DT_DIR,
                });
            }
            if !found.is_empty() {
                self.clean = false;
                if let Some(level) = self.levels.last_mut() {
                    *level = found;
                }
            }
            return Ok(false);
        }
        if !self.clean {
            sys::seek(trail.here(), 0, libc::SEEK_SET)?;
            self.clean = true;
            return Ok(false);
        }
        self.leave()
    }

    /// The current directory is empty: go up and remove it.
    fn leave(&mut self) -> sys::Result<bool> {
        let Some(trail) = &mut self.trail else {
            return Ok(true);
        };
        let (name, parent_depth) = match trail.name() {
            Some(name) => (name.to_vec(), trail.depth() - 1),
            None => return self.leave_base(),
        };
        trail.up()?;
        self.clean = true;
        for level in self.levels.drain(trail.depth() + 1..) {
            self.held -= level.iter().map(|entry| entry.name.len()).sum::<usize>();
        }
        if trail.depth() < parent_depth {
            // The directories in between are gone; what is left of them is found by reading again.
            return Ok(false);
        }
        match sys::remove_dir_at(trail.here(), &name) {
            Ok(()) => self.removed += 1,
            Err(error) => match error {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::ENOTEMPTY | libc::EEXIST => self.refilled(error)?,
                libc::EACCES if sys::set_mode(trail.here(), 0o700).is_ok() => {
                    sys::remove_dir_at(trail.here(), &name)?;
                    self.removed += 1;
                }
                _ => return Err(error),
            },
        }
        Ok(false)
    }

    fn leave_base(&mut self) -> sys::Result<bool> {
        match sys::remove_dir_at(as_fd(&self.parent), &self.name) {
            Ok(()) => {
                self.removed += 1;
                Ok(true)
            }
            Err(error) => match error {
                libc::ENOENT => Ok(true),
                libc::ENOTEMPTY | libc::EEXIST => {
                    self.refilled(error)?;
                    // Start again: the name may be another directory by now.
                    self.trail = None;
                    self.levels.clear();
                    self.held = 0;
                    self.clean = true;
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    fn refilled(&mut self, error: Errno) -> sys::Result<()> {
        self.refills += 1;
        if self.refills > MOST_REFILLS {
            Err(error)
        } else {
            Ok(())
        }
    }

    fn forget_if_many(&mut self) {
        if self.held <= HELD_BYTES {
            return;
        }
        if let Some(level) = self.levels.iter_mut().find(|level| !level.is_empty()) {
            self.held -= level.iter().map(|entry| entry.name.len()).sum::<usize>();
            *level = Vec::new();
        }
    }
}

/// Remove an entry that needs no walk: anything but a directory, or an empty one. `false`: it is a
/// directory that is not empty.
fn remove_simple(dir: BorrowedFd<'_>, name: &[u8]) -> sys::Result<bool> {
    match sys::unlink_at(dir, name) {
        Ok(()) => Ok(true),
        Err(error @ (libc::EISDIR | libc::EPERM)) => match sys::stat_at(dir, name) {
            Ok(stat) if sys::is_dir(&stat) => remove_empty(dir, name),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn remove_empty(dir: BorrowedFd<'_>, name: &[u8]) -> sys::Result<bool> {
    match sys::remove_dir_at(dir, name) {
        Ok(()) => Ok(true),
        Err(libc::ENOTEMPTY | libc::EEXIST) => Ok(false),
        Err(libc::ENOTDIR) => sys::unlink_at(dir, name).map(|()| true),
        Err(error) => Err(error),
    }
}

fn enter(trail: &mut Trail, name: &[u8]) -> sys::Result<()> {
    match trail.down(name) {
        Err(libc::EACCES) => {
            unlock(trail.here(), name).map_err(|_| libc::EACCES)?;
            trail.down(name)
        }
        answer => answer,
    }
}

fn with_access<T>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    mut call: impl FnMut() -> sys::Result<T>,
) -> sys::Result<T> {
    match call() {
        Err(libc::EACCES) => {
            unlock(dir, name).map_err(|_| libc::EACCES)?;
            call()
        }
        answer => answer,
    }
}

/// Give the owner access to a directory. Acts on the directory that was seen, never on a symlink.
fn unlock(dir: BorrowedFd<'_>, name: &[u8]) -> sys::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let pinned = sys::open_at(dir, name, flags, 0)?;
    sys::set_mode_pinned(as_fd(&pinned), 0o700)
}
