//! Thin wrappers over the system calls that the standard library does not offer.
//!
//! No policy: nothing in this folder knows what a command, an archive or a launch plan is. Every error is
//! a bare errno, every new descriptor is close-on-exec, and an interrupted call is repeated.

mod at;
mod clock;
mod descriptor;
mod file;
mod process;
mod socket;
mod stat;

pub use at::*;
pub use clock::*;
pub use descriptor::*;
pub use file::*;
pub use process::*;
pub use socket::*;
pub use stat::*;

use std::ffi::CString;
use std::os::raw::{c_int, c_long};
use std::os::unix::io::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

pub type Errno = i32;
pub type Result<T> = std::result::Result<T, Errno>;

/// Return the error number of the last failed call.
pub fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Return the error number behind an error of the standard library.
pub fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Turn a negative return value into the errno of the call.
pub fn check(result: c_int) -> Result<c_int> {
    if result < 0 {
        Err(errno())
    } else {
        Ok(result)
    }
}

/// Repeat `call` while a signal interrupts it.
fn retry(mut call: impl FnMut() -> c_long) -> Result<c_long> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        let errno = errno();
        if errno != libc::EINTR {
            return Err(errno);
        }
    }
}

/// Take ownership of a descriptor that the kernel has just returned and that has no other owner.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every call site passes a descriptor that it has just created.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Borrow a descriptor. Shorter at call sites than importing the trait.
pub fn as_fd(fd: &OwnedFd) -> BorrowedFd<'_> {
    AsFd::as_fd(fd)
}

/// Return `bytes` with a terminating NUL; a NUL inside is EINVAL.
pub fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| libc::EINVAL)
}
