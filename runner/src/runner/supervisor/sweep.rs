//! Kill every process below a subreaper, however it was forked.
//!
//! No process below a subreaper can leave it: one that double-forks or calls setsid is reparented to
//! it. So the family is what /proc lists below it; it is stopped until no new member appears, then
//! killed, and that is repeated until none is left.

use crate::processes::{self, Process};
use crate::sys;
use rustix::process::getpgrp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

pub struct Family {
    /// The subreaper at the top; never killed itself.
    pub top: i32,
    /// Processes to spare, with everything below them. A start time of 0 means any process with this
    /// pid.
    pub spared: Vec<(i32, u64)>,
    /// A shell whose command is swept: stopped meanwhile, not killed.
    pub shell: Option<i32>,
}

/// How often to look at /proc for new members before those found are killed.
const STOP_ROUNDS: usize = 8;
/// Attempts at a chain of processes that fork and exit faster than /proc can be read.
const CHAIN_ATTEMPTS: usize = 2_000;

impl Family {
    fn is_spared(&self, process: &Process) -> bool {
        self.spared
            .iter()
            .any(|&(pid, start)| pid == process.pid && (start == 0 || start == process.start))
    }

    /// Return every living member.
    pub fn members(&self) -> Vec<Process> {
        let processes_found = processes::all().unwrap_or_default();
        let mut below: HashMap<i32, Vec<&Process>> = HashMap::new();
        for process in &processes_found {
            below.entry(process.ppid).or_default().push(process);
        }
        let mut members = Vec::new();
        let mut visited = HashSet::new();
        let mut open = vec![self.top];
        while let Some(parent) = open.pop() {
            for child in below.get(&parent).into_iter().flatten() {
                if !visited.insert(child.pid) {
                    continue;
                }
                if Some(child.pid) == self.shell {
                    open.push(child.pid);
                } else if !self.is_spared(child) {
                    open.push(child.pid);
                    if child.alive() {
                        members.push((*child).clone());
                    }
                }
            }
        }
        members
    }

    /// Send a signal to every member that exists now. Return how many there were.
    pub fn signal(&self, signal: i32) -> usize {
        let members = self.members();
        for member in &members {
            let _already_dead = sys::kill(member.pid, signal);
        }
        members.len()
    }

    /// Kill every member. The caller is the top, and `reap` collects its dead children.
    pub fn sweep(&self, reap: &mut dyn FnMut()) {
        reap();
        // Do not signal the shell if there is nothing to kill: gVisor does not resume a system call that
        // a stop interrupts, and a shell that waits for its next command would end.
        if self.orphans().is_empty() && self.members().is_empty() {
            return;
        }
        if let Some(shell) = self.shell {
            let _already_dead = sys::kill(shell, libc::SIGSTOP);
        }
        let mut pause = Duration::from_micros(50);
        loop {
            for member in self.stop_all() {
                let _already_dead = sys::kill(member.pid, libc::SIGKILL);
            }
            self.kill_chain(reap);
            // A scan may miss a process that forks and exits meanwhile; the list of the top's children
            // does not.
            if self.orphans().is_empty() && self.members().is_empty() {
                break;
            }
            // Killed but not yet gone: a large memory, or a disk that does not answer.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
            reap();
        }
        if let Some(shell) = self.shell {
            let _already_dead = sys::kill(shell, libc::SIGCONT);
        }
    }

    /// Send SIGSTOP until no new member appears, at most a few rounds: a chain that is faster than the
    /// scan is left to `kill_chain`.
    fn stop_all(&self) -> Vec<Process> {
        let mut stopped: HashSet<(i32, u64)> = HashSet::new();
        let mut members = self.members();
        for _ in 0..STOP_ROUNDS {
            let fresh: Vec<&Process> = members
                .iter()
                .filter(|member| stopped.insert((member.pid, member.start)))
                .collect();
            if fresh.is_empty() {
                break;
            }
            // A signal to a group reaches processes that are being forked. The groups below have only our processes:
            // the top started its child in a new session (or, for a shell, it is the leader of its own
            // group, which is excluded here).
            let groups: HashSet<i32> = fresh.iter().map(|member| member.group).collect();
            if self.shell.is_none() && self.spared.is_empty() {
                for group in groups
                    .into_iter()
                    .filter(|&g| g > 1 && g != getpgrp().as_raw_pid())
                {
                    let _already_dead = sys::kill(-group, libc::SIGSTOP);
                }
            }
            for member in fresh {
                let _already_dead = sys::kill(member.pid, libc::SIGSTOP);
            }
            members = self.members();
        }
        members
    }

    /// Return children of the top that are members, dead ones that were not reaped included. Empty
    /// where the kernel does not list children.
    fn orphans(&self) -> Vec<i32> {
        let mut children = processes::children(self.top).unwrap_or_default();
        children.retain(|pid| {
            Some(*pid) != self.shell && !self.spared.iter().any(|spared| spared.0 == *pid)
        });
        children
    }

    /// Orphans are reparented to the top at once. Reading its own children and killing them takes
    /// microseconds, less than a process needs to fork.
    fn kill_chain(&self, reap: &mut dyn FnMut()) {
        for _ in 0..CHAIN_ATTEMPTS {
            reap();
            let orphans = self.orphans();
            if orphans.is_empty() {
                return;
            }
            for pid in orphans.into_iter().rev() {
                let _already_dead = sys::kill(pid, libc::SIGKILL);
            }
        }
    }
}
