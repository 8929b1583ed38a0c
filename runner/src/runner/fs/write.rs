//! `fs.write`: creates or replaces one regular file, atomically.
//!
//! The bytes go to a temporary file in the real directory of the target, which is renamed over the
//! target at the end; readers see the old file or the new one. Anything that stops the write (CANCEL, a
//! lost connection, a full disk) removes the temporary file and the parent directories made for it.
//! Content and name are on disk before the answer. A file that the user may not write is not replaced.

use super::attributes::{self, Given};
use super::flush::{Flush, Windows};
use super::request::Request;
use super::resolve::{failed, Place, Resolver};
use super::temp::{Purpose, TempFile};
use super::{entry, names};
use crate::sys::{self, Stat};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::Value;

const DEFAULT_MODE: u32 = 0o644;

pub struct Write {
    place: Place,
    path: Vec<u8>,
    temp: Option<TempFile>,
    old: Option<Stat>,
    mode: u32,
    attributes: Given,
    overwrite: bool,
    size: Option<u64>,
    written: u64,
    flush: Flush,
    windows: Windows,
}

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.writing()?;
    let path = request.path("path")?;
    let mode = request.mode("mode")?;
    let attributes = attributes::given(request)?;
    let overwrite = request.flag("overwrite", true)?;
    let parents = request.flag("parents", true)?;
    let size = request.count("size")?;
    let flush = Flush::of(request)?;
    let mut place = target(&resolver, &path, parents)?;
    match prepare(&place, overwrite, size) {
        Ok((temp, old)) => Ok(Box::new(Write {
            path: place.path(),
            place,
            temp: Some(temp),
            // Set-id bits are neither set, as in an archive, nor passed from an old file to new content.
            mode: mode
                .or_else(|| old.map(|stat| stat.st_mode))
                .unwrap_or(DEFAULT_MODE)
                & 0o777,
            attributes,
            old,
            overwrite,
            size,
            written: 0,
            flush,
            windows: flush.by_windows(),
        })),
        Err(failure) => {
            place.made.undo();
            Err(failure)
        }
    }
}

fn target(resolver: &Resolver, path: &[u8], parents: bool) -> Result<Place, Failure> {
    match names::split(path) {
        Some(parts) if !parts.slash => resolver.place_through_links(path, parents),
        _ => {
            // It can only mean a directory; answer `blocked` or `not_found` first where that applies.
            let object = resolver.object(path)?;
            Err(not_regular(&object.path))
        }
    }
}

fn prepare(
    place: &Place,
    overwrite: bool,
    size: Option<u64>,
) -> Result<(TempFile, Option<Stat>), Failure> {
    let path = place.path();
    let old = place.stat().map_err(|error| failed(error, "stat", &path))?;
    if let Some(stat) = &old {
        if !overwrite {
            return Err(exists(&path));
        }
        if !sys::is_file(stat) {
            return Err(not_regular(&path));
        }
        // Renaming over a file asks only its directory; a shell's redirection asks the file.
        let forbidden = sys::forbids_writing(place.dir(), &place.name)
            .map_err(|error| failed(error, "write", &path))?;
        if forbidden {
            return Err(failed(libc::EACCES, "write", &path));
        }
    }
    if place.slash {
        return Err(not_regular(&path));
    }
    if let (Some(size), Some(free)) = (size, sys::free_bytes(place.dir())) {
        if size > free {
            return Err(Failure::from_errno(
                libc::ENOSPC,
                format!("write {} bytes to {}", size, names::show(&path)),
            ));
        }
    }
    let purpose = match old {
        Some(_) => Purpose::Replace,
        None => Purpose::New,
    };
    let temp =
        TempFile::new(place.dir(), purpose).map_err(|error| failed(error, "write", &path))?;
    Ok((temp, old))
}

fn not_regular(path: &[u8]) -> Failure {
    Failure::new(
        "not_regular",
        format!("{} is there and is not a regular file", names::show(path)),
    )
}

fn exists(path: &[u8]) -> Failure {
    Failure::from_errno(libc::EEXIST, format!("write {}", names::show(path)))
}

impl Write {
    fn take(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Some(temp) = &self.temp else {
            return Ok(());
        };
        self.written += bytes.len() as u64;
        if self.size.is_some_and(|size| self.written > size) {
            return Err(self.wrong_size());
        }
        sys::write_all(temp.file(), bytes)
            .and_then(|()| self.windows.wrote(temp.file(), bytes.len()))
            .map_err(|error| failed(error, "write", &self.path))
    }

    fn finish(&mut self) -> Result<Value, Failure> {
        if self.size.is_some_and(|size| self.written != size) {
            return Err(self.wrong_size());
        }
        let Some(mut temp) = self.temp.take() else {
            return Err(Failure::new("internal", "the write is already over"));
        };
        let fail = |error| failed(error, "write", &self.path);
        let like = self.old.as_ref();
        attributes::set(temp.file(), &self.attributes)
            .map_err(|error| failed(error, "set an attribute of", &self.path))?;
        temp.finish(self.mode, like).map_err(fail)?;
        self.flush.bytes(temp.file(), self.written).map_err(fail)?;
        let moved = if self.overwrite {
            temp.replace(&self.place.name)
        } else {
            temp.place(&self.place.name)
        };
        moved.map_err(|error| match error {
            libc::EEXIST => exists(&self.path),
            libc::EISDIR => not_regular(&self.path),
            _ => fail(error),
        })?;
        self.place.made.keep();
        self.flush
            .file(temp.file())
            .and_then(|()| self.flush.names(self.place.dir()))
            .map_err(fail)?;
        entry::of_name(self.place.dir(), &self.place.dir_path, &self.place.name)
    }

    fn wrong_size(&self) -> Failure {
        Failure::invalid(format!(
            "{}: {} bytes came, {} were announced",
            names::show(&self.path),
            self.written,
            self.size.unwrap_or(0)
        ))
    }
}

impl Handler for Write {
    fn step(&mut self, _out: &mut dyn Out) -> Stepped {
        Ok(Step::Idle)
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Stepped {
        self.take(bytes)?;
        out.grant(bytes.len() as u32);
        Ok(Step::Idle)
    }

    fn end(&mut self, out: &mut dyn Out) -> Stepped {
        out.result(self.finish()?);
        Ok(Step::Done)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.temp = None;
        self.place.made.undo();
    }
}
