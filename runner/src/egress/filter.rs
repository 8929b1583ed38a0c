//! The system calls that the egress may make, from before it reads the first byte of its sandbox.
//!
//! It was given every descriptor that it needs. It opens no file, starts no program, signals no process
//! and maps no memory that can be executed; its new sockets are TCP, UDP and route queries.
//! A call that is not listed fails with EPERM. Threads are allowed, other processes are not.

use crate::seccomp::{
    answer, apply, jump, jump_over, load, with_argument, ALLOW, ANY_BIT, ARCH, ARCHITECTURE,
    ARGUMENTS, EQUAL, KILL, NUMBER, REFUSE, UNKNOWN,
};
use crate::sys::Result;

const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_splice,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(target_arch = "aarch64")]
const OLDER_CALLS: &[libc::c_long] = &[];

/// Restrict this process and every thread it starts, for good. It must have `no_new_privs`.
pub fn install() -> Result<()> {
    apply(&program())
}

fn program() -> Vec<libc::sock_filter> {
    let mut made = vec![
        load(ARCH),
        jump(EQUAL, ARCHITECTURE, 1),
        answer(KILL),
        load(NUMBER),
    ];
    for &number in CALLS.iter().chain(OLDER_CALLS) {
        made.extend([jump_over(EQUAL, number as u32, 1), answer(ALLOW)]);
    }
    // The C library falls back to clone, whose flags are readable here.
    made.extend([
        jump_over(EQUAL, libc::SYS_clone3 as u32, 1),
        answer(UNKNOWN),
    ]);
    let executable = libc::PROT_EXEC as u32;
    for number in [libc::SYS_mmap, libc::SYS_mprotect] {
        let no_code = [jump_over(ANY_BIT, executable, 1), answer(REFUSE)];
        made.extend(with_argument(number, 2, &no_code, ALLOW));
    }
    let thread = [
        jump_over(ANY_BIT, libc::CLONE_THREAD as u32, 1),
        answer(ALLOW),
    ];
    made.extend(with_argument(libc::SYS_clone, 0, &thread, REFUSE));
    let not_blocking = [jump_over(EQUAL, libc::FIONBIO as u32, 1), answer(ALLOW)];
    made.extend(with_argument(libc::SYS_ioctl, 1, &not_blocking, REFUSE));
    let mut families = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        families.extend([jump_over(EQUAL, family as u32, 1), answer(ALLOW)]);
    }
    families.extend([
        jump_over(EQUAL, libc::AF_NETLINK as u32, 3),
        load(ARGUMENTS + 8 * 2),
        jump_over(EQUAL, libc::NETLINK_ROUTE as u32, 1),
        answer(ALLOW),
    ]);
    made.extend(with_argument(libc::SYS_socket, 0, &families, REFUSE));
    made.push(answer(REFUSE));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// Run `tried` under the filter in a separate process, and return its exit status.
    fn under_the_filter(tried: fn() -> bool) -> i32 {
        // SAFETY: the child makes plain calls and ends without running what belongs to its parent.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let fine = install().is_ok() && tried();
                libc::_exit(if fine { 0 } else { 1 });
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            status
        }
    }

    /// SAFETY of the calls below: plain system calls, all of which must fail.
    fn refused(result: libc::c_long) -> bool {
        result == -1 && crate::sys::errno() == libc::EPERM
    }

    #[test]
    fn nothing_but_the_listed_calls_is_possible() {
        assert_eq!(
            under_the_filter(|| unsafe {
                let name = c"/dev/null".as_ptr();
                let none = std::ptr::null::<u8>();
                refused(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, 0))
                    && refused(libc::syscall(libc::SYS_execve, name, none, none))
                    && refused(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0))
                    && refused(libc::syscall(libc::SYS_kill, libc::getpid(), 0))
                    && refused(libc::syscall(libc::SYS_ptrace, 0, 0, 0, 0))
                    && refused(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER))
                    && refused(libc::syscall(libc::SYS_sendmsg, 0, none, 0))
            }),
            0
        );
    }

    #[test]
    fn arguments_are_restricted() {
        assert_eq!(
            under_the_filter(|| unsafe {
                let socket = |family: i32, protocol: i32| {
                    libc::syscall(libc::SYS_socket, family, libc::SOCK_RAW, protocol)
                };
                let map = |protection: i32| {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                    libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0)
                };
                refused(socket(libc::AF_UNIX, 0))
                    && refused(socket(libc::AF_PACKET, 0))
                    && refused(socket(libc::AF_NETLINK, libc::NETLINK_NETFILTER))
                    && socket(libc::AF_NETLINK, libc::NETLINK_ROUTE) >= 0
                    && refused(map(libc::PROT_READ | libc::PROT_EXEC))
                    && map(libc::PROT_READ) != -1
                    && refused(libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSTI, 0))
            }),
            0
        );
    }

    #[test]
    fn sockets_memory_and_threads_work() {
        assert_eq!(
            under_the_filter(|| {
                let socket = UdpSocket::bind("127.0.0.1:0");
                let quiet = socket.is_ok_and(|s| s.set_nonblocking(true).is_ok());
                let large = vec![1u8; 8 << 20];
                let thread = std::thread::spawn(|| 7);
                quiet && large[5000] == 1 && thread.join().is_ok_and(|n| n == 7)
            }),
            0
        );
    }
}
