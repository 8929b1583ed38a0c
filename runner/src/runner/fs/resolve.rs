//! From a path in a request to a pinned descriptor, with the policy checked on the real path.
//!
//! The order is always the same: the kernel resolves the path to an `O_PATH` descriptor, the real path
//! of that descriptor is read from /proc/self/fd and checked, and from then on only the descriptor is
//! used. A component that is swapped meanwhile changes where the descriptor is, not what was checked.
//! Where /proc is missing the real path is unknown: a request with `deny` or `within` is `blocked`, any
//! other one is answered with the cleaned path.
//!
//! Magic links of /proc (`/proc/*/root`, `cwd`, `exe`, `fd/N`) are never followed: they would lead to
//! the runner's own descriptors.

use super::policy::Policy;
use super::{lookup, names};
use crate::fs::created::{make_directory, CreatedParents};
use crate::sys::{self, as_fd, Errno, Stat};
use crate::wire::handler::Failure;
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// The number of symlinks that the kernel follows for one path.
const MOST_LINKS: usize = 40;

/// An existing object, held by an `O_PATH` descriptor.
pub struct Object {
    pub fd: OwnedFd,
    pub stat: Stat,
    pub path: Vec<u8>,
}

/// A name in a directory that is held by an `O_PATH` descriptor; the entry need not exist.
pub struct Place {
    pub dir: OwnedFd,
    pub dir_path: Vec<u8>,
    pub name: Vec<u8>,
    pub slash: bool,
    pub made: CreatedParents,
}

impl Place {
    pub fn path(&self) -> Vec<u8> {
        names::join(&self.dir_path, &self.name)
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        as_fd(&self.dir)
    }

    /// Return what is at the place now; a symlink itself and not its target.
    pub fn stat(&self) -> sys::Result<Option<Stat>> {
        match sys::stat_at(self.dir(), &self.name) {
            Ok(stat) => Ok(Some(stat)),
            Err(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub struct Resolver {
    workspace: Vec<u8>,
    pub policy: Policy,
    /// The code for a path that leads through a magic link of /proc.
    pub magic: &'static str,
}

impl Resolver {
    pub fn new(workspace: Vec<u8>, policy: Policy) -> Resolver {
        Resolver {
            workspace,
            policy,
            magic: "blocked",
        }
    }

    /// Return what `path` leads to, symlinks followed.
    pub fn object(&self, path: &[u8]) -> Result<Object, Failure> {
        let start = self.start(path)?;
        let fd = lookup::follow(as_fd(&start.fd), path, 0)
            .map_err(|error| self.refused(error, &start, path))?;
        let object = self.hold(fd, start.lexical(path))?;
        self.policy.check(&object.path)?;
        Ok(object)
    }

    /// Return what is at `path`; a symlink itself and not its target.
    pub fn object_itself(&self, path: &[u8]) -> Result<Object, Failure> {
        let place = match names::split(path) {
            Some(parts) if !parts.slash => self.place(path)?,
            // A path with a trailing slash follows, as lstat does.
            _ => return self.object(path),
        };
        let shown = place.path();
        let fd = sys::open_at(place.dir(), &place.name, libc::O_PATH | libc::O_NOFOLLOW, 0)
            .map_err(|error| failed(error, "open", &shown))?;
        let stat = sys::stat_fd(as_fd(&fd)).map_err(|error| failed(error, "stat", &shown))?;
        Ok(Object {
            fd,
            stat,
            path: shown,
        })
    }

    /// Return a place in an existing directory. A symlink at the name itself is not followed.
    pub fn place(&self, path: &[u8]) -> Result<Place, Failure> {
        self.checked(self.place_from(self.start(path)?, path, false)?)
    }

    /// Like `place`, creating missing parent directories when `parents`.
    pub fn place_with_parents(&self, path: &[u8], parents: bool) -> Result<Place, Failure> {
        self.checked(self.place_from(self.start(path)?, path, parents)?)
    }

    /// Like `place_with_parents`, but symlinks at the name are followed, so that replacing the name
    /// replaces their target. A dangling link leads to a place where nothing exists.
    pub fn place_through_links(&self, path: &[u8], parents: bool) -> Result<Place, Failure> {
        let mut place = self.place_from(self.start(path)?, path, parents)?;
        for _ in 0..=MOST_LINKS {
            let shown = place.path();
            match place.stat() {
                Ok(Some(stat)) if sys::is_symlink(&stat) => {}
                Ok(_) => return self.checked(place),
                Err(error) => {
                    self.policy.check(&shown)?;
                    place.made.undo();
                    return Err(failed(error, "stat", &shown));
                }
            }
            if sys::is_on_proc(place.dir()).map_err(|error| failed(error, "stat", &shown))? {
                return Err(self.magic_link(&shown));
            }
            let target = match sys::read_link_at(place.dir(), &place.name) {
                Ok(target) => target,
                // It was swapped after the stat: look again.
                Err(libc::EINVAL | libc::ENOENT) => continue,
                Err(error) => return Err(failed(error, "read link", &shown)),
            };
            let start = if target.first() == Some(&b'/') {
                self.start(&target)?
            } else {
                Start {
                    fd: place.dir,
                    path: place.dir_path,
                }
            };
            place = self.place_from(start, &target, parents)?;
        }
        Err(Failure::from_errno(
            libc::ELOOP,
            format!("open {}", names::show(path)),
        ))
    }

    /// Open for reading exactly what `object` holds. Never blocks on a FIFO or a terminal.
    pub fn reopen(&self, object: &Object, path: &[u8]) -> Result<OwnedFd, Failure> {
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fail = |error| failed(error, "open", &object.path);
        if sys::is_dir(&object.stat) {
            return sys::open_at(as_fd(&object.fd), b".", flags | libc::O_DIRECTORY, 0)
                .map_err(fail);
        }
        if let Ok(fds) = sys::open_proc_fds() {
            let name = sys::fd_name(as_fd(&object.fd));
            return sys::open_at(as_fd(&fds), &name, flags, 0).map_err(fail);
        }
        let start = self.start(path)?;
        let fd = sys::open_at(as_fd(&start.fd), path, flags, 0).map_err(fail)?;
        let stat = sys::stat_fd(as_fd(&fd)).map_err(fail)?;
        if sys::identity(&stat) != sys::identity(&object.stat) {
            return Err(Failure::new(
                "busy",
                format!(
                    "{} was replaced while it was opened",
                    names::show(&object.path)
                ),
            ));
        }
        Ok(fd)
    }

    fn checked(&self, mut place: Place) -> Result<Place, Failure> {
        match self.policy.check_entry(&place.dir_path, &place.name) {
            Ok(()) => Ok(place),
            Err(failure) => {
                place.made.undo();
                Err(failure)
            }
        }
    }

    fn start(&self, path: &[u8]) -> Result<Start, Failure> {
        let from: &[u8] = if path.first() == Some(&b'/') {
            b"/"
        } else {
            &self.workspace
        };
        let fd = sys::open(from, libc::O_PATH | libc::O_DIRECTORY, 0)
            .map_err(|error| failed(error, "open", from))?;
        Ok(Start {
            fd,
            path: from.to_vec(),
        })
    }

    fn place_from(&self, start: Start, path: &[u8], parents: bool) -> Result<Place, Failure> {
        let parts = names::split(path).ok_or_else(|| {
            Failure::invalid(format!(
                "{} names no entry of a directory",
                names::show(path)
            ))
        })?;
        let mut made = CreatedParents::default();
        let dir = if parts.dir.is_empty() {
            sys::duplicate(as_fd(&start.fd)).map_err(|error| failed(error, "open", path))?
        } else {
            match lookup::follow(as_fd(&start.fd), parts.dir, libc::O_DIRECTORY) {
                Ok(dir) => dir,
                Err(libc::ENOENT) if parents => {
                    match self.make_parents(&start, parts.dir, &mut made) {
                        Ok(dir) => dir,
                        Err(failure) => {
                            made.undo();
                            return Err(failure);
                        }
                    }
                }
                Err(error) => return Err(self.refused(error, &start, path)),
            }
        };
        let lexical = start.lexical(parts.dir);
        let stat = sys::stat_fd(as_fd(&dir)).map_err(|error| failed(error, "stat", path))?;
        let dir_path = self.real_path(as_fd(&dir), &stat, lexical)?;
        Ok(Place {
            dir,
            dir_path,
            name: parts.name.to_vec(),
            slash: parts.slash,
            made,
        })
    }

    fn make_parents(
        &self,
        start: &Start,
        dir: &[u8],
        made: &mut CreatedParents,
    ) -> Result<OwnedFd, Failure> {
        let fail = |error| failed(error, "make directory", dir);
        let mut here = sys::duplicate(as_fd(&start.fd)).map_err(fail)?;
        for name in names::components(dir) {
            if name == b".." && !made.is_empty() {
                return Err(Failure::invalid(format!(
                    "{}: `..` after a directory that is not there",
                    names::show(dir)
                )));
            }
            match lookup::follow(as_fd(&here), name, libc::O_DIRECTORY) {
                Ok(next) => {
                    here = next;
                    continue;
                }
                Err(libc::ENOENT) => {}
                Err(error) => return Err(self.refused(error, start, dir)),
            }
            let stat = sys::stat_fd(as_fd(&here)).map_err(fail)?;
            let here_path = self.real_path(as_fd(&here), &stat, start.lexical(dir))?;
            self.policy.check_entry(&here_path, name)?;
            match make_directory(as_fd(&here), name, 0o755) {
                Ok(()) => made.push(as_fd(&here), name).map_err(fail)?,
                // Another process made it, or a dangling symlink is there: the open will show.
                Err(libc::EEXIST) => {}
                Err(error) => return Err(fail(error)),
            }
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            here = sys::open_at(as_fd(&here), name, flags, 0).map_err(fail)?;
        }
        Ok(here)
    }

    fn hold(&self, fd: OwnedFd, lexical: Vec<u8>) -> Result<Object, Failure> {
        let stat = sys::stat_fd(as_fd(&fd)).map_err(|error| failed(error, "stat", &lexical))?;
        let path = self.real_path(as_fd(&fd), &stat, lexical)?;
        Ok(Object { fd, stat, path })
    }

    fn real_path(
        &self,
        fd: BorrowedFd<'_>,
        stat: &Stat,
        lexical: Vec<u8>,
    ) -> Result<Vec<u8>, Failure> {
        match lookup::real_path(fd) {
            Ok(path) if path.ends_with(b" (deleted)") && stat.st_nlink == 0 => Err(
                Failure::from_errno(libc::ENOENT, format!("open {}", names::show(&lexical))),
            ),
            Ok(path) => Ok(path),
            Err(error @ libc::ENAMETOOLONG) if self.policy.is_set() => {
                Err(failed(error, "find the real path of", &lexical))
            }
            Err(_) if self.policy.is_set() => Err(Failure::new(
                "blocked",
                format!(
                    "the real path of {} cannot be known without /proc",
                    names::show(&lexical)
                ),
            )),
            Err(_) => Ok(lexical),
        }
    }

    /// Return why a path could not be resolved. A path under a denied prefix is `blocked` whether it
    /// exists or not, so that a refusal reveals nothing.
    fn refused(&self, error: Errno, start: &Start, path: &[u8]) -> Failure {
        let lexical = start.lexical(path);
        if let Err(failure) = self.policy.check(&lexical) {
            return failure;
        }
        // A real loop is one for the kernel's ordinary resolution as well.
        let again = || sys::open_at(as_fd(&start.fd), path, libc::O_PATH, 0);
        if error == libc::ELOOP && !matches!(again(), Err(libc::ELOOP)) {
            return self.magic_link(&lexical);
        }
        failed(error, "open", &lexical)
    }

    fn magic_link(&self, path: &[u8]) -> Failure {
        Failure::new(
            self.magic,
            format!("{} leads through a magic link of /proc", names::show(path)),
        )
    }
}

struct Start {
    fd: OwnedFd,
    path: Vec<u8>,
}

impl Start {
    fn lexical(&self, path: &[u8]) -> Vec<u8> {
        if path.first() == Some(&b'/') {
            names::clean(path)
        } else {
            names::clean(&names::join(&self.path, path))
        }
    }
}

/// Return the real path of a prefix in a policy, if it exists.
pub fn real_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let fd = sys::open(prefix, libc::O_PATH, 0).ok()?;
    lookup::real_path(as_fd(&fd)).ok()
}

/// Return a failed call as an error of the protocol: what was attempted, on what, and why it failed.
pub fn failed(errno: Errno, what: &str, path: &[u8]) -> Failure {
    let what = format!("{} {}", what, names::show(path));
    match errno {
        // The general codes of these two belong to processes and to policy.
        libc::EAGAIN => Failure {
            code: "busy",
            ..Failure::from_errno(errno, what)
        },
        libc::EXDEV => Failure {
            code: "io",
            ..Failure::from_errno(errno, what)
        },
        _ => Failure::from_errno(errno, what),
    }
}
