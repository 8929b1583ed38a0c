//! How a launch fails: the step that failed, what was attempted, and the errno; and calls that fail so.

use crate::sys::{self, Errno};
use std::ffi::CString;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// `step` is one of a closed set that the caller turns into a hint.
#[derive(Debug)]
pub struct Failure {
    pub step: &'static str,
    pub message: String,
    pub errno: Errno,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(step: &'static str, message: impl Into<String>, errno: Errno) -> Self {
        Failure {
            step,
            message: message.into(),
            errno,
        }
    }
}

/// An error of the kernel, in one of the forms that it has.
pub trait Number {
    fn number(self) -> Errno;
}

impl Number for Errno {
    fn number(self) -> Errno {
        self
    }
}

impl Number for rustix::io::Errno {
    fn number(self) -> Errno {
        self.raw_os_error()
    }
}

impl Number for std::io::Error {
    fn number(self) -> Errno {
        self.raw_os_error().unwrap_or(0)
    }
}

/// Return a function that turns an error into a failure of this step.
pub fn failed<E: Number>(step: &'static str, what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    let what = what.into();
    move |error| Failure::new(step, what, error.number())
}

pub fn c_string(step: &'static str, text: &str) -> Outcome<CString> {
    sys::c_string(text.as_bytes()).map_err(failed(step, "a string contains a NUL byte"))
}

/// Return a new pipe.
pub fn pipe() -> Outcome<(OwnedFd, OwnedFd)> {
    sys::pipe().map_err(failed("descriptors", "pipe2"))
}

pub fn open(step: &'static str, path: &str, flags: i32, mode: u32) -> Outcome<OwnedFd> {
    sys::open(path.as_bytes(), flags, mode).map_err(failed(step, format!("open {}", path)))
}

/// Write in one call: the kernel's control files want the whole value at once.
pub fn write_file(step: &'static str, path: &str, content: &[u8]) -> Outcome<()> {
    let written = sys::open(path.as_bytes(), libc::O_WRONLY, 0)
        .and_then(|file| sys::write_all(file.as_raw_fd(), content));
    written.map_err(|errno| {
        let reason = std::io::Error::from_raw_os_error(errno);
        Failure::new(step, format!("write {}: {}", path, reason), errno)
    })
}
