//! Records of connections, one JSON object per line, in two files that are used alternately.
//!
//! When the current file is full, the other one is emptied and used; so the newest records are always
//! kept, and a sandbox cannot fill the disk with refusals.

use serde_json::{json, Value};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

const MOST: usize = 1 << 20;
/// Records that wait to be written.
const PENDING: usize = 64;

pub struct Records {
    files: [OwnedFd; 2],
    current: usize,
    written: usize,
    sequence: u64,
    /// Not written yet. They become text only then, so that connections do not wait for that either.
    pending: Vec<Value>,
}

impl Records {
    pub fn new(first: OwnedFd, second: OwnedFd) -> Records {
        Records {
            files: [first, second],
            current: 0,
            written: 0,
            sequence: 0,
            pending: Vec::new(),
        }
    }

    pub fn write(&mut self, mut record: Value) {
        self.sequence += 1;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64());
        record["seq"] = json!(self.sequence);
        record["time"] = json!((now * 1000.0).round() / 1000.0);
        // The result of a command names what was refused, so a refusal must be in the file before the
        // client gets its answer.
        let can_wait = matches!(record["event"].as_str(), Some("opened" | "closed"));
        self.pending.push(record);
        if !can_wait || self.pending.len() > PENDING {
            self.flush();
        }
    }

    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Write what is pending.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut lines = String::new();
        for record in self.pending.drain(..) {
            lines.push_str(&record.to_string());
            lines.push('\n');
        }
        if self.written + lines.len() > MOST {
            self.current = 1 - self.current;
            self.written = 0;
            // SAFETY: plain system call on a descriptor of ours.
            unsafe { libc::ftruncate(self.files[self.current].as_raw_fd(), 0) };
        }
        let fd = self.files[self.current].as_raw_fd();
        // A full disk loses records, not connections.
        if crate::sys::write_all(fd, lines.as_bytes()).is_ok() {
            self.written += lines.len();
        }
    }
}
