//! Pseudo-terminals: a master for us, a slave for the command.

use super::start::Size;
use crate::sys::{self, plain, Errno};
use rustix::pty::{ioctl_tiocgptpeer, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub struct Pair {
    pub master: OwnedFd,
    pub slave: OwnedFd,
    pub slave_path: Vec<u8>,
}

pub fn open(size: Size) -> Result<Pair, Errno> {
    let master = sys::open(b"/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)?;
    plain(unlockpt(&master))?;
    let slave_path = plain(ptsname(&master, Vec::new()))?.into_bytes();
    resize(master.as_raw_fd(), size)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    // Opened by the master, so that no path can lead elsewhere.
    let slave = match plain(ioctl_tiocgptpeer(&master, flags)) {
        // gVisor has only the path.
        Err(libc::ENOTTY) => {
            let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NOFOLLOW;
            sys::open(&slave_path, flags, 0)?
        }
        slave => slave?,
    };
    sys::set_nonblocking(master.as_raw_fd())?;
    Ok(Pair {
        master,
        slave,
        slave_path,
    })
}

pub fn resize(fd: RawFd, size: Size) -> Result<(), Errno> {
    let window = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    plain(tcsetwinsize(sys::borrow(&fd), window))
}
