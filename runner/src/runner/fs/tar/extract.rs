//! `fs.tar_in`: unpacks an archive below one directory, and nowhere else.
//!
//! Every member is created relative to a descriptor that was reached from `path` component by component
//! without following a symlink, so neither a member nor a process of the sandbox can redirect it.
//! Absolute names, `..`, names that pass through a symlink, links that lead outside and devices are
//! `blocked`; the archive ends there, and what was unpacked before stays. A file appears under its name
//! only when it is complete. Owners and set-id bits are not taken from the archive, nor are the times
//! of directories. Everything is on disk before the answer.

use crate::fs::created::make_directory;
use crate::fs::flush::{Batches, Flush, Windows};
use crate::fs::policy::Policy;
use crate::fs::request::Request;
use crate::fs::resolve::{failed, Resolver};
use crate::fs::tar::links::{self, Path};
use crate::fs::temp::{self, Purpose, TempFile};
use crate::fs::walk::Trail;
use crate::fs::{lookup, names};
use crate::sys::{self, as_fd, Times};
use crate::tar::reader::{Item, Kind, Member, Reader, Reason, Refusal};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::json;
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// Members of one step.
const STEP_MEMBERS: usize = 128;
/// Directories that the archive closes to their owner get their mode last. This many paths are kept for
/// that.
const LATE_BYTES: usize = 16 * 1024 * 1024;

struct Current {
    temp: TempFile,
    name: Vec<u8>,
    path: Vec<u8>,
    mode: u32,
    mtime: i64,
    size: u64,
    windows: Windows,
}

pub struct TarIn {
    base: OwnedFd,
    base_path: Vec<u8>,
    policy: Policy,
    reader: Reader,
    /// DATA that came and is not used yet, from `used` on.
    pending: Vec<u8>,
    used: usize,
    no_more: bool,
    current: Option<Current>,
    /// The directory of the last member.
    trail: Trail,
    late: Vec<(Vec<u8>, u32)>,
    late_bytes: usize,
    max_bytes: u64,
    max_entries: u64,
    entries: u64,
    bytes: u64,
    flush: Flush,
    batches: Batches,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.writing()?;
    let path = request.path("path")?;
    let parents = request.flag("parents", true)?;
    let max_bytes = request.count("max_bytes")?.unwrap_or(u64::MAX);
    let max_entries = request.count("max_entries")?.unwrap_or(u64::MAX);
    let flush = Flush::of(request)?;
    let (base, base_path) = base(&resolver, &path, parents)?;
    let trail = sys::duplicate(as_fd(&base))
        .and_then(Trail::holding)
        .map_err(|error| failed(error, "unpack into", &base_path))?;
    let batches = flush.by_batches(as_fd(&base));
    Ok(Box::new(TarIn {
        base,
        base_path,
        policy: resolver.policy,
        reader: Reader::new(),
        pending: Vec::new(),
        used: 0,
        no_more: false,
        current: None,
        trail,
        late: Vec::new(),
        late_bytes: 0,
        max_bytes,
        max_entries,
        entries: 0,
        bytes: 0,
        flush,
        batches,
    }))
}

/// Return the directory to unpack into, created if that is allowed.
fn base(resolver: &Resolver, path: &[u8], parents: bool) -> Result<(OwnedFd, Vec<u8>), Failure> {
    match resolver.object(path) {
        Ok(object) => {
            resolver.policy.check_inside(&object.path)?;
            if !sys::is_dir(&object.stat) {
                return Err(Failure::from_errno(
                    libc::ENOTDIR,
                    format!("unpack into {}", names::show(&object.path)),
                ));
            }
            return Ok((object.fd, object.path));
        }
        Err(failure) if parents && failure.code == "not_found" => {}
        Err(failure) => return Err(failure),
    }
    let place = resolver.place_with_parents(path, parents)?;
    let shown = place.path();
    let fail = |error| failed(error, "make directory", &shown);
    match make_directory(place.dir(), &place.name, 0o755) {
        Err(error) if error != libc::EEXIST => return Err(fail(error)),
        _ => {}
    }
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let dir = sys::open_at(place.dir(), &place.name, flags, 0).map_err(fail)?;
    Ok((dir, shown))
}

impl TarIn {
    /// Use `input` up to a bounded number of members. Return how many bytes that were.
    fn feed(&mut self, input: &[u8]) -> Result<usize, Failure> {
        let mut rest = input;
        let mut left = STEP_MEMBERS;
        while left > 0 {
            match self.reader.next(&mut rest)? {
                Item::More => break,
                Item::Member(member) => {
                    left -= 1;
                    self.begin(&member)?;
                }
                Item::Bytes(bytes) => {
                    if let Some(current) = &mut self.current {
                        let file = current.temp.file();
                        sys::write_all(file, bytes)
                            .and_then(|()| current.windows.wrote(file, bytes.len()))
                            .map_err(|error| failed(error, "write", &current.path))?;
                    }
                }
                Item::MemberEnd => self.complete()?,
            }
        }
        Ok(input.len() - rest.len())
    }

    fn begin(&mut self, member: &Member) -> Result<(), Failure> {
        check_kind(member)?;
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(member.size);
        if self.entries > self.max_entries || self.bytes > self.max_bytes {
            return Err(Failure::new(
                "too_large",
                format!(
                    "archive: more than {} entries or {} bytes",
                    self.max_entries, self.max_bytes
                ),
            ));
        }
        let path = links::member_path(&member.name)?;
        let name = match path.last() {
            Some(name) => *name,
            // `./` is the directory that we unpack into; it keeps its mode.
            None if member.kind == Kind::Directory => return Ok(()),
            None => return Err(Failure::invalid("archive: a member without a name")),
        };
        let full = names::join(&self.base_path, &path.join(&b'/'));
        self.policy.check(&full)?;
        self.enter(&path[..path.len() - 1], &full)?;
        let dir =
            sys::duplicate(self.trail.here()).map_err(|error| failed(error, "open", &full))?;
        let dir = as_fd(&dir);
        match member.kind {
            Kind::Directory => self.directory(dir, name, member, &path, &full),
            Kind::File => self.file(dir, name, member, full),
            Kind::Symlink => {
                links::check_target(&path, &member.target, &self.base_path)?;
                put(dir, name, &full, |temp| {
                    sys::symlink_at(&member.target, dir, temp)?;
                    let _ = sys::set_times_at(
                        dir,
                        temp,
                        Times::accessed_now(sys::timespec(member.mtime.seconds, 0)),
                    );
                    Ok(())
                })
            }
            _ => self.hard_link(dir, name, member, &full),
        }
    }

    /// Go to the directory `path`, creating what is missing. Never through a symlink.
    fn enter(&mut self, path: &Path<'_>, full: &[u8]) -> Result<(), Failure> {
        let shared = self.trail.shared(path);
        while self.trail.depth() > shared {
            self.trail
                .up()
                .map_err(|error| failed(error, "unpack", full))?;
        }
        // If directories vanished, the trail is higher up than expected.
        for name in &path[self.trail.depth()..] {
            match self.trail.down(name) {
                Ok(()) => {}
                Err(_) => {
                    step_into(self.trail.here(), name, full)?;
                    self.trail
                        .down(name)
                        .map_err(|error| failed(error, "unpack", full))?;
                }
            }
        }
        Ok(())
    }

    fn directory(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        member: &Member,
        path: &Path<'_>,
        full: &[u8],
    ) -> Result<(), Failure> {
        let wanted = member.mode & 0o777;
        let mode = wanted | 0o700;
        let made = make_directory(dir, name, mode);
        let fail = |error| failed(error, "make directory", full);
        match made {
            Ok(()) => {}
            Err(libc::EEXIST) => {
                let there = step_into(dir, name, full)?;
                // A directory of another user keeps its mode.
                let _ = sys::set_mode_pinned(as_fd(&there), mode);
            }
            Err(error) => return Err(fail(error)),
        }
        if mode != wanted {
            let relative = path.join(&b'/');
            self.late_bytes += relative.len() + 64;
            if self.late_bytes > LATE_BYTES {
                return Err(Failure::new(
                    "too_large",
                    "archive: too many directories that are closed to their owner",
                ));
            }
            self.late.push((relative, wanted));
        }
        Ok(())
    }

    fn file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        member: &Member,
        full: Vec<u8>,
    ) -> Result<(), Failure> {
        let purpose = match sys::stat_at(dir, name) {
            Ok(stat) if sys::is_dir(&stat) => {
                return Err(failed(libc::EISDIR, "unpack", &full));
            }
            Ok(_) => Purpose::Replace,
            Err(libc::ENOENT) => Purpose::New,
            Err(error) => return Err(failed(error, "unpack", &full)),
        };
        let temp = TempFile::new(dir, purpose).map_err(|error| failed(error, "unpack", &full))?;
        self.current = Some(Current {
            temp,
            name: name.to_vec(),
            path: full,
            mode: member.mode & 0o777,
            mtime: member.mtime.seconds,
            size: member.size,
            windows: self.flush.by_windows(),
        });
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Failure> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let done = current
            .temp
            .finish(current.mode, None)
            // A time that the file system cannot store is not a reason to lose the file.
            .map(|()| {
                let times = Times::accessed_now(sys::timespec(current.mtime, 0));
                let _ = sys::set_times(current.temp.file(), times);
            })
            .and_then(|()| self.batches.file(current.temp.file(), current.size))
            .and_then(|()| current.temp.replace(&current.name));
        done.map_err(|error| failed(error, "unpack", &current.path))
    }

    /// The target is a name in the archive, and must be a regular file below the base: a hard link to a
    /// symlink would move the symlink to where its target means something else.
    fn hard_link(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        member: &Member,
        full: &[u8],
    ) -> Result<(), Failure> {
        let target = links::member_path(&member.target)?;
        let Some((target_name, above)) = target.split_last() else {
            return Err(Failure::invalid("archive: a hard link to a directory"));
        };
        let target_full = names::join(&self.base_path, &target.join(&b'/'));
        self.policy.check(&target_full)?;
        let mut from = sys::duplicate(as_fd(&self.base))
            .map_err(|error| failed(error, "open", &target_full))?;
        for part in above {
            from = open_dir(as_fd(&from), part, &target_full)?;
        }
        let stat = sys::stat_at(as_fd(&from), target_name)
            .map_err(|error| failed(error, "link to", &target_full))?;
        if !sys::is_file(&stat) {
            return Err(links::blocked(
                &target_full,
                "a hard link to something that is not a file",
            ));
        }
        put(dir, name, full, |temp| {
            sys::link_at(as_fd(&from), target_name, dir, temp)
        })
    }

    /// Set the modes that were put off; `true` when all are set.
    fn set_late_modes(&mut self) -> bool {
        for _ in 0..STEP_MEMBERS {
            // The last first: a directory before its parent.
            let Some((path, mode)) = self.late.pop() else {
                return true;
            };
            // Gone or replaced by now: there is nothing to set.
            if let Ok(dir) = lookup::beneath(as_fd(&self.base), names::components(&path)) {
                let _ = sys::set_mode_pinned(as_fd(&dir), mode);
            }
        }
        false
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let message = format!("archive: {}", refusal.message);
        match refusal.reason {
            Reason::Unsupported => Failure::new("unsupported", message),
            _ => Failure::invalid(message),
        }
    }
}

/// Refuse devices and FIFOs, and what readers of tar take for different things: a link or a directory
/// with a body.
fn check_kind(member: &Member) -> Result<(), Failure> {
    let name = || names::show(&member.name);
    match member.kind {
        Kind::Device | Kind::Fifo => Err(Failure::new(
            "blocked",
            format!("archive: {} is a device or a FIFO", name()),
        )),
        Kind::Directory | Kind::Symlink | Kind::HardLink if member.size != 0 => Err(
            Failure::invalid(format!("archive: {} is not a file and has a size", name())),
        ),
        _ => Ok(()),
    }
}

/// Enter `name`, or create it. A symlink there is `blocked`.
fn step_into(dir: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<OwnedFd, Failure> {
    match open_dir(dir, name, full) {
        Err(failure) if failure.errno == Some(libc::ENOENT) => {}
        answer => return answer,
    }
    match make_directory(dir, name, 0o755) {
        Err(error) if error != libc::EEXIST => {
            return Err(failed(error, "make directory", full));
        }
        _ => {}
    }
    open_dir(dir, name, full)
}

fn open_dir(dir: BorrowedFd<'_>, name: &[u8], full: &[u8]) -> Result<OwnedFd, Failure> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    sys::open_at(dir, name, flags, 0).map_err(|error| match sys::stat_at(dir, name) {
        Ok(stat) if sys::is_symlink(&stat) => links::blocked(full, "through a symlink"),
        _ => failed(error, "unpack", full),
    })
}

/// Create something under a temporary name and move it to `name`, replacing what is there.
fn put(
    dir: BorrowedFd<'_>,
    name: &[u8],
    full: &[u8],
    make: impl FnOnce(&[u8]) -> sys::Result<()>,
) -> Result<(), Failure> {
    let answer = temp::fresh_name(Purpose::New).and_then(|temp| {
        let moved = make(&temp).and_then(|()| sys::rename_at(dir, &temp, dir, name));
        // Also after success: renaming a link over another link to the same file leaves both.
        let _ = sys::unlink_at(dir, &temp);
        moved
    });
    answer.map_err(|error| failed(error, "unpack", full))
}

impl Handler for TarIn {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if self.used < self.pending.len() {
            let pending = std::mem::take(&mut self.pending);
            let used = self.feed(&pending[self.used..]);
            self.pending = pending;
            let used = used?;
            self.used += used;
            out.grant(used as u32);
            if self.used < self.pending.len() {
                return Ok(Step::Again);
            }
            self.pending.clear();
            self.used = 0;
        }
        if !self.no_more {
            return Ok(Step::Idle);
        }
        if !self.reader.has_ended() {
            return Err(Failure::invalid("archive: it stops before its end marker"));
        }
        if !self.set_late_modes() {
            return Ok(Step::Again);
        }
        self.batches
            .all()
            .map_err(|error| failed(error, "unpack into", &self.base_path))?;
        out.result(json!({ "entries": self.entries, "bytes": self.bytes }));
        Ok(Step::Done)
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Stepped {
        let mut used = 0;
        if self.pending.is_empty() {
            // Large files pass through here without a copy.
            used = self.feed(bytes)?;
            out.grant(used as u32);
        }
        self.pending.extend_from_slice(&bytes[used..]);
        Ok(match self.pending.is_empty() {
            true => Step::Idle,
            false => Step::Again,
        })
    }

    fn end(&mut self, _out: &mut dyn Out) -> Stepped {
        self.no_more = true;
        Ok(Step::Again)
    }
}
