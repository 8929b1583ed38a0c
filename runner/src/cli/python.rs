//! The command line in Python, which this program becomes for all that it does not do itself.
//!
//! It is a script beside this program, in the same environment. The server installs it; without the
//! server, the interpreter there says what to install. If neither is there, this program says it.

use sandkasten_runner::sys;
use serde_json::Value;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{IntoRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = "sandkasten-cli";
const INTERPRETER: &str = "python3";
const WITHOUT_SERVER: [&str; 3] = [
    "-P",
    "-c",
    "from sandkasten.command_line import main; main()",
];
/// The variable with the number of the descriptor of what was begun; `cli/begun_command.py` reads it.
const BEGUN: &str = "_SANDKASTEN_BEGUN";
const HINT: &str = "hint: pip install 'sandkasten-runtime[server]'";
/// The exit status for errors of Sandkasten itself.
const OURS: i32 = 125;

pub struct CommandLine {
    directory: PathBuf,
}

impl CommandLine {
    pub fn find() -> CommandLine {
        let program = std::env::current_exe()
            .ok()
            .or_else(without_proc)
            .unwrap_or_default();
        CommandLine {
            directory: program.parent().unwrap_or_else(|| Path::new("")).into(),
        }
    }

    /// Return whether the server is installed, so that every command works.
    pub fn is_complete(&self) -> bool {
        sys::is_executable(self.directory.join(SCRIPT).as_os_str().as_bytes())
    }

    /// Become the other command line. Return an exit status if that fails.
    pub fn become_it(&self, words: &[OsString], begun: Option<Value>) -> i32 {
        let mut command = match self.command() {
            Some(command) => command,
            None => {
                eprintln!("error: the command line is not installed\n{}", HINT);
                return OURS;
            }
        };
        command.args(words).env_remove(BEGUN);
        if let Some(begun) = begun {
            match passed_on(&begun) {
                Ok(fd) => command.env(BEGUN, fd.to_string()),
                Err(errno) => {
                    let error = std::io::Error::from_raw_os_error(errno);
                    eprintln!(
                        "error: the command was begun and cannot be finished: {}",
                        error
                    );
                    return OURS;
                }
            };
        }
        let error = command.exec();
        eprintln!(
            "error: {:?} could not be started: {}\n{}",
            command.get_program(),
            error,
            HINT
        );
        OURS
    }

    /// Return what runs it; None if nothing beside this program does. An interpreter on PATH is not
    /// asked: it may be that of another environment, or of another user.
    fn command(&self) -> Option<Command> {
        if self.is_complete() {
            return Some(Command::new(self.directory.join(SCRIPT)));
        }
        let interpreter = self.directory.join(INTERPRETER);
        sys::is_executable(interpreter.as_os_str().as_bytes()).then(|| {
            let mut command = Command::new(interpreter);
            command.args(WITHOUT_SERVER);
            command
        })
    }
}

/// Return the path that this program was started by.
fn without_proc() -> Option<PathBuf> {
    // SAFETY: the kernel gives every program this string, which lives as long as the process, or the
    // result is 0.
    let path = unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!path.is_null()).then(|| CStr::from_ptr(path))
    }?;
    std::fs::canonicalize(OsStr::from_bytes(path.to_bytes())).ok()
}

/// Return the descriptor of a file without a name, which the next program in this process has too.
fn passed_on(begun: &Value) -> sys::Result<RawFd> {
    let file = sys::memory_file("begun", begun.to_string().as_bytes())?;
    // The copy is not closed by exec.
    sys::plain(rustix::io::dup(file)).map(IntoRawFd::into_raw_fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_was_begun_is_read_from_the_descriptor() {
        let fd = passed_on(&serde_json::json!({"seen": 1})).unwrap();
        let mut file = std::fs::File::from(sys::own(fd));
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, r#"{"seen":1}"#);
    }

    #[test]
    fn the_program_is_found_with_and_without_proc() {
        let path = std::fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(without_proc().unwrap(), path);
        assert_eq!(CommandLine::find().directory, path.parent().unwrap());
        assert!(!CommandLine::find().is_complete());
    }
}
