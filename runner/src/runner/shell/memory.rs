//! The peak memory of a shell's command, measured while it runs.
//!
//! The kernel reports the peak of a process only to its parent, which is the shell. So the processes of the
//! command are looked at from time to time; what one has used between the last look and its end is missed.

use super::{Phase, Shells};
use crate::context::Context;
use crate::processes;
use crate::sys;
use crate::timers::{Due, TimerId};

/// The first look, and the longest time between two. Most commands end before the first.
const FIRST_MS: u64 = 5;
const LONGEST_MS: u64 = 100;
/// How many processes one look reads: a fork bomb must not keep the runner busy.
const MOST: usize = 64;

#[derive(Default)]
pub(super) struct Memory {
    /// The largest resident size of one process of this command so far.
    pub peak_bytes: u64,
    /// The resident size of the shell itself when it was last looked at.
    shell_bytes: u64,
    /// When the command began, since boot.
    since_ms: u64,
    wait_ms: u64,
    timer: Option<TimerId>,
}

impl Memory {
    /// Begin to measure the command of a shell.
    pub fn start(&mut self, id: u64, cx: &mut Context) {
        self.peak_bytes = 0;
        self.since_ms = sys::boot_ns() / 1_000_000;
        self.wait_ms = FIRST_MS;
        self.timer = Some(cx.timers.after_ms(FIRST_MS, Due::Memory(id)));
    }

    pub fn stop(&mut self, cx: &mut Context) {
        if let Some(timer) = self.timer.take() {
            cx.timers.cancel(timer);
        }
    }

    /// The shell has answered: count it too. One that was never looked at during its command has hardly
    /// changed, and the look would cost more than many a command.
    pub fn finish(&mut self, pid: i32) {
        if self.shell_bytes == 0 || self.wait_ms > FIRST_MS {
            self.measure_shell(pid);
        }
        self.peak_bytes = self.peak_bytes.max(self.shell_bytes);
    }

    /// Count what the shell itself has now: its own peak may be that of an earlier command.
    fn measure_shell(&mut self, pid: i32) {
        self.shell_bytes = processes::stat(pid).map_or(0, |shell| processes::rss_bytes(&shell));
        self.peak_bytes = self.peak_bytes.max(self.shell_bytes);
    }

    /// Count the processes below the supervisor that are not older than the command.
    fn measure(&mut self, supervisor: i32, shell: i32) {
        self.measure_shell(shell);
        for process in processes::below(supervisor, MOST) {
            let started_ms = processes::started_ms(&process);
            if process.pid != shell && processes::began_since(started_ms, self.since_ms) {
                self.peak_bytes = self.peak_bytes.max(processes::peak_rss_bytes(&process));
            }
        }
    }
}

impl Shells {
    pub fn measure_memory(&mut self, id: u64, cx: &mut Context) {
        let shell = match self.by_id.get_mut(&id) {
            Some(shell) if matches!(shell.phase, Phase::Running | Phase::Settling) => shell,
            _ => return,
        };
        let memory = &mut shell.memory;
        if let Some(supervisor) = shell.supervisor {
            memory.measure(supervisor, shell.pid);
        }
        memory.wait_ms = (memory.wait_ms * 2).min(LONGEST_MS);
        memory.timer = Some(cx.timers.after_ms(memory.wait_ms, Due::Memory(id)));
    }
}
