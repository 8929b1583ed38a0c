//! Ending commands from outside: deadlines with their grace, and signals a client asks for.
//!
//! Only orders are given here; the supervisor of the command carries them out, and its reports end the
//! command. Timers count on the work clock, which stands still while the sandbox is frozen.

use crate::exec::State;
use crate::processes;
use crate::server::Server;
use crate::supervisor::Order;
use crate::timers::Due;

/// A shell whose command was swept answers within this, or is swept again: it may have been about to
/// start the next process. After the last attempt it is replaced.
const SHELL_ANSWERS_MS: u64 = 200;
const SHELL_SWEEPS: u32 = 3;
/// So often it is left alone besides, because a busy machine has not given it a turn.
const SHELL_TURNS_MISSED: u32 = 50;
/// Clock ticks that count as a turn; one may be left over from before.
const TURN_TICKS: u64 = 2;

impl Server {
    pub fn arm_deadline(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            if let Some(ms) = exec.start.deadline_ms {
                exec.timer = Some(self.timers.after_ms(ms, Due::Deadline(number)));
            }
            if exec.start.pty.is_some() && !exec.start.stdin_stream {
                // An empty standard input, as a terminal says it.
                exec.input.closing = true;
            }
        }
    }

    pub fn deadline(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        exec.timed_out = true;
        exec.timer = Some(
            self.timers
                .after_ms(exec.start.grace_ms, Due::Grace(number)),
        );
        let supervisor = exec.supervisor;
        if exec.start.grace_ms > 0 {
            for signal in [libc::SIGTERM, libc::SIGCONT] {
                self.order(supervisor, Order::Signal(signal));
            }
        }
    }

    pub fn grace_over(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            if exec.state == State::Running {
                exec.we_killed = true;
                let supervisor = exec.supervisor;
                self.order(supervisor, Order::Sweep);
            }
        }
    }

    /// A shell's command was swept: the shell has a moment to answer.
    pub fn expect_answer(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            if exec.state == State::Running {
                exec.ticks = processes::stat(exec.pid).map_or(0, |shell| shell.cpu_ticks);
                self.timers.after_ms(SHELL_ANSWERS_MS, Due::Swept(number));
            }
        }
    }

    pub fn sweep_settled(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) if exec.state == State::Running && exec.ending.is_none() => exec,
            _ => return,
        };
        if exec.turns_missed < SHELL_TURNS_MISSED && waits_for_a_turn(exec.pid, exec.ticks) {
            exec.turns_missed += 1;
            self.timers.after_ms(SHELL_ANSWERS_MS, Due::Swept(number));
            return;
        }
        exec.sweeps += 1;
        let supervisor = exec.supervisor;
        if exec.sweeps < SHELL_SWEEPS {
            self.order(supervisor, Order::Sweep);
        } else {
            exec.shell_reset = true;
            self.order(supervisor, Order::End);
        }
    }

    /// How many sweeps must have been reported before the signal has done its work.
    pub fn signal_exec(&mut self, number: u64, signal: i32, tree: bool) -> u32 {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return 0,
        };
        let supervisor = exec.supervisor;
        let shell = exec.is_shell();
        if !exec.state.is_over() {
            exec.sent_signal = Some(signal);
            exec.we_killed |= signal == libc::SIGKILL;
        }
        if shell && exec.state == State::Queued {
            self.withdraw(number, signal);
        } else if shell && exec.state.is_over() {
            // Its processes are the shell's background jobs now.
        } else if signal == libc::SIGKILL && tree {
            exec.to_sweep = exec.to_sweep.max(exec.swept) + 1;
            let until = exec.to_sweep;
            self.order(supervisor, Order::Sweep);
            return until;
        } else if shell {
            self.order(supervisor, Order::SignalShell(signal));
        } else if tree {
            self.order(supervisor, Order::Signal(signal));
        } else {
            self.order(supervisor, Order::SignalRoot(signal));
        }
        0
    }
}

/// Able to run, and yet it did not since it had used so much.
fn waits_for_a_turn(pid: i32, ticks: u64) -> bool {
    processes::stat(pid).map_or(false, |shell| {
        matches!(shell.state, b'R' | b'D') && shell.cpu_ticks < ticks + TURN_TICKS
    })
}
