//! `fs.read`: a range of a regular file, straight into DATA frames, as fast as credit allows.
//!
//! The size is read once; a file that grows is read to that size, one that shrinks ends early and the
//! RESULT has the number of bytes. Anything but a regular file is `not_regular` before it is
//! opened, and so are files of pseudo file systems, whose size means nothing and whose reads may
//! block for ever.
//!
//! A client on the same kernel can ask for the open file itself: it then reads without us. Small files
//! are sent in any case, which is faster, and so are files of file systems whose reads another program
//! could block.

use super::request::Request;
use super::resolve::{failed, Object};
use super::{entry, names};
use crate::sys::{self, as_fd};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::{json, Value};
use std::os::unix::io::OwnedFd;

/// One whole frame: the client receives the body of a large one in place.
const BUFFER_BYTES: usize = 1024 * 1024;
/// A step sends at most this much before other streams have their turn.
const STEP_BYTES: usize = 1024 * 1024;

/// proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, configfs, bpf, selinux, pstore, devpts
const PSEUDO: [u64; 12] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0xcafe_4a11,
    0xf97c_ff8c,
    0x6165_676c,
    0x1cd1,
];

/// ext4, xfs, btrfs, f2fs, tmpfs
const PASSED: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// Below this the bytes arrive sooner than a descriptor could be checked and read.
const PASSED_FROM: u64 = 64 << 10;

pub struct Read {
    file: OwnedFd,
    path: Vec<u8>,
    entry: Option<Value>,
    size: u64,
    offset: u64,
    left: u64,
    sent: u64,
    buffer: Vec<u8>,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let mut resolver = request.reading()?;
    resolver.magic = "not_regular";
    let path = request.path("path")?;
    let offset = request.count("offset")?.unwrap_or(0);
    let limit = request.count("limit")?;
    let max = request.count("max")?;
    let wants_descriptor = request.flag("descriptor", false)?;
    let held = request.flag("hold", false)?;
    let mut object = resolver.object(&path)?;
    if !sys::is_file(&object.stat) {
        return Err(not_regular(&object.path));
    }
    let file_system = sys::file_system_type(as_fd(&object.fd))
        .map_err(|error| failed(error, "stat", &object.path))?;
    if PSEUDO.contains(&file_system) {
        return Err(not_regular(&object.path));
    }
    let file = resolver.reopen(&object, &path)?;
    object.stat =
        sys::stat_fd(as_fd(&file)).map_err(|error| failed(error, "stat", &object.path))?;
    if !sys::is_file(&object.stat) {
        return Err(not_regular(&object.path));
    }
    let size = object.stat.st_size as u64;
    let rest = size.saturating_sub(offset);
    if let (None, Some(max)) = (limit, max) {
        if rest > max {
            return Err(Failure::new(
                "too_large",
                format!(
                    "{}: {} bytes, more than {}",
                    names::show(&object.path),
                    rest,
                    max
                ),
            ));
        }
    }
    let left = rest.min(limit.unwrap_or(rest));
    if wants_descriptor && left >= PASSED_FROM && PASSED.contains(&file_system) {
        return Ok(Box::new(Passed {
            opened: Some((open_event(&object)?, file)),
            held,
            size,
        }));
    }
    Ok(Box::new(Read {
        file,
        entry: Some(entry::of_object(&object)?),
        path: object.path,
        size,
        offset,
        left,
        sent: 0,
        buffer: Vec::new(),
    }))
}

fn not_regular(path: &[u8]) -> Failure {
    Failure::new(
        "not_regular",
        format!("{} is not a regular file", names::show(path)),
    )
}

impl Handler for Read {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if let Some(entry) = self.entry.take() {
            out.event(json!({ "event": "open", "entry": entry }));
        }
        let mut budget = STEP_BYTES;
        while self.left > 0 {
            let room = out.credit().min(budget).min(BUFFER_BYTES);
            if room == 0 {
                return Ok(if budget == 0 { Step::Again } else { Step::Idle });
            }
            let wanted = self.left.min(room as u64) as usize;
            if self.buffer.len() < wanted {
                // Grown as needed: most files are small, and so is their buffer.
                self.buffer.resize(wanted, 0);
            }
            let buffer = &mut self.buffer[..wanted];
            let count = sys::read_at(as_fd(&self.file), buffer, self.offset)
                .map_err(|error| failed(error, "read", &self.path))?;
            if count == 0 {
                break;
            }
            out.data(&self.buffer[..count]);
            self.offset += count as u64;
            self.left -= count as u64;
            self.sent += count as u64;
            budget -= count;
        }
        out.result(json!({ "size": self.size, "bytes": self.sent }));
        Ok(Step::Done)
    }
}

/// Return the event that is sent with a descriptor. The client compares device and inode, because the
/// descriptor may be lost on the way.
fn open_event(object: &Object) -> Result<Value, Failure> {
    Ok(json!({
        "event": "open",
        "entry": entry::of_object(object)?,
        "descriptor": { "device": object.stat.st_dev, "inode": object.stat.st_ino },
    }))
}

/// A file that the client reads itself.
struct Passed {
    opened: Option<(Value, OwnedFd)>,
    /// The stream stays open until the client has read the file, and the sandbox counts as busy.
    held: bool,
    size: u64,
}

impl Handler for Passed {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if let Some((event, file)) = self.opened.take() {
            out.descriptor(event, file);
        }
        match self.held {
            true => Ok(Step::Idle),
            false => self.end(out),
        }
    }

    fn end(&mut self, out: &mut dyn Out) -> Stepped {
        out.result(json!({ "size": self.size, "bytes": 0 }));
        Ok(Step::Done)
    }
}
