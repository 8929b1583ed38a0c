//! `--machine`: the gate of a sandbox that is a machine of a provider, and the parent of its runner.
//!
//! There is no second container: both programs are in the machine, and so is the code of the user. The
//! gate is root, the runner another user, and code a third one; all secrets are in directories of root.
//! The runner inherits its listener, whose path only root can reach. Neither program can gain
//! privileges, so set-user-id programs of the image have no effect.
//!
//! Clients come over TLS, or over TLS in a WebSocket: most providers pass only HTTP on.

use crate::enclosure::{self, Enclosure};
use crate::gate::Gate;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const USAGE: &str = "usage: sandkasten-egress --machine PORT DIRECTORY [--lifetime SECONDS] \
    [--no-network] [--hide DIRECTORY]... RUNNER [ARGUMENT]...";
/// Outside of the standard descriptors; the runner moves it.
const LISTENER_FD: i32 = 3;

pub struct Machine {
    gate: Gate,
    directory: PathBuf,
    enclosure: Enclosure,
    runner: Vec<OsString>,
}

/// Return the machine that a command line asks for; None if it asks for none.
pub fn wanted(arguments: &[OsString]) -> Option<Result<Machine, String>> {
    match arguments {
        [mode, port, directory, rest @ ..] if mode == "--machine" => {
            Some(parse(port, directory, rest))
        }
        [mode, ..] if mode == "--machine" => Some(Err(USAGE.to_owned())),
        _ => None,
    }
}

fn parse(port: &OsStr, directory: &OsStr, rest: &[OsString]) -> Result<Machine, String> {
    let directory = PathBuf::from(directory);
    let port = port.to_str().and_then(|port| port.parse().ok());
    let port = port.ok_or("the port must be a number")?;
    let (enclosure, runner) = Enclosure::parse(rest)?;
    if runner.is_empty() {
        return Err(USAGE.to_owned());
    }
    Ok(Machine {
        gate: Gate::of_machine(
            port,
            directory.join("keys"),
            directory.join("private/listener"),
        ),
        directory,
        enclosure,
        runner: runner.to_vec(),
    })
}

impl Machine {
    /// Serve until the runner ends, or until we are asked to.
    pub fn serve(self) -> Result<(), String> {
        self.prepare()?;
        self.enclosure.begin()?;
        let (gate, runner, closed) = (self.gate, self.runner, self.enclosure.no_network);
        gate.serve_runner(move |listener| start(&runner, listener, closed))
    }

    /// Make the directories: ours for root alone, those of the runner and of the user for them.
    fn prepare(&self) -> Result<(), String> {
        let ids = value_of(&self.runner, "--run-as").and_then(ids_in);
        make(&self.directory, 0o711)?;
        for name in ["keys", "private"] {
            make(&self.directory.join(name), 0o700)?;
        }
        if let (Some((uid, gid)), Some(state)) = (ids, value_of(&self.runner, "--state-dir")) {
            let state = Path::new(state);
            make(state, 0o711)?;
            own(state, uid, gid)?;
        }
        let mut words = self.runner.iter();
        while let Some(word) = words.next() {
            if let (true, Some(path)) = (word == "--own", words.clone().next()) {
                // It may exist, with whatever mode the image gave to it.
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(path)
                    .map_err(|error| told(Path::new(path), &error))?;
            }
        }
        Ok(())
    }
}

fn start(runner: &[OsString], listener: OwnedFd, closed: bool) -> Result<Child, String> {
    let fd = listener.as_raw_fd();
    let mut command = Command::new(&runner[0]);
    command
        .arg("--listen-fd")
        .arg(LISTENER_FD.to_string())
        .args(&runner[1..]);
    // SAFETY: plain system calls are allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if closed {
                enclosure::leave_network()?;
            }
            let done = match fd {
                LISTENER_FD => libc::fcntl(fd, libc::F_SETFD, 0),
                _ => libc::dup2(fd, LISTENER_FD),
            };
            match done {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    command
        .spawn()
        .map_err(|error| format!("cannot start {}: {}", runner[0].to_string_lossy(), error))
}

fn value_of<'a>(words: &'a [OsString], option: &str) -> Option<&'a OsStr> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(OsString::as_os_str)
}

fn ids_in(text: &OsStr) -> Option<(u32, u32)> {
    let (uid, gid) = text.to_str()?.split_once(':')?;
    Some((uid.parse().ok()?, gid.parse().ok()?))
}

fn make(path: &Path, mode: u32) -> Result<(), String> {
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        .map_err(|error| told(path, &error))
}

fn own(path: &Path, uid: u32, gid: u32) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    crate::sys::own_dir(path.as_os_str().as_bytes(), uid, gid)
        .map_err(|errno| told(path, &std::io::Error::from_raw_os_error(errno)))
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("cannot prepare {}: {}", path.display(), error)
}
