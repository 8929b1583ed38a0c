//! The stage: a small private tree from which bubblewrap takes what the sandbox sees.
//!
//! It lives in the mount namespace of this process, so the host never sees it and nothing has to be
//! unmounted: it goes with the last process of the sandbox. It exists because bubblewrap resolves
//! sources as the sandbox's user, who may not enter our 0700 data directory.

use crate::failure::{c_string, failed, Outcome};
use crate::plan::{IdMap, Plan};
use crate::{host_directory, root, spawn, sys, tree, volume};
use rustix::mount::{self, mount_bind, mount_change, MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use std::os::unix::io::BorrowedFd;

const STEP: &str = "mount";
pub const WORKSPACE_DIRECTORIES: &[&str] = &["workspace", "home"];
/// Inodes of an in-memory mount; see `mount_memory`.
const BYTES_PER_INODE: u64 = 16 * 1024;
const MIN_INODES: u64 = 16 * 1024;
pub const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// The ids of a sandbox, and the user namespace that maps them.
pub type Ids<'a> = Option<(IdMap, BorrowedFd<'a>)>;

pub fn private_namespace(in_own_userns: bool) -> Outcome<()> {
    spawn::unshare(STEP, "make a mount namespace", UnshareFlags::NEWNS)?;
    // In our own user namespace the inherited mounts belong to a more privileged one. Making them
    // private is allowed, and making them slaves would let host mounts in; private is right in both
    // cases.
    let what = if in_own_userns {
        "make mounts private (own)"
    } else {
        "make mounts private"
    };
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(failed(STEP, what))
}

/// Prepare the stage. Return the names that should be private and are shared with the host.
///
/// `volume` is the workspace if another thread mounts it; `None` if it is mounted here.
pub fn stage(
    plan: &Plan,
    userns: Option<BorrowedFd<'_>>,
    volume: Option<volume::Mounting>,
) -> Outcome<Vec<String>> {
    let stage = plan.stage.as_str();
    let options = "size=64k,mode=755";
    mount("stage", "sandkasten", stage, "tmpfs", QUIET, options)?;
    let ids: Ids<'_> = plan.id_map.zip(userns);
    mkdir(&format!("{}/empty", stage), 0o555)?;
    for memory in &plan.memory {
        let target = format!("{}/{}", stage, memory.name);
        mkdir(&target, 0o755)?;
        mount_memory(&target, memory.bytes, memory.mode)?;
    }
    let mut shared = Vec::new();
    for shown in &plan.private {
        if !root::show_private(stage, &shown.name, &shown.source, ids.is_none())? {
            shared.push(shown.name.clone());
        }
    }
    for bind in &plan.binds {
        let target = format!("{}/{}", stage, bind.name);
        make_target(&target, bind.directory)?;
        self::bind(&bind.source, &bind.source, &target)?;
    }
    for shown in &plan.mounts {
        if shown.private {
            if !root::show_private(stage, &shown.name, &shown.source, ids.is_none())? {
                shared.push(shown.name.clone());
            }
            continue;
        }
        let target = format!("{}/{}", stage, shown.name);
        if let Some(below) = &shown.below {
            host_directory::show(shown, below, &target, ids, plan.workspace_owner)?;
            continue;
        }
        let kind = std::fs::metadata(&shown.source)
            .map_err(failed(STEP, &format!("look at {}", shown.source)))?;
        make_target(&target, kind.is_dir())?;
        tree::bind(&shown.source, &target, tree::CLOSED, None)?;
    }
    let target = format!("{}/volume", stage);
    match volume {
        Some(mounting) => mounting.put(&target)?,
        None => volume::place(
            &plan.workspace,
            &target,
            ids,
            WORKSPACE_DIRECTORIES,
            plan.workspace_owner,
        )?,
    }
    match &plan.root {
        None => Ok(shared),
        Some(image) => root::build(plan, image, ids).map(|()| shared),
    }
}

pub fn make_target(path: &str, directory: bool) -> Outcome<()> {
    if directory {
        return mkdir(path, 0o755);
    }
    std::fs::write(path, b"").map_err(failed(STEP, &format!("make {}", path)))
}

pub fn mkdir(path: &str, mode: u32) -> Outcome<()> {
    match sys::make_dir(path.as_bytes(), mode) {
        // A workspace that was used before already has its directories.
        Ok(()) | Err(libc::EEXIST) => Ok(()),
        Err(errno) => Err(failed(STEP, format!("mkdir {}", path))(errno)),
    }
}

pub fn mount(
    what: &str,
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Outcome<()> {
    let options = c_string(STEP, options)?;
    mount::mount(source, target, kind, flags, &*options)
        .map_err(failed(STEP, format!("mount {} on {}", what, target)))
}

pub fn bind(what: &str, source: &str, target: &str) -> Outcome<()> {
    mount_bind(source, target).map_err(failed(STEP, format!("mount {} on {}", what, target)))
}

/// Mount memory of this size. Empty files take none of it but memory of the kernel, so inodes are limited
/// too: one for as many bytes as in an image, and enough for a small program's temporary files.
pub fn mount_memory(target: &str, bytes: u64, mode: u32) -> Outcome<()> {
    let inodes = (bytes / BYTES_PER_INODE).max(MIN_INODES);
    let options = format!("size={},mode={:o},nr_inodes={}", bytes, mode, inodes);
    let flags = QUIET | MountFlags::NOATIME;
    mount("memory", "memory", target, "tmpfs", flags, &options)
}
