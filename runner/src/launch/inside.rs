//! Changes to the sandbox's own mounts, made from outside before any code runs there.
//!
//! bubblewrap could do most of it, but reads the whole list of mounts for each change, and it cannot
//! limit the number of terminals.

use crate::failure::{failed, open, Outcome};
use crate::plan::{Masks, Plan};
use crate::tree;
use rustix::mount::{mount_remount, MountFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::os::unix::io::{AsFd, OwnedFd};

const STEP: &str = "mount";

/// Mounts of an empty directory, taken while it can be reached: one for each mask.
pub struct Covers(Vec<OwnedFd>);

/// Take the mounts that `finish` will need, while the stage can still be seen.
pub fn covers(plan: &Plan) -> Outcome<Covers> {
    let empty = format!("{}/empty", plan.stage);
    let mut made = Vec::new();
    for _ in &plan.masks.directories {
        let fd = tree::copy(&empty)?;
        tree::restrict(&fd, tree::CLOSED, None)?;
        made.push(fd);
    }
    Ok(Covers(made))
}

/// Enter the sandbox's mount namespace for good; this process is about to end.
pub fn finish(first: i32, masks: &Masks, covers: Covers, terminals: u32) -> Outcome<()> {
    let namespace = open(STEP, &format!("/proc/{}/ns/mnt", first), libc::O_RDONLY, 0)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(failed(STEP, "enter the sandbox's mount namespace"))?;
    // Terminals are limited for the whole machine, and bubblewrap sets no limit for one sandbox.
    let options = format!("newinstance,ptmxmode=0666,mode=620,max={}", terminals);
    mount_remount("/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .map_err(failed(STEP, "mount the limit of terminals on /dev/pts"))?;
    mask(masks, covers)
}

fn mask(masks: &Masks, covers: Covers) -> Outcome<()> {
    tree::bind("/proc/sys", "/proc/sys", tree::CLOSED, None)?;
    for name in &masks.files {
        tree::bind("/dev/null", &format!("/proc/{}", name), tree::CLOSED, None)?;
    }
    for (name, cover) in masks.directories.iter().zip(covers.0) {
        tree::put(cover, &format!("/proc/{}", name))?;
    }
    Ok(())
}
