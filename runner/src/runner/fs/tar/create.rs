//! `fs.tar_out`: a file or a tree as a tar archive, in order, in small steps.
//!
//! Members of a directory have names from `./`; one file has its base name. Sockets, FIFOs and devices
//! are left out, as `fs.tar_in` would refuse them, and so is what `deny` names. Hard links are written
//! as separate files. A file that the user may not read ends the archive with ERROR `permission`: a
//! complete archive or none.

use crate::fs::names;
use crate::fs::policy::Policy;
use crate::fs::request::Request;
use crate::fs::resolve::failed;
use crate::fs::tar::writer::{write_header, Header, Kind, END};
use crate::fs::walk::{Visit, Walker};
use crate::sys::{self, as_fd, Stat};
use crate::tar::padding;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::json;
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// Small members are sent together, large ones in pieces of this size.
const BUFFER_BYTES: usize = 256 * 1024;
const STEP_BYTES: usize = 1024 * 1024;
const STEP_VISITS: usize = 256;
const SCAN_COST: usize = 32;
const BATCH: usize = 1024;

struct Body {
    file: OwnedFd,
    path: Vec<u8>,
    offset: u64,
    size: u64,
    /// The file ended before its size: the rest is zeros.
    short: bool,
}

pub struct TarOut {
    walker: Option<Walker>,
    base: Vec<u8>,
    policy: Policy,
    body: Option<Body>,
    /// Bytes of the archive that are not sent yet.
    ready: Vec<u8>,
    ended: bool,
    entries: u64,
    bytes: u64,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let mut resolver = request.reading()?;
    resolver.magic = "not_regular";
    let path = request.path("path")?;
    let object = resolver.object(&path)?;
    let mut handler = TarOut {
        walker: None,
        base: object.path.clone(),
        policy: Policy::default(),
        body: None,
        ready: Vec::new(),
        ended: false,
        entries: 0,
        bytes: 0,
    };
    if sys::is_dir(&object.stat) {
        let dir = resolver.reopen(&object, &path)?;
        let walker =
            Walker::new(dir, BATCH).map_err(|error| failed(error, "archive", &object.path))?;
        handler.member(Kind::Directory, b"./", b"", &object.stat, 0);
        handler.walker = Some(walker);
    } else if sys::is_file(&object.stat) {
        let file = resolver.reopen(&object, &path)?;
        let stat =
            sys::stat_fd(as_fd(&file)).map_err(|error| failed(error, "archive", &object.path))?;
        let name = match names::split(&path) {
            Some(parts) => parts.name,
            None => names::base_name(&object.path),
        };
        handler.file(file, name, object.path.clone(), &stat);
    } else {
        return Err(Failure::new(
            "not_regular",
            format!(
                "{} is neither file nor directory",
                names::show(&object.path)
            ),
        ));
    }
    handler.policy = resolver.policy;
    Ok(Box::new(handler))
}

impl TarOut {
    fn member(&mut self, kind: Kind, name: &[u8], target: &[u8], stat: &Stat, size: u64) {
        self.entries += 1;
        write_header(
            &mut self.ready,
            &Header {
                kind,
                name,
                target,
                size,
                mode: stat.st_mode & 0o7777,
                uid: stat.st_uid,
                gid: stat.st_gid,
                mtime: stat.st_mtime,
            },
        );
    }

    fn file(&mut self, file: OwnedFd, name: &[u8], path: Vec<u8>, stat: &Stat) {
        let size = stat.st_size as u64;
        self.member(Kind::File, name, b"", stat, size);
        self.body = Some(Body {
            file,
            path,
            offset: 0,
            size,
            short: false,
        });
    }

    fn read_body(&mut self) -> Result<(), Failure> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        if body.offset == body.size {
            let zeros = padding(body.size) as usize;
            self.ready.resize(self.ready.len() + zeros, 0);
            self.bytes += body.size;
            self.body = None;
            return Ok(());
        }
        let start = self.ready.len();
        let room = BUFFER_BYTES.saturating_sub(start).max(1) as u64;
        let wanted = room.min(body.size - body.offset) as usize;
        self.ready.resize(start + wanted, 0);
        let mut count = 0;
        if !body.short {
            count = sys::read_at(as_fd(&body.file), &mut self.ready[start..], body.offset)
                .map_err(|error| failed(error, "archive", &body.path))?;
        }
        if count == 0 {
            body.short = true;
            count = wanted;
        }
        self.ready.truncate(start + count);
        body.offset += count as u64;
        Ok(())
    }

    /// Add the next member. Return what finding it cost.
    fn visit(&mut self) -> Result<usize, Failure> {
        let Some(walker) = &mut self.walker else {
            self.finish();
            return Ok(1);
        };
        match walker.next() {
            Ok(Visit::Pending) => Ok(SCAN_COST),
            Ok(Visit::Leave(_)) => Ok(1),
            Ok(Visit::End) => {
                self.finish();
                Ok(1)
            }
            Ok(Visit::Entry { name, stat }) => {
                let relative = walker.path_of(&name);
                let path = names::join(&self.base, &relative);
                if !self.policy.denies(&path) {
                    self.entry(&name, &stat, &relative, path.clone()).or_else(
                        |error| match error {
                            // Gone or replaced since it was listed.
                            libc::ENOENT | libc::ELOOP | libc::ENOTDIR | libc::EINVAL => Ok(()),
                            _ => Err(failed(error, "archive", &path)),
                        },
                    )?;
                }
                Ok(1)
            }
            Err(error) => Err(failed(error, "archive", &self.base)),
        }
    }

    fn entry(
        &mut self,
        name: &[u8],
        stat: &Stat,
        relative: &[u8],
        path: Vec<u8>,
    ) -> sys::Result<()> {
        let Some(walker) = &mut self.walker else {
            return Ok(());
        };
        let mut shown = b"./".to_vec();
        shown.extend_from_slice(relative);
        if sys::is_dir(stat) {
            walker.enter(name)?;
            shown.push(b'/');
            self.member(Kind::Directory, &shown, b"", stat, 0);
        } else if sys::is_symlink(stat) {
            let target = sys::read_link_at(walker.here(), name)?;
            self.member(Kind::Symlink, &shown, &target, stat, 0);
        } else if sys::is_file(stat) && stat.st_size == 0 {
            // Files of /proc and the like also have size 0, and should not be opened needlessly.
            self.member(Kind::File, &shown, b"", stat, 0);
        } else if sys::is_file(stat) {
            let file = open_file(walker.here(), name)?;
            let stat = sys::stat_fd(as_fd(&file))?;
            if sys::is_file(&stat) {
                self.file(file, &shown, path, &stat);
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.ready.extend_from_slice(&END);
        self.ended = true;
    }
}

/// Open without blocking, even if the name has become a FIFO meanwhile.
fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> sys::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    sys::open_at(dir, name, flags, 0)
}

impl Handler for TarOut {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        let (mut visits, mut bytes) = (STEP_VISITS, STEP_BYTES);
        loop {
            if self.ready.len() >= BUFFER_BYTES || self.ended {
                let count = self.ready.len().min(out.credit()).min(BUFFER_BYTES);
                if count == 0 && !self.ready.is_empty() {
                    return Ok(Step::Idle);
                }
                if count > 0 {
                    out.data(&self.ready[..count]);
                    self.ready.drain(..count);
                    bytes = bytes.saturating_sub(count);
                }
                if self.ended && self.ready.is_empty() {
                    out.result(json!({ "entries": self.entries, "bytes": self.bytes }));
                    return Ok(Step::Done);
                }
            }
            if bytes == 0 || visits == 0 {
                return Ok(Step::Again);
            }
            if self.ended || self.ready.len() >= BUFFER_BYTES {
                continue;
            }
            if self.body.is_some() {
                self.read_body()?;
                continue;
            }
            visits = visits.saturating_sub(self.visit()?);
        }
    }
}
