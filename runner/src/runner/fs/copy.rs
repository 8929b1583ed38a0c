//! The part of `fs.move` that crosses file systems: copy, put in place, remove the source.
//!
//! The copy is written under a temporary name beside the destination and renamed only when it is
//! complete, so the destination is never half made; until then the source is untouched. CANCEL or a
//! failure before that removes the copy, and the source is removed only when the copy is on disk.
//! `tree_copy` says what is kept.

use super::flush::Flush;
use super::remover::Remover;
use super::resolve::{failed, Place};
use super::temp::{self, Purpose};
use super::tree_copy::TreeCopy;
use super::{entry, names};
use crate::sys::{self, Stat};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};

enum State {
    Copy,
    Remove(Remover),
}

pub struct MoveByCopy {
    source: Place,
    stat: Stat,
    destination: Place,
    overwrite: bool,
    temp: Vec<u8>,
    /// The temporary name exists, and must be removed.
    begun: bool,
    copy: TreeCopy,
    state: State,
    flush: Flush,
}

impl MoveByCopy {
    pub fn new(
        source: Place,
        stat: Stat,
        destination: Place,
        overwrite: bool,
        flush: Flush,
    ) -> Result<MoveByCopy, Failure> {
        if names::under(&destination.dir_path, &source.path()) {
            // Possible where another file system is mounted below the source.
            return Err(Failure::invalid(format!(
                "{} cannot be moved into itself",
                names::show(&source.path())
            )));
        }
        let temp = temp::fresh_name(Purpose::New)
            .map_err(|error| failed(error, "move", &source.path()))?;
        let batches = flush.by_batches(destination.dir());
        Ok(MoveByCopy {
            source,
            stat,
            destination,
            overwrite,
            temp,
            begun: false,
            copy: TreeCopy::new(batches),
            state: State::Copy,
            flush,
        })
    }

    fn run(&mut self, out: &mut dyn Out) -> Stepped {
        if let State::Remove(remover) = &mut self.state {
            if !remover.step()? {
                return Ok(Step::Again);
            }
            self.flush
                .names(self.source.dir())
                .map_err(|error| failed(error, "remove", &self.source.path()))?;
            let place = &self.destination;
            out.result(entry::of_name(place.dir(), &place.dir_path, &place.name)?);
            return Ok(Step::Done);
        }
        let shown = self.source.path();
        let whole = self
            .copy_some()
            .map_err(|error| failed(error, "copy", &shown))?;
        if whole {
            self.put_in_place()?;
            let dir = sys::duplicate(self.source.dir())
                .map_err(|error| failed(error, "remove", &shown))?;
            self.state = State::Remove(Remover::new(dir, self.source.name.clone()));
        }
        Ok(Step::Again)
    }

    fn put_in_place(&mut self) -> Result<(), Failure> {
        let dir = self.destination.dir();
        let name = &self.destination.name;
        let fail = |error| failed(error, "move to", &self.destination.path());
        self.copy.batches.all().map_err(fail)?;
        let moved = if self.overwrite {
            sys::rename_at(dir, &self.temp, dir, name)
        } else {
            match sys::rename_new_at(dir, &self.temp, dir, name) {
                Err(libc::EINVAL) => sys::rename_at(dir, &self.temp, dir, name),
                answer => answer,
            }
        };
        moved.map_err(fail)?;
        self.begun = false;
        self.flush.names(dir).map_err(fail)
    }

    /// Copy some more; `true` when the copy is complete.
    fn copy_some(&mut self) -> sys::Result<bool> {
        if !self.begun {
            self.begin()?;
        }
        self.copy.step()
    }

    fn begin(&mut self) -> sys::Result<()> {
        self.begun = true;
        if !sys::is_dir(&self.stat) {
            let (from, to) = (self.source.dir(), self.destination.dir());
            return self
                .copy
                .node(from, &self.source.name, &self.stat, to, &self.temp);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let from = sys::open_at(self.source.dir(), &self.source.name, flags, 0)?;
        sys::make_dir_at(self.destination.dir(), &self.temp, 0o700)?;
        let to = sys::open_at(self.destination.dir(), &self.temp, flags, 0)?;
        self.copy.directory(from, to, Some(self.stat))
    }
}

impl Handler for MoveByCopy {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        self.run(out).map_err(|failure| {
            let what = names::show(&self.destination.path());
            Failure {
                message: format!("{} (on the way to {})", failure.message, what),
                ..failure
            }
        })
    }
}

impl Drop for MoveByCopy {
    fn drop(&mut self) {
        if !self.begun {
            return;
        }
        self.begun = false;
        self.copy.close();
        if let Ok(dir) = sys::duplicate(self.destination.dir()) {
            let mut remover = Remover::new(dir, self.temp.clone());
            while let Ok(false) = remover.step() {}
        }
    }
}
