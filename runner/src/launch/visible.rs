//! A volume mounted where the caller itself sees it, so that a container engine beside us can bind it.
//!
//! No namespace is made and no process is left. The process that unmounts it takes the same lock first:
//! a caller that was killed leaves us running, and we must not mount where a removal is in progress.

use crate::failure::{failed, open, Outcome};
use crate::plan::{self, IdMap, Volume};
use crate::{sys, userns, volume};
use rustix::fs::{flock, FlockOperation};
use serde_json::Value;
use std::os::unix::io::AsFd;

const STEP: &str = "mount";

#[derive(Debug)]
pub struct Place {
    volume: Volume,
    /// An existing directory of the caller, on a path that no other user can change.
    directory: String,
    /// The name to mount on, below `directory`.
    name: String,
    /// The owner on the volume, as seen inside when ids are shifted.
    owner: u32,
    /// Ids on the volume are those inside; they are shown shifted by `base`.
    id_map: Option<IdMap>,
}

/// Return `None` if the plan describes a sandbox.
pub fn parse(plan: &Value) -> Outcome<Option<Place>> {
    let v = &plan["visible"];
    if v.is_null() {
        return Ok(None);
    }
    Ok(Some(Place {
        volume: plan::volume(&v["volume"])?,
        directory: plan::string(v, "directory")?,
        name: plan::name(v)?,
        owner: plan::number(v, "owner")? as u32,
        id_map: plan::id_map(&v["id_map"])?,
    }))
}

pub fn make(place: &Place) -> Outcome<()> {
    sys::close_all_but(&[0, 1, 2]).map_err(failed("descriptors", "close_range"))?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    // Held until everything is mounted; no other process has it.
    let held = open(STEP, &place.directory, flags, 0)?;
    flock(&held, FlockOperation::LockExclusive).map_err(failed(STEP, "wait for who removes it"))?;
    let userns = place.id_map.map(userns::mapped).transpose()?;
    let ids = place.id_map.zip(userns.as_ref().map(AsFd::as_fd));
    volume::show(
        &place.volume,
        &format!("{}/{}", place.directory, place.name),
        ids,
        crate::mounts::WORKSPACE_DIRECTORIES,
        place.owner,
    )
}
