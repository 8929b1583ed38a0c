//! `fs.mkdir` and `fs.move`. Neither follows a symlink at the last name of a path that it changes, and
//! both have changed the disk before they answer.

use super::copy::MoveByCopy;
use super::flush::Flush;
use super::request::Request;
use super::resolve::{failed, Place};
use super::{answer, entry, names};
use crate::fs::created::make_directory;
use crate::sys::{self, as_fd, Stat};
use crate::wire::handler::{Failure, Handler};

pub fn make_dir(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.writing()?;
    let path = request.path("path")?;
    let parents = request.flag("parents", true)?;
    let exist_ok = request.flag("exist_ok", true)?;
    let mode = request.mode("mode")?.unwrap_or(0o755);
    let flush = Flush::of(request)?;
    match resolver.object(&path) {
        Ok(object) => {
            // Nothing is created, so the directory itself must be within the allowed paths.
            resolver.policy.check_inside(&object.path)?;
            if !exist_ok || !sys::is_dir(&object.stat) {
                return Err(already_there("make directory", &object.path));
            }
            return answer(entry::of_object(&object)?);
        }
        Err(failure) if failure.code == "not_found" => {}
        Err(failure) => return Err(failure),
    }
    let mut place = resolver.place_with_parents(&path, parents)?;
    let shown = place.path();
    match make_directory(place.dir(), &place.name, mode) {
        Ok(()) => {}
        Err(libc::EEXIST) => {
            // Another process made it meanwhile, or it is a dangling symlink.
            let is_dir = matches!(place.stat(), Ok(Some(stat)) if sys::is_dir(&stat));
            if !exist_ok || !is_dir {
                return Err(already_there("make directory", &shown));
            }
        }
        Err(error) => {
            place.made.undo();
            return Err(failed(error, "make directory", &shown));
        }
    }
    flush
        .names(place.dir())
        .map_err(|error| failed(error, "make directory", &shown))?;
    answer(entry::of_name(place.dir(), &place.dir_path, &place.name)?)
}

fn already_there(what: &str, path: &[u8]) -> Failure {
    Failure::from_errno(libc::EEXIST, format!("{} {}", what, names::show(path)))
}

pub fn move_entry(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.writing()?;
    let source_path = request.path("source")?;
    let destination_path = request.path("destination")?;
    let overwrite = request.flag("overwrite", false)?;
    let flush = Flush::of(request)?;
    let source = resolver.place(&source_path)?;
    let shown = source.path();
    let stat = source
        .stat()
        .map_err(|error| failed(error, "move", &shown))?
        .ok_or_else(|| {
            Failure::from_errno(libc::ENOENT, format!("move {}", names::show(&shown)))
        })?;
    let destination = resolver.place(&destination_path)?;
    if (source.slash || destination.slash) && !sys::is_dir(&stat) {
        return Err(Failure::from_errno(
            libc::ENOTDIR,
            format!("move {}", names::show(&shown)),
        ));
    }
    if sys::is_dir(&stat) {
        resolver.policy.check_tree(&shown)?;
    }
    let there = destination
        .stat()
        .map_err(|error| failed(error, "move to", &destination.path()))?;
    if let Some(there) = &there {
        may_replace(there, overwrite, &destination)?;
    }
    match rename(&source, &stat, &destination, overwrite) {
        Ok(()) => {}
        Err(libc::EXDEV) => {
            return Ok(Box::new(MoveByCopy::new(
                source,
                stat,
                destination,
                overwrite,
                flush,
            )?));
        }
        Err(libc::EEXIST) => {
            return Err(already_there("move to", &destination.path()));
        }
        Err(libc::EINVAL) => {
            return Err(Failure::invalid(format!(
                "{} cannot be moved into itself",
                names::show(&shown)
            )));
        }
        Err(error) => return Err(failed(error, "move", &shown)),
    }
    if let Some(there) = &there {
        drop_second_name(&source, &stat, &destination, there)?;
    }
    flush
        .names(destination.dir())
        .and_then(|()| flush.names(source.dir()))
        .map_err(|error| failed(error, "move", &shown))?;
    answer(entry::of_name(
        destination.dir(),
        &destination.dir_path,
        &destination.name,
    )?)
}

fn may_replace(there: &Stat, overwrite: bool, destination: &Place) -> Result<(), Failure> {
    if !overwrite {
        return Err(already_there("move to", &destination.path()));
    }
    if sys::is_dir(there) {
        return Err(Failure::from_errno(
            libc::EISDIR,
            format!("move to {}", names::show(&destination.path())),
        ));
    }
    Ok(())
}

fn rename(source: &Place, stat: &Stat, destination: &Place, overwrite: bool) -> sys::Result<()> {
    let (from, to) = (source.dir(), destination.dir());
    if overwrite {
        return sys::rename_at(from, &source.name, to, &destination.name);
    }
    match sys::rename_new_at(from, &source.name, to, &destination.name) {
        // A file system without an atomic rename that does not replace. Nothing was there a moment ago,
        // and a directory that appeared since can only be replaced while it is empty.
        Err(libc::EINVAL) if sys::is_dir(stat) => {
            sys::rename_at(from, &source.name, to, &destination.name)
        }
        answer => answer,
    }
}

/// rename(2) does nothing when both names are links to one file; a move must then still remove the
/// first name.
fn drop_second_name(
    source: &Place,
    stat: &Stat,
    destination: &Place,
    there: &Stat,
) -> Result<(), Failure> {
    if sys::identity(stat) != sys::identity(there) {
        return Ok(());
    }
    let fail = |error| failed(error, "move", &source.path());
    let from = sys::identity(&sys::stat_fd(as_fd(&source.dir)).map_err(fail)?);
    let to = sys::identity(&sys::stat_fd(as_fd(&destination.dir)).map_err(fail)?);
    if from == to && source.name == destination.name {
        return Ok(());
    }
    sys::unlink_at(source.dir(), &source.name).map_err(fail)
}
