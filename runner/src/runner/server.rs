//! The event loop: what is ready, what is due, what must be sent. Everything else hangs on `Server`.
//!
//! One thread. Nothing here waits for a client, a command or a disk: each turn handles what is ready and
//! gives every stream that has more to do one step.

use crate::activity;
use crate::exec::Exec;
use crate::identity::Identity;
use crate::lease::Lease;
use crate::poll::{self, Poll, Ready, Source, Watched};
use crate::shell::Shell;
use crate::supervisor::program::Env;
use crate::supervisor::registry::Registry;
use crate::sys::{self, Errno};
use crate::timers::{Due, TimerId, Timers};
use crate::wire::connection::{self, Connection};
use crate::wire::frame::{self, Piece};
use crate::wire::handler::Failure;
use crate::wire::protocol;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const READ_BLOCK: usize = 256 << 10;
/// How long a client may take to read our last words.
const PARTING_NS: u64 = 200_000_000;

pub enum Listen {
    Inherited(OwnedFd),
    Path(Vec<u8>),
    Stdio(OwnedFd, OwnedFd),
}

pub struct Config {
    pub identity: Identity,
    pub state_dir: Vec<u8>,
    pub workspace: Vec<u8>,
    pub home: Vec<u8>,
    pub env: Env,
    /// The shell program, when the image has one.
    pub shell: Option<Vec<u8>>,
}

/// Whose supervisor it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Exec(u64),
    Shell(u64),
    /// What it carried is over; it only reaps.
    Nobody,
}

pub struct Supervisor {
    pub control: Option<Watched>,
    pub owner: Owner,
    /// It was idle when it got its command, rather than forked for it.
    pub handed: bool,
}

pub struct Server {
    pub config: Config,
    pub poll: Poll,
    pub timers: Timers,
    pub lease: Lease,
    pub connections: BTreeMap<u64, Connection>,
    pub execs: BTreeMap<u64, Exec>,
    pub by_id: HashMap<String, u64>,
    pub by_key: HashMap<String, u64>,
    pub finished: VecDeque<u64>,
    pub supervisors: HashMap<i32, Supervisor>,
    /// The one that waits for a command, and until when.
    pub spare: Option<i32>,
    pub spare_timer: Option<TimerId>,
    pub registry: Registry,
    pub shells: BTreeMap<u64, Shell>,
    /// Streams whose handler asked for another step.
    pub again: VecDeque<(u64, u32)>,
    /// Commands whose watchers have something to learn.
    pub changed: BTreeSet<u64>,
    pub serial: u64,
    pub scratch: Vec<u8>,
    pub exit: Option<i32>,
    /// Why a command that is being started was refused at once.
    pub stillborn: Option<Failure>,
    pub started_ns: u64,
    pub fs: crate::fs::Context,
    listener: Option<Watched>,
    path: Option<Vec<u8>>,
    stdio: bool,
    signals: OwnedFd,
    lease_timer: Option<TimerId>,
}

impl Server {
    pub fn new(config: Config, signals: OwnedFd) -> Result<Server, Errno> {
        let mut poll = Poll::new()?;
        poll.add(signals.as_raw_fd(), Source::Signals, poll::READ)?;
        Ok(Server {
            fs: crate::fs::Context {
                workspace: config.workspace.clone(),
                home: config.home.clone(),
            },
            config,
            poll,
            timers: Timers::new(),
            lease: Lease::default(),
            connections: BTreeMap::new(),
            execs: BTreeMap::new(),
            by_id: HashMap::new(),
            by_key: HashMap::new(),
            finished: VecDeque::new(),
            supervisors: HashMap::new(),
            spare: None,
            spare_timer: None,
            registry: Registry::new()?,
            shells: BTreeMap::new(),
            again: VecDeque::new(),
            changed: BTreeSet::new(),
            serial: 0,
            scratch: Vec::new(),
            exit: None,
            stillborn: None,
            started_ns: sys::boot_ns(),
            listener: None,
            path: None,
            stdio: false,
            signals,
            lease_timer: None,
        })
    }

    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub fn listen(&mut self, listen: Listen) -> Result<(), Errno> {
        match listen {
            Listen::Inherited(fd) => {
                sys::set_nonblocking(fd.as_raw_fd())?;
                self.listener = Some(self.poll.watch(fd, Source::Listener, poll::READ)?);
            }
            Listen::Path(path) => {
                let fd = self.config.identity.as_runner(|| sys::listen_unix(&path))?;
                self.listener = Some(self.poll.watch(fd, Source::Listener, poll::READ)?);
                self.path = Some(path);
            }
            Listen::Stdio(input, output) => {
                self.stdio = true;
                self.welcome(input, output)?;
            }
        }
        Ok(())
    }

    pub fn run(&mut self) -> i32 {
        let mut ready = Vec::new();
        loop {
            let timeout = if self.again.is_empty() {
                self.timers.next_in()
            } else {
                Some(0)
            };
            self.poll.wait(timeout, &mut ready);
            for event in &ready {
                self.handle(event);
            }
            while let Some(due) = self.timers.pop_due() {
                self.handle_due(due);
            }
            for _ in 0..self.again.len() {
                if let Some((connection, stream)) = self.again.pop_front() {
                    self.step_again(connection, stream);
                }
            }
            self.tell_watchers();
            self.flush_all();
            if let Some(code) = self.exit {
                return code;
            }
        }
    }

    fn handle(&mut self, event: &Ready) {
        match event.source {
            Source::Signals => self.handle_signals(),
            Source::Listener => self.accept(),
            Source::Connection(id) => self.read_connection(id),
            // Flushed at the end of the turn.
            Source::ConnectionWrite(_) => {}
            Source::Handler(id, stream) => self.step_ready(id, stream),
            Source::Supervisor(pid) => self.hear_supervisor(pid),
            Source::Output(exec, source) => self.read_output(exec, source),
            Source::Input(exec) => self.write_input(exec, event.broken),
            Source::ShellAnswer(shell) => self.hear_shell(shell),
        }
    }

    fn handle_due(&mut self, due: Due) {
        match due {
            Due::Deadline(exec) => self.deadline(exec),
            Due::Grace(exec) => self.grace_over(exec),
            Due::Swept(exec) => self.sweep_settled(exec),
            Due::Settle(exec) => self.settle_output(exec),
            Due::Terminal(exec) => self.look_at_terminal(exec),
            Due::Reader(exec) => self.look_for_reader(exec),
            Due::Wait(connection, stream) => self.wait_over(connection, stream),
            Due::Deliver(shell) => self.deliver(shell),
            Due::Watch(shell) => self.watch_shell(shell),
            Due::Answer(shell) => self.answer_overdue(shell),
            Due::Lease => self.check_lease(),
            Due::Relisten => self.relisten(),
            Due::Spare => self.let_spare_go(),
        }
    }

    fn handle_signals(&mut self) {
        let mut sink = [0u8; 4096];
        while sys::read(self.signals.as_raw_fd(), &mut sink) == Ok(sink.len()) {}
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid out pointer.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                return;
            }
            if libc::WIFSTOPPED(status) {
                self.supervisor_stopped(pid);
            } else {
                self.supervisor_reaped(pid, status);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..protocol::MAX_CONNECTIONS {
            let fd = match self.listener.as_ref().map(|l| sys::accept(l.raw())) {
                Some(Ok(fd)) => fd,
                _ => return,
            };
            if self.connections.len() >= protocol::MAX_CONNECTIONS {
                continue;
            }
            sys::widen_socket(fd.as_raw_fd());
            if let Ok(output) = sys::duplicate(fd.as_raw_fd()) {
                let _refused = self.welcome(fd, output);
            }
        }
    }

    fn welcome(&mut self, input: OwnedFd, output: OwnedFd) -> Result<(), Errno> {
        sys::set_nonblocking(input.as_raw_fd())?;
        sys::set_nonblocking(output.as_raw_fd())?;
        let id = self.next_serial();
        let token = self
            .poll
            .add(input.as_raw_fd(), Source::Connection(id), poll::READ)?;
        let mut connection = Connection::new(input, output, token);
        connection.out.hello(&json!({
            "generation": protocol::GENERATION,
            "version": env!("CARGO_PKG_VERSION"),
            "uid": self.config.identity.own.uid,
            "user_uid": self.config.identity.user_uid(),
            "shell": self.config.shell.as_deref().map(crate::wire::bytes::to_json),
            "features": [],
        }));
        self.connections.insert(id, connection);
        Ok(())
    }

    fn read_connection(&mut self, id: u64) {
        let fd = match self.connections.get(&id) {
            Some(connection) => connection.input.as_raw_fd(),
            None => return,
        };
        let mut block = std::mem::take(&mut self.scratch);
        block.resize(READ_BLOCK, 0);
        match sys::read(fd, &mut block) {
            Err(libc::EAGAIN) => {}
            Err(_) | Ok(0) => self.close_connection(id),
            Ok(count) => self.take_input(id, &block[..count]),
        }
        self.scratch = block;
    }

    fn take_input(&mut self, id: u64, mut input: &[u8]) {
        let mut decoder = match self.connections.get_mut(&id) {
            Some(connection) => std::mem::take(&mut connection.decoder),
            None => return,
        };
        loop {
            let fine = match decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(Piece::Data { stream, bytes })) => self.take_data(id, stream, bytes),
                Ok(Some(Piece::Frame { kind, stream, body })) => {
                    self.take_frame(id, kind, stream, body)
                }
                Err(frame::Malformed) => false,
            };
            if !fine {
                self.close_connection(id);
                return;
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.decoder = decoder;
        }
    }

    /// False when the client broke the protocol.
    fn take_frame(&mut self, id: u64, kind: u8, stream: u32, body: &[u8]) -> bool {
        match kind {
            frame::OPEN => self.open(id, stream, body),
            frame::END => {
                self.end(id, stream);
                true
            }
            frame::CANCEL => {
                self.cancel(id, stream);
                true
            }
            frame::CREDIT => match body {
                [a, b, c, d] => {
                    self.take_credit(id, stream, u32::from_be_bytes([*a, *b, *c, *d]));
                    true
                }
                _ => false,
            },
            _ => false,
        }
    }

    pub fn close_connection(&mut self, id: u64) {
        if let Some(mut connection) = self.connections.remove(&id) {
            self.poll
                .remove(connection.input.as_raw_fd(), connection.token);
            if let Some(token) = connection.write_token {
                self.poll.remove(connection.out.raw(), token);
            }
            // What was answered before the client went away may still be read.
            connection.out.flush();
            for (stream, open) in connection.streams.drain() {
                self.abandon(id, stream, open);
            }
            self.lease.touch(self.timers.work_now());
            if self.stdio {
                self.exit = Some(0);
            }
        }
    }

    fn flush_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let connection = match self.connections.get_mut(&id) {
                Some(connection) => connection,
                None => continue,
            };
            connection.out.flush();
            if connection.out.broken {
                self.close_connection(id);
                continue;
            }
            let fd = connection.out.raw();
            match (connection.out.pending() > 0, connection.write_token) {
                (true, None) => {
                    let source = Source::ConnectionWrite(id);
                    connection.write_token = self.poll.add(fd, source, poll::WRITE).ok();
                }
                (false, Some(token)) => {
                    connection.write_token = None;
                    self.poll.remove(fd, token);
                }
                _ => {}
            }
            if connection.out.stalled && connection.out.pending() <= connection::HIGH_WATER / 2 {
                connection.out.stalled = false;
                let streams: Vec<u32> = connection.streams.keys().copied().collect();
                for stream in streams {
                    self.again.push_back((id, stream));
                }
            }
        }
    }

    /// Closes every connection, and the listener when it is ours, and comes back after `ms`.
    ///
    /// The one that `asked` goes last: who reads its answer knows that the others are closed.
    pub fn quiesce(&mut self, ms: u64, asked: u64) {
        if let Some(path) = &self.path {
            if let Some(listener) = self.listener.take() {
                drop(self.poll.unwatch(listener));
            }
            self.config.identity.as_runner(|| sys::unlink(path));
        } else if let Some(listener) = &self.listener {
            let _still_there = self.poll.change(listener.raw(), listener.token, 0);
        }
        let others = self.connections.keys().copied().filter(|&id| id != asked);
        let ids: Vec<u64> = others.chain([asked]).collect();
        for id in ids {
            self.close_connection(id);
        }
        self.timers.after_ms(ms, Due::Relisten);
    }

    fn relisten(&mut self) {
        if let Some(listener) = &self.listener {
            let _still_there = self.poll.change(listener.raw(), listener.token, poll::READ);
            return;
        }
        let path = self.path.clone();
        if let Some(Err(_)) = path.map(|path| self.listen(Listen::Path(path))) {
            self.timers.after_ms(100, Due::Relisten);
        }
    }

    /// Looks for work, and ends the sandbox when it was without any for too long, or is too old.
    fn check_lease(&mut self) {
        // One moment for both: a host that stops us in between must not make work look old.
        let now = self.timers.work_now();
        if self.lease.counts_idle() {
            let signs = activity::look(self);
            self.lease.look(now, &signs);
        }
        self.arm_lease_at(now);
    }

    /// Whoever is connected hears that this is no accident; what is said goes out with this turn.
    fn end_by_lease(&mut self) {
        let said = json!({ "event": "ending", "reason": self.lease.over(sys::boot_ns()) });
        for connection in self.connections.values_mut() {
            connection.out.event(0, &said);
        }
        self.exit = Some(0);
    }

    /// Lets whoever is connected read our last words: a relay beside us dies when we do, and with
    /// it what it has not passed on. They hang up as soon as they have seen the end.
    pub fn part(&mut self) {
        let until = sys::boot_ns() + PARTING_NS;
        let shut = |fd: &RawFd| {
            // SAFETY: a descriptor of ours; one that is no socket refuses.
            unsafe { libc::shutdown(*fd, libc::SHUT_WR) == 0 }
        };
        let connections = self.connections.values();
        let open: Vec<RawFd> = connections.map(|one| one.out.raw()).filter(shut).collect();
        while open.iter().any(|fd| !sys::is_hung_up(*fd)) && sys::boot_ns() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub fn arm_lease(&mut self) {
        self.arm_lease_at(self.timers.work_now());
    }

    fn arm_lease_at(&mut self, now: u64) {
        if let Some(timer) = self.lease_timer.take() {
            self.timers.cancel(timer);
        }
        match self.lease.next(now, sys::boot_ns()) {
            None => {}
            Some(0) => self.end_by_lease(),
            Some(ns) => self.lease_timer = Some(self.timers.after_ns(ns, Due::Lease)),
        }
    }
}
