//! Records of connections, one JSON object per line, in two files that are used alternately.
//!
//! When the current file is full, the other one is emptied and used; so the newest records are always
//! kept, and a sandbox cannot fill the disk with refusals.

use rustix::fs::ftruncate;
use serde_json::{json, Value};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

const MOST: usize = 1 << 20;
/// Records that wait to be written.
const PENDING: usize = 64;
/// Bytes of records in one answer.
const ANSWER: usize = 48 << 10;

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

    /// Return what follows a sequence number and is not older than a time, oldest first; at most some, so
    /// that an answer fits the buffer of a socket. The files must be readable.
    pub fn after(&mut self, sequence: u64, since: f64) -> Vec<Value> {
        self.flush();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for file in [1 - self.current, self.current] {
            let text = content(&self.files[file]);
            for line in text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
                let record: Value = match serde_json::from_slice(line) {
                    Ok(record) => record,
                    Err(_) => continue,
                };
                let old = record["seq"].as_u64().is_none_or(|seq| seq <= sequence)
                    || record["time"].as_f64().is_none_or(|time| time < since);
                if old {
                    continue;
                }
                bytes += line.len() + 1;
                if bytes > ANSWER {
                    return found;
                }
                found.push(record);
            }
        }
        found
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
            let _full = ftruncate(&self.files[self.current], 0);
        }
        let fd = self.files[self.current].as_raw_fd();
        // A full disk loses records, not connections.
        if crate::sys::write_all(fd, lines.as_bytes()).is_ok() {
            self.written += lines.len();
        }
    }
}

fn content(file: &OwnedFd) -> Vec<u8> {
    let (mut found, mut part) = (Vec::new(), [0u8; 16 << 10]);
    if crate::sys::seek(file.as_raw_fd(), 0, libc::SEEK_SET).is_err() {
        return found;
    }
    // Records are appended, wherever this stops.
    while let Ok(count) = crate::sys::read(file.as_raw_fd(), &mut part) {
        if count == 0 || found.len() > 2 * MOST {
            break;
        }
        found.extend_from_slice(&part[..count]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        let fd = crate::sys::memory_file("records", b"").unwrap();
        // Records are appended to their files.
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::APPEND).unwrap();
        fd
    }

    fn sequences(found: &[Value]) -> Vec<u64> {
        found.iter().filter_map(|one| one["seq"].as_u64()).collect()
    }

    #[test]
    fn records_are_read_in_parts_and_in_order_from_both_files() {
        let mut records = Records::new(file(), file());
        // More than one file holds, and less than both.
        let text = "x".repeat(1000);
        for _ in 0..1500 {
            records.write(json!({"event": "opened", "host": text}));
        }
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let part = sequences(&records.after(after, 0.0));
            match part.last() {
                Some(last) => after = *last,
                None => break,
            }
            assert!(part.len() < 100);
            seen.extend(part);
        }
        assert_eq!(seen, (1..=1500).collect::<Vec<u64>>());
        records.write(json!({"event": "refused"}));
        assert_eq!(sequences(&records.after(1500, 0.0)), [1501]);
        assert!(records.after(0, f64::MAX).is_empty());
    }
}
