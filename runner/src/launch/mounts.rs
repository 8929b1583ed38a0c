//! The stage: a small private tree from which bubblewrap takes what the sandbox sees.
//!
//! It lives in the mount namespace of this process, so the host never sees it and nothing has to be
//! unmounted: it goes with the last process of the sandbox. It exists because bubblewrap resolves
//! sources as the sandbox's user, who may not enter our 0700 data directory.

use crate::failure::{c_string, check, io_failed, Failure, Outcome};
use crate::plan::{IdMap, Plan};
use crate::{host_directory, root, sys, tree, volume};
use std::ffi::CString;
use std::os::unix::io::RawFd;
use std::ptr;

const STEP: &str = "mount";
pub const WORKSPACE_DIRECTORIES: &[&str] = &["workspace", "home"];
/// Inodes of an in-memory mount; see `mount_memory`.
const BYTES_PER_INODE: u64 = 16 * 1024;
const MIN_INODES: u64 = 16 * 1024;
pub const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;

pub fn private_namespace(in_own_userns: bool) -> Outcome<()> {
    check(STEP, "make a mount namespace", unsafe {
        libc::unshare(libc::CLONE_NEWNS)
    })?;
    // In our own user namespace the inherited mounts belong to a more privileged one. Making them
    // private is allowed, and making them slaves would let host mounts in; private is right in both
    // cases.
    let what = if in_own_userns {
        "make mounts private (own)"
    } else {
        "make mounts private"
    };
    mount(what, None, "/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// Prepare the stage. Return the names that should be private and are shared with the host.
///
/// `volume` is the workspace if another thread mounts it; `None` if it is mounted here.
pub fn stage(
    plan: &Plan,
    userns: Option<RawFd>,
    volume: Option<volume::Mounting>,
) -> Outcome<Vec<String>> {
    let stage = plan.stage.as_str();
    mount(
        "stage",
        Some("sandkasten"),
        stage,
        Some("tmpfs"),
        QUIET,
        Some("size=64k,mode=755"),
    )?;
    let ids: Option<(IdMap, RawFd)> = plan.id_map.zip(userns);
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
        mount(
            &bind.source,
            Some(&bind.source),
            &target,
            None,
            libc::MS_BIND,
            None,
        )?;
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
            .map_err(io_failed(STEP, &format!("look at {}", shown.source)))?;
        make_target(&target, kind.is_dir())?;
        let closed = tree::READ_ONLY | tree::NOSUID | tree::NODEV;
        tree::bind(&shown.source, &target, closed, None)?;
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
    std::fs::write(path, b"").map_err(io_failed(STEP, &format!("make {}", path)))
}

pub fn mkdir(path: &str, mode: libc::mode_t) -> Outcome<()> {
    let cpath = c_string(STEP, path)?;
    // A workspace that was used before already has its directories.
    if unsafe { libc::mkdir(cpath.as_ptr(), mode) } < 0 && sys::errno() != libc::EEXIST {
        return Err(Failure::last(STEP, format!("mkdir {}", path)));
    }
    Ok(())
}

pub fn mount(
    what: &str,
    source: Option<&str>,
    target: &str,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&str>,
) -> Outcome<()> {
    let own = |t: Option<&str>| t.map(|t| c_string(STEP, t)).transpose();
    let (source, kind, options) = (own(source)?, own(kind)?, own(options)?);
    let target_c = c_string(STEP, target)?;
    let raw = |t: &Option<CString>| t.as_ref().map_or(ptr::null(), |t| t.as_ptr());
    let r = unsafe {
        libc::mount(
            raw(&source),
            target_c.as_ptr(),
            raw(&kind),
            flags,
            raw(&options).cast(),
        )
    };
    check(STEP, &format!("mount {} on {}", what, target), r).map(|_| ())
}

/// Mount memory of this size. Empty files take none of it but memory of the kernel, so inodes are limited
/// too: one for as many bytes as in an image, and enough for a small program's temporary files.
pub fn mount_memory(target: &str, bytes: u64, mode: u32) -> Outcome<()> {
    let inodes = (bytes / BYTES_PER_INODE).max(MIN_INODES);
    let options = format!("size={},mode={:o},nr_inodes={}", bytes, mode, inodes);
    let flags = QUIET | libc::MS_NOATIME;
    mount(
        "memory",
        Some("memory"),
        target,
        Some("tmpfs"),
        flags,
        Some(&options),
    )
}
