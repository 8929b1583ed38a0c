//! Ending commands: deadlines with their grace period, and signals that a client asks for.
//!
//! This file only gives orders; the supervisor of the command carries them out, and its reports end the
//! command. Timers count on the work clock, which stands still while the sandbox is frozen.

use super::{Execs, State};
use crate::context::Context;
use crate::processes;
use crate::supervisor::Order;
use crate::timers::Due;

/// A shell whose command was swept must answer within this time, or it is swept again: it may have been
/// about to start the next process. After the last attempt it is replaced.
const SHELL_ANSWERS_MS: u64 = 200;
const SHELL_SWEEPS: u32 = 3;
/// How often it gets more time in addition, because a busy machine has not let it run.
const SHELL_TURNS_MISSED: u32 = 50;
/// Clock ticks that prove that it ran; one may be left over from before.
const TURN_TICKS: u64 = 2;

/// The effect of `Execs::signal`.
pub enum Signalled {
    /// The command waits in the queue of its shell, which must take it out.
    InQueue,
    /// The signal has done its work once this many sweeps are reported.
    Sent { until: u32 },
}

impl Execs {
    pub(super) fn arm_deadline(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            if let Some(ms) = exec.start.deadline_ms {
                exec.timer = Some(cx.timers.after_ms(ms, Due::Deadline(number)));
            }
            if exec.start.pty.is_some() && !exec.start.stdin_stream {
                // A terminal needs an explicit end of file to have an empty standard input.
                exec.input.closing = true;
            }
        }
    }

    /// The deadline has passed: ask the command to end, and give it the grace period.
    pub fn deadline_passed(&mut self, number: u64, cx: &mut Context) {
        let exec = match self.get_mut(number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        exec.timed_out = true;
        let grace_ms = exec.start.grace_ms;
        exec.timer = Some(cx.timers.after_ms(grace_ms, Due::Grace(number)));
        if grace_ms > 0 {
            for signal in [libc::SIGTERM, libc::SIGCONT] {
                cx.supervisors.order(exec.supervisor, Order::Signal(signal));
            }
        }
    }

    /// The grace period is over: kill every process of the command.
    pub fn grace_over(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            if exec.state == State::Running {
                exec.killed_by_us = true;
                cx.supervisors.order(exec.supervisor, Order::Sweep);
            }
        }
    }

    /// If the command is past its deadline, cancel its grace period and return true.
    pub fn cancel_grace(&mut self, number: u64, cx: &mut Context) -> bool {
        match self.get_mut(number) {
            Some(exec) if exec.timed_out => {
                if let Some(timer) = exec.timer.take() {
                    cx.timers.cancel(timer);
                }
                true
            }
            _ => false,
        }
    }

    /// The processes of a shell's command were killed. Return whether that was ordered for this command: a
    /// late report can belong to the one before.
    pub fn count_sweep(&mut self, number: u64) -> bool {
        self.changed.insert(number);
        self.get_mut(number).is_some_and(|exec| {
            exec.sweeps_done += 1;
            exec.timed_out || exec.sweeps_ordered > 0
        })
    }

    /// A shell's command was swept: give the shell some time to answer.
    pub fn expect_answer(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            if exec.state == State::Running {
                exec.ticks = processes::stat(exec.pid).map_or(0, |shell| shell.cpu_ticks);
                cx.timers.after_ms(SHELL_ANSWERS_MS, Due::Swept(number));
            }
        }
    }

    /// A swept shell did not answer in time: wait on, sweep again, or end it.
    pub fn answer_missing(&mut self, number: u64, cx: &mut Context) {
        let exec = match self.get_mut(number) {
            Some(exec) if exec.state == State::Running && exec.ending.is_none() => exec,
            _ => return,
        };
        if exec.turns_missed < SHELL_TURNS_MISSED && waits_for_processor(exec.pid, exec.ticks) {
            exec.turns_missed += 1;
            cx.timers.after_ms(SHELL_ANSWERS_MS, Due::Swept(number));
            return;
        }
        exec.unanswered_sweeps += 1;
        if exec.unanswered_sweeps < SHELL_SWEEPS {
            cx.supervisors.order(exec.supervisor, Order::Sweep);
        } else {
            exec.shell_reset = true;
            cx.supervisors.order(exec.supervisor, Order::End);
        }
    }

    /// Send a signal to the command: to all its processes (`tree`), or only to the first one.
    pub fn signal(&mut self, number: u64, signal: i32, tree: bool, cx: &mut Context) -> Signalled {
        let sent = Signalled::Sent { until: 0 };
        let Some(exec) = self.get_mut(number) else {
            return sent;
        };
        let shell = exec.is_shell();
        if !exec.state.is_over() {
            exec.sent_signal = Some(signal);
            exec.killed_by_us |= signal == libc::SIGKILL;
        }
        if shell && exec.state == State::Queued {
            return Signalled::InQueue;
        }
        if shell && exec.state.is_over() {
            // Its processes are background jobs of the shell now.
            return sent;
        }
        let order = match (shell, tree) {
            (_, true) if signal == libc::SIGKILL => {
                exec.sweeps_ordered = exec.sweeps_ordered.max(exec.sweeps_done) + 1;
                cx.supervisors.order(exec.supervisor, Order::Sweep);
                return Signalled::Sent {
                    until: exec.sweeps_ordered,
                };
            }
            (true, _) => Order::SignalShell(signal),
            (false, true) => Order::Signal(signal),
            (false, false) => Order::SignalRoot(signal),
        };
        cx.supervisors.order(exec.supervisor, order);
        sent
    }

    /// Note that the runner kills this command, because its shell is closed.
    pub fn mark_killed(&mut self, number: u64) {
        if let Some(exec) = self.get_mut(number) {
            exec.killed_by_us = true;
            exec.sent_signal = Some(libc::SIGKILL);
        }
    }
}

/// Report whether the process could run and yet has not since it had used `ticks`.
fn waits_for_processor(pid: i32, ticks: u64) -> bool {
    processes::stat(pid).is_some_and(|shell| {
        matches!(shell.state, b'R' | b'D') && shell.cpu_ticks < ticks + TURN_TICKS
    })
}
