//! From a request to a running program: what is prepared before the fork, and the child's path to exec.
//!
//! Everything that allocates or can be refused is done in `Program::new`; the child only makes system
//! calls, and reports by stage and errno where it failed.

use crate::identity::Identity;
use crate::sys::{self, plain, Errno};
use crate::wire::handler::Failure;
use rustix::io::{dup3, fcntl_setfd, DupFlags, FdFlags};
use rustix::process::{
    chdir, ioctl_tiocsctty, set_dumpable_behavior, setpgid, setsid, DumpableBehavior,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::os::unix::io::{AsRawFd, RawFd};

/// The stage at which a child could not start the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Prepare = 1,
    Cwd = 2,
    Exec = 3,
}

pub type Env = Vec<(Vec<u8>, Vec<u8>)>;

pub struct Program {
    pub argv: Strings,
    pub env: Strings,
    pub candidates: Vec<CString>,
    pub cwd: CString,
}

/// Strings, and the array of them that execve wants: made here, because a child that shares its
/// parent's memory and execs would never free what it allocates.
pub struct Strings {
    pub own: Vec<CString>,
    list: Vec<*const libc::c_char>,
}

impl From<Vec<CString>> for Strings {
    fn from(own: Vec<CString>) -> Strings {
        let pointers = own.iter().map(|string| string.as_ptr());
        let list = pointers.chain([std::ptr::null()]).collect();
        Strings { own, list }
    }
}

/// The descriptors of a child; all are above 2 and closed on exec in their original place.
pub struct Wiring {
    pub stdio: [RawFd; 3],
    /// The descriptor that a shell answers on; it becomes descriptor 9.
    pub answer: Option<RawFd>,
    /// Standard input is a terminal that becomes the controlling one.
    pub terminal: bool,
    /// A shell stays in the session of its supervisor: opening a terminal must not make it the
    /// controlling one.
    pub own_session: bool,
}

pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub fn env_get<'a>(env: &'a Env, name: &[u8]) -> Option<&'a [u8]> {
    env.iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_slice())
}

pub fn env_set(env: &mut Env, name: &[u8], value: Vec<u8>) {
    match env.iter_mut().find(|(key, _)| key == name) {
        Some(pair) => pair.1 = value,
        None => env.push((name.to_vec(), value)),
    }
}

impl Program {
    pub fn new(argv: &[Vec<u8>], env: &Env, cwd: &[u8]) -> Result<Program, Errno> {
        let first = argv.first().ok_or(libc::EINVAL)?;
        let mut candidates = Vec::new();
        if first.contains(&b'/') {
            candidates.push(sys::c_string(first)?);
        } else if !first.is_empty() {
            let path = env_get(env, b"PATH").unwrap_or(DEFAULT_PATH);
            for directory in path.split(|&c| c == b':') {
                let mut candidate = directory.to_vec();
                if !candidate.is_empty() {
                    candidate.push(b'/');
                }
                candidate.extend_from_slice(first);
                candidates.push(sys::c_string(&candidate)?);
            }
        }
        let argv = argv
            .iter()
            .map(|word| sys::c_string(word))
            .collect::<Result<Vec<_>, _>>()?;
        let mut pairs = Vec::with_capacity(env.len());
        for (name, value) in env {
            let mut pair = name.clone();
            pair.push(b'=');
            pair.extend_from_slice(value);
            pairs.push(sys::c_string(&pair)?);
        }
        Ok(Program {
            argv: argv.into(),
            env: pairs.into(),
            candidates,
            cwd: sys::c_string(cwd)?,
        })
    }

    /// In the child: become the program, or return the stage that failed and why.
    pub fn run(&self, wiring: &Wiring, identity: &Identity) -> (Stage, Errno) {
        if let Err(errno) = prepare(wiring, identity) {
            return (Stage::Prepare, errno);
        }
        if let Err(errno) = plain(chdir(self.cwd.as_c_str())) {
            return (Stage::Cwd, errno);
        }
        unblock_signals();
        (Stage::Exec, self.exec())
    }

    fn exec(&self) -> Errno {
        let (argv, env) = (&self.argv.list, &self.env.list);
        let mut verdict = libc::ENOENT;
        for candidate in &self.candidates {
            // SAFETY: both arrays are NULL-terminated lists of NUL-terminated strings.
            unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
            match sys::errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // Found, but not allowed: keep looking, and report this if nothing better comes.
                libc::EACCES => verdict = libc::EACCES,
                other => return other,
            }
        }
        verdict
    }
}

fn prepare(wiring: &Wiring, identity: &Identity) -> Result<(), Errno> {
    match wiring.own_session {
        true => plain(setsid().map(drop))?,
        false => plain(setpgid(None, None))?,
    }
    let [stdin, stdout, stderr] = wiring.stdio.each_ref().map(sys::borrow);
    plain(dup2_stdin(stdin))?;
    plain(dup2_stdout(stdout))?;
    plain(dup2_stderr(stderr))?;
    if wiring.terminal {
        plain(ioctl_tiocsctty(rustix::stdio::stdin()))?;
    }
    match wiring.answer {
        Some(9) => plain(fcntl_setfd(sys::borrow(&9), FdFlags::empty()))?,
        Some(fd) => copy_onto(fd, 9, DupFlags::empty())?,
        None => {}
    }
    identity.as_owner(raise_oom_score);
    identity.become_user()
}

/// Make `target` a copy of another descriptor. Where it was open, its owner must not use it any more.
pub(super) fn copy_onto(fd: RawFd, target: RawFd, flags: DupFlags) -> Result<(), Errno> {
    let mut target = ManuallyDrop::new(sys::own(target));
    plain(dup3(sys::borrow(&fd), &mut target, flags))
}

/// Make the OOM killer prefer the user's processes to ours.
fn raise_oom_score() {
    let write = || {
        let file = sys::open(b"/proc/self/oom_score_adj", libc::O_WRONLY, 0)?;
        sys::write_all(file.as_raw_fd(), b"500")
    };
    if write().is_err() {
        // Without root, the files of a non-dumpable process belong to another user.
        let _optional = set_dumpable_behavior(DumpableBehavior::Dumpable);
        let _optional = write();
        let _optional = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

fn unblock_signals() {
    // SAFETY: a zeroed set is initialised by sigemptyset; SIG_DFL is a valid disposition.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Return the protocol's error for a program that did not start.
pub fn not_started(stage: i64, errno: Errno, program: &[u8], cwd: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(program);
    if stage == Stage::Cwd as i64 {
        let cwd = String::from_utf8_lossy(cwd);
        return Failure::from_errno(errno, format!("cannot enter {cwd}"));
    }
    let mut failure = Failure::from_errno(errno, format!("cannot run {shown}"));
    if stage == Stage::Exec as i64 {
        match errno {
            libc::ENOENT | libc::ENOTDIR => failure.code = "command_not_found",
            libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::EPERM | libc::ELIBBAD => {
                failure.code = "not_executable"
            }
            _ => {}
        }
    }
    failure
}
