//! Unix sockets.

use super::{check, own, retry, unlink, Result};
use std::os::raw::c_long;
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

/// Return the IP address in a socket address of the kernel; None for other families.
///
/// # Safety
/// `address` is null or points to a socket address that is as long as its family says.
pub unsafe fn ip_of(address: *const libc::sockaddr) -> Option<std::net::IpAddr> {
    if address.is_null() {
        return None;
    }
    match i32::from((*address).sa_family) {
        libc::AF_INET => {
            let v4 = &*(address as *const libc::sockaddr_in);
            Some(std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            let v6 = &*(address as *const libc::sockaddr_in6);
            Some(std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Return where a redirected connection wanted to go.
pub fn original_destination(fd: RawFd, v4: bool) -> Result<std::net::SocketAddr> {
    const SO_ORIGINAL_DST: libc::c_int = 80;
    // SAFETY: an all-zero sockaddr_storage is valid, and has room for any address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = std::mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let level = if v4 { libc::SOL_IP } else { libc::SOL_IPV6 };
    // SAFETY: `storage` has the given length.
    check(unsafe {
        libc::getsockopt(
            fd,
            level,
            SO_ORIGINAL_DST,
            (&mut storage as *mut libc::sockaddr_storage).cast(),
            &mut length,
        )
    })?;
    // SAFETY: the kernel filled it in, and it is larger than either kind of address.
    let address = unsafe { ip_of((&storage as *const libc::sockaddr_storage).cast()) };
    let address = address.ok_or(libc::EAFNOSUPPORT)?;
    // SAFETY: the port has the same place in both kinds of address.
    let port = unsafe { (*(&storage as *const _ as *const libc::sockaddr_in)).sin_port };
    Ok((address, u16::from_be(port)).into())
}

/// Return an address in the form of the kernel, and its length.
pub fn socket_address(of: std::net::SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: an all-zero sockaddr_storage is valid, and has room for any address.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let place = &mut storage as *mut libc::sockaddr_storage;
        let length = match of {
            std::net::SocketAddr::V4(v4) => {
                let address = &mut *(place as *mut libc::sockaddr_in);
                address.sin_family = libc::AF_INET as libc::sa_family_t;
                address.sin_port = v4.port().to_be();
                address.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                std::mem::size_of::<libc::sockaddr_in>()
            }
            std::net::SocketAddr::V6(v6) => {
                let address = &mut *(place as *mut libc::sockaddr_in6);
                address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                address.sin6_port = v6.port().to_be();
                address.sin6_addr.s6_addr = v6.ip().octets();
                address.sin6_scope_id = v6.scope_id();
                std::mem::size_of::<libc::sockaddr_in6>()
            }
        };
        (storage, length as libc::socklen_t)
    }
}

/// Write what the socket takes of `bytes`, and a descriptor with the first of them.
pub fn send_with_descriptor(channel: RawFd, bytes: &[u8], descriptor: RawFd) -> Result<usize> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    let mut space = [0u64; 4];
    let size = std::mem::size_of::<RawFd>() as libc::c_uint;
    let sent = retry(|| {
        // SAFETY: the control buffer has room for one descriptor and is aligned for its header; the
        // kernel only reads `bytes`.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = space.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), descriptor);
            libc::sendmsg(channel, &message, libc::MSG_NOSIGNAL) as c_long
        }
    })?;
    Ok(sent as usize)
}

const MOST_DESCRIPTORS: usize = 8;

/// Send descriptors as one message.
pub fn send_descriptors(channel: RawFd, fds: &[RawFd]) -> Result<()> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut space = [0u64; 8];
    let bytes = std::mem::size_of_val(fds) as libc::c_uint;
    if fds.len() > MOST_DESCRIPTORS {
        return Err(libc::EINVAL);
    }
    // SAFETY: the control buffer has room for eight descriptors and is aligned for its header.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
        std::ptr::copy_nonoverlapping(
            fds.as_ptr().cast::<u8>(),
            libc::CMSG_DATA(header),
            bytes as usize,
        );
        check(libc::sendmsg(channel, &message, libc::MSG_NOSIGNAL) as libc::c_int)?;
    }
    Ok(())
}

/// Wait for a message and return its descriptors, at most `most`; ECONNRESET if the other side is gone.
pub fn receive_descriptors(channel: RawFd, most: usize) -> Result<Vec<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut space = [0u64; 8];
    let bytes = (most.min(MOST_DESCRIPTORS) * std::mem::size_of::<RawFd>()) as libc::c_uint;
    let mut found = Vec::new();
    // SAFETY: the buffers have the given lengths, and every descriptor received is owned at once.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let n = check(libc::recvmsg(channel, &mut message, libc::MSG_CMSG_CLOEXEC) as libc::c_int)?;
        if n == 0 {
            return Err(libc::ECONNRESET);
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for i in 0..length / std::mem::size_of::<RawFd>() {
                found.push(own(std::ptr::read_unaligned(data.add(i))));
            }
        }
    }
    Ok(found)
}

/// Return what can be read now, and leave it there.
pub fn peek(fd: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the buffer has the given length.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK) };
    check(n as libc::c_int).ok().map(|n| &buffer[..n as usize])
}

/// Send small pieces without waiting for the last one to be confirmed: whether pieces are gathered is
/// the decision of the programs at both ends. Connections have what their listener has.
pub fn pass_at_once(fd: RawFd) {
    let yes: libc::c_int = 1;
    // SAFETY: the option value is one int. What is not TCP has no such option.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&yes as *const libc::c_int).cast(),
            std::mem::size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Notice a peer whose machine is gone.
pub fn keep_alive(fd: RawFd) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 30),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        // SAFETY: the option value is one int.
        unsafe {
            libc::setsockopt(
                fd,
                level,
                option,
                (&value as *const libc::c_int).cast(),
                std::mem::size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    }
}
