//! Temporary names in a directory: new, not guessable, and removed again unless they are kept.

use crate::sys::{self, as_fd, Stat};
use std::os::unix::io::{BorrowedFd, OwnedFd};

const PREFIX: &[u8] = b".sandkasten-";
const SUFFIX: &[u8] = b".tmp";

/// What a temporary name is for: a new file, or a replacement of an old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    New,
    Replace,
}

/// Report whether `name` is one of our temporary names, and what for.
pub fn purpose(name: &[u8]) -> Option<Purpose> {
    let middle = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    match middle {
        [digits @ .., b'-', kind] if digits.len() == 16 => match kind {
            b'n' => Some(Purpose::New),
            b'o' => Some(Purpose::Replace),
            _ => None,
        },
        _ => None,
    }
}

pub fn fresh_name(purpose: Purpose) -> sys::Result<Vec<u8>> {
    let kind = match purpose {
        Purpose::New => 'n',
        Purpose::Replace => 'o',
    };
    Ok(format!(".sandkasten-{}-{}.tmp", sys::random_name()?, kind).into_bytes())
}

/// A file that is being written beside its destination. It is removed when dropped.
pub struct TempFile {
    dir: OwnedFd,
    name: Vec<u8>,
    file: OwnedFd,
    kept: bool,
}

impl TempFile {
    pub fn new(dir: BorrowedFd<'_>, purpose: Purpose) -> sys::Result<TempFile> {
        let dir = sys::duplicate(dir)?;
        let name = fresh_name(purpose)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = sys::open_at(as_fd(&dir), &name, flags, 0o600)?;
        Ok(TempFile {
            dir,
            name,
            file,
            kept: false,
        })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        as_fd(&self.file)
    }

    /// Give the file its owner (where that is allowed) and its exact mode.
    pub fn finish(&self, mode: u32, like: Option<&Stat>) -> sys::Result<()> {
        if let Some(old) = like {
            let new = sys::stat_fd(self.file())?;
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
                // Only root can keep a foreign owner; any other user becomes the owner of the new file.
                let _ = sys::set_owner(self.file(), old.st_uid, old.st_gid);
            }
        }
        sys::set_mode(self.file(), mode)
    }

    /// Move the file to `name`, replacing what is there.
    pub fn replace(&mut self, name: &[u8]) -> sys::Result<()> {
        sys::rename_at(as_fd(&self.dir), &self.name, as_fd(&self.dir), name)?;
        self.kept = true;
        Ok(())
    }

    /// Move the file to `name`; `EEXIST` if something is there.
    pub fn place(&mut self, name: &[u8]) -> sys::Result<()> {
        sys::rename_new_at(as_fd(&self.dir), &self.name, as_fd(&self.dir), name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.kept {
            // Another process may have removed it, or its directory: then nothing is left to do.
            let _ = sys::unlink_at(as_fd(&self.dir), &self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_temporary_names_are_recognised() {
        for wanted in [Purpose::New, Purpose::Replace] {
            assert_eq!(purpose(&fresh_name(wanted).unwrap()), Some(wanted));
        }
        for other in [
            &b".sandkasten-x.tmp"[..],
            b"a",
            b".sandkasten-.tmp",
            b".sandkasten-0123456789abcdef-x.tmp",
        ] {
            assert_eq!(purpose(other), None);
        }
    }
}
