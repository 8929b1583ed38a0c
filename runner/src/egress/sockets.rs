//! Plain calls on sockets that do not block.

use crate::sys::{pass_at_once, plain, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use std::net::SocketAddr;
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Close with a reset instead of an orderly end.
pub fn reset(fd: &OwnedFd) {
    let _gone = set_socket_linger(fd, Some(Duration::ZERO));
    let _gone = net::shutdown(fd, Shutdown::Read);
}

/// Whether the other side sends nothing more; what it sent may still wait to be read.
pub fn sends_no_more(fd: &OwnedFd) -> bool {
    !polled(fd, PollFlags::RDHUP).is_empty()
}

/// Whether the other side has closed the connection: nothing that is sent to it arrives.
pub fn is_closed(fd: &OwnedFd) -> bool {
    polled(fd, PollFlags::empty()).contains(PollFlags::HUP)
}

fn polled(fd: &OwnedFd, wanted: PollFlags) -> PollFlags {
    let mut entry = [PollFd::new(fd, wanted)];
    let found = poll(&mut entry, Some(&Timespec::default()));
    found.map_or(PollFlags::empty(), |_| entry[0].revents())
}

/// Whether the other side has not confirmed yet that everything arrived, our end of the connection
/// included.
pub fn delivers(fd: &OwnedFd) -> bool {
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
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&mut state as *mut u8).cast(),
            &mut length,
        )
    };
    found == 0 && [FIN_WAIT_1, LAST_ACK, CLOSING].contains(&state)
}

/// Whether a connection is made; an errno if it failed.
pub fn connected(fd: &OwnedFd, to: SocketAddr) -> Result<bool> {
    match plain(net::connect(fd, &to)) {
        Ok(()) | Err(libc::EISCONN) => Ok(true),
        Err(libc::EALREADY | libc::EINPROGRESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

pub fn connect(to: SocketAddr) -> Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = plain(net::socket_with(family, SocketType::STREAM, flags, None))?;
    connected(&fd, to)?;
    pass_at_once(fd.as_raw_fd());
    Ok(fd)
}

pub fn receive_from(fd: impl AsFd, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let (count, _, from) = net::recvfrom(fd, buffer, RecvFlags::DONTWAIT).ok()?;
    Some((count, from?.try_into().ok()?))
}

pub fn send_to(fd: impl AsFd, message: &[u8], to: SocketAddr) {
    // A reply that cannot be sent is asked for again.
    let _unsent = net::sendto(fd, message, SendFlags::DONTWAIT, &to);
}
