"""The system calls that a sandbox may make: data only.

`ALLOWED` is what ordinary programs need. `REFUSED` calls answer EPERM, because programs accept that
and continue (for example libuv without io_uring). All others answer ENOSYS, as on an older kernel:
clone3, so that the C library falls back to clone, whose flags can be checked; and io_setup and its
relatives, because the requests it reserves are counted for the whole machine.
"""

from __future__ import annotations

from typing import Final

ALLOWED: Final = frozenset(
    """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep clone close close_range connect copy_file_range
    creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait
    epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group
    faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown
    fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs
    fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat getcpu getcwd
    getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp
    getpid getppid getpriority getrandom getresgid getresuid getrlimit get_robust_list getrusage
    getsid getsockname getsockopt get_thread_area gettid gettimeofday getuid getxattr
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl
    ioprio_get ioprio_set kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat
    listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack
    membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl
    msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2
    pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll
    prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages
    removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_getaffinity sched_getattr sched_getparam sched_get_priority_max sched_get_priority_min
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
    sendmmsg sendmsg sendto setfsgid setfsuid setgid setgroups setitimer setpgid setpriority
    setregid setresgid setresuid setreuid setrlimit set_robust_list setsid setsockopt
    set_thread_area set_tid_address setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack
    signalfd signalfd4 socket socketpair splice stat statfs statx symlink symlinkat sync
    sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timerfd_create
    timerfd_gettime timerfd_settime timer_getoverrun timer_gettime timer_settime times tkill
    truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write
    writev
    """.split()  # noqa: SIM905  (a list of three hundred quoted names reads worse)
)

REFUSED: Final = frozenset(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init
    fanotify_mark finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module ioperm iopl
    io_uring_enter io_uring_register io_uring_setup kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind memfd_secret migrate_pages modify_ldt mount mount_setattr move_mount
    move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open
    personality pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev ptrace
    quotactl quotactl_fd reboot request_key set_mempolicy set_mempolicy_home_node setdomainname
    sethostname setns settimeofday swapoff swapon syslog umount umount2 unshare userfaultfd uselib
    ustat vhangup vm86 vm86old _sysctl
    """.split()  # noqa: SIM905  (a list of three hundred quoted names reads worse)
)

# A new namespace exposes less tested parts of the kernel.
CLONE_NEW_FLAGS: Final = (
    0x0000_0080,  # CLONE_NEWTIME
    0x0002_0000,  # CLONE_NEWNS
    0x0200_0000,  # CLONE_NEWCGROUP
    0x0400_0000,  # CLONE_NEWUTS
    0x0800_0000,  # CLONE_NEWIPC
    0x1000_0000,  # CLONE_NEWUSER
    0x2000_0000,  # CLONE_NEWPID
    0x4000_0000,  # CLONE_NEWNET
)

# Injects input into a terminal. The kernel checks the low 32 bits only, and so do we. TIOCSTI,
# TIOCLINUX
REFUSED_IOCTLS: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
ALLOWED_FAMILIES: Final = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
# Families known today end at 46 (AF_MCTP is 45); later ones are refused by the comparison.
FAMILY_END: Final = 46

# What glibc, qemu-user and setarch request: plain Linux, and "query".
ALLOWED_PERSONALITIES: Final = (0x0, 0x0008, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)
