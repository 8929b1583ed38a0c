//! Why unpacking stopped: a closed set of kinds that the caller turns into its own errors.

use crate::sys::Errno;
pub use crate::tar::show;

use crate::tar::reader::{Reason, Refusal};
use crate::tar::Invalid;
use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Not a tar archive, a corrupt one, or one that stops early.
    Malformed,
    /// A name or link that leads outside the target.
    Hostile,
    /// More, larger, longer or deeper than allowed.
    Limit,
    /// The disk or a quota is full.
    Space,
    /// The kernel refused something else.
    System,
    /// Wrong arguments.
    Usage,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Malformed => "malformed",
            Kind::Hostile => "hostile",
            Kind::Limit => "limit",
            Kind::Space => "space",
            Kind::System => "system",
            Kind::Usage => "usage",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub errno: i32,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
            errno: 0,
        }
    }

    /// Return a failure of the kernel. `what`: what was attempted.
    pub fn kernel(what: impl AsRef<str>, errno: Errno) -> Failure {
        let kind = match errno {
            libc::ENOSPC | libc::EDQUOT => Kind::Space,
            libc::ENAMETOOLONG | libc::EMLINK | libc::EFBIG => Kind::Limit,
            _ => Kind::System,
        };
        Failure {
            kind,
            message: format!("{}: {}", what.as_ref(), describe(errno)),
            errno,
        }
    }
}

impl From<Invalid> for Failure {
    fn from(reason: Invalid) -> Failure {
        malformed(reason.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal.reason {
            Reason::NotTar => malformed(format!("this is not a tar archive: {}", refusal.message)),
            Reason::Malformed | Reason::Unsupported => malformed(refusal.message),
            Reason::Limit => limit(refusal.message),
        }
    }
}

/// Return the kernel's description of an error number.
pub fn describe(errno: Errno) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

pub fn malformed(message: impl Into<String>) -> Failure {
    Failure::new(Kind::Malformed, message)
}

pub fn hostile(message: impl Into<String>) -> Failure {
    Failure::new(Kind::Hostile, message)
}

pub fn limit(message: impl Into<String>) -> Failure {
    Failure::new(Kind::Limit, message)
}
