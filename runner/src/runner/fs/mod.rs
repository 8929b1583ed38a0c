//! The file verbs. Each verb is a `Handler`; this module reads the verb's name and hands over.
//!
//! Everything here runs as the user of the sandbox and sees what he sees. It never assumes root and
//! never changes anything that belongs to the whole process: modes are set by fchmod and not by the
//! umask, and no verb changes the working directory.

mod change;
mod copy;
mod created;
mod entry;
mod list;
mod lookup;
mod names;
mod policy;
mod read;
mod remove;
mod remover;
mod request;
mod resolve;
mod tar;
mod temp;
mod walk;
mod watch;
mod write;

use crate::wire::handler::{Failure, Handler, Out, Step};
use request::Request;
use serde_json::Value;

pub struct Directories {
    /// Where relative paths count from.
    pub workspace: Vec<u8>,
    /// The user's home. No path counts from it: `~` is a name like any other.
    #[allow(dead_code)]
    pub home: Vec<u8>,
}

/// Begins `verb`. What the request has wrong, and most of what cannot be done, is said here.
pub fn open(
    verb: &str,
    request: &Value,
    directories: &Directories,
) -> Result<Box<dyn Handler>, Failure> {
    let request = Request::new(request, directories);
    match verb {
        "fs.stat" => stat(&request),
        "fs.list" => list::open(&request),
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
    fn step(&mut self, out: &mut dyn Out) -> Step {
        if let Some(value) = self.0.take() {
            out.result(value);
        }
        Step::Done
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Step {
        discard(bytes, out)
    }

    fn end(&mut self, _out: &mut dyn Out) -> Step {
        Step::Again
    }

    fn cancel(&mut self) {}
}

/// DATA for a verb that takes none: thrown away, and paid back so that nobody waits.
fn discard(bytes: &[u8], out: &mut dyn Out) -> Step {
    out.grant(bytes.len() as u32);
    Step::Again
}

#[cfg(test)]
mod tests;
