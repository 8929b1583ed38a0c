//! Extended attributes of files below `user.`: `fs.attributes` reads them, `fs.write` sets them.
//!
//! Names on the wire do not have `user.`, and values are strings: an attribute that is not UTF-8, or
//! has a NUL, is left out. A file that cannot be opened, or whose file system has no attributes, has
//! none; so has everything but a regular file.

use super::request::Request;
use super::resolve::Resolver;
use crate::sys::{self, as_fd};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::{json, Map, Value};
use std::collections::VecDeque;
use std::os::unix::io::BorrowedFd;

const SPACE: &[u8] = b"user.";
const MOST_PATHS: usize = 1000;
/// Attributes of one file.
const MOST: usize = 256;
/// The kernel takes no longer names, `user.` included, and no longer values.
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 64 << 10;
/// An answer ends before it exceeds this; one file has at most as much. The frame may have 1 MiB.
const ANSWER_BYTES: usize = 512 << 10;
const STEP_FILES: usize = 64;

pub type Given = Vec<(Vec<u8>, Vec<u8>)>;

/// Return the attributes that a request gives to a file.
pub fn given(request: &Request<'_>) -> Result<Given, Failure> {
    let Some(found) = request.object("attributes")? else {
        return Ok(Vec::new());
    };
    if found.len() > MOST {
        return Err(Failure::invalid(format!(
            "attributes: a file has at most {MOST}"
        )));
    }
    let mut attributes = Vec::with_capacity(found.len());
    for (name, value) in found {
        let full = [SPACE, name.as_bytes()].concat();
        let value = value
            .as_str()
            .filter(|value| value.len() <= LONGEST_VALUE && is_text(value.as_bytes()))
            .ok_or_else(|| {
                Failure::invalid("attributes: a value is a string of at most 64 KiB without NUL")
            })?;
        if name.is_empty() || full.len() > LONGEST_NAME || !is_text(&full) {
            return Err(Failure::invalid(
                "attributes: a name has 1 to 250 bytes and no NUL",
            ));
        }
        attributes.push((full, value.as_bytes().to_vec()));
    }
    Ok(attributes)
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0)
}

pub fn set(file: BorrowedFd<'_>, given: &Given) -> sys::Result<()> {
    given
        .iter()
        .try_for_each(|(name, value)| sys::set_attribute(file, name, value))
}

pub struct Attributes {
    resolver: Resolver,
    prefix: Vec<u8>,
    left: VecDeque<Vec<u8>>,
    found: Vec<Value>,
    bytes: usize,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let paths = request.paths("paths", MOST_PATHS)?;
    let prefix = request.bytes("prefix")?.unwrap_or_default();
    Ok(Box::new(Attributes {
        resolver: request.reading()?,
        prefix: [SPACE, prefix.as_slice()].concat(),
        left: paths.into(),
        found: Vec::new(),
        bytes: 0,
    }))
}

impl Attributes {
    /// Return the attributes of a file with their size; none if it is not a file, or is gone.
    fn of(&self, path: &[u8]) -> Result<(Map<String, Value>, usize), Failure> {
        let mut found = Map::new();
        let mut size = 8;
        let object = match self.resolver.object_itself(path) {
            Err(failure) if failure.code == "blocked" => return Err(failure),
            Ok(object) if sys::is_file(&object.stat) => object,
            _ => return Ok((found, size)),
        };
        let Ok(file) = self.resolver.reopen(&object, path) else {
            return Ok((found, size));
        };
        for name in sys::attribute_names(as_fd(&file)).unwrap_or_default() {
            if !name.starts_with(&self.prefix) || found.len() == MOST || size > ANSWER_BYTES / 2 {
                continue;
            }
            let value = sys::attribute(as_fd(&file), &name, LONGEST_VALUE).unwrap_or_default();
            let value = String::from_utf8(value)
                .ok()
                .filter(|text| is_text(text.as_bytes()));
            if let (Ok(name), Some(value)) = (std::str::from_utf8(&name[SPACE.len()..]), value) {
                let value = Value::from(value);
                // In JSON a byte has up to six characters.
                size += value.to_string().len() + 6 * name.len() + 8;
                found.insert(name.to_owned(), value);
            }
        }
        Ok((found, size))
    }
}

impl Handler for Attributes {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        for _ in 0..STEP_FILES {
            let Some(path) = self.left.pop_front() else {
                break;
            };
            let (found, size) = self.of(&path)?;
            if !self.found.is_empty() && self.bytes + size > ANSWER_BYTES {
                self.left.clear();
                break;
            }
            self.bytes += size;
            self.found.push(Value::Object(found));
        }
        if !self.left.is_empty() {
            return Ok(Step::Again);
        }
        out.result(json!({ "attributes": std::mem::take(&mut self.found) }));
        Ok(Step::Done)
    }
}
