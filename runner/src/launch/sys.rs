//! Thin, checked calls to the kernel; no decisions.

use crate::plan::Plan;
use crate::{Outcome, Trouble};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::io::RawFd;

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub fn c(step: &'static str, text: &str) -> Outcome<CString> {
    CString::new(text).map_err(|_| Trouble::new(step, "a text holds a NUL", libc::EINVAL))
}

pub fn check(step: &'static str, what: &str, result: libc::c_int) -> Outcome<libc::c_int> {
    if result < 0 {
        return Err(Trouble::last(step, what));
    }
    Ok(result)
}

/// Writes in one call: the kernel's control files want the whole value at once.
pub fn write_file(step: &'static str, path: &str, data: &[u8]) -> Outcome<()> {
    let failed = |e: std::io::Error| {
        Trouble::new(
            step,
            format!("write {}: {}", path, e),
            e.raw_os_error().unwrap_or(0),
        )
    };
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(failed)?;
    file.write_all(data).map_err(failed)
}

/// Everything inherited beyond `keep` is closed, so that no descriptor of the host travels inside.
pub fn close_all_but(keep: &[RawFd]) -> Outcome<()> {
    let mut sorted: Vec<RawFd> = keep.to_vec();
    sorted.sort_unstable();
    let mut from: libc::c_uint = 0;
    for fd in sorted {
        if fd as libc::c_uint > from {
            close_range(from, fd as libc::c_uint - 1)?;
        }
        from = fd as libc::c_uint + 1;
    }
    close_range(from, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> Outcome<()> {
    // By number: the C library's wrapper is newer than some that we are linked with.
    let r = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    check("descriptors", "close_range", r as libc::c_int).map(|_| ())
}

pub fn pipe() -> Outcome<(RawFd, RawFd)> {
    let mut fds = [0; 2];
    check("descriptors", "pipe2", unsafe {
        libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC)
    })?;
    Ok((fds[0], fds[1]))
}

pub fn close(fd: RawFd) {
    unsafe { libc::close(fd) };
}

/// An anonymous file with this content, read from its start.
pub fn memfd(name: &str, data: &[u8]) -> Outcome<RawFd> {
    let cname = c("descriptors", name)?;
    let fd = check("descriptors", "memfd_create", unsafe {
        libc::memfd_create(cname.as_ptr(), libc::MFD_CLOEXEC)
    })?;
    let mut done = 0;
    while done < data.len() {
        let n = unsafe { libc::write(fd, data[done..].as_ptr().cast(), data.len() - done) };
        if n <= 0 {
            return Err(Trouble::last("descriptors", "write memfd"));
        }
        done += n as usize;
    }
    check("descriptors", "lseek memfd", unsafe {
        libc::lseek(fd, 0, libc::SEEK_SET) as libc::c_int
    })?;
    Ok(fd)
}

/// A failure of the standard library, as ours.
pub fn failed(step: &'static str, what: &str) -> impl FnOnce(std::io::Error) -> Trouble {
    let what = what.to_owned();
    move |e| Trouble::new(step, what, e.raw_os_error().unwrap_or(0))
}

pub fn open_log(step: &'static str, path: &str) -> Outcome<RawFd> {
    let cpath = c(step, path)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    check(step, &format!("open {}", path), unsafe {
        libc::open(cpath.as_ptr(), flags, 0o600)
    })
}

pub fn open_read(step: &'static str, path: &str) -> Outcome<RawFd> {
    let cpath = c(step, path)?;
    check(step, &format!("open {}", path), unsafe {
        libc::open(cpath.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
    })
}

/// Makes every permitted capability effective again, as before a change of ids.
pub fn raise_permitted() -> Outcome<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0u32];
    let mut data = [0u32; 6];
    let r = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    check("capabilities", "capget", r as libc::c_int)?;
    // (effective, permitted, inheritable) twice, for the low and the high 32.
    data[0] = data[1];
    data[3] = data[4];
    header[0] = VERSION_3;
    let r = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_ptr()) };
    check("capabilities", "capset", r as libc::c_int).map(|_| ())
}

/// Soft and hard alike, never above what we were given: raising needs a capability we may not have.
pub fn set_limits(plan: &Plan) -> Outcome<()> {
    for &(resource, value) in &plan.limits {
        let mut now = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        check("limits", "getrlimit", unsafe {
            libc::getrlimit(resource as libc::__rlimit_resource_t, &mut now)
        })?;
        let wanted = value.min(now.rlim_max);
        let set = libc::rlimit {
            rlim_cur: wanted,
            rlim_max: wanted,
        };
        check("limits", "setrlimit", unsafe {
            libc::setrlimit(resource as libc::__rlimit_resource_t, &set)
        })?;
    }
    Ok(())
}

/// The process's start time in clock ticks since boot: with the pid, a name that is never reused.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid)).ok()?;
    // The command name may hold spaces and parentheses; fields are counted after the last one.
    let rest = &stat[stat.rfind(')')? + 2..];
    rest.split(' ').nth(19)?.parse().ok()
}
