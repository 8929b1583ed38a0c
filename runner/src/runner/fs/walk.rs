//! Walking a tree without recursion, in bounded memory and with three descriptors at any depth.
//!
//! A `Trail` is a position in a tree: it holds the directory it is in, and goes up by opening `..`. A
//! directory that was moved meanwhile has another `..`; the trail knows its parent by device and inode,
//! and when they differ it goes down again by name from its base. Symlinks are never followed, so a
//! trail never leaves the tree. A directory that vanishes affects its own subtree only.
//!
//! A `Walker` visits a tree in order (a directory before its content, names sorted as bytes). It reads
//! a directory as often as necessary to find the next names in order with a fixed number of them in
//! memory: a directory of a million entries costs time, not memory.

use crate::sys::{self, as_fd, FileIdentity, Records, Stat};
use std::collections::{BTreeSet, VecDeque};
use std::os::raw::c_int;
use std::os::unix::io::{BorrowedFd, OwnedFd};

const OPEN_DIR: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;

/// About 1,000 records of ordinary names: a fraction of a millisecond of work.
pub const RECORDS_BYTES: usize = 32 * 1024;

/// Names kept over all levels. Beyond it the topmost levels drop theirs and read them again.
const HELD_BYTES: usize = 4 * 1024 * 1024;

struct Above {
    name: Vec<u8>,
    identity: FileIdentity,
}

pub struct Trail {
    flags: c_int,
    base: OwnedFd,
    base_identity: FileIdentity,
    here: OwnedFd,
    levels: Vec<Above>,
}

impl Trail {
    /// Return a trail whose directories can be read.
    pub fn new(base: OwnedFd) -> sys::Result<Trail> {
        Trail::with_flags(base, OPEN_DIR)
    }

    /// Return a trail that only holds its directories; it also enters those that the user may not read.
    pub fn holding(base: OwnedFd) -> sys::Result<Trail> {
        Trail::with_flags(base, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
    }

    fn with_flags(base: OwnedFd, flags: c_int) -> sys::Result<Trail> {
        let here = sys::open_at(as_fd(&base), b".", flags, 0)?;
        let base_identity = sys::identity(&sys::stat_fd(as_fd(&base))?);
        Ok(Trail {
            flags,
            base,
            base_identity,
            here,
            levels: Vec::new(),
        })
    }

    pub fn here(&self) -> BorrowedFd<'_> {
        as_fd(&self.here)
    }

    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Return how many of `names` the trail already has above it.
    pub fn shared(&self, names: &[&[u8]]) -> usize {
        let pairs = self.levels.iter().zip(names);
        pairs
            .take_while(|(level, name)| level.name == **name)
            .count()
    }

    /// Return the name of the directory the trail is in; `None` at its base.
    pub fn name(&self) -> Option<&[u8]> {
        self.levels.last().map(|level| level.name.as_slice())
    }

    pub fn down(&mut self, name: &[u8]) -> sys::Result<()> {
        let next = sys::open_at(self.here(), name, self.flags, 0)?;
        let identity = sys::identity(&sys::stat_fd(as_fd(&next))?);
        self.levels.push(Above {
            name: name.to_vec(),
            identity,
        });
        self.here = next;
        Ok(())
    }

    /// Go one level up, or farther if directories in between are gone; see `depth`.
    pub fn up(&mut self) -> sys::Result<()> {
        self.levels.pop();
        let wanted = self
            .levels
            .last()
            .map_or(self.base_identity, |l| l.identity);
        if let Ok(parent) = sys::open_at(self.here(), b"..", self.flags, 0) {
            if sys::identity(&sys::stat_fd(as_fd(&parent))?) == wanted {
                self.here = parent;
                return Ok(());
            }
        }
        self.again_from_base()
    }

    fn again_from_base(&mut self) -> sys::Result<()> {
        self.here = sys::open_at(as_fd(&self.base), b".", self.flags, 0)?;
        for depth in 0..self.levels.len() {
            let Ok(next) = sys::open_at(self.here(), &self.levels[depth].name, self.flags, 0)
            else {
                self.levels.truncate(depth);
                break;
            };
            self.levels[depth].identity = sys::identity(&sys::stat_fd(as_fd(&next))?);
            self.here = next;
        }
        Ok(())
    }
}

pub enum Visit {
    Entry {
        name: Vec<u8>,
        stat: Stat,
    },
    /// A directory that was entered is done; its name. The walker is in its parent again.
    Leave(Vec<u8>),
    /// Some work was done, there is more.
    Pending,
    End,
}

#[derive(Default)]
struct Level {
    /// The next names in order.
    names: VecDeque<Vec<u8>>,
    /// The last name that was visited: the next ones come after it.
    after: Option<Vec<u8>>,
    /// No names but `names` are left.
    whole: bool,
}

pub struct Walker {
    trail: Trail,
    levels: Vec<Level>,
    /// The path of the directory the walker is in, from its base.
    prefix: Vec<u8>,
    held: usize,
    batch: usize,
    scan: Option<Scan>,
    records: Vec<u8>,
    lost: bool,
}

struct Scan {
    names: BTreeSet<Vec<u8>>,
    more: bool,
}

impl Walker {
    /// `batch`: how many names of a directory are sorted at a time.
    pub fn new(base: OwnedFd, batch: usize) -> sys::Result<Walker> {
        Ok(Walker {
            trail: Trail::new(base)?,
            levels: vec![Level::default()],
            prefix: Vec::new(),
            held: 0,
            batch,
            scan: None,
            records: vec![0; RECORDS_BYTES],
            lost: false,
        })
    }

    /// Report whether an error of `next` is about the whole walk, and not about one directory below.
    pub fn is_fatal(&self) -> bool {
        self.lost || self.levels.len() == 1
    }

    pub fn here(&self) -> BorrowedFd<'_> {
        self.trail.here()
    }

    /// Return the path of `name` in the current directory, from the base of the walk.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.prefix.clone();
        push_name(&mut path, name);
        path
    }

    /// Continue after `name`, whether it still exists or not.
    pub fn skip_to(&mut self, name: &[u8]) {
        let level = self.top();
        level.names.clear();
        level.whole = false;
        level.after = Some(name.to_vec());
    }

    /// Enter `name`: its content is visited next.
    pub fn enter(&mut self, name: &[u8]) -> sys::Result<()> {
        self.trail.down(name)?;
        push_name(&mut self.prefix, name);
        self.levels.push(Level::default());
        if self.held > HELD_BYTES {
            self.forget_one();
        }
        Ok(())
    }

    /// Do a small piece of the walk. An error is about the current directory, which is then left.
    pub fn next(&mut self) -> sys::Result<Visit> {
        if self.levels.len() - 1 > self.trail.depth() {
            return Ok(Visit::Leave(self.pop()));
        }
        while let Some(name) = self.top().names.pop_front() {
            self.held -= name.len();
            let stat = sys::stat_at(self.here(), &name);
            self.top().after = Some(name.clone());
            match stat {
                Ok(stat) => return Ok(Visit::Entry { name, stat }),
                Err(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.top().whole {
            if let Err(error) = self.read_some() {
                self.scan = None;
                self.top().whole = true;
                return Err(error);
            }
            return Ok(Visit::Pending);
        }
        if self.levels.len() == 1 {
            return Ok(Visit::End);
        }
        if let Err(error) = self.trail.up() {
            self.lost = true;
            return Err(error);
        }
        Ok(Visit::Pending)
    }

    fn top(&mut self) -> &mut Level {
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn pop(&mut self) -> Vec<u8> {
        if let Some(level) = self.levels.pop() {
            self.held -= level.names.iter().map(Vec::len).sum::<usize>();
        }
        let at = self.prefix.iter().rposition(|&c| c == b'/');
        let name = self.prefix[at.map_or(0, |at| at + 1)..].to_vec();
        self.prefix.truncate(at.unwrap_or(0));
        name
    }

    fn forget_one(&mut self) {
        if let Some(level) = self.levels.iter_mut().find(|level| !level.names.is_empty()) {
            self.held -= level.names.iter().map(Vec::len).sum::<usize>();
            level.names = VecDeque::new();
            level.whole = false;
        }
    }

    /// Read one buffer of records of the current directory. At its end the smallest names are in
    /// `names`.
    fn read_some(&mut self) -> sys::Result<()> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => {
                sys::seek(self.here(), 0, libc::SEEK_SET)?;
                Scan {
                    names: BTreeSet::new(),
                    more: false,
                }
            }
        };
        let here = as_fd(&self.trail.here);
        let count = sys::read_dir(here, &mut self.records)?;
        let last = self.levels.len() - 1;
        let level = &mut self.levels[last];
        if count == 0 {
            level.whole = !scan.more;
            level.names = scan.names.into_iter().collect();
            self.held += level.names.iter().map(Vec::len).sum::<usize>();
            return Ok(());
        }
        for (name, _) in Records(&self.records[..count]) {
            if level.after.as_deref().is_some_and(|after| name <= after) {
                continue;
            }
            if scan.names.len() == self.batch {
                let largest = scan.names.iter().next_back();
                if largest.is_some_and(|largest| name >= largest.as_slice()) {
                    scan.more |= largest.is_some_and(|largest| name > largest.as_slice());
                    continue;
                }
            }
            if scan.names.insert(name.to_vec()) && scan.names.len() > self.batch {
                scan.more = true;
                let largest = scan.names.iter().next_back().cloned();
                if let Some(largest) = largest {
                    scan.names.remove(&largest);
                }
            }
        }
        self.scan = Some(scan);
        Ok(())
    }
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
