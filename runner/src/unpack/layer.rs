//! Members created below the target, one after the other: what the entries of a layer do to its tree.
//!
//! An entry replaces an earlier one of the same name; two directories are merged. Whiteouts refer to
//! the layers below and never to this one, so their order among its entries does not matter. Devices,
//! set-id bits and attributes beyond `user.*` are not allowed in a tree and are left out.

use super::archive::Archive;
use super::confine;
use super::failure::{self, hostile, limit, malformed, show, Failure, Outcome};
use super::names::{self, Meaning};
use super::tree::{self, Entered, Tree};
use crate::sys::{self, Errno};
use crate::tar::reader::{Kind, Member};
use crate::tar::Time;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::io::{AsFd, BorrowedFd, OwnedFd};

/// The highest id of an image plus one: sandboxes are mapped to ranges of this size.
const IDS: u64 = 65_536;

pub struct Limits {
    /// Content and attributes, holes included.
    pub bytes: u64,
    pub entries: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Content, holes not included.
    pub bytes: u64,
    /// Everything that was created.
    pub files: u64,
    /// Devices and FIFOs, which are not created.
    pub skipped: u64,
}

pub struct Layer {
    tree: Tree,
    /// Owners and `trusted.*` attributes can be set.
    root: bool,
    limits: Limits,
    apparent: u64,
    entries: u64,
    report: Report,
}

impl Layer {
    /// A layer without an entry for its root directory has one that every user may read.
    pub fn new(target: OwnedFd, root: bool, limits: Limits) -> Outcome<Layer> {
        // A default ACL would replace the modes that members are created with.
        let _ = rustix::fs::fremovexattr(&target, "system.posix_acl_default");
        sys::set_mode(target.as_fd(), 0o755)
            .map_err(|e| Failure::kernel("open up the target", e))?;
        Ok(Layer {
            tree: Tree::new(target, Time::default()),
            root,
            limits,
            apparent: 0,
            entries: 0,
            report: Report::default(),
        })
    }

    pub fn unpack<R: Read>(mut self, archive: &mut Archive<R>) -> Outcome<Report> {
        while let Some(member) = archive.next()? {
            self.count_entry()?;
            self.add(&member, archive)?;
        }
        self.tree.finish()?;
        Ok(self.report)
    }

    fn add<R: Read>(&mut self, member: &Member, archive: &mut Archive<R>) -> Outcome<()> {
        let place = names::place(&member.name)?;
        match place.meaning {
            Meaning::Nothing => return Ok(()),
            Meaning::Opaque => {
                self.report.files += 1;
                self.walk(&place.path)?;
                return self.make_opaque();
            }
            _ => {}
        }
        let (name, parents) = match place.path.split_last() {
            Some((name, parents)) => (name, parents),
            None => return self.root_directory(member),
        };
        if place.meaning == Meaning::Whiteout {
            self.report.files += 1;
            self.walk(parents)?;
            return self.whiteout(name);
        }
        if matches!(member.kind, Kind::Device | Kind::Fifo) {
            self.report.skipped += 1;
            return Ok(());
        }
        self.owner(member)?;
        self.walk(parents)?;
        self.report.files += 1;
        match member.kind {
            Kind::File => self.file(name, member, archive),
            Kind::Directory => self.directory(name, member),
            Kind::Symlink => self.symlink(name, member),
            _ => self.hard_link(name, member),
        }
    }

    fn count_entry(&mut self) -> Outcome<()> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(limit(format!("more than {} entries", self.limits.entries)));
        }
        Ok(())
    }

    fn count_bytes(&mut self, bytes: u64) -> Outcome<()> {
        self.apparent = self.apparent.saturating_add(bytes);
        if self.apparent > self.limits.bytes {
            return Err(limit(format!("more than {} bytes", self.limits.bytes)));
        }
        Ok(())
    }

    /// Return the user and the group of a member; `None` if we cannot set them.
    fn owner(&self, member: &Member) -> Outcome<Option<(u32, u32)>> {
        let (uid, gid) = (member.uid?, member.gid?);
        if self.root && (uid >= IDS || gid >= IDS) {
            return Err(limit(format!(
                "{} belongs to {}:{}, above {}",
                show(&member.name),
                uid,
                gid,
                IDS - 1
            )));
        }
        Ok(self.root.then_some((uid as u32, gid as u32)))
    }

    /// Return the owner of a new member, if it is not ours.
    fn other_owner(&self, member: &Member) -> Outcome<Option<(u32, u32)>> {
        Ok(self.owner(member)?.filter(|&owner| owner != (0, 0)))
    }

    /// Go to the directory `path`, creating what is missing.
    fn walk(&mut self, path: &[Vec<u8>]) -> Outcome<()> {
        let shared = self.tree.retreat(path)?;
        for name in &path[shared..] {
            if let Entered::Existing = self.tree.enter(name)? {
                continue;
            }
            self.count_entry()?;
            self.make_directory(name, 0o755, Time::default())?;
        }
        Ok(())
    }

    /// Create a directory where nothing or a whiteout exists, and enter it. What a whiteout hid of the
    /// layers below stays hidden.
    fn make_directory(&mut self, name: &[u8], mode: u32, mtime: Time) -> Outcome<()> {
        self.tree.touch();
        let mut created = sys::make_dir_at(self.tree.here(), name, mode);
        let mut replaces = false;
        if exists(&created) && tree::is_whiteout(self.tree.here(), name) {
            replaces = true;
            self.tree.clear(name)?;
            created = sys::make_dir_at(self.tree.here(), name, mode);
        }
        created.map_err(|e| Failure::kernel(show(name), e))?;
        self.tree.enter_new(name, mtime)?;
        if replaces {
            self.make_opaque()?;
        }
        Ok(())
    }

    fn directory(&mut self, name: &[u8], member: &Member) -> Outcome<()> {
        let failed = |e: Errno| Failure::kernel(show(&member.name), e);
        let mode = self.directory_mode(member.mode);
        match self.tree.enter(name) {
            Ok(Entered::Existing) => sys::set_mode(self.tree.here(), mode).map_err(failed)?,
            Ok(Entered::Missing) => self.make_directory(name, mode, member.mtime)?,
            Err(e) if e.kind == failure::Kind::Hostile => {
                self.tree.clear(name)?;
                self.make_directory(name, mode, member.mtime)?;
            }
            Err(e) => return Err(e),
        }
        self.finish_directory(member)
    }

    fn root_directory(&mut self, member: &Member) -> Outcome<()> {
        if member.kind != Kind::Directory {
            return Err(hostile(format!(
                "{} would take the place of the root directory",
                show(&member.name)
            )));
        }
        self.owner(member)?;
        self.report.files += 1;
        self.tree.retreat(&[])?;
        let mode = self.directory_mode(member.mode);
        sys::set_mode(self.tree.here(), mode)
            .map_err(|e| Failure::kernel(show(&member.name), e))?;
        self.finish_directory(member)
    }

    /// Without root, a directory that is closed to its owner could be neither filled nor removed.
    fn directory_mode(&self, mode: u32) -> u32 {
        let mode = mode & 0o1777;
        if self.root {
            mode
        } else {
            mode | 0o700
        }
    }

    fn finish_directory(&mut self, member: &Member) -> Outcome<()> {
        if let Some((uid, gid)) = self.owner(member)? {
            sys::set_owner(self.tree.here(), uid, gid)
                .map_err(|e| Failure::kernel(show(&member.name), e))?;
        }
        let attributes = self.kept_xattrs(member)?;
        set_xattrs(self.tree.here(), &attributes, member)?;
        self.tree.set_time(member.mtime);
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        name: &[u8],
        member: &Member,
        archive: &mut Archive<R>,
    ) -> Outcome<()> {
        self.count_bytes(member.size)?;
        let attributes = self.kept_xattrs(member)?;
        let failed = |e: Errno| Failure::kernel(show(&member.name), e);
        self.tree.touch();
        let last_mode = member.mode & 0o1777;
        // Setting an attribute needs write permission, however the file was opened.
        let mode = match attributes.is_empty() {
            true => last_mode,
            false => last_mode | 0o600,
        };
        let mut created = create(self.tree.here(), name, mode);
        if exists(&created) {
            // Never write through: the old file may have other names.
            self.tree.clear(name)?;
            created = create(self.tree.here(), name, mode);
        }
        let file = File::from(created.map_err(failed)?);
        let io_failed = |e: io::Error| failed(sys::errno_of(&e));
        match &member.sparse {
            None => {
                while let Some(piece) = archive.body(u64::MAX)? {
                    sys::write_all(file.as_fd(), piece).map_err(failed)?;
                    self.report.bytes += piece.len() as u64;
                }
            }
            Some(map) => {
                for extent in map {
                    let (mut at, end) = (extent.offset, extent.offset + extent.length);
                    while let Some(piece) = archive.body(end - at)? {
                        file.write_all_at(piece, at).map_err(io_failed)?;
                        at += piece.len() as u64;
                        self.report.bytes += piece.len() as u64;
                    }
                }
                sys::truncate(file.as_fd(), member.size).map_err(failed)?;
            }
        }
        let file = OwnedFd::from(file);
        if let Some((uid, gid)) = self.other_owner(member)? {
            sys::set_owner(file.as_fd(), uid, gid).map_err(failed)?;
        }
        set_xattrs(file.as_fd(), &attributes, member)?;
        if mode != last_mode {
            sys::set_mode(file.as_fd(), last_mode).map_err(failed)?;
        }
        sys::set_times(file.as_fd(), member.mtime.into()).map_err(failed)
    }

    fn symlink(&mut self, name: &[u8], member: &Member) -> Outcome<()> {
        let failed = |e: Errno| Failure::kernel(show(&member.name), e);
        if member.target.contains(&0) {
            return Err(malformed("the target of a link contains a NUL byte"));
        }
        self.tree.touch();
        let mut created = sys::symlink_at(&member.target, self.tree.here(), name);
        if exists(&created) {
            self.tree.clear(name)?;
            created = sys::symlink_at(&member.target, self.tree.here(), name);
        }
        created.map_err(failed)?;
        if let Some((uid, gid)) = self.other_owner(member)? {
            sys::set_owner_at(self.tree.here(), name, uid, gid).map_err(failed)?;
        }
        sys::set_times_at(self.tree.here(), name, member.mtime.into()).map_err(failed)
    }

    /// Create a second name for a file of this layer. A symlink counts as a file here: it is shared
    /// itself, and not followed.
    fn hard_link(&mut self, name: &[u8], member: &Member) -> Outcome<()> {
        let failed = |e: Errno| Failure::kernel(show(&member.name), e);
        let refused = || {
            hostile(format!(
                "{} is a hard link to {}, which is not a file of this layer",
                show(&member.name),
                show(&member.target)
            ))
        };
        let path = names::path(&member.target)?;
        let (old, parents) = path.split_last().ok_or_else(refused)?;
        let from = self.tree.look(parents)?.ok_or_else(refused)?;
        let wanted = sys::stat_at(from.as_fd(), old).map_err(|e| match e {
            libc::ENOENT => refused(),
            _ => failed(e),
        })?;
        if !matches!(wanted.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK) {
            return Err(refused());
        }
        self.tree.touch();
        let mut created = sys::link_at(from.as_fd(), old, self.tree.here(), name);
        if exists(&created) {
            let there = sys::stat_at(self.tree.here(), name).map_err(failed)?;
            if sys::identity(&there) == sys::identity(&wanted) {
                return Ok(());
            }
            self.tree.clear(name)?;
            created = sys::link_at(from.as_fd(), old, self.tree.here(), name);
        }
        created.map_err(|e| match e {
            // It was below the directory that the link replaces.
            libc::ENOENT => refused(),
            _ => failed(e),
        })
    }

    /// Any entry of this layer with that name hides the layers below by itself, except a directory.
    fn whiteout(&mut self, name: &[u8]) -> Outcome<()> {
        self.tree.touch();
        let created = sys::make_node_at(self.tree.here(), name, libc::S_IFCHR, 0);
        if !exists(&created) {
            return created.map_err(|e| Failure::kernel(format!("hide {}", show(name)), e));
        }
        match self.tree.enter(name) {
            Ok(Entered::Existing) => self.make_opaque(),
            Ok(Entered::Missing) => Ok(()),
            Err(e) if e.kind == failure::Kind::Hostile => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Hide what the layers below have in the current directory.
    fn make_opaque(&mut self) -> Outcome<()> {
        let here = self.tree.here();
        let set = if self.root {
            confine::as_admin(|| sys::set_attribute(here, b"trusted.overlay.opaque", b"y"))
        } else {
            sys::set_attribute(here, b"user.overlay.opaque", b"y")
        };
        set.map_err(|e| Failure::kernel("mark a directory as opaque", e))
    }

    /// Return the attributes to keep: `user.*`, without those that overlay itself interprets.
    fn kept_xattrs<'a>(&mut self, member: &'a Member) -> Outcome<Vec<(&'a [u8], &'a [u8])>> {
        let mut attributes = Vec::new();
        for (name, value) in &member.xattrs {
            if name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") {
                self.count_bytes(value.len() as u64)?;
                if name.contains(&0) {
                    return Err(malformed("the name of an attribute contains a NUL byte"));
                }
                attributes.push((name.as_slice(), value.as_slice()));
            }
        }
        Ok(attributes)
    }
}

fn set_xattrs(fd: BorrowedFd<'_>, attributes: &[(&[u8], &[u8])], member: &Member) -> Outcome<()> {
    for (name, value) in attributes {
        match sys::set_attribute(fd, name, value) {
            // A file system without attributes loses them.
            Err(libc::EOPNOTSUPP) => return Ok(()),
            Err(e) => {
                let what = format!("{}: attribute {}", show(&member.name), show(name));
                // The kernel also answers "no space" where one file has no room for more attributes.
                if e == libc::ENOSPC && !is_full(fd) {
                    return Err(limit(format!("{}: {}", what, failure::describe(e))));
                }
                return Err(match e {
                    libc::E2BIG | libc::ERANGE => {
                        limit(format!("{}: {}", what, failure::describe(e)))
                    }
                    _ => Failure::kernel(what, e),
                });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Report whether the file system has next to no room left.
fn is_full(fd: BorrowedFd<'_>) -> bool {
    sys::stat_file_system(fd).is_ok_and(|stat| stat.f_bavail < 64)
}

/// Create a file that must not exist yet.
fn create(at: BorrowedFd<'_>, name: &[u8], mode: u32) -> sys::Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    sys::open_at(at, name, flags, mode)
}

fn exists<T>(created: &sys::Result<T>) -> bool {
    matches!(created, Err(libc::EEXIST))
}
