//! How a launch fails: the step that failed, what was attempted, and the errno; and calls that fail so.

use crate::sys::{self, Errno};
use std::ffi::CString;
use std::os::unix::io::{AsRawFd, IntoRawFd, RawFd};

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

    /// Return a failure with the errno of the last failed call.
    pub fn last(step: &'static str, message: impl Into<String>) -> Self {
        Failure::new(step, message, sys::errno())
    }
}

/// Return a function that turns an errno into a failure of this step.
pub fn failed(step: &'static str, what: impl Into<String>) -> impl FnOnce(Errno) -> Failure {
    let what = what.into();
    move |errno| Failure::new(step, what, errno)
}

/// Return a function that turns an error of the standard library into a failure of this step.
pub fn io_failed(step: &'static str, what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(step, what, error.raw_os_error().unwrap_or(0))
}

pub fn check(step: &'static str, what: &str, result: libc::c_int) -> Outcome<libc::c_int> {
    sys::check(result).map_err(failed(step, what))
}

pub fn c_string(step: &'static str, text: &str) -> Outcome<CString> {
    sys::c_string(text.as_bytes()).map_err(failed(step, "a string contains a NUL byte"))
}

/// Return a new pipe. The ends are plain numbers, because forked children pass them on.
pub fn pipe() -> Outcome<(RawFd, RawFd)> {
    let (read, write) = sys::pipe().map_err(failed("descriptors", "pipe2"))?;
    Ok((read.into_raw_fd(), write.into_raw_fd()))
}

pub fn open(step: &'static str, path: &str, flags: i32, mode: u32) -> Outcome<RawFd> {
    let fd = sys::open(path.as_bytes(), flags, mode);
    Ok(fd
        .map_err(failed(step, format!("open {}", path)))?
        .into_raw_fd())
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
