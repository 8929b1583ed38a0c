//! The root file system of an image: its layers as one overlay at `<stage>/root`.
//!
//! As root, each layer is shown with its ids shifted into the sandbox's range, so nothing on disk is
//! changed and all sandboxes read the same files. The layers of an ordinary user belong to that user.
//! Layers are bound to short names first and given relative to the stage: a sandbox can read the mount
//! options of its root, and then they reveal nothing.

use crate::failure::{failed, open, Failure, Outcome};
use crate::mounts::{mkdir, mount, Ids, QUIET};
use crate::plan::{Place, Plan, Root};
use crate::{sys, tree, volume};
use rustix::fs::{chmod, Mode, CWD};
use rustix::mount::{mount_bind_recursive, unmount, MountFlags, UnmountFlags};
use rustix::process::chdir;

const STEP: &str = "image";
/// Overlay features that let a layer refer to other layers are switched off, because layers come from
/// images.
const NO_REFERENCES: &str = "redirect_dir=nofollow,metacopy=off,index=off";

pub fn build(plan: &Plan, root: &Root, ids: Ids<'_>) -> Outcome<()> {
    let stage = plan.stage.as_str();
    let mut lowers = Vec::new();
    for (i, layer) in root.layers.iter().enumerate() {
        let name = format!("l{}", i);
        let target = format!("{}/{}", stage, name);
        mkdir(&target, 0o755)?;
        tree::bind(layer, &target, tree::CLOSED, ids.map(|(_, userns)| userns))
            .map_err(|t| Failure { step: STEP, ..t })?;
        lowers.insert(0, name);
    }
    if lowers.len() == 1 && !root.writable {
        // An overlay needs at least one lower layer.
        lowers.push("empty".to_owned());
    }
    let changes = if root.writable {
        Some(changes(stage, root, ids)?)
    } else {
        None
    };
    mkdir(&format!("{}/root", stage), 0o755)?;
    lay(stage, "root", &lowers, changes.as_deref(), ids.is_none())?;
    let missing = missing(stage, &root.places)?;
    if missing.is_empty() {
        return Ok(());
    }
    if root.writable {
        return make_places(&format!("{}/root", stage), &missing, ids);
    }
    // A layer of our own above those of the image, for what it lacks.
    let top = format!("{}/top", stage);
    mkdir(&top, 0o755)?;
    give_to_inside_root(&top, ids)?;
    make_places(&top, &missing, ids)?;
    let built = format!("{}/root", stage);
    unmount(&built, UnmountFlags::DETACH).map_err(failed(STEP, format!("unmount {}", built)))?;
    lowers.retain(|name| name != "empty");
    lowers.insert(0, "top".to_owned());
    lay(stage, "root", &lowers, None, ids.is_none())
}

/// Show a directory of the host read-only at `<stage>/<name>`, through its own overlay. Its inodes
/// are then those of this sandbox: what the host or another sandbox does with the same files raises no
/// event here, and locks are not shared. Return false if the kernel refuses, and the directory itself is
/// shown instead.
pub fn show_private(stage: &str, name: &str, source: &str, own: bool) -> Outcome<bool> {
    let target = format!("{}/{}", stage, name);
    mkdir(&target, 0o755)?;
    let lower = format!("of-{}", name);
    let path = format!("{}/{}", stage, lower);
    mkdir(&path, 0o755)?;
    let lowers = [lower, "empty".to_owned()];
    let laid = tree::bind(source, &path, tree::CLOSED, None)
        .and_then(|()| lay(stage, name, &lowers, None, own));
    if laid.is_ok() {
        return Ok(true);
    }
    // An ordinary user may not take a mount apart from those below it.
    tree::bind(source, &target, tree::CLOSED, None)
        .or_else(|_| mount_bind_recursive(source, &target))
        .map(|()| false)
        .map_err(failed("mount", format!("mount {} on {}", source, target)))
}

/// Return the mount option that says where changes go.
fn changes(stage: &str, root: &Root, ids: Ids<'_>) -> Outcome<String> {
    let at = match &root.volume {
        None => "volume".to_owned(),
        Some(own) => {
            volume::place(own, &format!("{}/changes", stage), ids, &[], 0)?;
            "changes".to_owned()
        }
    };
    for name in ["over", "over/upper", "over/work"] {
        let path = format!("{}/{}/{}", stage, at, name);
        mkdir(&path, 0o755)?;
        give_to_inside_root(&path, ids)?;
    }
    // Nothing of it is read after a crash, so a flush inside need not reach the disk.
    Ok(format!(
        "upperdir={0}/over/upper,workdir={0}/over/work,volatile",
        at
    ))
}

fn lay(
    stage: &str,
    name: &str,
    lowers: &[String],
    changes: Option<&str>,
    own: bool,
) -> Outcome<()> {
    let mut options = format!("{},lowerdir={}", NO_REFERENCES, lowers.join(":"));
    if let Some(changes) = changes {
        options = format!("{},{}", options, changes);
    }
    if own {
        options.push_str(",userxattr");
    }
    let mut flags = QUIET | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, changes.is_none());
    let enter = |to: &str| chdir(to).map_err(failed(STEP, format!("enter {}", to)));
    enter(stage)?;
    let laid = mount("the image's layers", name, name, "overlay", flags, &options)
        .map_err(|t| Failure { step: STEP, ..t });
    enter("/")?;
    laid
}

/// Return the places that do not exist. One that is a symlink, or below one, would be mounted
/// elsewhere.
fn missing<'a>(stage: &str, places: &'a [Place]) -> Outcome<Vec<&'a Place>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let root = open(STEP, &format!("{}/root", stage), flags, 0)?;
    let mut missing = Vec::new();
    for place in places {
        match tree::plain_path(&root, &place.path, place.directory) {
            Ok(_) => {}
            Err(libc::ENOENT) => missing.push(place),
            Err(errno) => {
                let what = if place.directory { "directory" } else { "file" };
                let message = format!("{} is not a plain {} in the image", place.path, what);
                return Err(Failure::new(STEP, message, errno));
            }
        }
    }
    Ok(missing)
}

fn make_places(at: &str, places: &[&Place], ids: Ids<'_>) -> Outcome<()> {
    for place in places {
        let mut path = at.to_owned();
        let parts: Vec<&str> = place.path.split('/').filter(|p| !p.is_empty()).collect();
        for (i, part) in parts.iter().enumerate() {
            path = format!("{}/{}", path, part);
            if std::path::Path::new(&path).exists() {
                continue;
            }
            let last = i + 1 == parts.len();
            if last && !place.directory {
                std::fs::write(&path, b"")
                    .map_err(failed(STEP, &format!("make {}", place.path)))?;
            } else {
                mkdir(&path, 0o755)?;
            }
            give_to_inside_root(&path, ids)?;
            let mode = if last { place.mode } else { 0o755 };
            chmod(&path, Mode::from_bits_retain(mode))
                .map_err(failed(STEP, format!("chmod {}", place.path)))?;
        }
    }
    Ok(())
}

fn give_to_inside_root(path: &str, ids: Ids<'_>) -> Outcome<()> {
    ids.map_or(Ok(()), |(map, _)| give(STEP, path, map.base))
}

/// Change the user and the group of a file, or of a symlink itself.
pub fn give(step: &'static str, path: &str, owner: u32) -> Outcome<()> {
    sys::set_owner_at(CWD, path.as_bytes(), owner, owner)
        .map_err(failed(step, format!("chown {}", path)))
}
