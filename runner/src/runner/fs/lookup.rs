//! How paths are resolved: by openat2 where the kernel and the seccomp profile allow it, otherwise
//! component by component. Both follow ordinary symlinks and refuse magic ones with `ELOOP`.

use crate::fs::names;
use crate::sys::{self, as_fd};
use std::collections::VecDeque;
use std::os::raw::c_int;
use std::os::unix::io::{BorrowedFd, OwnedFd};

const MOST_LINKS: usize = 40;

#[cfg(test)]
thread_local! {
    /// For tests: this thread behaves as if openat2 were forbidden.
    pub static WITHOUT_OPENAT2: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// For tests: this thread behaves as if /proc were not mounted.
    pub static WITHOUT_PROC: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Return an `O_PATH` descriptor of what `path` leads to from `start`. `extra` may be `O_DIRECTORY`.
pub fn follow(start: BorrowedFd<'_>, path: &[u8], extra: c_int) -> sys::Result<OwnedFd> {
    #[cfg(test)]
    if WITHOUT_OPENAT2.with(|flag| flag.get()) {
        return walk(start, path, extra);
    }
    let flags = libc::O_PATH | extra;
    match sys::open_at2(start, path, flags, rustix::fs::ResolveFlags::NO_MAGICLINKS) {
        // EPERM: a seccomp profile that does not know the call; opening with O_PATH never returns it.
        Err(libc::ENOSYS | libc::EPERM) => walk(start, path, extra),
        answer => answer,
    }
}

fn walk(start: BorrowedFd<'_>, path: &[u8], extra: c_int) -> sys::Result<OwnedFd> {
    let root = || sys::open(b"/", libc::O_PATH | libc::O_DIRECTORY, 0);
    let parts = |text: &[u8]| -> VecDeque<Vec<u8>> {
        names::components(text).map(<[u8]>::to_vec).collect()
    };
    let mut here = if path.first() == Some(&b'/') {
        root()?
    } else {
        sys::duplicate(start)?
    };
    let mut todo = parts(path);
    let mut directory = extra & libc::O_DIRECTORY != 0 || path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        let next = sys::open_at(as_fd(&here), &name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        if !sys::is_symlink(&sys::stat_fd(as_fd(&next))?) {
            here = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS || is_magic(as_fd(&here), as_fd(&next), &name)? {
            return Err(libc::ELOOP);
        }
        let target = sys::read_link_at(as_fd(&next), b"")?;
        if target.is_empty() {
            return Err(libc::ENOENT);
        }
        if target.first() == Some(&b'/') {
            here = root()?;
        }
        directory |= todo.is_empty() && target.ends_with(b"/");
        for part in parts(&target).into_iter().rev() {
            todo.push_front(part);
        }
    }
    if directory && !sys::is_dir(&sys::stat_fd(as_fd(&here))?) {
        return Err(libc::ENOTDIR);
    }
    Ok(here)
}

/// Report whether a link is a magic symlink of procfs. The plain ones are all in its root directory.
fn is_magic(dir: BorrowedFd<'_>, link: BorrowedFd<'_>, name: &[u8]) -> sys::Result<bool> {
    const PROC_ROOT_INO: libc::ino_t = 1;
    if !sys::is_on_proc(link)? {
        return Ok(false);
    }
    let plain: [&[u8]; 4] = [b"self", b"thread-self", b"mounts", b"net"];
    Ok(!(plain.contains(&name) && sys::stat_fd(dir)?.st_ino == PROC_ROOT_INO))
}

/// Open the directory that `names` lead to from `base`, following no symlink at all.
pub fn beneath<'a>(
    base: BorrowedFd<'_>,
    names: impl Iterator<Item = &'a [u8]>,
) -> sys::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut here = sys::duplicate(base)?;
    for name in names {
        here = sys::open_at(as_fd(&here), name, flags, 0)?;
    }
    Ok(here)
}

/// Return the path that the kernel knows for `fd`. Fails where procfs is not mounted on /proc, where
/// the path is longer than PATH_MAX, and where `fd` lies outside this root.
pub fn real_path(fd: BorrowedFd<'_>) -> sys::Result<Vec<u8>> {
    #[cfg(test)]
    if WITHOUT_PROC.with(|flag| flag.get()) {
        return Err(libc::ENOENT);
    }
    let fds = sys::open_proc_fds()?;
    let path = sys::read_link_at(as_fd(&fds), &sys::fd_name(fd))?;
    if path.first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(libc::ENOENT)
    }
}
