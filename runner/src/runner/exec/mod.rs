//! Commands: all that run or have run, by number, by id and by idempotency key.
//!
//! A command is a fresh process (`process`) or a command of a persistent shell; this folder knows nothing of
//! how a shell is driven, and offers `shell` the few calls it needs.

pub mod command;
mod deadline;
mod follow;
mod held;
mod process;
pub mod pty;
mod results;
pub mod start;
mod stdio;
mod verbs;

pub use command::{Exec, State, PTY, STDERR, STDOUT};
pub use deadline::Signalled;
pub use results::ShellEnd;
pub use start::{parse_env, Start, What};

use crate::context::Context;
use crate::wire::handler::Failure;
use crate::wire::protocol;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

#[derive(Default)]
pub struct Execs {
    by_number: BTreeMap<u64, Exec>,
    by_id: HashMap<String, u64>,
    by_key: HashMap<String, u64>,
    /// Commands that are over, oldest first.
    finished: VecDeque<u64>,
    /// Commands whose watchers are to be served.
    changed: BTreeSet<u64>,
    /// Why the command that is being started was refused at once.
    refused: Option<Failure>,
}

impl Execs {
    pub fn get(&self, number: u64) -> Option<&Exec> {
        self.by_number.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Exec> {
        self.by_number.get_mut(&number)
    }

    /// Return how many commands are running or queued; held programs are not commands yet.
    pub fn active(&self) -> usize {
        let execs = self.by_number.values();
        execs
            .filter(|exec| !exec.state.is_over() && !exec.start.hold)
            .count()
    }

    /// Report whether a command is activity: not one of a client that only looks.
    pub fn at_work(&self) -> bool {
        let mut execs = self.by_number.values();
        execs.any(|exec| !exec.state.is_over() && !exec.start.hold && !exec.start.observe)
    }

    /// Return the processes of running commands that are no activity: held ones and observing ones.
    pub fn pids_at_rest(&self) -> impl Iterator<Item = i32> + '_ {
        let rests =
            |exec: &&Exec| (exec.start.hold || exec.start.observe) && exec.state == State::Running;
        self.by_number.values().filter(rests).map(|exec| exec.pid)
    }

    /// Return the command that an equal request has started before.
    pub fn find_started(&self, start: &Start) -> Option<u64> {
        let by_key = start.key.as_ref().and_then(|key| self.by_key.get(key));
        self.by_id.get(&start.exec_id).or(by_key).copied()
    }

    /// Add a command that is about to be started. `confirm` must follow.
    pub fn add(&mut self, start: Start, cx: &mut Context) -> Result<u64, Failure> {
        self.refused = None;
        if self.active() >= protocol::MAX_ACTIVE {
            return Err(Failure::new("busy", "256 commands are running or queued"));
        }
        let number = cx.next_serial();
        self.by_id.insert(start.exec_id.clone(), number);
        if let Some(key) = &start.key {
            self.by_key.insert(key.clone(), number);
        }
        self.by_number.insert(number, Exec::new(start));
        Ok(number)
    }

    /// Keep the added command, or forget it if it could not be started.
    pub fn confirm(&mut self, number: u64, started: Result<(), Failure>) -> Result<u64, Failure> {
        if started.is_err() {
            self.forget(number);
        }
        match self.refused.take() {
            Some(failure) => Err(failure),
            None => started.map(|()| number),
        }
    }

    fn forget(&mut self, number: u64) -> Option<Exec> {
        let exec = self.by_number.remove(&number)?;
        self.by_id.remove(&exec.start.exec_id);
        if let Some(key) = &exec.start.key {
            self.by_key.remove(key);
        }
        Some(exec)
    }

    /// The command never began: its streams get the reason, and it is forgotten.
    pub fn refuse(&mut self, number: u64, failure: &Failure, cx: &mut Context) {
        let Some(mut exec) = self.forget(number) else {
            return;
        };
        exec.close_ends(&mut cx.poll);
        if let Some(timer) = exec.timer.take() {
            cx.timers.cancel(timer);
        }
        if exec.watchers.is_empty() {
            // Its `exec.start` is still being read: that stream gets the reason.
            self.refused = Some(failure.clone());
        }
        for stream in exec.watchers {
            cx.clients.answer_error(stream, failure);
        }
    }
}
