//! Pseudo-terminals: a master for us, a slave for the command.

use super::start::Size;
use crate::sys::{self, Errno};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub struct Pair {
    pub master: OwnedFd,
    pub slave: OwnedFd,
    pub slave_path: Vec<u8>,
}

pub fn open(size: Size) -> Result<Pair, Errno> {
    let master = sys::open(b"/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)?;
    let fd = master.as_raw_fd();
    let unlock: libc::c_int = 0;
    let mut number: libc::c_uint = 0;
    // SAFETY: each ioctl gets a pointer to the int it expects.
    unsafe {
        sys::check(libc::ioctl(fd, libc::TIOCSPTLCK, &unlock))?;
        sys::check(libc::ioctl(fd, libc::TIOCGPTN, &mut number))?;
    }
    resize(fd, size)?;
    let slave_path = format!("/dev/pts/{number}").into_bytes();
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: takes open flags by value. Opening by the master cannot be led astray by a path.
    let slave = match sys::check(unsafe { libc::ioctl(fd, libc::TIOCGPTPEER, flags) }) {
        Ok(slave) => sys::own(slave),
        // gVisor has only the path.
        Err(libc::ENOTTY) => sys::open(&slave_path, flags | libc::O_NOFOLLOW, 0)?,
        Err(errno) => return Err(errno),
    };
    sys::set_nonblocking(fd)?;
    Ok(Pair {
        master,
        slave,
        slave_path,
    })
}

pub fn resize(fd: RawFd, size: Size) -> Result<(), Errno> {
    let window = libc::winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `window` is what the ioctl expects.
    sys::check(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &window) }).map(|_| ())
}
