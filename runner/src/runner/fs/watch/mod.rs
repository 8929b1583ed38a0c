//! `fs.watch`: reports changes in a directory or a tree, by inotify.
//!
//! A directory that appears is watched and then read, so entries that were put into it before the watch
//! are reported as `created` all the same; such an entry may be reported twice. An entry that leaves a
//! name by rename is `moved`; where it arrives it is `created`. Changes that may have been missed (the
//! kernel's queue was full, or there are more directories than may be watched) are reported as
//! `overflow`; before `watching` was sent it is ERROR `too_large` instead. Temporary files of this
//! runner are not reported.

mod inotify;
mod tree;

use crate::fs::policy::Policy;
use crate::fs::request::Request;
use crate::fs::resolve::failed;
use crate::fs::temp::{self, Purpose};
use crate::fs::walk::{Visit, Walker};
use crate::fs::watch::inotify::{Event, Inotify, Wd};
use crate::fs::watch::tree::Tree;
use crate::fs::{lookup, names};
use crate::sys::{self, as_fd, FileIdentity};
use crate::wire::bytes;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::os::unix::io::{BorrowedFd, OwnedFd, RawFd};

/// Each watch pins an inode of the kernel; a user has a few tens of thousands at least.
const MOST_WATCHES: usize = 8192;
const STEP_ENTRIES: usize = 256;
const BATCH: usize = 1024;

/// A walk through a tree to add watches for its directories.
struct Scan {
    walker: Walker,
    /// The watches of the directories that the walker is in.
    above: Vec<Wd>,
    announce: bool,
}

pub struct Watch {
    inotify: Inotify,
    tree: Tree,
    base: Vec<u8>,
    base_identity: FileIdentity,
    policy: Policy,
    recursive: bool,
    watching: bool,
    /// There is no room for more events; the stream waits for room, not for events.
    waiting: bool,
    /// Directories to be read, and whether their content is new.
    todo: VecDeque<(Wd, bool)>,
    scan: Option<Scan>,
    /// Directories that left their name and have not arrived anywhere yet, by cookie.
    moving: HashMap<u32, Wd>,
    /// Our temporary files that are being renamed, by cookie.
    placing: HashMap<u32, Purpose>,
    last: Option<(&'static str, Vec<u8>)>,
    lost: bool,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.reading()?;
    let path = request.path("path")?;
    let recursive = request.flag("recursive", true)?;
    let object = resolver.object(&path)?;
    let fail = |error| failed(error, "watch", &object.path);
    let inotify = Inotify::new().map_err(fail)?;
    let root = inotify
        .add(as_fd(&object.fd), &object.path)
        .map_err(|error| match error {
            libc::ENOSPC => too_many(&object.path),
            _ => fail(error),
        })?;
    let mut todo = VecDeque::new();
    if recursive && sys::is_dir(&object.stat) {
        todo.push_back((root, false));
    }
    Ok(Box::new(Watch {
        inotify,
        tree: Tree::new(root),
        base_identity: sys::identity(&object.stat),
        base: object.path,
        policy: resolver.policy,
        recursive,
        watching: false,
        waiting: false,
        todo,
        scan: None,
        moving: HashMap::new(),
        placing: HashMap::new(),
        last: None,
        lost: false,
    }))
}

fn too_many(path: &[u8]) -> Failure {
    Failure::new(
        "too_large",
        format!(
            "{} has more directories than can be watched",
            names::show(path)
        ),
    )
}

impl Watch {
    fn path_of(&self, wd: Wd, name: &[u8]) -> Option<Vec<u8>> {
        let mut names = self.tree.names(wd)?;
        names.push(name);
        Some(names::join(&self.base, &names.join(&b'/')))
    }

    fn tell(&mut self, out: &mut dyn Out, change: &'static str, path: Vec<u8>, is_dir: bool) {
        // A file that is written in small pieces would flood the reader.
        let event = Some((change, path));
        if change == "modified" && self.last == event {
            return;
        }
        if let Some((_, path)) = &event {
            out.event(json!({
                "event": "change", "change": change, "path": bytes::to_json(path), "is_dir": is_dir,
            }));
        }
        self.last = event;
    }

    /// A watch could not be added: before `watching` that is an error, afterwards an event.
    fn missed(&mut self, out: &mut dyn Out) -> Result<(), Failure> {
        if !self.watching {
            return Err(too_many(&self.base));
        }
        if !self.lost {
            self.lost = true;
            out.event(json!({ "event": "overflow" }));
        }
        Ok(())
    }

    /// Handle one buffer of events; `false` when there are none.
    fn read_events(&mut self, out: &mut dyn Out) -> Result<bool, Failure> {
        let events = self
            .inotify
            .read()
            .map_err(|error| failed(error, "watch", &self.base))?;
        if events.is_empty() {
            return Ok(false);
        }
        self.lost = false;
        self.last = None;
        for event in events {
            self.take_event(&event, out)?;
        }
        Ok(true)
    }

    fn take_event(&mut self, event: &Event, out: &mut dyn Out) -> Result<(), Failure> {
        let (wd, mask, cookie) = (event.wd, event.mask, event.cookie);
        let name = event.name.as_slice();
        if mask & libc::IN_Q_OVERFLOW != 0 {
            out.event(json!({ "event": "overflow" }));
            if self.recursive {
                // Directories may have appeared unseen.
                self.scan = None;
                self.todo.clear();
                self.todo.push_back((self.tree.root(), false));
            }
            return Ok(());
        }
        if mask & libc::IN_IGNORED != 0 {
            if wd != self.tree.root() {
                self.tree.remove(wd);
            }
            return Ok(());
        }
        if name.is_empty() {
            self.take_root_event(wd, mask, out);
            return Ok(());
        }
        if let Some(purpose) = temp::purpose(name) {
            if mask & libc::IN_MOVED_FROM != 0 {
                self.placing.insert(cookie, purpose);
            }
            return Ok(());
        }
        let path = match self.path_of(wd, name) {
            Some(path) if !self.policy.denies(&path) => path,
            _ => return Ok(()),
        };
        let is_dir = mask & libc::IN_ISDIR != 0;
        if mask & libc::IN_MOVED_FROM != 0 {
            if let Some(child) = self.tree.child(wd, name) {
                self.tree.detach(child);
                self.moving.insert(cookie, child);
            }
            self.tell(out, "moved", path, is_dir);
        } else if mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0 {
            let replaced = mask & libc::IN_MOVED_TO != 0
                && self.placing.remove(&cookie) == Some(Purpose::Replace);
            self.tell(
                out,
                if replaced { "modified" } else { "created" },
                path,
                is_dir,
            );
            if is_dir && self.recursive {
                self.arrived(wd, name, cookie, out)?;
            }
        } else if mask & libc::IN_DELETE != 0 {
            self.tell(out, "deleted", path, is_dir);
        } else if mask & (libc::IN_MODIFY | libc::IN_ATTRIB) != 0 {
            self.tell(out, "modified", path, is_dir);
        }
        Ok(())
    }

    /// Handle an event of the watched object itself. Events of directories below come from their
    /// parents too.
    fn take_root_event(&mut self, wd: Wd, mask: u32, out: &mut dyn Out) {
        if wd != self.tree.root() {
            return;
        }
        let is_dir = mask & libc::IN_ISDIR != 0;
        let change = match mask {
            mask if mask & libc::IN_DELETE_SELF != 0 => "deleted",
            mask if mask & libc::IN_MOVE_SELF != 0 => "moved",
            _ => "modified",
        };
        self.tell(out, change, self.base.clone(), is_dir);
    }

    /// A directory appeared at `name`: created there, or moved there from outside or inside the tree.
    fn arrived(
        &mut self,
        parent: Wd,
        name: &[u8],
        cookie: u32,
        out: &mut dyn Out,
    ) -> Result<(), Failure> {
        if let Some(child) = self.moving.remove(&cookie) {
            if self.tree.put(parent, name, child) {
                return Ok(());
            }
        }
        let Ok(dir) = self
            .open_dir(parent)
            .and_then(|dir| open_below(as_fd(&dir), name))
        else {
            // Gone again, or not readable for the user.
            return Ok(());
        };
        if let Some(child) = self.add(parent, name, as_fd(&dir), out)? {
            self.todo.push_back((child, true));
        }
        Ok(())
    }

    /// Open the directory of a watch by its names, following no symlink.
    fn open_dir(&self, wd: Wd) -> sys::Result<OwnedFd> {
        let gone = || libc::ENOENT;
        let root = sys::open(b"/", libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let base = lookup::follow(as_fd(&root), &self.base, libc::O_DIRECTORY)?;
        // The base is found by its path, so that watching it does not keep it from being deleted.
        if sys::identity(&sys::stat_fd(as_fd(&base))?) != self.base_identity {
            return Err(gone());
        }
        let names = self.tree.names(wd).ok_or_else(gone)?;
        lookup::beneath(as_fd(&base), names.into_iter())
    }

    /// Watch `dir`, which is `name` in `parent`. `None`: it cannot or need not be watched.
    fn add(
        &mut self,
        parent: Wd,
        name: &[u8],
        dir: BorrowedFd<'_>,
        out: &mut dyn Out,
    ) -> Result<Option<Wd>, Failure> {
        let path = match self.path_of(parent, name) {
            Some(path) if !self.policy.denies(&path) => path,
            _ => return Ok(None),
        };
        let wd = match self.inotify.add(dir, &path) {
            Ok(wd) => wd,
            Err(libc::ENOSPC | libc::ENOMEM) => {
                self.missed(out)?;
                return Ok(None);
            }
            // Gone, or closed to the user, who cannot see changes in it either.
            Err(_) => return Ok(None),
        };
        if !self.tree.knows(wd) && self.tree.len() >= MOST_WATCHES {
            self.inotify.remove(wd);
            self.missed(out)?;
            return Ok(None);
        }
        Ok(if self.tree.put(parent, name, wd) {
            Some(wd)
        } else {
            None
        })
    }

    fn forget_moved_away(&mut self) {
        self.placing.clear();
        let away: Vec<Wd> = self.moving.drain().map(|(_, wd)| wd).collect();
        for wd in away {
            for gone in self.tree.remove(wd) {
                self.inotify.remove(gone);
            }
        }
    }

    /// Read some directories; `false` when there is nothing to read.
    fn scan_some(&mut self, out: &mut dyn Out) -> Result<bool, Failure> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => match self.next_scan() {
                Some(scan) => scan,
                None => return Ok(!self.todo.is_empty()),
            },
        };
        for _ in 0..STEP_ENTRIES {
            match scan.walker.next() {
                Ok(Visit::Pending) => break,
                Ok(Visit::End) => return Ok(true),
                Ok(Visit::Leave(_)) => {
                    scan.above.pop();
                }
                Ok(Visit::Entry { name, stat }) => {
                    self.found(&mut scan, &name, sys::is_dir(&stat), out)?;
                }
                Err(_) if scan.walker.is_fatal() => return Ok(true),
                Err(_) => {}
            }
        }
        self.scan = Some(scan);
        Ok(true)
    }

    fn next_scan(&mut self) -> Option<Scan> {
        let (wd, announce) = self.todo.pop_front()?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let walker = self
            .open_dir(wd)
            .and_then(|dir| sys::open_at(as_fd(&dir), b".", flags, 0))
            .and_then(|dir| Walker::new(dir, BATCH));
        Some(Scan {
            walker: walker.ok()?,
            above: vec![wd],
            announce,
        })
    }

    fn found(
        &mut self,
        scan: &mut Scan,
        name: &[u8],
        is_dir: bool,
        out: &mut dyn Out,
    ) -> Result<(), Failure> {
        let parent = match scan.above.last() {
            Some(parent) => *parent,
            None => return Ok(()),
        };
        if temp::purpose(name).is_some() {
            return Ok(());
        }
        if scan.announce {
            match self.path_of(parent, name) {
                Some(path) if !self.policy.denies(&path) => {
                    self.tell(out, "created", path, is_dir);
                }
                _ => return Ok(()),
            }
        }
        if !is_dir {
            return Ok(());
        }
        let Ok(dir) = open_below(scan.walker.here(), name) else {
            return Ok(());
        };
        if let Some(wd) = self.add(parent, name, as_fd(&dir), out)? {
            if scan.walker.enter(name).is_ok() {
                scan.above.push(wd);
            }
        }
        Ok(())
    }
}

fn open_below(dir: BorrowedFd<'_>, name: &[u8]) -> sys::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    sys::open_at(dir, name, flags, 0)
}

impl Handler for Watch {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        self.waiting = self.watching && out.credit() == 0;
        if self.waiting {
            // The client does not read. The kernel's queue fills, and reports an overflow.
            return Ok(Step::Idle);
        }
        if self.watching && self.read_events(out)? {
            return Ok(Step::Again);
        }
        if self.watching {
            self.forget_moved_away();
        }
        if self.scan_some(out)? {
            return Ok(Step::Again);
        }
        if !self.watching {
            self.watching = true;
            out.event(json!({ "event": "watching" }));
            return Ok(Step::Again);
        }
        Ok(Step::Idle)
    }

    fn interest(&self) -> Option<(RawFd, bool, bool)> {
        // While the client takes nothing, a readable queue would be reported over and over.
        Some((self.inotify.raw(), !self.waiting, false))
    }
}
