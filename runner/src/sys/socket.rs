//! Unix sockets.

use super::{check, own, unlink, Result};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok((own(ends[0]), own(ends[1])))
}

fn unix_address(path: &[u8]) -> Result<libc::sockaddr_un> {
    // SAFETY: an all-zero sockaddr_un is a valid value to be filled in.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (slot, &byte) in address.sun_path.iter_mut().zip(path) {
        *slot = byte as libc::c_char;
    }
    Ok(address)
}

/// Connect a blocking stream to the socket at `path`; EAGAIN when it is not accepted within `ms`.
pub fn connect_unix(path: &[u8], ms: i32) -> Result<OwnedFd> {
    let address = unix_address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: plain system call.
    let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
    let timeout = libc::timeval {
        tv_sec: (ms / 1000).into(),
        tv_usec: (ms % 1000 * 1000).into(),
    };
    // SAFETY: the option value is one timeval, and `address` a filled-in sockaddr_un of the given size.
    unsafe {
        check(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&timeout as *const libc::timeval).cast(),
            std::mem::size_of::<libc::timeval>() as libc::socklen_t,
        ))?;
        check(libc::connect(
            fd.as_raw_fd(),
            (&address as *const libc::sockaddr_un).cast(),
            std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t,
        ))?;
    }
    Ok(fd)
}

/// Listen on a socket at `path`, mode 0600; a stale socket file there is replaced.
pub fn listen_unix(path: &[u8]) -> Result<OwnedFd> {
    let address = unix_address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
    unlink(path);
    // SAFETY: umask cannot fail; our own is 0, and the socket file must be 0600 from the start.
    let old = unsafe { libc::umask(0o177) };
    // SAFETY: `address` is a filled-in sockaddr_un of the given size.
    let bound = check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&address as *const libc::sockaddr_un).cast(),
            std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t,
        )
    });
    // SAFETY: as above.
    unsafe { libc::umask(old) };
    bound?;
    // SAFETY: plain system call.
    check(unsafe { libc::listen(fd.as_raw_fd(), 128) })?;
    Ok(fd)
}

/// Accept one connection that does not block.
pub fn accept(listener: RawFd) -> Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    check(fd).map(own)
}

/// Ask for larger buffers than the default: a 50 MB file passes in fewer turns. The kernel may give less.
pub fn widen_socket(fd: RawFd) {
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let size: libc::c_int = 1 << 20;
        // SAFETY: the option value is one int.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                (&size as *const libc::c_int).cast(),
                std::mem::size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    }
}
