//! The target as a chain of open directories, from its root to the directory of the last member.
//!
//! Every directory is opened by one name below its parent, never through a symlink, so an entry made
//! relative to the last one lies where its path says. A directory gets its final time when it is left:
//! creating members in it changes the time.

use super::failure::{hostile, show, Failure, Outcome};
use crate::sys::{self, Errno};
use crate::tar::Time;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{AsFd, BorrowedFd, OwnedFd};

struct Step {
    name: Vec<u8>,
    fd: OwnedFd,
    mtime: Time,
    changed: bool,
}

pub struct Tree {
    /// The first is the root, and has no name.
    steps: Vec<Step>,
}

/// The result of entering a directory.
pub enum Entered {
    Existing,
    /// Nothing there, or a whiteout.
    Missing,
}

impl Tree {
    pub fn new(root: OwnedFd, mtime: Time) -> Tree {
        Tree {
            steps: vec![Step {
                name: Vec::new(),
                fd: root,
                mtime,
                changed: true,
            }],
        }
    }

    /// The current directory.
    pub fn here(&self) -> BorrowedFd<'_> {
        self.last().fd.as_fd()
    }

    fn last(&self) -> &Step {
        self.steps.last().expect("the root is always there")
    }

    fn last_mut(&mut self) -> &mut Step {
        self.steps.last_mut().expect("the root is always there")
    }

    /// Note that a member of this directory was created or removed.
    pub fn touch(&mut self) {
        self.last_mut().changed = true;
    }

    pub fn set_time(&mut self, mtime: Time) {
        let step = self.last_mut();
        step.mtime = mtime;
        step.changed = true;
    }

    /// Leave directories until the chain is a prefix of `path`. Return how many names they share.
    pub fn retreat(&mut self, path: &[Vec<u8>]) -> Outcome<usize> {
        let shared = self.shared(path);
        while self.steps.len() > shared + 1 {
            self.leave()?;
        }
        Ok(shared)
    }

    fn shared(&self, path: &[Vec<u8>]) -> usize {
        let names = self.steps[1..].iter().map(|step| &step.name);
        names.zip(path).take_while(|(a, b)| a == b).count()
    }

    fn leave(&mut self) -> Outcome<()> {
        if let Some(step) = self.steps.pop() {
            if step.changed {
                sys::set_times(step.fd.as_fd(), step.mtime.into())
                    .map_err(|e| Failure::kernel("set the time of a directory", e))?;
            }
        }
        Ok(())
    }

    /// Enter an existing directory of the current one.
    pub fn enter(&mut self, name: &[u8]) -> Outcome<Entered> {
        match open_directory(self.here(), name) {
            Ok(fd) => {
                let stat = sys::stat_fd(fd.as_fd())
                    .map_err(|e| Failure::kernel("look at a directory", e))?;
                self.steps.push(Step {
                    name: name.to_vec(),
                    fd,
                    mtime: Time {
                        seconds: stat.st_mtime,
                        nanoseconds: stat.st_mtime_nsec as i64,
                    },
                    changed: false,
                });
                Ok(Entered::Existing)
            }
            Err(error) => match error {
                libc::ENOENT => Ok(Entered::Missing),
                libc::ENOTDIR | libc::ELOOP => {
                    if is_whiteout(self.here(), name) {
                        return Ok(Entered::Missing);
                    }
                    Err(hostile(format!(
                        "a member below {}, which is not a directory",
                        show(name)
                    )))
                }
                _ => Err(Failure::kernel(show(name), error)),
            },
        }
    }

    /// Enter a directory that was just created here.
    pub fn enter_new(&mut self, name: &[u8], mtime: Time) -> Outcome<()> {
        let fd = open_directory(self.here(), name).map_err(|e| Failure::kernel(show(name), e))?;
        self.steps.push(Step {
            name: name.to_vec(),
            fd,
            mtime,
            changed: true,
        });
        Ok(())
    }

    /// Open the directory at `path` without changing the chain. `None`: part of it is not a directory.
    pub fn look(&self, path: &[Vec<u8>]) -> Outcome<Option<OwnedFd>> {
        let shared = self.shared(path);
        let failed = |e: Errno| Failure::kernel("look for the target of a link", e);
        let mut fd = sys::duplicate(self.steps[shared].fd.as_fd()).map_err(failed)?;
        for name in &path[shared..] {
            fd = match open_directory(fd.as_fd(), name) {
                Ok(next) => next,
                Err(e) => match e {
                    libc::ENOENT | libc::ENOTDIR | libc::ELOOP => return Ok(None),
                    _ => return Err(failed(e)),
                },
            };
        }
        Ok(Some(fd))
    }

    /// Remove the entry `name` here, with everything below it; it may be missing.
    pub fn clear(&mut self, name: &[u8]) -> Outcome<()> {
        self.touch();
        let failed = |e: Errno| Failure::kernel(format!("replace {}", show(name)), e);
        match sys::unlink_at(self.here(), name) {
            Ok(()) => Ok(()),
            Err(libc::ENOENT) => Ok(()),
            Err(libc::EISDIR) => {
                // By one name from the directory itself, however deep it is.
                sys::plain(rustix::process::fchdir(self.here())).map_err(failed)?;
                std::fs::remove_dir_all(OsStr::from_bytes(name))
                    .map_err(|e| failed(sys::errno_of(&e)))
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// Leave every directory, so that each gets its time.
    pub fn finish(mut self) -> Outcome<()> {
        while !self.steps.is_empty() {
            self.leave()?;
        }
        Ok(())
    }
}

/// Open a directory itself, never the target of a symlink.
fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> sys::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    sys::open_at(at, name, flags, 0)
}

/// Report whether `name` is a whiteout. The only devices in the tree are the whiteouts that we made.
pub fn is_whiteout(at: BorrowedFd<'_>, name: &[u8]) -> bool {
    sys::stat_at(at, name).is_ok_and(|stat| sys::kind(&stat) == libc::S_IFCHR)
}
