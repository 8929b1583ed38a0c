//! Code shared by the two programs between a sandbox and others: `sandkasten-egress`, the way out, and
//! `sandkasten-gate`, the way in. In a Pod they share a directory, and nothing else has it.

pub mod reachability;
pub mod side;
pub mod websocket_frame;

use crate::sys;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::io::OwnedFd;
use std::path::Path;

/// Sockets in the directory of a Pod: the egress process connects to the first one, where the gate
/// listens, and listens for commands at the second one.
pub const LIFE: &str = "life";
pub const CONTROL: &str = "control";

/// Listen at a path that the other containers with this directory may use, whatever their user id.
pub fn listen(path: &Path) -> Result<OwnedFd, String> {
    let listener = sys::listen_unix(path.as_os_str().as_bytes()).map_err(|errno| {
        format!(
            "cannot listen: {}",
            std::io::Error::from_raw_os_error(errno)
        )
    })?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
        .map_err(|e| format!("cannot listen: {}", e))?;
    Ok(listener)
}

/// The kubelet ends the Pod. If all containers ended well, it would report that the Pod succeeded, and
/// leave out that it was evicted, and why.
extern "C" fn leave(signal: libc::c_int) {
    // SAFETY: allowed in a signal handler.
    unsafe { libc::_exit(128 + signal) }
}

/// End when we are asked to. The first process of a container gets no signal without a handler.
pub fn leave_on_request() {
    let handler = leave as extern "C" fn(libc::c_int);
    // SAFETY: plain system call.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}
