//! Running an OCI runtime on the stage instead of bubblewrap.
//!
//! The runtime makes the sandbox itself, from a bundle that refers to paths of the stage, and ends; so
//! it is waited for and what it said is handed back. Its view of the host's mounts is our private one.

use crate::plan::{Plan, Runtime};
use crate::{spawn, sys};
use crate::{Outcome, Trouble};
use std::ffi::CString;
use std::os::unix::io::RawFd;
use std::time::{Duration, Instant};

const STEP: &str = "runtime";
/// What is kept of each stream; the rest is read and dropped.
const KEPT: usize = 64 << 10;

pub struct Ended {
    /// The exit code, or 128 + the signal.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(plan: &Plan, runtime: &Runtime) -> Outcome<Ended> {
    let program = sys::c(STEP, &runtime.program)?;
    let mut argv: Vec<CString> = Vec::new();
    for word in &runtime.argv {
        argv.push(sys::c(STEP, word)?);
    }
    let (out_r, out_w) = sys::pipe()?;
    let (err_r, err_w) = sys::pipe()?;
    let pid = spawn::born_in(plan.cgroup_v2.as_deref())?;
    if pid == 0 {
        spawn::become_program(&program, &argv, &[(plan.listen_fd, 3)], out_w, err_w);
    }
    sys::close(out_w);
    sys::close(err_w);
    let deadline = Instant::now() + Duration::from_millis(plan.timeout_ms as u64);
    // Descriptors that it leaves to what it started stay open after it; its exit is what counts.
    let mut said = [Vec::new(), Vec::new()];
    let status = loop {
        take(&[out_r, err_r], &mut said);
        let mut status = 0;
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => continue,
            0 => {
                spawn::kill_and_reap(pid);
                let message = format!("{} did not end in time", runtime.program);
                return Err(Trouble::new(STEP, message, libc::ETIMEDOUT));
            }
            n if n == pid => break status,
            _ => return Err(Trouble::last(STEP, "wait for the runtime")),
        }
    };
    take(&[out_r, err_r], &mut said);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended {
        status: if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        },
        stdout: text(&said[0]),
        stderr: text(&said[1]),
    })
}

/// Whatever comes within a few milliseconds.
fn take(from: &[RawFd; 2], said: &mut [Vec<u8>; 2]) {
    let mut buffer = [0u8; 4096];
    for (fd, kept) in from.iter().zip(said.iter_mut()) {
        while let Some(n) = spawn::read_within(*fd, &mut buffer, Duration::from_millis(2)) {
            if n == 0 {
                // Closed, and poll says so at once; the exit is near.
                std::thread::sleep(Duration::from_millis(1));
                break;
            }
            let room = KEPT.saturating_sub(kept.len());
            kept.extend_from_slice(&buffer[..n.min(room)]);
        }
    }
}
