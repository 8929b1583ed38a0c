//! The interface between the event loop and the verbs: one `Handler` lives as long as one open stream.
//!
//! The loop owns sockets, credit and framing; a handler owns what the verb does.
//! A handler never blocks for long: it works in small steps (`Step::Again`) so that one huge
//! directory or file never delays another stream.

use serde_json::Value;
use std::os::unix::io::{OwnedFd, RawFd};

/// An error of the protocol: `code` is one of the closed set in `spec/runner`.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
    pub errno: Option<i32>,
}

impl Failure {
    pub fn new(code: &'static str, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
            errno: None,
        }
    }

    /// Return an error for a wrong request: a missing field, a wrong type, a NUL, a name out of bounds.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new("invalid", message)
    }

    /// Return the protocol's error for an errno. `what`: what was attempted, on what.
    pub fn from_errno(errno: i32, what: impl Into<String>) -> Failure {
        let code = match errno {
            libc::ENOENT => "not_found",
            libc::EEXIST => "exists",
            libc::ENOTDIR => "not_directory",
            libc::EISDIR => "is_directory",
            libc::ENOTEMPTY => "not_empty",
            libc::EACCES | libc::EPERM | libc::EROFS => "permission",
            libc::EXDEV => "blocked",
            libc::EFBIG | libc::E2BIG | libc::EOVERFLOW | libc::EMSGSIZE => "too_large",
            libc::ENOSPC | libc::EDQUOT => "no_space",
            libc::EAGAIN => "too_many_processes",
            libc::ENOMEM => "no_memory",
            libc::ELOOP => "loop",
            libc::ENAMETOOLONG => "name_too_long",
            libc::EBUSY | libc::ETXTBSY | libc::EMFILE | libc::ENFILE => "busy",
            libc::EINVAL => "invalid",
            libc::ENOSYS | libc::EOPNOTSUPP => "unsupported",
            libc::ENOEXEC => "not_executable",
            libc::ENXIO | libc::ENODEV => "not_regular",
            libc::ECONNREFUSED => "connection_refused",
            libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => "closed",
            _ => "io",
        };
        Failure {
            code,
            message: format!("{}: {}", what.into(), errno_text(errno)),
            errno: Some(errno),
        }
    }

    pub fn to_json(&self) -> Value {
        let mut body = serde_json::Map::new();
        body.insert("code".to_owned(), Value::from(self.code));
        body.insert("message".to_owned(), Value::from(self.message.as_str()));
        if let Some(errno) = self.errno {
            body.insert("errno".to_owned(), Value::from(errno));
        }
        Value::Object(body)
    }
}

fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    // The standard library appends " (os error N)"; the number has its own field.
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// What a handler wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do: call `step` again after the other streams had their turn.
    Again,
    /// Nothing to do until data, credit or a ready descriptor arrives.
    Idle,
    /// `Out::result` or `Out::error` was called; the stream is over.
    Done,
}

/// Where a handler writes its answer. Implemented by a connection's stream, and by a recorder in tests.
pub trait Out {
    /// DATA bytes that may be sent now. `data` beyond it is a bug in the handler.
    fn credit(&self) -> usize;
    fn data(&mut self, bytes: &[u8]);
    fn event(&mut self, body: Value);
    /// Send an event and a descriptor with it. The descriptor may be lost on the way.
    fn descriptor(&mut self, body: Value, descriptor: OwnedFd);
    /// Permit the client to send `n` more DATA bytes.
    fn grant(&mut self, n: u32);
    fn result(&mut self, body: Value);
    fn error(&mut self, failure: Failure);
}

/// What a call of a handler returns. A failure is the answer, and the stream is over.
pub type Stepped = Result<Step, Failure>;

/// A handler is dropped when its stream is over, at CANCEL, and when the connection is gone. What is half
/// made then is undone; the loop answers `cancelled` itself.
pub trait Handler {
    /// Called right after OPEN, on new credit, on readiness of `fd`, and after `Step::Again`.
    fn step(&mut self, out: &mut dyn Out) -> Stepped;
    /// The client sent DATA (never more than was granted). Call `out.grant` once it is consumed. A verb
    /// that takes none discards it, and grants it back so that the client does not wait.
    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Stepped {
        out.grant(bytes.len() as u32);
        Ok(Step::Again)
    }
    /// The client will send no more DATA.
    fn end(&mut self, _out: &mut dyn Out) -> Stepped {
        Ok(Step::Again)
    }
    /// A descriptor to wait on, and whether for reading and/or writing; asked again after every call.
    fn interest(&self) -> Option<(RawFd, bool, bool)> {
        None
    }
}
