//! Thin wrappers over the system calls that std does not offer; an error is a bare errno.
//!
//! No policy here: nothing in this file knows what a command, a shell or a connection is.

use std::ffi::CString;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub type Errno = i32;

pub fn errno() -> Errno {
    crate::wire::handler::last_errno()
}

pub fn check(rc: libc::c_int) -> Result<libc::c_int, Errno> {
    if rc < 0 {
        Err(errno())
    } else {
        Ok(rc)
    }
}

fn check_size(rc: libc::ssize_t) -> Result<usize, Errno> {
    if rc < 0 {
        Err(errno())
    } else {
        Ok(rc as usize)
    }
}

/// The caller vouches that `fd` was just returned by the kernel and belongs to nobody else.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: see above; every call site passes a descriptor it has just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the pointer and length describe one live buffer.
        match check_size(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }) {
            Err(libc::EINTR) => continue,
            other => return other,
        }
    }
}

pub fn write(fd: RawFd, buffer: &[u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the pointer and length describe one live buffer.
        match check_size(unsafe { libc::write(fd, buffer.as_ptr().cast(), buffer.len()) }) {
            Err(libc::EINTR) => continue,
            other => return other,
        }
    }
}

pub fn write_all(fd: RawFd, mut buffer: &[u8]) -> Result<(), Errno> {
    while !buffer.is_empty() {
        let written = write(fd, buffer)?;
        buffer = buffer.get(written..).unwrap_or(&[]);
    }
    Ok(())
}

/// A path or argument as C wants it; a NUL inside is EINVAL.
pub fn c_string(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| libc::EINVAL)
}

pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<OwnedFd, Errno> {
    let path = c_string(path)?;
    loop {
        // SAFETY: `path` is NUL-terminated and outlives the call.
        match check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) }) {
            Err(libc::EINTR) => continue,
            Err(errno) => return Err(errno),
            Ok(fd) => return Ok(own(fd)),
        }
    }
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(ends[0]), own(ends[1])))
}

/// A pipe whose reading end, the first, does not block.
pub fn pipe_to_poll() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = pipe()?;
    // SAFETY: plain fcntl on an integer descriptor; a new pipe has no other flag to keep.
    check(unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok((ours, theirs))
}

pub fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok((own(ends[0]), own(ends[1])))
}

pub fn set_nonblocking(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: plain fcntl on an integer descriptor.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// A copy of `fd` at or above `lowest`, closed on exec.
pub fn duplicate(fd: RawFd, lowest: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: plain fcntl on an integer descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) }).map(own)
}

/// How many bytes a read would return now; 0 when it cannot be known.
pub fn readable_bytes(fd: RawFd) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let rc = unsafe { libc::ioctl(fd, libc::FIONREAD, &mut count) };
    if rc == 0 && count > 0 {
        count as usize
    } else {
        0
    }
}

pub fn close_from(first: RawFd) {
    // SAFETY: closes descriptors by number; the callers own none of them any more.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if rc == 0 {
        return;
    }
    // A kernel without close_range, such as gVisor's: go through what is open.
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // The directory's own descriptor is among them, and closed by then.
        let named = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok()
        };
        let open: Vec<RawFd> = open.filter_map(named).filter(|fd| *fd >= first).collect();
        for fd in open {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
        return;
    }
    // Not even that: go through what the limit allows.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid out pointer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let last = limit.rlim_cur.min(65_536) as RawFd;
    for fd in first..last {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid out pointer.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds on the clock that counts suspended time and never jumps.
pub fn boot_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

pub fn unix_ms() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1_000_000
}

pub fn is_fifo(fd: RawFd) -> bool {
    file_kind(fd) == Some(libc::S_IFIFO)
}

fn file_kind(fd: RawFd) -> Option<libc::mode_t> {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid out pointer.
    check(unsafe { libc::fstat(fd, &mut stat) }).ok()?;
    Some(stat.st_mode & libc::S_IFMT)
}

/// `(device, inode, mode)` of what `path` leads to.
pub fn identity_of(path: &[u8]) -> Result<(u64, u64, u32), Errno> {
    let path = c_string(path)?;
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    check(unsafe { libc::stat(path.as_ptr(), &mut stat) })?;
    Ok((stat.st_dev as u64, stat.st_ino as u64, stat.st_mode as u32))
}

/// Whole small file, at most `limit` bytes; for /proc, where sizes are unknown.
pub fn read_file(path: &[u8], limit: usize) -> Result<Vec<u8>, Errno> {
    let file = open(path, libc::O_RDONLY, 0)?;
    let mut content = Vec::new();
    let mut block = [0u8; 4096];
    while content.len() < limit {
        let room = block.len().min(limit - content.len());
        let count = read(file.as_raw_fd(), &mut block[..room])?;
        if count == 0 {
            break;
        }
        content.extend_from_slice(&block[..count]);
    }
    Ok(content)
}

pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: plain system call on integers.
    check(unsafe { libc::kill(pid, signal) }).map(|_| ())
}

pub fn identity_of_owner(path: &[u8]) -> Result<u32, Errno> {
    let path = c_string(path)?;
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    check(unsafe { libc::lstat(path.as_ptr(), &mut stat) })?;
    Ok(stat.st_uid)
}

pub fn unlink(path: &[u8]) {
    if let Ok(path) = c_string(path) {
        // SAFETY: `path` is NUL-terminated.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

pub fn make_fifo(path: &[u8], mode: u32) -> Result<(), Errno> {
    let path = c_string(path)?;
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::mkfifo(path.as_ptr(), mode as libc::mode_t) }).map(|_| ())
}

pub fn make_dir(path: &[u8], mode: u32) -> Result<(), Errno> {
    let path = c_string(path)?;
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::mkdir(path.as_ptr(), mode as libc::mode_t) }).map(|_| ())
}

fn unix_address(path: &[u8]) -> Result<libc::sockaddr_un, Errno> {
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

/// A blocking stream to the socket at `path`; EAGAIN when it was not accepted for `ms`.
pub fn connect_unix(path: &[u8], ms: i32) -> Result<OwnedFd, Errno> {
    let address = unix_address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: plain system call.
    let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
    let patience = libc::timeval {
        tv_sec: (ms / 1000).into(),
        tv_usec: (ms % 1000 * 1000).into(),
    };
    // SAFETY: the option value is one timeval, and `address` a filled-in sockaddr_un of the given size.
    unsafe {
        check(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&patience as *const libc::timeval).cast(),
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

/// Makes a pipe hold at least `size` bytes, where it is one and that is allowed.
pub fn widen_pipe(fd: RawFd, size: usize) {
    // SAFETY: plain fcntl on an integer descriptor; what is no pipe is refused.
    unsafe {
        let holds = libc::fcntl(fd, libc::F_GETPIPE_SZ);
        if holds >= 0 && (holds as usize) < size {
            libc::fcntl(fd, libc::F_SETPIPE_SZ, size as libc::c_int);
        }
    }
}

/// Gives the directory at `path` itself, no symlink, to these ids, unless it is theirs already.
pub fn own_dir(path: &[u8], uid: u32, gid: u32) -> Result<(), Errno> {
    // A directory that is closed to us can be had like this, and need not be read.
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let fd = open(path, flags, 0)?;
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid out pointer.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) {
        return Ok(());
    }
    let itself = b"\0".as_ptr().cast();
    // SAFETY: the empty path is NUL-terminated.
    let rc = unsafe { libc::fchownat(fd.as_raw_fd(), itself, uid, gid, libc::AT_EMPTY_PATH) };
    check(rc).map(|_| ())
}

/// Nobody but root can put something else in the place of the absolute `path`: neither it nor anything on
/// the way is a link, and what is on the way can be written by root alone, or not at all. The error
/// says which place it is.
pub fn only_roots(path: &[u8]) -> Result<(), (Vec<u8>, Errno)> {
    let mut ends: Vec<usize> = (1..path.len()).filter(|&at| path[at] == b'/').collect();
    ends.push(path.len());
    check_root(b"/", false).map_err(|errno| (b"/".to_vec(), errno))?;
    for end in ends {
        let place = &path[..end];
        check_root(place, end == path.len()).map_err(|errno| (place.to_vec(), errno))?;
    }
    Ok(())
}

fn check_root(place: &[u8], last: bool) -> Result<(), Errno> {
    let fd = open(place, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    // SAFETY: all-zero values are valid, to be overwritten.
    let (mut stat, mut system): (libc::stat, libc::statvfs) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both are valid out pointers.
    unsafe {
        check(libc::fstat(fd.as_raw_fd(), &mut stat))?;
        check(libc::fstatvfs(fd.as_raw_fd(), &mut system))?;
    }
    let kind = stat.st_mode & libc::S_IFMT;
    if kind == libc::S_IFLNK {
        return Err(libc::ELOOP);
    }
    if last {
        return Ok(());
    }
    if kind != libc::S_IFDIR {
        return Err(libc::ENOTDIR);
    }
    let open_to_others = stat.st_uid != 0 || stat.st_mode & 0o022 != 0;
    if open_to_others && system.f_flag & libc::ST_RDONLY == 0 {
        return Err(libc::EPERM);
    }
    Ok(())
}

/// A listening socket at `path`, mode 0600; a stale socket file there is replaced.
pub fn listen_unix(path: &[u8]) -> Result<OwnedFd, Errno> {
    let address = unix_address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
    unlink(path);
    // SAFETY: umask cannot fail; our own is 0, and the socket file must be 0600 from its first moment.
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

pub fn remove_dir(path: &[u8]) {
    if let Ok(path) = c_string(path) {
        // SAFETY: `path` is NUL-terminated.
        unsafe { libc::rmdir(path.as_ptr()) };
    }
}

pub fn read_link(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let path = c_string(path)?;
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as we say.
    let count = check_size(unsafe {
        libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len())
    })?;
    target.truncate(count);
    Ok(target)
}

/// Whether there is a regular file with an execute bit at `path`.
pub fn is_executable(path: &[u8]) -> bool {
    identity_of(path).map_or(false, |(_, _, mode)| {
        mode & libc::S_IFMT == libc::S_IFREG && mode & 0o111 != 0
    })
}

/// Closes `first..=last`.
pub fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: closes descriptors by number; nothing in this process owns them yet.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if rc != 0 {
        for fd in first..=last.min(65_536) {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Whether the FIFO behind this reading end had writers and has none any more.
pub fn is_hung_up(fd: RawFd) -> bool {
    let mut state = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut state, 1, 0) };
    state.revents & libc::POLLHUP != 0
}

/// Whether anybody has the FIFO behind this writing end open for reading.
pub fn has_reader(fd: RawFd) -> bool {
    let mut state = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut state, 1, 0) };
    state.revents & libc::POLLERR == 0
}
