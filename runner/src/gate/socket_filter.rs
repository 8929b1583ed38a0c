//! Keep a runner without a network from sockets that a network namespace does not close.
//!
//! AF_VSOCK leads from a virtual machine to its host, past every network namespace. So only the families
//! that a network namespace closes can be used. io_uring, which opens sockets without a system call, and
//! system calls of another architecture, whose numbers differ, are refused too.

use crate::seccomp::{
    answer, apply, error, jump, jump_over, load, with_argument, ALLOW, ANY_BIT, ARCH, ARCHITECTURE,
    EQUAL, NUMBER, REFUSE, UNKNOWN,
};

const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];
const X32: u32 = 0x4000_0000;

pub struct SocketFilter(Vec<libc::sock_filter>);

impl SocketFilter {
    pub fn new() -> SocketFilter {
        let mut made = vec![
            load(ARCH),
            jump(EQUAL, ARCHITECTURE, 1),
            answer(REFUSE),
            load(NUMBER),
            jump_over(ANY_BIT, X32, 1),
            answer(REFUSE),
            jump_over(EQUAL, libc::SYS_io_uring_setup as u32, 1),
            answer(UNKNOWN),
        ];
        let mut known = Vec::new();
        for family in FAMILIES {
            known.extend([jump_over(EQUAL, family as u32, 1), answer(ALLOW)]);
        }
        let none = error(libc::EAFNOSUPPORT);
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            made.extend(with_argument(call, 0, &known, none));
        }
        made.push(answer(ALLOW));
        SocketFilter(made)
    }

    /// Restrict this process, and what it becomes or starts, for good. May be called between fork and exec.
    pub fn take(&self) -> std::io::Result<()> {
        crate::sys::no_new_privileges()
            .and_then(|()| apply(&self.0))
            .map_err(std::io::Error::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the error of a call; 0 if it succeeded.
    fn errno_of(result: libc::c_long) -> i32 {
        match result {
            -1 => crate::sys::errno(),
            _ => 0,
        }
    }

    fn opened(family: i32) -> i32 {
        // SAFETY: a plain system call.
        errno_of(unsafe { libc::syscall(libc::SYS_socket, family, libc::SOCK_STREAM, 0) })
    }

    fn only_these_families_open() -> bool {
        let closed = [
            libc::AF_VSOCK,
            libc::AF_PACKET,
            libc::AF_ALG,
            libc::AF_BLUETOOTH,
        ];
        SocketFilter::new().take().is_ok()
            && closed.iter().all(|&one| opened(one) == libc::EAFNOSUPPORT)
            && [libc::AF_UNIX, libc::AF_INET].iter().all(|&one| opened(one) == 0)
            // SAFETY: a plain system call that fails.
            && errno_of(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) }) == libc::ENOSYS
    }

    #[test]
    fn only_sockets_that_a_network_namespace_closes_can_be_opened() {
        // SAFETY: the child makes plain calls and ends without running what belongs to its parent.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if only_these_families_open() { 0 } else { 1 });
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }
}
