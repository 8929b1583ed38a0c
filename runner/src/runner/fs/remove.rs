//! `fs.remove`: one entry, or a tree of any depth, in small steps and without recursion.
//!
//! Symlinks are removed and never followed. A directory that is closed to its owner is opened by chmod
//! first. An entry that cannot be removed ends the verb with the reason; entries removed before stay
//! removed.

use super::flush::Flush;
use super::remover::Remover;
use super::request::Request;
use super::resolve::{failed, Place};
use crate::fs::names;
use crate::sys;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::json;

pub fn open(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.writing()?;
    let path = request.path("path")?;
    let recursive = request.flag("recursive", false)?;
    let missing_ok = request.flag("missing_ok", false)?;
    let flush = Flush::of(request)?;
    let place = match resolver.place(&path) {
        Err(failure) if missing_ok && failure.code == "not_found" => {
            return super::answer(json!({ "removed": 0 }));
        }
        answer => answer?,
    };
    let shown = place.path();
    let stat = match place
        .stat()
        .map_err(|error| failed(error, "remove", &shown))?
    {
        Some(stat) => stat,
        None if missing_ok => return super::answer(json!({ "removed": 0 })),
        None => {
            return Err(Failure::from_errno(
                libc::ENOENT,
                format!("remove {}", names::show(&shown)),
            ))
        }
    };
    if !sys::is_dir(&stat) {
        if place.slash {
            return Err(Failure::from_errno(
                libc::ENOTDIR,
                format!("remove {}", names::show(&shown)),
            ));
        }
        return remove_one(&place, flush, sys::unlink_at(place.dir(), &place.name));
    }
    resolver.policy.check_tree(&shown)?;
    if !recursive {
        return remove_one(&place, flush, sys::remove_dir_at(place.dir(), &place.name));
    }
    let dir = sys::duplicate(place.dir()).map_err(|error| failed(error, "remove", &shown))?;
    Ok(Box::new(Remove {
        remover: Remover::new(dir, place.name.clone()),
        place,
        flush,
    }))
}

fn remove_one(
    place: &Place,
    flush: Flush,
    answer: sys::Result<()>,
) -> Result<Box<dyn Handler>, Failure> {
    answer
        .and_then(|()| flush.names(place.dir()))
        .map_err(|error| failed(error, "remove", &place.path()))?;
    super::answer(json!({ "removed": 1 }))
}

struct Remove {
    remover: Remover,
    place: Place,
    flush: Flush,
}

impl Handler for Remove {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if !self.remover.step()? {
            return Ok(Step::Again);
        }
        self.flush
            .names(self.place.dir())
            .map_err(|error| failed(error, "remove", &self.place.path()))?;
        out.result(json!({ "removed": self.remover.removed }));
        Ok(Step::Done)
    }
}
