//! The end of a command: its last output, its result, and which old results are dropped.

use super::{Execs, State, PTY};
use crate::context::Context;
use crate::supervisor::Usage;
use crate::sys;
use crate::timers::Due;
use crate::wire::protocol;

/// How long the output of an ended command may continue on a terminal that another process holds open.
const SETTLE_MS: u64 = 20;

/// How a command of a persistent shell ended.
pub enum ShellEnd {
    /// The shell reported the exit status and lives on.
    Answered { exit_code: i32, usage: Usage },
    /// The shell died or was killed; `status` is `None` when nothing was observed.
    Died {
        status: Option<i32>,
        peak_rss_bytes: u64,
    },
}

impl Execs {
    /// The command of a shell is over. `cwd` is the directory of the shell.
    pub fn end_in_shell(&mut self, number: u64, end: ShellEnd, cwd: Vec<u8>, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            exec.cwd = Some(cwd);
            let state = match end {
                ShellEnd::Answered { exit_code, usage } => {
                    exec.exit_code = Some(exit_code);
                    exec.usage = usage;
                    State::Exited
                }
                ShellEnd::Died {
                    status,
                    peak_rss_bytes,
                } => {
                    exec.shell_reset = true;
                    exec.usage.peak_rss_bytes = peak_rss_bytes;
                    status.map_or(State::Lost, |status| {
                        exec.take_status(status);
                        exec.state
                    })
                }
            };
            exec.terminal = None;
            // `take_status` may have set the final state already; it is not over before all is read.
            exec.state = State::Running;
            exec.ending = Some(state);
            exec.supervisor = None;
            if let Some(timer) = exec.timer.take() {
                cx.timers.cancel(timer);
            }
        }
        self.wind_up(number, cx);
    }

    /// It is known how the command ended. On a terminal its last output may still arrive.
    pub(super) fn wind_up(&mut self, number: u64, cx: &mut Context) {
        self.poll_terminal_again(number, cx);
        self.drain_outputs(number, cx);
        let exec = match self.get_mut(number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        if exec.has_output(PTY) {
            cx.timers.after_ms(SETTLE_MS, Due::Settle(number));
        } else {
            self.conclude(number, cx);
        }
    }

    /// Take the last output of an ended command and finish it.
    pub fn settle_output(&mut self, number: u64, cx: &mut Context) {
        self.drain_outputs(number, cx);
        self.conclude(number, cx);
    }

    pub(super) fn conclude(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            match (exec.state, exec.ending, exec.status) {
                (State::Running, Some(state), _) => exec.state = state,
                (State::Running, None, Some(status)) => exec.take_status(status),
                _ => return,
            }
            self.finish(number, cx);
        }
    }

    /// A queued command was taken out of its shell's queue by this signal.
    pub fn withdraw(&mut self, number: u64, signal: i32, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            exec.signal = Some(signal);
            exec.state = State::Signaled;
            exec.begun_ns = sys::boot_ns();
            self.finish(number, cx);
        }
    }

    /// Record the end of a command whose state is final, and drop old results.
    pub(super) fn finish(&mut self, number: u64, cx: &mut Context) {
        let Some(exec) = self.get_mut(number) else {
            return;
        };
        let observes = exec.start.observe;
        exec.unused_terminal = None;
        exec.duration_ms = sys::boot_ns().saturating_sub(exec.begun_ns) / 1_000_000;
        if let Some(timer) = exec.timer.take() {
            cx.timers.cancel(timer);
        }
        self.drop_input(number, cx);
        self.changed.insert(number);
        self.finished.push_back(number);
        if !observes {
            cx.touch_lease();
        }
        self.drop_old_results();
    }

    fn drop_old_results(&mut self) {
        let mut budget = protocol::KEPT_OUTPUT;
        for (age, number) in self.finished.iter().rev().enumerate() {
            if let Some(exec) = self.by_number.get_mut(number) {
                match budget.checked_sub(exec.ring.footprint()) {
                    Some(rest) => budget = rest,
                    None => {
                        budget = 0;
                        // The end of the newest command is still to be read, as is that of a
                        // command with a reader; their own caps bound them.
                        if age > 0 && exec.watchers.is_empty() {
                            exec.ring.forget();
                        }
                    }
                }
            }
        }
        while self.finished.len() > protocol::KEPT_RESULTS {
            let execs = &self.by_number;
            // A command that still has a reader, or a process that writes, is kept for longer.
            let unused = |number: &u64| {
                execs.get(number).is_none_or(|exec| {
                    exec.watchers.is_empty()
                        && exec.supervisor.is_none()
                        && exec.outputs.iter().all(Option::is_none)
                })
            };
            let Some(index) = self.finished.iter().position(unused) else {
                return;
            };
            if let Some(number) = self.finished.remove(index) {
                self.forget(number);
            }
        }
    }
}
