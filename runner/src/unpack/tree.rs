//! The target as a chain of open directories, from its root to where the last member went.
//!
//! Every directory is opened by one name below the one before, never through a symlink, so that
//! what is made relative to the last of them lies where its path says. A directory gets the time
//! it had, or was given, when it is left: members made in it would change it.

use super::failure::{hostile, show, Failure, Outcome};
use super::pax::Time;
use super::sys;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

struct Step {
    name: CString,
    fd: OwnedFd,
    mtime: Time,
    changed: bool,
}

pub struct Tree {
    /// The first is the root, under no name.
    steps: Vec<Step>,
}

/// What opening a parent found.
pub enum Found {
    There,
    /// Nothing, or a whiteout.
    Missing,
}

impl Tree {
    pub fn new(root: OwnedFd, mtime: Time) -> Tree {
        Tree {
            steps: vec![Step {
                name: CString::default(),
                fd: root,
                mtime,
                changed: true,
            }],
        }
    }

    pub fn here(&self) -> RawFd {
        self.last().fd.as_raw_fd()
    }

    pub fn here_fd(&self) -> &OwnedFd {
        &self.last().fd
    }

    fn last(&self) -> &Step {
        self.steps.last().expect("the root is always there")
    }

    fn last_mut(&mut self) -> &mut Step {
        self.steps.last_mut().expect("the root is always there")
    }

    /// A member of this directory was made or removed.
    pub fn touch(&mut self) {
        self.last_mut().changed = true;
    }

    pub fn set_time(&mut self, mtime: Time) {
        let step = self.last_mut();
        step.mtime = mtime;
        step.changed = true;
    }

    /// Goes back to where the way to `path` leaves the present one; says how many names it shares.
    pub fn retreat(&mut self, path: &[CString]) -> Outcome<usize> {
        let shared = self.shared(path);
        while self.steps.len() > shared + 1 {
            self.leave()?;
        }
        Ok(shared)
    }

    fn shared(&self, path: &[CString]) -> usize {
        let names = self.steps[1..].iter().map(|step| &step.name);
        names.zip(path).take_while(|(a, b)| a == b).count()
    }

    fn leave(&mut self) -> Outcome<()> {
        if let Some(step) = self.steps.pop() {
            if step.changed {
                sys::set_time(&step.fd, step.mtime)
                    .map_err(|e| Failure::kernel("set the time of a directory", &e))?;
            }
        }
        Ok(())
    }

    /// Goes one name further, into a directory that is there.
    pub fn enter(&mut self, name: &CStr) -> Outcome<Found> {
        match sys::open_directory(self.here(), name) {
            Ok(fd) => {
                let stat =
                    sys::stat(&fd).map_err(|e| Failure::kernel("look at a directory", &e))?;
                self.steps.push(Step {
                    name: name.to_owned(),
                    fd,
                    mtime: Time {
                        seconds: stat.st_mtime,
                        nanoseconds: stat.st_mtime_nsec,
                    },
                    changed: false,
                });
                Ok(Found::There)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(Found::Missing),
                Some(libc::ENOTDIR | libc::ELOOP) => {
                    if is_whiteout(self.here(), name) {
                        return Ok(Found::Missing);
                    }
                    Err(hostile(format!(
                        "a member below {}, which is no directory",
                        show(name.to_bytes())
                    )))
                }
                _ => Err(Failure::kernel(show(name.to_bytes()), &error)),
            },
        }
    }

    /// Goes into a directory that was just made here.
    pub fn enter_new(&mut self, name: &CStr, mtime: Time) -> Outcome<()> {
        let fd = sys::open_directory(self.here(), name)
            .map_err(|e| Failure::kernel(show(name.to_bytes()), &e))?;
        self.steps.push(Step {
            name: name.to_owned(),
            fd,
            mtime,
            changed: true,
        });
        Ok(())
    }

    /// The directory at `path`, without going there. `None`: some part of it is no directory.
    pub fn look(&self, path: &[CString]) -> Outcome<Option<OwnedFd>> {
        let shared = self.shared(path);
        let failed = |e: io::Error| Failure::kernel("look for the target of a link", &e);
        let mut fd = self.steps[shared].fd.try_clone().map_err(failed)?;
        for name in &path[shared..] {
            fd = match sys::open_directory(fd.as_raw_fd(), name) {
                Ok(next) => next,
                Err(e) => match e.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => return Ok(None),
                    _ => return Err(failed(e)),
                },
            };
        }
        Ok(Some(fd))
    }

    /// Removes what stands here under `name`, with all below it; nothing there is fine.
    pub fn clear(&mut self, name: &CStr) -> Outcome<()> {
        self.touch();
        let failed =
            |e: &io::Error| Failure::kernel(format!("replace {}", show(name.to_bytes())), e);
        match sys::unlink(self.here(), name) {
            Ok(()) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EISDIR) => {
                // By one name from the directory itself, however deep that lies.
                sys::change_directory(self.here_fd()).map_err(|e| failed(&e))?;
                std::fs::remove_dir_all(std::ffi::OsStr::from_bytes(name.to_bytes()))
                    .map_err(|e| failed(&e))
            }
            Err(e) => Err(failed(&e)),
        }
    }

    /// Goes back to the root, leaving every directory as it should be.
    pub fn finish(mut self) -> Outcome<()> {
        while !self.steps.is_empty() {
            self.leave()?;
        }
        Ok(())
    }
}

/// The only devices in the tree are the whiteouts we made.
pub fn is_whiteout(at: RawFd, name: &CStr) -> bool {
    sys::stat_at(at, name).map_or(false, |stat| stat.st_mode & libc::S_IFMT == libc::S_IFCHR)
}
