//! `fs.list`: one page of a directory or a tree, in order, in small steps.
//!
//! The cursor is the path of the last listed entry, relative to the listed directory; a page begins
//! right after it, whether it still exists or not. So entries that come and go never make another entry
//! appear twice or not at all. A directory below that may not be read is listed, and its content is
//! not. Entries under a denied prefix are left out, as `fs.stat` would refuse them.

use super::policy::Policy;
use super::request::Request;
use super::resolve::failed;
use super::walk::{Visit, Walker};
use super::{entry, names};
use crate::sys::{self, Stat};
use crate::wire::bytes;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::{json, Value};
use std::collections::VecDeque;

const DEFAULT_LIMIT: u64 = 1000;
const MOST: u64 = 5000;

/// A page ends before its RESULT exceeds this; the frame may have 1 MiB.
const PAGE_BYTES: usize = 900 * 1024;

/// Entries of one step; a buffer of directory records counts as `SCAN_COST` of them.
const STEP_ENTRIES: usize = 256;
const SCAN_COST: usize = 64;

pub struct List {
    walker: Walker,
    base: Vec<u8>,
    policy: Policy,
    recursive: bool,
    limit: usize,
    /// Components of the cursor that are still to be entered.
    seek: VecDeque<Vec<u8>>,
    entries: Vec<Value>,
    bytes: usize,
    cursor: Vec<u8>,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.reading()?;
    let path = request.path("path")?;
    let recursive = request.flag("recursive", false)?;
    let limit = request.count("limit")?.unwrap_or(DEFAULT_LIMIT).min(MOST);
    if limit == 0 {
        return Err(Failure::invalid("limit: a page has at least one entry"));
    }
    let cursor = request.bytes("cursor")?.unwrap_or_default();
    let object = resolver.object(&path)?;
    if !sys::is_dir(&object.stat) {
        return Err(Failure::from_errno(
            libc::ENOTDIR,
            format!("list {}", names::show(&object.path)),
        ));
    }
    let dir = resolver.reopen(&object, &path)?;
    let limit = limit as usize;
    let walker =
        Walker::new(dir, limit + 1).map_err(|error| failed(error, "list", &object.path))?;
    let seek = parse_cursor(&cursor, recursive)?;
    Ok(Box::new(List {
        walker,
        base: object.path,
        policy: resolver.policy,
        recursive,
        limit,
        seek,
        entries: Vec::new(),
        bytes: 0,
        cursor,
    }))
}

fn parse_cursor(cursor: &[u8], recursive: bool) -> Result<VecDeque<Vec<u8>>, Failure> {
    if cursor.is_empty() {
        return Ok(VecDeque::new());
    }
    let parts: VecDeque<Vec<u8>> = cursor.split(|&c| c == b'/').map(<[u8]>::to_vec).collect();
    let odd = |part: &Vec<u8>| part.is_empty() || part == b"." || part == b"..";
    if parts.iter().any(odd) || (parts.len() > 1 && !recursive) {
        return Err(Failure::invalid("cursor: not one that this listing gave"));
    }
    Ok(parts)
}

impl List {
    /// Add an entry to the page; `false` when the page is full without it.
    fn take(&mut self, name: &[u8], stat: &Stat) -> Result<bool, Failure> {
        let relative = self.walker.path_of(name);
        let path = names::join(&self.base, &relative);
        if self.policy.denies(&path) {
            return Ok(true);
        }
        if self.entries.len() == self.limit {
            return Ok(false);
        }
        let Ok(target) = entry::link_text(self.walker.here(), name, stat) else {
            // Replaced after it was read from the directory.
            return Ok(true);
        };
        let entry = entry::describe(&path, name, stat, target.as_deref());
        // The cursor goes into the RESULT too; at worst as base64.
        let size = entry.to_string().len() + 1;
        let cursor_size = relative.len() / 3 * 4 + 64;
        if self.bytes + size + cursor_size > PAGE_BYTES {
            if self.entries.is_empty() {
                return Err(Failure::new(
                    "name_too_long",
                    format!("a path of {} bytes does not fit into a page", path.len()),
                ));
            }
            return Ok(false);
        }
        self.bytes += size;
        self.entries.push(entry);
        self.cursor = relative;
        if self.recursive && sys::is_dir(stat) {
            // Unreadable or gone: it is listed, and its content is not.
            let _ = self.walker.enter(name);
        }
        Ok(true)
    }

    fn answer(&mut self, out: &mut dyn Out, more: bool) {
        let next = if more {
            bytes::to_json(&self.cursor)
        } else {
            Value::Null
        };
        let entries = std::mem::take(&mut self.entries);
        out.result(json!({ "entries": entries, "next": next }));
    }
}

impl Handler for List {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        let mut left = STEP_ENTRIES;
        while left > 0 {
            if let Some(name) = self.seek.pop_front() {
                left -= 1;
                self.walker.skip_to(&name);
                if self.recursive && self.walker.enter(&name).is_err() {
                    self.seek.clear();
                }
                continue;
            }
            match self.walker.next() {
                Ok(Visit::Entry { name, stat }) => {
                    left -= 1;
                    if !self.take(&name, &stat)? {
                        self.answer(out, true);
                        return Ok(Step::Done);
                    }
                }
                Ok(Visit::Leave(_)) => left -= 1,
                Ok(Visit::Pending) => left = left.saturating_sub(SCAN_COST),
                Ok(Visit::End) => {
                    self.answer(out, false);
                    return Ok(Step::Done);
                }
                Err(error) if self.walker.is_fatal() => {
                    return Err(failed(error, "list", &self.base));
                }
                // A directory below that cannot be read is shown as empty.
                Err(_) => left -= 1,
            }
        }
        Ok(Step::Again)
    }
}
