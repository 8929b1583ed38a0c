//! The supervisor: a small process between the runner and one command (or one shell).
//!
//! It is a child subreaper, so every process that the command starts reusable below it. It reports how the
//! command ended, kills on order, and reusable as the reaper while any process below it lives. Then it
//! waits for another command, unless it carried a shell. If the runner ends it kills everything
//! and exits.

use crate::identity::Identity;
use crate::processes;
use crate::supervisor::handover::{self, Handover};
use crate::supervisor::program::{copy_onto, Program, Stage, Wiring};
use crate::supervisor::registry::Registry;
use crate::supervisor::sweep::Family;
use crate::sys::{self, Errno};
use crate::wire::handler::Failure;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::DupFlags;
use rustix::process::{
    set_child_subreaper, set_dumpable_behavior, setsid, waitpid, DumpableBehavior, Pid, WaitOptions,
};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::parent_id;
use std::time::Duration;

use super::messages::{receive, send, Message};

/// The stack of the child between clone and exec, which has no deep calls.
const STACK: usize = 64 << 10;

/// Fork a supervisor that starts `program`. Return its pid and the runner's end of their socket.
pub fn start(
    program: &Program,
    wiring: &Wiring,
    identity: &Identity,
    registry: &Registry,
) -> Result<(i32, OwnedFd), Failure> {
    let failed = |errno| Failure::from_errno(errno, "cannot start a supervisor");
    let (ours, theirs) = sys::socket_pair().map_err(failed)?;
    sys::set_nonblocking(ours.as_raw_fd()).map_err(failed)?;
    match fork(registry) {
        -1 => Err(failed(sys::errno())),
        0 => {
            drop(ours);
            Supervisor::begin(program, wiring, identity, registry, theirs.as_raw_fd());
            leave(0)
        }
        pid => Ok((pid, ours)),
    }
}

/// Fork a process that counts as a supervisor. Return its pid; 0 in that process.
fn fork(registry: &Registry) -> i32 {
    // SAFETY: the runner has one thread, so the child may run any code.
    registry.fork(|| unsafe { libc::fork() })
}

/// End a forked process without running anything of its parent's.
fn leave(status: i32) -> ! {
    // SAFETY: nothing in this process comes after it.
    unsafe { libc::_exit(status) }
}

/// Kill what dead supervisors left behind: every child of the runner that is not a supervisor, and
/// everything below it. A separate process does that, so that the runner does not wait.
pub fn sweep_orphans(registry: &Registry, identity: &Identity) {
    if registry.overflowed() {
        return;
    }
    // It counts as a supervisor while it lives, or a second one would take it for an orphan.
    if fork(registry) != 0 {
        return;
    }
    sys::close_from(3);
    identity.become_supervisor();
    let (me, top) = (std::process::id() as i32, parent_id() as i32);
    let mut pause = Duration::from_micros(200);
    loop {
        let orphans = registry.consistent(|known| {
            let mut spared: Vec<(i32, u64)> = known.into_iter().map(|pid| (pid, 0)).collect();
            spared.push((me, 0));
            Family {
                top,
                spared,
                shell: None,
            }
            .members()
        });
        match orphans {
            Some(orphans) if orphans.is_empty() => break,
            Some(orphans) => {
                for orphan in orphans {
                    let _already_dead = sys::kill(orphan.pid, libc::SIGKILL);
                }
            }
            None => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    leave(0)
}

struct Supervisor<'a> {
    identity: &'a Identity,
    registry: &'a Registry,
    control: RawFd,
    /// Readable when a child has died.
    signals: Option<OwnedFd>,
    root: i32,
    root_gone: bool,
    /// How the first process ended, until that is reported.
    ended: Option<i32>,
    spent: Spending,
    family: Family,
    /// Wait for another command when no process is left. A shell's supervisor exits instead.
    reusable: bool,
    /// No process is left, and the runner knows it.
    free: bool,
    inbox: Vec<u8>,
}

/// Resources that dead processes below us have used, up to the end of the command itself.
#[derive(Default)]
struct Spending {
    cpu_us: i64,
    peak_rss: i64,
    read_blocks: i64,
    written_blocks: i64,
}

impl Spending {
    fn add(&mut self, usage: &libc::rusage) {
        let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
        self.cpu_us += us(usage.ru_utime) + us(usage.ru_stime);
        self.peak_rss = self.peak_rss.max(usage.ru_maxrss * 1024);
        self.read_blocks += usage.ru_inblock;
        self.written_blocks += usage.ru_oublock;
    }
}

impl Supervisor<'_> {
    /// In the forked process: start the program, and stay while there is anything to do.
    fn begin(
        program: &Program,
        wiring: &Wiring,
        identity: &Identity,
        registry: &Registry,
        control: RawFd,
    ) {
        let _leader = setsid();
        let _reaper = set_child_subreaper(Some(Pid::INIT));
        let started = fork_program(program, wiring, identity, false);
        if control != 3 {
            let _same_socket = copy_onto(control, 3, DupFlags::CLOEXEC);
        }
        sys::close_from(4);
        identity.become_supervisor();
        let shell = wiring.answer.is_some();
        let mut supervisor = Supervisor {
            identity,
            registry,
            control: 3,
            signals: processes::child_signals().ok(),
            root: 0,
            root_gone: true,
            ended: None,
            spent: Spending::default(),
            family: Family {
                top: std::process::id() as i32,
                spared: Vec::new(),
                shell: None,
            },
            reusable: !shell,
            free: false,
            inbox: Vec::new(),
        };
        supervisor.begin_command(started, shell);
        supervisor.run();
    }

    /// Report that the first process of the command was started, or that it could not be.
    fn begin_command(&mut self, started: Result<i32, (Stage, Errno)>, shell: bool) {
        match started {
            Ok(root) => {
                self.root = root;
                self.root_gone = false;
                self.spent = Spending::default();
                self.family.spared.clear();
                self.family.shell = shell.then_some(root);
                self.free = false;
                self.report([1, i64::from(root), 0, 0, 0, 0]);
            }
            Err((stage, errno)) => {
                self.free = self.reusable;
                self.report([2, stage as i64, i64::from(errno), 0, 0, 0]);
            }
        }
    }

    /// Handle a message while we are idle: another command, or an order that came too late. Return
    /// false when the runner has closed the socket.
    fn handle_while_idle(&mut self) -> bool {
        let mut inbox = std::mem::take(&mut self.inbox);
        let fds = match handover::receive(self.control, &mut inbox) {
            Ok(fds) => fds,
            Err(errno) => return errno == libc::EAGAIN,
        };
        let handover = handover::unpack(&inbox);
        let gone = inbox.is_empty();
        self.inbox = inbox;
        match (handover, &fds[..]) {
            (Some(handover), [stdin, stdout, stderr]) => {
                let stdio = [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()];
                self.start_handed_over(&handover, stdio);
            }
            (Some(_), _) => self.begin_command(Err((Stage::Prepare, libc::EMFILE)), false),
            (None, _) if gone => return false,
            // A sweep is reported as done: there is no process to kill.
            (None, _) if inbox_kind(&self.inbox) == 3 => self.report([5, 0, 0, 0, 0, 0]),
            (None, _) => {}
        }
        true
    }

    fn start_handed_over(&mut self, handover: &Handover, stdio: [RawFd; 3]) {
        let wiring = Wiring {
            stdio,
            answer: None,
            terminal: handover.terminal,
            own_session: true,
        };
        self.registry
            .mark_started(self.family.top, handover.command);
        let started = fork_program(&handover.program, &wiring, self.identity, true);
        // The child shared our memory, and becoming the user may have changed this attribute of it.
        let _done = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        self.begin_command(started, false);
    }

    fn report(&self, message: Message) {
        let _runner_gone = send(self.control, message);
    }

    fn run(&mut self) {
        loop {
            if !self.free && !self.reap() && !self.reusable {
                return;
            }
            let signals = self.signals.as_ref().map_or(-1, |fd| fd.as_raw_fd());
            let fds = [signals, self.control];
            let mut waits = fds
                .each_ref()
                .map(|fd| PollFd::from_borrowed_fd(sys::borrow(fd), PollFlags::IN));
            // Without a signalfd, look for dead children every 10 ms.
            let timeout = (signals < 0 && !self.free).then_some(Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            });
            let _count = poll(&mut waits, timeout.as_ref());
            let [died, has_message] = waits.map(|wait| !wait.revents().is_empty());
            if died {
                let mut sink = [0u8; 1024];
                let _drained = sys::read(signals, &mut sink);
            }
            if has_message
                && !(if self.free {
                    self.handle_while_idle()
                } else {
                    self.handle_order()
                })
            {
                return;
            }
        }
    }

    /// Reap dead children. Return false when no child is left.
    fn reap(&mut self) -> bool {
        let left = loop {
            let mut status = 0;
            // SAFETY: a zeroed rusage is a valid value to be overwritten, and both pointers are valid.
            let (pid, usage) = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                let pid = libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage);
                (pid, usage)
            };
            match pid {
                0 => break true,
                -1 if sys::errno() == libc::EINTR => continue,
                -1 => break false,
                _ => {}
            }
            if !self.root_gone {
                self.spent.add(&usage);
            }
            if pid == self.root && !self.root_gone {
                self.root_gone = true;
                self.family.shell = None;
                self.ended = Some(status);
            }
        };
        let last = !left && self.reusable && !self.free;
        self.free |= last;
        match self.ended.take() {
            Some(status) => self.report_exit(status, last),
            None if last => self.report([6, 0, 0, 0, 0, 0]),
            None => {}
        }
        left
    }

    fn report_exit(&self, status: i32, last: bool) {
        self.report([
            if last { 7 } else { 3 },
            i64::from(status),
            self.spent.cpu_us / 1000,
            self.spent.peak_rss,
            self.spent.read_blocks * 512,
            self.spent.written_blocks * 512,
        ]);
    }

    /// Handle one order from the runner. Return false when there is nothing more to do.
    fn handle_order(&mut self) -> bool {
        match receive(self.control) {
            Err(libc::EAGAIN) => {}
            Err(_) | Ok(None) => {
                self.family.shell = None;
                self.family.spared.clear();
                self.sweep();
                return false;
            }
            Ok(Some([1, ..])) => {
                self.family.spared = self.existing_processes();
                self.report([4, 0, 0, 0, 0, 0]);
            }
            Ok(Some([2, signal, target, ..])) => self.signal(signal as i32, target),
            Ok(Some([3, ..])) => {
                self.sweep();
                self.report([5, 0, 0, 0, 0, 0]);
            }
            Ok(Some([4, ..])) => {
                self.family.shell = None;
                self.family.spared.clear();
                self.sweep();
            }
            Ok(Some(_)) => {}
        }
        true
    }

    /// Return every process below us now, without the shell.
    fn existing_processes(&self) -> Vec<(i32, u64)> {
        let alone = |pid| processes::children(pid).is_some_and(|list| list.is_empty());
        let only_shell = processes::children(self.family.top).is_some_and(|l| l == [self.root]);
        if only_shell && alone(self.root) {
            return Vec::new();
        }
        let below = Family {
            top: self.family.top,
            spared: Vec::new(),
            shell: self.family.shell,
        };
        below.members().iter().map(|p| (p.pid, p.start)).collect()
    }

    fn signal(&mut self, signal: i32, target: i64) {
        let to_root = match target {
            2 => true,
            // A shell that runs a builtin has no process to signal but itself.
            1 => self.family.signal(signal) == 0 && self.family.shell.is_some(),
            _ => {
                self.family.signal(signal);
                false
            }
        };
        if to_root && !self.root_gone {
            let _already_dead = sys::kill(self.root, signal);
        }
    }

    fn sweep(&mut self) {
        let family = Family {
            top: self.family.top,
            spared: self.family.spared.clone(),
            shell: self.family.shell,
        };
        family.sweep(&mut || {
            self.reap();
        });
    }
}

fn inbox_kind(packet: &[u8]) -> i64 {
    let first = packet.get(..8).and_then(|word| word.try_into().ok());
    first.map_or(0, i64::from_ne_bytes)
}

/// What the child needs, and where it reports its failure; it shares our memory until it execs.
struct Launch<'a> {
    program: &'a Program,
    wiring: &'a Wiring,
    identity: &'a Identity,
    /// The supervisor was idle before.
    reused: bool,
    refusal: Option<(Stage, Errno)>,
}

extern "C" fn child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `fork_program` passes a pointer to its own Launch and is suspended while we use it.
    let launch = unsafe { &mut *argument.cast::<Launch>() };
    let left = match launch.reused {
        true => launch.identity.leave_supervisor(),
        false => Ok(()),
    };
    launch.refusal = Some(match left {
        Ok(()) => launch.program.run(launch.wiring, launch.identity),
        Err(errno) => (Stage::Prepare, errno),
    });
    leave(127)
}

/// Start the program. Return its pid once the child has exec'd. As in posix_spawn, the child borrows
/// our memory on a stack of its own while we wait, so nothing is copied and its failure is a value, not
/// a message.
fn fork_program(
    program: &Program,
    wiring: &Wiring,
    identity: &Identity,
    reused: bool,
) -> Result<i32, (Stage, Errno)> {
    // Not cleared: most of its pages are never touched.
    let mut stack: Vec<u128> = Vec::with_capacity(STACK / std::mem::size_of::<u128>());
    let mut launch = Launch {
        program,
        wiring,
        identity,
        reused,
        refusal: None,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack and the launch outlive the child's use of them, because CLONE_VFORK suspends us
    // until it has exec'd or exited; all signals are blocked, so no handler runs on shared memory.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity());
        let launch: *mut Launch = &mut launch;
        libc::clone(child, top.cast(), flags, launch.cast())
    };
    if pid < 0 {
        return Err((Stage::Prepare, sys::errno()));
    }
    match launch.refusal {
        None => Ok(pid),
        Some(refusal) => {
            let _reaped = waitpid(Pid::from_raw(pid), WaitOptions::empty());
            Err(refusal)
        }
    }
}
