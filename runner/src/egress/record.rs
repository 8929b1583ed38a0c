//! What happened, one JSON object per line, in two files that take turns.
//!
//! When the current file is full, the other one is emptied and used; so the newest records are always
//! kept, and a sandbox cannot fill the disk with refusals.

use serde_json::{json, Value};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

const MOST: usize = 1 << 20;

pub struct Records {
    files: [OwnedFd; 2],
    current: usize,
    written: usize,
    sequence: u64,
}

impl Records {
    pub fn new(first: OwnedFd, second: OwnedFd) -> Records {
        Records {
            files: [first, second],
            current: 0,
            written: 0,
            sequence: 0,
        }
    }

    pub fn write(&mut self, mut record: Value) {
        self.sequence += 1;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64());
        record["seq"] = json!(self.sequence);
        record["time"] = json!((now * 1000.0).round() / 1000.0);
        let mut line = record.to_string();
        line.push('\n');
        if self.written + line.len() > MOST {
            self.current = 1 - self.current;
            self.written = 0;
            // SAFETY: plain system call on a descriptor of ours.
            unsafe { libc::ftruncate(self.files[self.current].as_raw_fd(), 0) };
        }
        let fd = self.files[self.current].as_raw_fd();
        // A full disk loses records, not connections.
        if crate::sys::write_all(fd, line.as_bytes()).is_ok() {
            self.written += line.len();
        }
    }
}
