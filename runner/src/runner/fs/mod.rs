//! The file verbs. Each verb is a `Handler`; this module selects it by the verb's name.
//!
//! Everything here runs as the user of the sandbox and sees what the user sees. It never assumes root
//! and never changes anything that belongs to the whole process: modes are set by fchmod and not by the
//! umask, and no verb changes the working directory.

mod attributes;
mod change;
mod copy;
mod created;
mod entry;
mod flush;
mod list;
mod lookup;
mod names;
mod other_user;
mod policy;
mod read;
mod remove;
mod remover;
mod request;
mod resolve;
mod tar;
mod temp;
mod tree_copy;
mod walk;
mod watch;
mod write;

use crate::identity::Identity;
use crate::sys;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use request::Request;
use serde_json::Value;

/// Remove a tree with everything in it; it is fine if it does not exist. No link is followed.
///
/// For a host that can reach a directory only through a container: it runs only this, with no user
/// code beside it.
pub fn erase(path: &[u8]) -> Result<(), Failure> {
    let cut = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let (parent, name) = (&path[..cut], &path[path.len().min(cut + 1)..]);
    if parent.is_empty() || name.is_empty() || name == b"." || name == b".." {
        return Err(Failure::invalid("--erase requires an absolute path"));
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let parent = sys::open_at(libc::AT_FDCWD, parent, flags, 0)
        .map_err(|error| resolve::failed(error, "remove", path))?;
    let mut remover = remover::Remover::new(parent, name.to_vec());
    loop {
        match remover.step() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.code == "not_found" => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Copy what a directory contains into another one, and wait until it is on disk. No link is followed.
///
/// For a cluster, in which only a Pod reaches both volumes: it runs only this, with no user code beside
/// it.
pub fn copy_tree(source: &[u8], target: &[u8]) -> Result<(), Failure> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let open = |path: &[u8]| {
        sys::open_at(libc::AT_FDCWD, path, flags, 0)
            .map_err(|error| resolve::failed(error, "open", path))
    };
    let (from, to) = (open(source)?, open(target)?);
    let failed = |error| resolve::failed(error, "copy", source);
    let batches = flush::Flush::always().by_batches(sys::as_fd(&to));
    let mut copy = tree_copy::TreeCopy::new(batches);
    copy.directory(from, to, None).map_err(failed)?;
    while !copy.step().map_err(failed)? {}
    copy.batches.all().map_err(failed)
}

pub struct Directories {
    /// Relative paths start here.
    pub workspace: Vec<u8>,
    /// The user's home. No path is relative to it: `~` is a name like any other.
    #[allow(dead_code)]
    pub home: Vec<u8>,
}

/// Begin `verb`, as another user if the request names one.
pub fn open_as(
    verb: &str,
    request: &Value,
    directories: &Directories,
    identity: &Identity,
) -> Result<Box<dyn Handler>, Failure> {
    match other_user::named(request)? {
        None => open(verb, request, directories),
        Some(user) => other_user::open(user, identity, || open(verb, request, directories)),
    }
}

/// Begin `verb`. Errors in the request, and most reasons why it cannot be done, are returned here.
pub fn open(
    verb: &str,
    request: &Value,
    directories: &Directories,
) -> Result<Box<dyn Handler>, Failure> {
    let request = Request::new(request, directories);
    match verb {
        "fs.stat" => stat(&request),
        "fs.list" => list::open(&request),
        "fs.attributes" => attributes::open(&request),
        "fs.read" => read::open(&request),
        "fs.write" => write::open(&request),
        "fs.mkdir" => change::make_dir(&request),
        "fs.move" => change::move_entry(&request),
        "fs.remove" => remove::open(&request),
        "fs.watch" => watch::open(&request),
        "fs.tar_in" => tar::extract::open(&request),
        "fs.tar_out" => tar::create::open(&request),
        _ => Err(Failure::new(
            "unsupported",
            format!("there is no verb {:?}", verb),
        )),
    }
}

fn stat(request: &Request<'_>) -> Result<Box<dyn Handler>, Failure> {
    let resolver = request.reading()?;
    let path = request.path("path")?;
    let object = if request.flag("follow", true)? {
        resolver.object(&path)?
    } else {
        resolver.object_itself(&path)?
    };
    answer(entry::of_object(&object)?)
}

/// A verb that is over as soon as it is opened.
fn answer(value: Value) -> Result<Box<dyn Handler>, Failure> {
    Ok(Box::new(Answer(Some(value))))
}

struct Answer(Option<Value>);

impl Handler for Answer {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if let Some(value) = self.0.take() {
            out.result(value);
        }
        Ok(Step::Done)
    }
}

#[cfg(test)]
mod tests;
