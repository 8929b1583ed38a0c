//! From "it has ended" to a result that is kept: the last output, the books, and letting old ones go.

use crate::exec::{State, PTY};
use crate::server::Server;
use crate::sys;
use crate::timers::Due;
use crate::wire::protocol;

/// How long the output of an ended command may trickle on a terminal that somebody still holds.
const SETTLE_MS: u64 = 20;

impl Server {
    /// How the command ended is known. On a terminal its last words may still be on their way.
    pub fn wind_up(&mut self, number: u64) {
        self.look_at_terminal(number);
        self.drain_outputs(number);
        let exec = match self.execs.get_mut(&number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        if exec.outputs[usize::from(PTY)].is_some() {
            self.timers.after_ms(SETTLE_MS, Due::Settle(number));
        } else {
            self.conclude(number);
        }
    }

    pub fn settle_output(&mut self, number: u64) {
        self.drain_outputs(number);
        self.conclude(number);
    }

    pub fn conclude(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            match (exec.state, exec.ending, exec.status) {
                (State::Running, Some(state), _) => exec.state = state,
                (State::Running, None, Some(status)) => exec.take_status(status),
                _ => return,
            }
            self.finish(number);
        }
    }

    /// Books the end of a command whose state is final, and lets old ones go.
    pub fn finish(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        exec.resting = None;
        exec.duration_ms = sys::boot_ns().saturating_sub(exec.begun_ns) / 1_000_000;
        if let Some(timer) = exec.timer.take() {
            self.timers.cancel(timer);
        }
        self.drop_input(number);
        self.changed.insert(number);
        self.finished.push_back(number);
        self.lease.touch(self.timers.work_now());
        self.make_room();
    }

    fn make_room(&mut self) {
        let mut budget = protocol::KEPT_OUTPUT;
        for number in self.finished.iter().rev() {
            if let Some(exec) = self.execs.get_mut(number) {
                match budget.checked_sub(exec.ring.footprint()) {
                    Some(rest) => budget = rest,
                    None => {
                        budget = 0;
                        exec.ring.forget();
                    }
                }
            }
        }
        while self.finished.len() > protocol::KEPT_RESULTS {
            let execs = &self.execs;
            // What still has a reader, or a child that writes, is kept beyond its time.
            let idle = |number: &u64| {
                execs.get(number).map_or(true, |exec| {
                    exec.watchers.is_empty()
                        && exec.supervisor.is_none()
                        && exec.outputs.iter().all(Option::is_none)
                })
            };
            let index = match self.finished.iter().position(idle) {
                Some(index) => index,
                None => return,
            };
            if let Some(number) = self.finished.remove(index) {
                self.forget_exec(number);
            }
        }
    }
}
