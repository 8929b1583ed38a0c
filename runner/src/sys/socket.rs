//! Unix sockets.

use super::{borrow, plain, retry, unlink, Result};
use rustix::fs::Mode;
use rustix::net::{self, sockopt, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::io::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    plain(net::socketpair(AddressFamily::UNIX, kind, flags, None))
}

/// Connect a blocking stream to the socket at `path`; EAGAIN when it is not accepted within `ms`.
pub fn connect_unix(path: &[u8], ms: i32) -> Result<OwnedFd> {
    let address = plain(SocketAddrUnix::new(path))?;
    let fd = unix_stream(SocketFlags::CLOEXEC)?;
    let timeout = Duration::from_millis(ms as u64);
    plain(sockopt::set_socket_timeout(
        &fd,
        sockopt::Timeout::Send,
        Some(timeout),
    ))?;
    plain(net::connect(&fd, &address))?;
    Ok(fd)
}

/// Listen on a socket at `path`, mode 0600; a stale socket file there is replaced.
pub fn listen_unix(path: &[u8]) -> Result<OwnedFd> {
    let address = plain(SocketAddrUnix::new(path))?;
    let fd = unix_stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    unlink(path);
    // Our own umask is 0, and the socket file must be 0600 from the start.
    let old = rustix::process::umask(Mode::from_bits_retain(0o177));
    let bound = net::bind(&fd, &address);
    rustix::process::umask(old);
    plain(bound.and_then(|()| net::listen(&fd, 128)))?;
    Ok(fd)
}

fn unix_stream(flags: SocketFlags) -> Result<OwnedFd> {
    plain(net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    ))
}

/// Accept one connection that does not block.
pub fn accept(listener: RawFd) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    plain(net::accept_with(borrow(&listener), flags))
}

/// Ask for larger buffers than the default: a 50 MB file passes in fewer turns. The kernel may give less.
pub fn widen_socket(fd: RawFd) {
    let _ = sockopt::set_socket_send_buffer_size(borrow(&fd), 1 << 20);
    let _ = sockopt::set_socket_recv_buffer_size(borrow(&fd), 1 << 20);
}

/// Return where a redirected connection wanted to go.
pub fn original_destination(fd: RawFd, v4: bool) -> Result<std::net::SocketAddr> {
    if v4 {
        return Ok(plain(sockopt::ip_original_dst(borrow(&fd)))?.into());
    }
    Ok(plain(sockopt::ipv6_original_dst(borrow(&fd)))?.into())
}

const MOST_DESCRIPTORS: usize = 8;

/// Write what the socket takes of `bytes`, and a descriptor with the first of them.
pub fn send_with_descriptor(channel: RawFd, bytes: &[u8], descriptor: RawFd) -> Result<usize> {
    send(channel, bytes, &[borrow(&descriptor)])
}

/// Send descriptors as one message.
pub fn send_descriptors(channel: RawFd, fds: &[RawFd]) -> Result<()> {
    let fds: Vec<_> = fds.iter().map(borrow).collect();
    send(channel, &[0], &fds).map(drop)
}

fn send(channel: RawFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    if !control.push(net::SendAncillaryMessage::ScmRights(fds)) {
        return Err(libc::EINVAL);
    }
    let parts = [IoSlice::new(bytes)];
    let flags = net::SendFlags::NOSIGNAL;
    retry(|| net::sendmsg(borrow(&channel), &parts, &mut control, flags))
}

/// Wait for a message and return its descriptors, at most `most`; ECONNRESET if the other side is gone.
pub fn receive_descriptors(channel: RawFd, most: usize) -> Result<Vec<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let flags = net::RecvFlags::CMSG_CLOEXEC;
    if retry(|| net::recvmsg(borrow(&channel), parts, &mut control, flags))?.bytes == 0 {
        return Err(libc::ECONNRESET);
    }
    let mut received = Vec::new();
    for message in control.drain() {
        if let net::RecvAncillaryMessage::ScmRights(fds) = message {
            received.extend(fds);
        }
    }
    received.truncate(most);
    Ok(received)
}

/// Return what can be read now, and leave it there.
pub fn peek(fd: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
    let (count, _) = net::recv(borrow(&fd), &mut *buffer, net::RecvFlags::PEEK).ok()?;
    Some(&buffer[..count])
}

/// Send small pieces without waiting for the last one to be confirmed: whether pieces are gathered is
/// the decision of the programs at both ends. Connections have what their listener has.
pub fn pass_at_once(fd: RawFd) {
    // What is not TCP has no such option.
    let _ = sockopt::set_tcp_nodelay(borrow(&fd), true);
}

/// Notice a peer whose machine is gone.
pub fn keep_alive(fd: RawFd) {
    let fd = borrow(&fd);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, Duration::from_secs(30));
    let _ = sockopt::set_tcp_keepintvl(fd, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepcnt(fd, 3);
}
