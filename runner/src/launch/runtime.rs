//! Run an OCI runtime on the stage instead of bubblewrap.
//!
//! The runtime makes the sandbox from a bundle that refers to paths of the stage, and exits; the
//! process that it started then is not our child. It writes the pid of the first process to a
//! file, and the runner reports on a pipe that it serves. Its view of the host's mounts is our private
//! one, so its mounts are seen nowhere else and all of them go with the sandbox.

use crate::failure::{c_string, failed, open, pipe, Failure, Outcome};
use crate::plan::{Plan, Runtime};
use crate::spawn::{self, Born};
use crate::{mounts, sys, tree};
use rustix::process::{pidfd_open, waitpid, Pid, PidfdFlags, WaitOptions};
use std::ffi::CString;
use std::os::unix::io::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

const STEP: &str = "runtime";
const LISTEN: RawFd = 3;
const READY: RawFd = 4;
/// How much of the end of the log goes into an error message; the whole of it stays in the file.
const LOG_TAIL: usize = 2000;

pub fn run(plan: &Plan, runtime: &Runtime) -> Outcome<Born> {
    let deadline = Instant::now() + Duration::from_millis(plan.timeout_ms as u64);
    let left = || deadline.saturating_duration_since(Instant::now());
    let program = c_string(STEP, &runtime.program)?;
    let mut argv: Vec<CString> = Vec::new();
    for word in &runtime.argv {
        argv.push(c_string(STEP, word)?);
    }
    // A file and not a pipe: a sandbox that writes to a pipe without a reader would die of it.
    let log = open(
        STEP,
        &runtime.log,
        libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        0o600,
    )?;
    let (ready_r, ready_w) = pipe()?;
    let mut moves = vec![(ready_w.as_raw_fd(), READY)];
    if plan.listen_fd > 2 {
        moves.push((plan.listen_fd, LISTEN));
    }
    let Some(pid) = spawn::born_in(plan.cgroup_v2.as_deref())? else {
        let (program, log) = (spawn::Program::Path(&program), log.as_raw_fd());
        spawn::become_program(program, &argv, &moves, log, log);
    };
    drop((ready_w, log));
    let outcome = wait_for_end(pid, left()).and_then(|()| {
        spawn::wait_born(plan, &runtime.pid_file, &ready_r, left, || first(runtime))
    });
    outcome.map_err(|t| {
        if let Ok(pid) = first(runtime) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        with_log(t, &runtime.log)
    })
}

/// Prepare what a runtime needs on the stage in addition to what bubblewrap needs.
pub fn prepare(plan: &Plan, userns: Option<BorrowedFd<'_>>) -> Outcome<()> {
    if let Some(fd) = userns {
        // A path for the namespace, which a configuration can refer to.
        let name = format!("{}/userns", plan.stage);
        std::fs::write(&name, b"").map_err(failed(STEP, &format!("make {}", name)))?;
        let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
        mounts::bind("the user namespace", &source, &name)?;
    }
    // Devices and masks inside are binds of these and inherit their flags. Writing to a device needs no
    // writable mount.
    tree::bind("/dev", "/dev", tree::READ_ONLY, None)
}

fn wait_for_end(pid: Pid, within: Duration) -> Outcome<()> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed(STEP, "watch the runtime"))?;
    if !spawn::readable_within(&pidfd, within) {
        spawn::kill_and_reap(pid);
        let message = "the runtime did not end in time";
        return Err(Failure::new(STEP, message, libc::ETIMEDOUT));
    }
    let ended = waitpid(Some(pid), WaitOptions::empty());
    let ended = ended.map_err(failed(STEP, "wait for the runtime"))?;
    let status = ended.and_then(|(_, status)| status.exit_status());
    let (message, errno) = match (status, ended) {
        (Some(0), _) => return Ok(()),
        (Some(spawn::NOT_EXECUTED), _) => {
            ("the runtime could not be executed".to_owned(), libc::ENOENT)
        }
        (Some(status), _) => (format!("the runtime ended with status {}", status), 0),
        (None, ended) => {
            let signal = ended.and_then(|(_, status)| status.terminating_signal());
            let signal = signal.unwrap_or(0);
            (format!("the runtime was ended by signal {}", signal), 0)
        }
    };
    Err(Failure::new(STEP, message, errno))
}

/// Read the pid that the runtime wrote.
fn first(runtime: &Runtime) -> Outcome<i32> {
    std::fs::read_to_string(&runtime.runtime_pid_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|pid| *pid > 1)
        .ok_or_else(|| Failure::new(STEP, "the runtime did not report the pid of the sandbox", 0))
}

fn with_log(mut failure: Failure, path: &str) -> Failure {
    let log = std::fs::read(path).unwrap_or_default();
    let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL)..]).into_owned();
    let end = end.trim();
    if !end.is_empty() {
        failure.message = format!("{}: {}", failure.message, end);
    }
    failure
}
