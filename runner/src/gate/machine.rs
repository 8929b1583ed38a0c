//! `--machine`: the gate of a sandbox that is a machine of a provider, and the parent of its runner.
//!
//! Both programs are in one machine, and so is the code of the user: no second container. The
//! gate is root, the runner another user, and code a third one; all secrets are in directories of root.
//! The runner fetches its listener as that of a Pod does, and both programs end together. Neither can
//! gain privileges, so set-user-id programs of the image have no effect.
//!
//! The keys are files that the provider brought, or a variable of the gate, where a provider cannot bring
//! files that only root can read. The gate writes them then; the runner does not get the variable.
//!
//! Clients come over TLS, or over TLS in a WebSocket: most providers pass only HTTP on.

use crate::base64;
use crate::enclosure::{self, Enclosure};
use crate::server::Gate;
use crate::socket_filter::SocketFilter;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const USAGE: &str = "usage: sandkasten-gate --machine PORT DIRECTORY [--lifetime SECONDS] \
    [--no-network] [--hide DIRECTORY]... RUNNER [ARGUMENT]...";
/// Where the runner fetches its listener, in a directory that only its group can enter.
const HAND_OVER: &str = "entry/socket";

/// The keys as `NAME=BASE64` words, separated by spaces.
const KEYS: &str = "SANDKASTEN_GATE_KEYS";

pub struct Machine {
    gate: Gate,
    directory: PathBuf,
    enclosure: Enclosure,
    runner: Vec<OsString>,
}

impl Machine {
    /// Return the machine that the arguments after `--machine` ask for.
    pub fn parse(arguments: &[OsString]) -> Result<Machine, String> {
        let (port, directory, rest) = match arguments {
            [port, directory, rest @ ..] => (port, PathBuf::from(directory), rest),
            _ => return Err(USAGE.to_owned()),
        };
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
                directory.join(HAND_OVER),
                directory.join("private/listener"),
            ),
            directory,
            enclosure,
            runner: runner.to_vec(),
        })
    }

    /// Serve until the runner ends, or until we are asked to.
    pub fn serve(self) -> Result<(), String> {
        self.prepare()?;
        self.enclosure.begin()?;
        let (runner, closed) = (self.runner, self.enclosure.no_network);
        let hand_over = self.directory.join(HAND_OVER);
        self.gate
            .serve_child(move || start(&runner, &hand_over, closed))
    }

    /// Make the directories: ours only for root, those of the runner and of the user for them.
    fn prepare(&self) -> Result<(), String> {
        let ids = value_of(&self.runner, "--run-as").and_then(ids_in);
        make(&self.directory, 0o711)?;
        for name in ["keys", "private"] {
            make(&self.directory.join(name), 0o700)?;
        }
        if let Some(text) = std::env::var_os(KEYS) {
            write_keys(&self.directory.join("keys"), &text.to_string_lossy())?;
        }
        let entry = self.directory.join("entry");
        make(&entry, 0o710)?;
        if let Some((uid, gid)) = ids {
            own(&entry, 0, gid)?;
            if let Some(state) = value_of(&self.runner, "--state-dir") {
                make(Path::new(state), 0o711)?;
                own(Path::new(state), uid, gid)?;
            }
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

fn start(runner: &[OsString], hand_over: &Path, closed: bool) -> Result<Child, String> {
    let mut command = Command::new(&runner[0]);
    command
        .env_remove(KEYS)
        .arg("--receive")
        .arg(hand_over)
        .args(&runner[1..]);
    if closed {
        let filter = SocketFilter::new();
        // SAFETY: plain system calls are allowed between fork and exec.
        unsafe {
            command.pre_exec(move || enclosure::leave_network().and_then(|()| filter.take()))
        };
    }
    command
        .spawn()
        .map_err(|error| format!("cannot start {}: {}", runner[0].to_string_lossy(), error))
}

fn write_keys(directory: &Path, text: &str) -> Result<(), String> {
    for word in text.split(' ') {
        let (name, content) = word.split_once('=').unwrap_or_default();
        let known = ["cert.der", "key.der", "token"].contains(&name);
        let content = base64::decode(content.as_bytes()).filter(|_| known);
        let content = content.ok_or_else(|| format!("{KEYS} is damaged"))?;
        let path = directory.join(name);
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&content))
            .map_err(|error| told(&path, &error))?;
    }
    Ok(())
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
