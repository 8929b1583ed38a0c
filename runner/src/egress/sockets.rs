//! Plain calls on sockets that do not block.

use crate::sys::{self, check, pass_at_once, Result};
use std::net::SocketAddr;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Close with a reset instead of an orderly end.
pub fn reset(fd: &OwnedFd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the option value is one linger.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&linger as *const libc::linger).cast(),
            std::mem::size_of::<libc::linger>() as libc::socklen_t,
        );
        libc::shutdown(fd.as_raw_fd(), libc::SHUT_RD);
    }
}

/// Whether the other side sends nothing more; what it sent may still wait to be read.
pub fn sends_no_more(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Whether the other side has closed the connection: nothing that is sent to it arrives.
pub fn is_closed(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 }
}

/// Whether the other side has not confirmed yet that everything arrived, our end of the connection
/// included.
pub fn delivers(fd: RawFd) -> bool {
    // These are the states of TCP in which an end was sent and is not confirmed.
    const FIN_WAIT_1: u8 = 4;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    // The first byte of `tcp_info` is the state; the kernel writes as much as there is room for.
    let mut state = 0u8;
    let mut length: libc::socklen_t = 1;
    // SAFETY: the option value is one byte.
    let found = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&mut state as *mut u8).cast(),
            &mut length,
        )
    };
    found == 0 && [FIN_WAIT_1, LAST_ACK, CLOSING].contains(&state)
}

/// Whether a connection is made; an errno if it failed.
pub fn connected(fd: RawFd, to: SocketAddr) -> Result<bool> {
    match connect_to(fd, to) {
        Ok(()) | Err(libc::EISCONN) => Ok(true),
        Err(libc::EALREADY | libc::EINPROGRESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

pub fn connect(to: SocketAddr) -> Result<OwnedFd> {
    let family = if to.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
    match connect_to(fd.as_raw_fd(), to) {
        Ok(()) | Err(libc::EINPROGRESS) => {
            pass_at_once(fd.as_raw_fd());
            Ok(fd)
        }
        Err(errno) => Err(errno),
    }
}

fn connect_to(fd: RawFd, to: SocketAddr) -> Result<()> {
    let (address, length) = sys::socket_address(to);
    let address = (&address as *const libc::sockaddr_storage).cast();
    // SAFETY: `address` is a filled-in socket address of the given length.
    check(unsafe { libc::connect(fd, address, length) }).map(|_| ())
}

pub fn receive_from(fd: RawFd, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    // SAFETY: an all-zero sockaddr_storage is valid, and the lengths are those of the buffers.
    unsafe {
        let mut from: libc::sockaddr_storage = std::mem::zeroed();
        let mut length = std::mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let n = libc::recvfrom(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            (&mut from as *mut libc::sockaddr_storage).cast(),
            &mut length,
        );
        let n = check(n as libc::c_int).ok()?;
        let ip = sys::ip_of((&from as *const libc::sockaddr_storage).cast())?;
        let port = (*(&from as *const _ as *const libc::sockaddr_in)).sin_port;
        Some((n as usize, SocketAddr::new(ip, u16::from_be(port))))
    }
}

pub fn send_to(fd: RawFd, message: &[u8], to: SocketAddr) {
    let (address, length) = sys::socket_address(to);
    // SAFETY: both buffers have the given lengths. A reply that cannot be sent is asked for again.
    unsafe {
        libc::sendto(
            fd,
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT,
            (&address as *const libc::sockaddr_storage).cast(),
            length,
        )
    };
}
