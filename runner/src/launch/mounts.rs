//! The stage: a small private tree from which bubblewrap takes what the sandbox sees.
//!
//! It lives in this process's own mount namespace, so the host never sees it and nothing has to be
//! unmounted: it goes with the last process of the sandbox. It exists because bubblewrap resolves
//! sources as the sandbox's user, who may not walk through our 0700 data directory.

use crate::plan::{Plan, Workspace};
use crate::{loopdev, sys, Outcome};
use std::ffi::CString;
use std::ptr;

const STEP: &str = "mount";
const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;

pub fn private_namespace(in_own_userns: bool) -> Outcome<()> {
    sys::check(STEP, "make a mount namespace", unsafe {
        libc::unshare(libc::CLONE_NEWNS)
    })?;
    // In one's own user namespace the inherited mounts belong to a stronger one: private is refused
    // for none of them, and slave would let host mounts in; private is right in both cases.
    let what = if in_own_userns {
        "make mounts private (own)"
    } else {
        "make mounts private"
    };
    mount(what, None, "/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// The number of terminals is one for the whole machine, and bubblewrap mounts devpts without a
/// limit; so we enter the sandbox's mount namespace, before any code runs there, and set one.
pub fn limit_terminals(first: i32, max: u32) -> Outcome<()> {
    let namespace = sys::open_read(STEP, &format!("/proc/{}/ns/mnt", first))?;
    let entered = unsafe { libc::setns(namespace, libc::CLONE_NEWNS) };
    sys::close(namespace);
    sys::check(STEP, "enter the sandbox's mount namespace", entered)?;
    mount(
        "the limit of terminals",
        Some("devpts"),
        "/dev/pts",
        Some("devpts"),
        libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NOEXEC,
        Some(&format!("newinstance,ptmxmode=0666,mode=620,max={}", max)),
    )
}

pub fn stage(plan: &Plan) -> Outcome<()> {
    let stage = plan.stage.as_str();
    mount(
        "stage",
        Some("sandkasten"),
        stage,
        Some("tmpfs"),
        QUIET,
        Some("size=64k,mode=755"),
    )?;
    let volume = format!("{}/volume", stage);
    mkdir(&volume, 0o755)?;
    match &plan.workspace {
        Workspace::Image { path } => {
            let device = loopdev::attach(path)?;
            let mounted = mount(
                "workspace",
                Some(&device.path),
                &volume,
                Some("ext4"),
                QUIET | libc::MS_NOATIME,
                // No barriers: a flush would wait for the host's journal, to keep what nobody needs
                // after a crash.
                Some("discard,barrier=0"),
            );
            sys::close(device.fd);
            mounted?;
            // The mount holds the file from here on; without a name it goes with the sandbox.
            std::fs::remove_file(path).map_err(|e| {
                crate::Trouble::new(
                    STEP,
                    format!("unlink {}", path),
                    e.raw_os_error().unwrap_or(0),
                )
            })?;
        }
        Workspace::Tmpfs { bytes } => mount(
            "workspace",
            Some("workspace"),
            &volume,
            Some("tmpfs"),
            QUIET | libc::MS_NOATIME,
            Some(&format!("size={},mode=755", bytes)),
        )?,
    }
    for name in ["workspace", "home"] {
        let path = format!("{}/{}", volume, name);
        mkdir(&path, 0o755)?;
        if plan.id_map.is_some() {
            let cpath = sys::c(STEP, &path)?;
            let owner = plan.workspace_owner;
            sys::check(STEP, "chown the workspace", unsafe {
                libc::lchown(cpath.as_ptr(), owner, owner)
            })?;
        }
    }
    mkdir(&format!("{}/empty", stage), 0o555)?;
    for bind in &plan.binds {
        let target = format!("{}/{}", stage, bind.name);
        if bind.directory {
            mkdir(&target, 0o755)?;
        } else {
            std::fs::write(&target, b"").map_err(|e| {
                crate::Trouble::new(
                    STEP,
                    format!("make {}", target),
                    e.raw_os_error().unwrap_or(0),
                )
            })?;
        }
        mount(
            &bind.source,
            Some(&bind.source),
            &target,
            None,
            libc::MS_BIND,
            None,
        )?;
    }
    Ok(())
}

fn mkdir(path: &str, mode: libc::mode_t) -> Outcome<()> {
    let cpath = sys::c(STEP, path)?;
    // A workspace that was used before already has its directories.
    if unsafe { libc::mkdir(cpath.as_ptr(), mode) } < 0 && sys::errno() != libc::EEXIST {
        return Err(crate::Trouble::last(STEP, format!("mkdir {}", path)));
    }
    Ok(())
}

fn mount(
    what: &str,
    source: Option<&str>,
    target: &str,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&str>,
) -> Outcome<()> {
    let own = |t: Option<&str>| t.map(|t| sys::c(STEP, t)).transpose();
    let (source, kind, options) = (own(source)?, own(kind)?, own(options)?);
    let target_c = sys::c(STEP, target)?;
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
    sys::check(STEP, &format!("mount {} on {}", what, target), r).map(|_| ())
}
