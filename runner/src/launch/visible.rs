//! A volume mounted where the caller itself sees it, so that a container engine beside us can bind it.
//!
//! No namespace is made and no process is left. Whoever releases the place takes the same lock first:
//! a caller that was killed leaves us running, and we must not mount where somebody is removing.

use crate::failure::{c_string, check, failed, Outcome};
use crate::plan::{self, IdMap, Volume};
use crate::{sys, userns, volume};
use serde_json::Value;

const STEP: &str = "mount";

#[derive(Debug)]
pub struct Place {
    volume: Volume,
    /// An existing directory of the caller's, with nothing else in the way to it that others may change.
    directory: String,
    /// What to mount on, below `directory`.
    name: String,
    /// On the volume, as it is seen inside when ids are shifted.
    owner: u32,
    /// Ids on the volume are those inside; shown shifted by `base`.
    id_map: Option<IdMap>,
}

/// None: the plan is about a sandbox.
pub fn parse(plan: &Value) -> Outcome<Option<Place>> {
    let v = &plan["visible"];
    if v.is_null() {
        return Ok(None);
    }
    Ok(Some(Place {
        volume: plan::volume(&v["volume"])?,
        directory: plan::text(v, "directory")?,
        name: plan::name(v)?,
        owner: plan::number(v, "owner")? as u32,
        id_map: plan::id_map(&v["id_map"])?,
    }))
}

pub fn make(place: &Place) -> Outcome<()> {
    sys::close_all_but(&[0, 1, 2]).map_err(failed("descriptors", "close_range"))?;
    let directory = c_string(STEP, &place.directory)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let held = check(STEP, &format!("open {}", place.directory), unsafe {
        libc::open(directory.as_ptr(), flags)
    })?;
    // Given back by our end.
    check(STEP, "wait for who removes it", unsafe {
        libc::flock(held, libc::LOCK_EX)
    })?;
    let ids = match place.id_map {
        None => None,
        Some(map) => Some((map, userns::mapped(map)?)),
    };
    volume::show(
        &place.volume,
        &format!("{}/{}", place.directory, place.name),
        ids,
        &["workspace", "home"],
        place.owner,
    )
}
