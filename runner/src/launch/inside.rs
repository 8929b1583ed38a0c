//! Changes to the sandbox's own mounts, made from outside before any code runs there.
//!
//! bubblewrap could do most of it, but reads the whole list of mounts for each change, and it cannot
//! limit the number of terminals.

use crate::failure::{check, open, Outcome};
use crate::plan::{Masks, Plan};
use crate::{mounts, sys, tree};
use std::os::unix::io::RawFd;

const STEP: &str = "mount";

/// Mounts of an empty directory, taken while it can be reached: one for each mask.
pub struct Covers(Vec<RawFd>);

/// Take the mounts that `finish` will need, while the stage can still be seen.
pub fn covers(plan: &Plan) -> Outcome<Covers> {
    let empty = format!("{}/empty", plan.stage);
    let closed = tree::READ_ONLY | tree::NOSUID | tree::NODEV;
    let mut made = Vec::new();
    for _ in &plan.masks.directories {
        let fd = tree::copy(&empty)?;
        tree::restrict(fd, closed, None)?;
        made.push(fd);
    }
    Ok(Covers(made))
}

/// Enter the sandbox's mount namespace for good; this process is about to end.
pub fn finish(first: i32, masks: &Masks, covers: Covers, terminals: u32) -> Outcome<()> {
    let namespace = open(STEP, &format!("/proc/{}/ns/mnt", first), libc::O_RDONLY, 0)?;
    let entered = unsafe { libc::setns(namespace, libc::CLONE_NEWNS) };
    sys::close(namespace);
    check(STEP, "enter the sandbox's mount namespace", entered)?;
    // Terminals are limited for the whole machine, and bubblewrap sets no limit for one sandbox.
    mounts::mount(
        "the limit of terminals",
        Some("devpts"),
        "/dev/pts",
        Some("devpts"),
        libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NOEXEC,
        Some(&format!(
            "newinstance,ptmxmode=0666,mode=620,max={}",
            terminals
        )),
    )?;
    mask(masks, covers)
}

fn mask(masks: &Masks, covers: Covers) -> Outcome<()> {
    let closed = tree::READ_ONLY | tree::NOSUID | tree::NODEV;
    tree::bind("/proc/sys", "/proc/sys", closed, None)?;
    for name in &masks.files {
        tree::bind("/dev/null", &format!("/proc/{}", name), closed, None)?;
    }
    for (name, cover) in masks.directories.iter().zip(covers.0) {
        tree::put(cover, &format!("/proc/{}", name))?;
    }
    Ok(())
}
