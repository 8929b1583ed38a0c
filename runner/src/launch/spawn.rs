//! Start bubblewrap, wait for the runner to be ready, then release both.
//!
//! In the end, the first process of the sandbox is not our child: the monitor of bubblewrap is
//! killed once the runner serves (it has nothing more to do and costs memory), and we exit.

use crate::failure::{c_string, failed, open, pipe, Failure, Outcome};
use crate::plan::{Bubblewrap, Plan};
use crate::{inside, sys};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::mount::{unmount, UnmountFlags};
use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use serde_json::Value;
use std::ffi::CString;
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

const STEP: &str = "bubblewrap";

// Descriptor numbers that the arguments of the plan refer to.
const LISTEN: RawFd = 3;
const READY: RawFd = 4;
const INFO: RawFd = 5;
const ARGS: RawFd = 6;
const USERNS: RawFd = 7;
const SECCOMP: RawFd = 8;
/// Sources are moved above this first, so that no dup2 overwrites one that is still needed.
const SAFE: RawFd = 64;

/// The exit status of a child that never became the program.
pub const NOT_EXECUTED: i32 = 127;

/// <linux/sched.h>; newer than the bindings we build with.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

pub struct Born {
    pub pid: i32,
    pub start: u64,
}

pub fn bubblewrap(
    plan: &Plan,
    bwrap: &Bubblewrap,
    userns: Option<BorrowedFd<'_>>,
) -> Outcome<Born> {
    let (ready_r, ready_w) = pipe()?;
    let (info_r, info_w) = pipe()?;
    let (err_r, err_w) = pipe()?;
    let args = sys::memory_file("args", &nul_separated(&bwrap.args)?)
        .map_err(failed("descriptors", "memfd_create"))?;
    let mut filters = Vec::new();
    for path in &bwrap.seccomp {
        filters.push(open("seccomp", path, libc::O_RDONLY, 0)?);
    }
    let mut moves = vec![
        (plan.listen_fd, LISTEN),
        (ready_w.as_raw_fd(), READY),
        (info_w.as_raw_fd(), INFO),
        (args.as_raw_fd(), ARGS),
    ];
    moves.extend(userns.map(|fd| (fd.as_raw_fd(), USERNS)));
    moves.extend(filters.iter().map(AsRawFd::as_raw_fd).zip(SECCOMP..));
    let program = c_string(STEP, &bwrap.program)?;
    let argv = argv(bwrap)?;
    let Some(pid) = born_in(plan.cgroup_v2.as_deref())? else {
        // bubblewrap reads the whole list of mounts for each of its mounts, and most of ours are here.
        // Where we may not unmount them, they stay.
        let _ = unmount(c"/sys", UnmountFlags::DETACH);
        become_program(
            Program::Path(&program),
            &argv,
            &moves,
            -1,
            err_w.as_raw_fd(),
        );
    };
    drop((ready_w, info_w, err_w));
    let outcome = wait_ready(plan, bwrap, &ready_r, &info_r, pid);
    if outcome.is_err() {
        // The first process dies with its pid namespace; the monitor would only report it.
        if let Some(first) = first_pid(&info_r, Duration::from_millis(0)) {
            let _ = sys::kill(first, libc::SIGKILL);
        }
    }
    kill_and_reap(pid);
    outcome.map_err(|t| with_stderr(t, &err_r))
}

/// Fork a child that starts in the given v2 cgroup: moving it there afterwards would wait for a grace
/// period of the kernel, 10 ms and more. Return `None` in the child.
pub fn born_in(cgroup: Option<&str>) -> Outcome<Option<Pid>> {
    let directory = cgroup.map(|path| open("cgroup", path, libc::O_RDONLY, 0));
    let directory = directory.transpose()?;
    // SAFETY: all zeroes is a valid value, and the call reads as much as it is told. The children of this
    // program run on copies of all its memory, which no other thread was changing, and end by `exit`.
    let pid = unsafe {
        match &directory {
            None => libc::fork(),
            Some(directory) => {
                let mut args: libc::clone_args = std::mem::zeroed();
                args.flags = CLONE_INTO_CGROUP;
                args.exit_signal = libc::SIGCHLD as u64;
                args.cgroup = directory.as_raw_fd() as u64;
                libc::syscall(libc::SYS_clone3, &mut args, size_of::<libc::clone_args>()) as i32
            }
        }
    };
    let attempt = directory.map_or((STEP, "fork"), |_| ("cgroup", "start in the cgroup"));
    let pid = sys::check(pid).map_err(failed(attempt.0, attempt.1))?;
    Ok(Pid::from_raw(pid))
}

/// End a forked child without running what belongs to its parent.
pub fn exit(status: i32) -> ! {
    // SAFETY: ends this process.
    unsafe { libc::_exit(status) }
}

/// Enter new namespaces.
pub fn unshare(step: &'static str, what: &str, namespaces: UnshareFlags) -> Outcome<()> {
    // SAFETY: none of the callers asks for a separate table of descriptors.
    unsafe { unshare_unsafe(namespaces) }.map_err(failed(step, what))
}

/// A NUL inside one string would make two of it, and the second could be an option that the plan does
/// not have.
fn nul_separated(args: &[String]) -> Outcome<Vec<u8>> {
    let mut out = Vec::new();
    for a in args {
        out.extend_from_slice(c_string("plan", a)?.as_bytes_with_nul());
    }
    Ok(out)
}

fn argv(bwrap: &Bubblewrap) -> Outcome<Vec<CString>> {
    let mut argv = vec![
        c_string(STEP, "bwrap")?,
        c_string(STEP, "--args")?,
        c_string(STEP, &ARGS.to_string())?,
        c_string(STEP, "--")?,
    ];
    for word in &bwrap.command {
        argv.push(c_string(STEP, word)?);
    }
    Ok(argv)
}

/// The program that a child becomes.
pub enum Program<'a> {
    Path(&'a CString),
    /// A file that was opened before, so that the user of the child need not reach its path. If it cannot be
    /// run, the error number is written to `report`.
    Opened {
        file: RawFd,
        report: Option<RawFd>,
    },
}

/// In the child: only async-signal-safe calls until exec. A negative `out` is /dev/null.
pub fn become_program(
    program: Program,
    argv: &[CString],
    moves: &[(RawFd, RawFd)],
    out: RawFd,
    err: RawFd,
) -> ! {
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(ptr::null());
    // It needs none of our environment, and the sandbox must not see one.
    let environment: [*const libc::c_char; 1] = [ptr::null()];
    // SAFETY: plain system calls on numbers of descriptors, which nothing else in this process uses from
    // now on, and on strings and arrays that end with a null.
    unsafe {
        libc::setsid();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(null, 0);
        libc::dup2(if out < 0 { null } else { out }, 1);
        libc::dup2(err, 2);
        let above = |fd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, SAFE);
        let mut high = [(0, 0); 16];
        for (i, &(from, to)) in moves.iter().enumerate().take(high.len()) {
            high[i] = (above(from), to);
        }
        let opened = match program {
            Program::Path(_) => (-1, -1),
            Program::Opened { file, report } => (above(file), report.map_or(-1, above)),
        };
        for &(from, to) in high.iter().take(moves.len()) {
            libc::dup2(from, to);
        }
        let next = moves.iter().map(|m| m.1).max().unwrap_or(2) + 1;
        match program {
            Program::Path(path) => {
                libc::syscall(libc::SYS_close_range, next, libc::c_uint::MAX, 0);
                libc::execve(path.as_ptr(), pointers.as_ptr(), environment.as_ptr());
            }
            Program::Opened { .. } => {
                let (file, report) = (next, next + 1);
                libc::dup3(opened.0, file, libc::O_CLOEXEC);
                if libc::dup3(opened.1, report, libc::O_CLOEXEC) < 0 {
                    libc::close(report);
                }
                libc::syscall(libc::SYS_close_range, next + 2, libc::c_uint::MAX, 0);
                libc::syscall(
                    libc::SYS_execveat,
                    file,
                    c"".as_ptr(),
                    pointers.as_ptr(),
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
                let errno = (*libc::__errno_location()).to_ne_bytes();
                libc::write(report, errno.as_ptr().cast(), errno.len());
            }
        }
    }
    exit(NOT_EXECUTED)
}

fn wait_ready(
    plan: &Plan,
    bwrap: &Bubblewrap,
    ready: &OwnedFd,
    info: &OwnedFd,
    monitor: Pid,
) -> Outcome<Born> {
    let deadline = Instant::now() + Duration::from_millis(plan.timeout_ms as u64);
    let left = || deadline.saturating_duration_since(Instant::now());
    let born = wait_born(plan, &bwrap.pid_file, ready, left, || {
        first_pid(info, left())
            .ok_or_else(|| Failure::new(STEP, "bubblewrap did not start the sandbox", 0))
    })?;
    // The monitor ends while we do the rest, and is reaped after that.
    let _ = kill_process(monitor, Signal::KILL);
    let covers = inside::covers(plan)?;
    inside::finish(born.pid, &plan.masks, covers, bwrap.terminals)?;
    Ok(born)
}

/// Record the first process and wait until its runner serves and has the ids that it must have.
pub fn wait_born(
    plan: &Plan,
    pid_file: &str,
    ready: &OwnedFd,
    left: impl Fn() -> Duration,
    first: impl FnOnce() -> Outcome<i32>,
) -> Outcome<Born> {
    let pid = first()?;
    // Written before the sandbox is known to work, so that a later clean-up can find and end it.
    let start = write_pid_file(pid_file, pid, "the sandbox ended at once")?;
    let mut byte = [0u8; 1];
    match read_within(ready, &mut byte, left()) {
        Some(1) => {}
        Some(_) => {
            return Err(Failure::new(
                "runner",
                "the runner ended before it was ready",
                0,
            ))
        }
        None => {
            return Err(Failure::new(
                "runner",
                "the runner was not ready in time",
                libc::ETIMEDOUT,
            ))
        }
    }
    if let Some(map) = plan.id_map {
        verify_host_ids(pid, map.expect)?;
    }
    Ok(Born { pid, start })
}

/// Read the pid that bubblewrap writes as JSON to the info descriptor.
fn first_pid(info: &OwnedFd, within: Duration) -> Option<i32> {
    let deadline = Instant::now() + within;
    let mut text = Vec::new();
    let mut buffer = [0u8; 1024];
    loop {
        if let Ok(v) = serde_json::from_slice::<Value>(&text) {
            return v["child-pid"].as_i64().map(|p| p as i32).filter(|p| *p > 1);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match read_within(info, &mut buffer, left) {
            Some(n) if n > 0 && text.len() < 65536 => text.extend_from_slice(&buffer[..n]),
            _ => return None,
        }
    }
}

/// Write the pid and the start time of a process, and return the latter. `gone`: why it has none.
pub fn write_pid_file(path: &str, pid: i32, gone: &str) -> Outcome<u64> {
    let start = sys::start_time(pid).ok_or_else(|| Failure::new(STEP, gone, libc::ESRCH))?;
    let temporary = format!("{}.new", path);
    std::fs::write(&temporary, format!("{} {}", pid, start))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(0);
            Failure::new("pid file", format!("write {}: {}", path, e), errno)
        })?;
    Ok(start)
}

/// The one mistake that exposes the host is a process that looks like uid 1000 inside and is uid 0
/// outside; so the view from outside is checked.
fn verify_host_ids(pid: i32, expect: u32) -> Outcome<()> {
    let wanted = expect.to_string();
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid)).unwrap_or_default();
    let all = |field: &str, skip_last: bool| {
        status
            .lines()
            .find(|l| l.starts_with(field))
            .is_some_and(|l| {
                let ids: Vec<&str> = l.split_whitespace().skip(1).collect();
                let seen = if skip_last {
                    &ids[..ids.len().saturating_sub(1)]
                } else {
                    &ids[..]
                };
                !seen.is_empty() && seen.iter().all(|id| *id == wanted)
            })
    };
    // The fs id is the id of the sandbox's user, set by the runner; real, effective and saved ids are
    // its own.
    if all("Uid:", true) && all("Gid:", true) {
        return Ok(());
    }
    Err(Failure::new(
        "ids",
        "the first process does not have the expected ids on the host",
        0,
    ))
}

pub fn readable_within(fd: impl AsFd, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    let ready = sys::retry(|| {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left))
    });
    ready.is_ok_and(|count| count > 0)
}

pub fn read_within(fd: impl AsFd, buffer: &mut [u8], within: Duration) -> Option<usize> {
    if !readable_within(&fd, within) {
        return None;
    }
    sys::read(fd.as_fd().as_raw_fd(), buffer).ok()
}

pub fn kill_and_reap(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
    let _ = waitpid(Some(pid), WaitOptions::empty());
}

/// Add what bubblewrap wrote to stderr, for the person who has to fix it.
fn with_stderr(mut failure: Failure, err: &OwnedFd) -> Failure {
    let mut buffer = [0u8; 4096];
    if let Some(n) = read_within(err, &mut buffer, Duration::from_millis(50)) {
        let output = String::from_utf8_lossy(&buffer[..n]);
        let output = output.trim();
        if !output.is_empty() {
            failure.message = format!("{}: {}", failure.message, output);
        }
    }
    failure
}
