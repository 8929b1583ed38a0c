//! Creating directories: with exactly the requested mode, and so that it can be undone.

use super::lookup;
use crate::sys::{self, as_fd};
use std::os::unix::io::{BorrowedFd, OwnedFd};

/// The chain of parent directories that a request created, so that a failure can remove them again.
#[derive(Default)]
pub struct CreatedParents {
    top: Option<OwnedFd>,
    names: Vec<Vec<u8>>,
}

impl CreatedParents {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn push(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> sys::Result<()> {
        if self.top.is_none() {
            self.top = Some(sys::duplicate(parent)?);
        }
        self.names.push(name.to_vec());
        Ok(())
    }

    /// Remove those that are still empty; one that is in use by now stays.
    pub fn undo(&mut self) {
        let Some(top) = self.top.take() else {
            return;
        };
        while let Some(name) = self.names.pop() {
            let gone = lookup::beneath(as_fd(&top), self.names.iter().map(Vec::as_slice))
                .and_then(|parent| sys::remove_dir_at(as_fd(&parent), &name));
            if gone.is_err() {
                return;
            }
        }
    }

    pub fn keep(&mut self) {
        self.top = None;
        self.names.clear();
    }
}

/// Create one directory with exactly `mode`, whatever the umask is.
pub fn make_directory(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> sys::Result<()> {
    sys::make_dir_at(dir, name, mode)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let made = sys::open_at(dir, name, flags, 0)?;
    let stat = sys::stat_fd(as_fd(&made))?;
    // A parent with the set-group-id bit passes it on; keep it.
    let wanted = mode | stat.st_mode & 0o2000;
    if stat.st_mode & 0o7777 == wanted {
        return Ok(());
    }
    match sys::set_mode_pinned(as_fd(&made), wanted) {
        // Without /proc: a descriptor that may read the directory can change it as well.
        Err(libc::ENOENT) => {
            let open = sys::open_at(as_fd(&made), b".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
            sys::set_mode(as_fd(&open), wanted)
        }
        answer => answer,
    }
}
