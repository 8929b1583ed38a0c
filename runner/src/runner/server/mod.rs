//! The event loop: it waits for sockets, processes and timers, and calls the part that each belongs to.
//!
//! One thread. Nothing here waits for a client, a command or a disk: each turn handles what is ready and
//! gives every stream that has more to do one step. The parts are layered: `shells` may use `execs`, both may
//! use the context `cx`, and only the server knows all of them.

mod connections;
mod supervision;
mod verbs;

use crate::activity;
use crate::context::{Config, Context};
use crate::exec::Execs;
use crate::fs;
use crate::poll::{self, Ready, Source, Watched};
use crate::shell::Shells;
use crate::sys::{self, Errno};
use crate::timers::{Due, TimerId};
use rustix::net::{shutdown, Shutdown};
use serde_json::json;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// How long a client may take to read what was sent before the end.
const PARTING_NS: u64 = 200_000_000;

pub enum Listen {
    Inherited(OwnedFd),
    Path(Vec<u8>),
    /// A process outside of the sandbox gives it over the socket at this path.
    Received(Vec<u8>),
    Stdio(OwnedFd, OwnedFd),
}

pub struct Server {
    cx: Context,
    execs: Execs,
    shells: Shells,
    fs: fs::Directories,
    listener: Option<Watched>,
    /// The path of the listener, if we made it.
    path: Option<Vec<u8>>,
    /// The connection to the process that gave us the listener: we end with it.
    giver: Option<Watched>,
    /// There is one client, on standard input and output.
    stdio: bool,
    signals: OwnedFd,
    lease_timer: Option<TimerId>,
    started_ns: u64,
    exit: Option<i32>,
}

impl Server {
    pub fn new(config: Config, state_dir: Vec<u8>, signals: OwnedFd) -> Result<Server, Errno> {
        let fs = fs::Directories {
            workspace: config.workspace.clone(),
            home: config.home.clone(),
        };
        let mut cx = Context::new(config)?;
        cx.poll
            .add(signals.as_raw_fd(), Source::Signals, poll::READ)?;
        Ok(Server {
            cx,
            execs: Execs::default(),
            shells: Shells::new(state_dir),
            fs,
            listener: None,
            path: None,
            giver: None,
            stdio: false,
            signals,
            lease_timer: None,
            started_ns: sys::boot_ns(),
            exit: None,
        })
    }

    /// Serve until the end. Return the exit status.
    pub fn run(&mut self) -> i32 {
        let mut ready = Vec::new();
        loop {
            let timeout = if self.cx.clients.queued() == 0 {
                self.cx.timers.next_in()
            } else {
                Some(0)
            };
            self.cx.poll.wait(timeout, &mut ready);
            for event in &ready {
                self.handle(event);
            }
            while let Some(due) = self.cx.timers.pop_due() {
                self.handle_due(due);
            }
            for _ in 0..self.cx.clients.queued() {
                if let Some(stream) = self.cx.clients.next_queued() {
                    self.serve_queued(stream);
                }
            }
            self.execs.serve_changed(&mut self.cx);
            for id in self.cx.clients.flush(&mut self.cx.poll) {
                self.close_connection(id);
            }
            if let Some(code) = self.exit {
                return code;
            }
        }
    }

    fn handle(&mut self, event: &Ready) {
        let (execs, shells, cx) = (&mut self.execs, &mut self.shells, &mut self.cx);
        match event.source {
            Source::Signals => self.handle_signals(),
            Source::Listener => self.accept(),
            Source::Giver => self.exit = Some(0),
            Source::Connection(id) => self.read_connection(id),
            // Flushed at the end of the turn.
            Source::ConnectionWrite(_) => {}
            Source::Handler(id, stream) => self.step_handler((id, stream)),
            Source::Supervisor(pid) => self.read_supervisor(pid),
            Source::Output(exec, source) => execs.read_output(exec, source, cx),
            Source::Input(exec) => execs.write_input(exec, event.broken, cx),
            Source::ShellAnswer(shell) => shells.read_answer(shell, execs, cx),
        }
    }

    fn handle_due(&mut self, due: Due) {
        let (execs, shells, cx) = (&mut self.execs, &mut self.shells, &mut self.cx);
        match due {
            Due::Deadline(exec) => execs.deadline_passed(exec, cx),
            Due::Grace(exec) => execs.grace_over(exec, cx),
            Due::Swept(exec) => execs.answer_missing(exec, cx),
            Due::Settle(exec) => execs.settle_output(exec, cx),
            Due::Terminal(exec) => execs.poll_terminal_again(exec, cx),
            Due::Reader(exec) => execs.look_for_reader(exec, cx),
            Due::Wait(id, stream) => execs.wait_over((id, stream), cx),
            Due::Deliver(shell) => shells.deliver(shell, execs, cx),
            Due::Watch(shell) => shells.check_running(shell, execs, cx),
            Due::Answer(shell) => shells.answer_overdue(shell, execs, cx),
            Due::Memory(shell) => shells.measure_memory(shell, cx),
            Due::Lease => self.check_lease(),
            Due::Relisten => self.relisten(),
            Due::IdleSupervisor => cx.supervisors.release_idle(&mut cx.poll, &mut cx.timers),
        }
    }

    /// Look for activity, and end the sandbox if there was none for too long or its lifetime is over.
    fn check_lease(&mut self) {
        // One timestamp for both: a host that stops us in between must not make activity look old.
        let now = self.cx.timers.work_now();
        if self.cx.lease.counts_idle() {
            let signs = self.look_for_activity();
            self.cx.lease.look(now, &signs);
        }
        self.arm_lease_at(now);
    }

    fn look_for_activity(&self) -> activity::Signs {
        if self.execs.at_work() || self.cx.clients.has_open_streams() {
            return activity::Signs::requested();
        }
        let supervisors = self.cx.supervisors.owners().map(|(pid, _)| pid);
        let at_rest = self.shells.idle_pids().chain(self.execs.pids_at_rest());
        activity::look(
            supervisors.chain(at_rest).collect(),
            self.cx.config.gate_port,
        )
    }

    fn arm_lease(&mut self) {
        self.arm_lease_at(self.cx.timers.work_now());
    }

    fn arm_lease_at(&mut self, now: u64) {
        if let Some(timer) = self.lease_timer.take() {
            self.cx.timers.cancel(timer);
        }
        match self.cx.lease.next(now, sys::boot_ns()) {
            None => {}
            Some(0) => self.end_by_lease(),
            Some(ns) => self.lease_timer = Some(self.cx.timers.after_ns(ns, Due::Lease)),
        }
    }

    /// Announce to every client that this end is planned; the event is sent at the end of this
    /// turn.
    fn end_by_lease(&mut self) {
        let reason = self.cx.lease.reason(sys::boot_ns());
        let event = json!({ "event": "ending", "reason": reason });
        self.cx.clients.broadcast(&event);
        self.exit = Some(0);
    }

    /// Give clients time to read what was sent: a relay beside us dies when we do, and with it the bytes that
    /// it has not passed on. They hang up as soon as they have seen the end.
    pub fn wait_for_clients(&self) {
        let until = sys::boot_ns() + PARTING_NS;
        // One that is not a socket is refused.
        let shut = |fd: &RawFd| shutdown(sys::borrow(fd), Shutdown::Write).is_ok();
        let open: Vec<RawFd> = self.cx.clients.outputs().filter(shut).collect();
        while open.iter().any(|fd| !sys::is_hung_up(*fd)) && sys::boot_ns() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Remove the files that the runner made.
    pub fn remove_files(&mut self) {
        self.shells.remove_directories(&self.cx);
    }
}
