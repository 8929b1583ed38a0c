//! System calls in the form that all programs use: of rustix, and of libc where rustix does not have them.
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
use std::os::raw::c_int;
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// Return the result of a call with its error as a number.
pub fn plain<T>(result: rustix::io::Result<T>) -> Result<T> {
    result.map_err(rustix::io::Errno::raw_os_error)
}

/// Repeat `call` while a signal interrupts it.
pub fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    plain(rustix::io::retry_on_intr(call))
}

/// Borrow a descriptor by its number, for the length of one call.
pub fn borrow(fd: &impl AsRawFd) -> BorrowedFd<'_> {
    // -1 cannot be borrowed; the kernel refuses any other negative number for the same reason.
    let number = fd.as_raw_fd();
    let number = if number == -1 { RawFd::MIN } else { number };
    // SAFETY: the kernel checks the number in each call, and only `OwnedFd`s close descriptors.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Take ownership of a descriptor that has no other owner.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every call site passes a descriptor that the kernel has just returned, or that this program
    // was started with.
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
