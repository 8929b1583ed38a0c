//! Output: data on stdout, output of commands on the stream that they wrote to.

use crate::signals::{Signals, Wait};
use crate::{Outcome, Stop, NO_READER};
use sandkasten_runner::sys::{self, Errno};
use serde_json::json;
use std::io::IsTerminal;
use std::os::raw::c_int;
use std::os::unix::io::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

pub const STDOUT: RawFd = 1;
pub const STDERR: RawFd = 2;
/// A pipe that can be written to takes this much without blocking (PIPE_BUF).
const WITHOUT_BLOCKING: usize = 4096;

/// Why not all bytes were written.
pub enum Unwritten {
    Signal(c_int),
    Failed(Errno),
}

/// Print the whole output of a command, whose exit status is then 0.
pub fn print(bytes: &[u8]) -> Outcome {
    let signals = Signals::none().map_err(|_| Stop::Unusual)?;
    let mut left = bytes;
    match write(STDOUT, &mut left, &signals) {
        Ok(()) => Ok(0),
        // The other command line fails as well, and says why.
        Err(_) if left.len() == bytes.len() => Err(Stop::Unusual),
        Err(Unwritten::Failed(libc::EPIPE)) => Ok(NO_READER),
        Err(Unwritten::Failed(errno)) => Err(Stop::Begun(json!({ "url": "", "errno": errno }))),
        Err(Unwritten::Signal(number)) => Ok(128 + number),
    }
}

/// Write bytes to a stream, and leave those in `bytes` that are not written yet when a signal comes.
pub fn write(fd: RawFd, bytes: &mut &[u8], signals: &Signals) -> Result<(), Unwritten> {
    while !bytes.is_empty() {
        match signals
            .wait(fd, libc::POLLOUT, None)
            .map_err(Unwritten::Failed)?
        {
            Wait::Signal(number) => return Err(Unwritten::Signal(number)),
            Wait::Ready | Wait::Timeout => {}
        }
        let size = bytes.len().min(WITHOUT_BLOCKING);
        match sys::write(fd, &bytes[..size]) {
            Ok(count) => *bytes = &bytes[count..],
            Err(libc::EAGAIN) => {}
            Err(errno) => return Err(Unwritten::Failed(errno)),
        }
    }
    Ok(())
}

/// Return whether a stream is a terminal that shows colour.
pub fn has_colour(fd: RawFd) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal(fd)
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

static CLOSED: AtomicBool = AtomicBool::new(false);

/// The standard library opens /dev/null in place of a closed stdout before `main`, and output would be
/// lost with an exit status of 0. The linker has this called before.
extern "C" fn look_at_stdout() {
    let flags = rustix::io::fcntl_getfd(sys::borrow(&STDOUT));
    CLOSED.store(flags.is_err(), Ordering::Relaxed);
}

#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look_at_stdout;

/// Return whether this program was started with a closed stdout, which is then closed again.
pub fn was_closed() -> bool {
    let closed = CLOSED.load(Ordering::Relaxed);
    if closed {
        sys::close(STDOUT);
    }
    closed
}

pub fn is_terminal(fd: RawFd) -> bool {
    sys::borrow(&fd).is_terminal()
}
