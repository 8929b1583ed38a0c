//! The event loop: sockets inside the sandbox on one side, the network on the other.
//!
//! One thread, no blocking call. The process serves one sandbox, so a hostile program can only harm the
//! network of its own sandbox.

mod connections;
mod control;
mod dns;
mod inspected_connections;
mod open_connections;

use crate::config::Config;
use crate::dns_messages::Question;
use crate::hello;
use crate::http::{Requests, UNCLEAR};
use crate::inspect::Inspection;
use crate::limits::Meter;
use crate::names::Names;
use crate::record::Records;
use crate::relay::{Direction, Pipes};
use crate::resolver::Lookup;
use crate::rules::Verdict;
use crate::sockets::{delivers, reset};
use crate::sys::{pass_at_once, plain, Result};
use inspected_connections::ENDING_PATIENCE;
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const TCP4: u64 = 0;
const TCP6: u64 = 1;
const DNS: u64 = 2;
const CONTROL: u64 = 3;
const LIFE: u64 = 4;
const FIRST_ID: u64 = 8;

const TICK: Duration = Duration::from_millis(250);
/// How often deadlines are checked while there is work. A check visits every connection.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often connections that wait for bandwidth get a share of it.
const REFILL: Duration = Duration::from_millis(20);
/// How long connections may take turns before events are looked for.
const TURNS: Duration = Duration::from_millis(50);
/// How long records may wait while there is other work.
const FLUSH_EVERY: Duration = Duration::from_millis(5);

/// Descriptors that the launcher made.
pub struct Sockets {
    pub tcp4: OwnedFd,
    pub tcp6: Option<OwnedFd>,
    pub dns: OwnedFd,
    pub control: OwnedFd,
    /// Readable when the sandbox has ended.
    pub life: OwnedFd,
}

enum State {
    Resolving,
    Dialling(VecDeque<IpAddr>),
    Relaying,
    Inspecting(Box<Inspection>),
    /// Refused; an HTTP client gets a 403 with the reason.
    Refused,
}

struct Connection {
    client: OwnedFd,
    server: Option<OwnedFd>,
    /// Whether events of the client are reported.
    watched: bool,
    state: State,
    name: Option<String>,
    wanted: SocketAddr,
    dialled: Option<IpAddr>,
    verdict: Verdict,
    /// Whether the first bytes of the client may pass.
    checked: bool,
    /// Whether its bytes pass unchecked, or although a check failed. New rules that require checks end it.
    unchecked: bool,
    /// Plain HTTP, whose requests are checked one by one.
    requests: Option<Requests>,
    /// Bytes of the current request that may still pass.
    passes: u64,
    up: Option<Direction>,
    down: Option<Direction>,
    began: Instant,
    active: Instant,
    deadline: Option<Instant>,
}

enum Waiter {
    Question(Question, SocketAddr),
    Connection(u64),
}

enum Item {
    Connection(Box<Connection>),
    Lookup(Lookup, Vec<Waiter>),
    Control(OwnedFd, Vec<u8>),
}

pub struct Egress {
    config: Config,
    sockets: Sockets,
    records: Records,
    names: Names,
    epoll: OwnedFd,
    items: HashMap<u64, Item>,
    next: u64,
    busy: VecDeque<u64>,
    pipes: Pipes,
    /// When deadlines were last checked.
    looked: Instant,
    /// Whether an inspected connection shows something soon if its server sends nothing.
    holding: bool,
    /// When records were last written.
    flushed: Instant,
    /// A buffer for the first bytes of a client.
    first: Vec<u8>,
    /// Connections that wait for bandwidth.
    throttled: VecDeque<u64>,
    minute: (Instant, u32),
    opened: u64,
    refused: u64,
    failed: u64,
    would_refuse: u64,
    outward: Meter,
    inward: Meter,
}

impl Egress {
    pub fn new(config: Config, sockets: Sockets, records: Records) -> Result<Egress> {
        let epoll = plain(epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let (limits, now) = (&config.limits, Instant::now());
        let mut outward = Meter::new(limits.bytes_out, limits.bandwidth_bps, now);
        let mut inward = Meter::new(limits.bytes_in, limits.bandwidth_bps, now);
        outward.allow(config.allowance.bytes_out);
        inward.allow(config.allowance.bytes_in);
        let egress = Egress {
            outward,
            inward,
            config,
            sockets,
            records,
            names: Names::default(),
            epoll,
            items: HashMap::new(),
            next: FIRST_ID,
            busy: VecDeque::new(),
            pipes: Pipes::default(),
            looked: now,
            holding: false,
            flushed: now,
            first: vec![0; hello::MOST],
            throttled: VecDeque::new(),
            minute: (now, 0),
            opened: 0,
            refused: 0,
            failed: 0,
            would_refuse: 0,
        };
        let s = &egress.sockets;
        for listener in std::iter::once(&s.tcp4).chain(&s.tcp6) {
            pass_at_once(listener.as_raw_fd());
        }
        for (fd, token) in [
            (Some(&s.tcp4), TCP4),
            (s.tcp6.as_ref(), TCP6),
            (Some(&s.dns), DNS),
            (Some(&s.control), CONTROL),
            (Some(&s.life), LIFE),
        ] {
            if let Some(fd) = fd {
                egress.watch(fd, token, epoll::EventFlags::IN)?;
            }
        }
        Ok(egress)
    }

    /// Serve until the sandbox ends.
    pub fn run(mut self) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            let wait = if !self.busy.is_empty() {
                Some(Duration::ZERO)
            } else if !self.throttled.is_empty() {
                Some(REFILL)
            } else if self.holding {
                Some(LOOK_EVERY)
            } else if self.items.is_empty() {
                None
            } else {
                Some(TICK)
            };
            self.wait(&mut events, wait)?;
            let mut last = 0;
            for event in &events {
                let token = event.data.u64();
                match token {
                    TCP4 => self.accept(true),
                    TCP6 => self.accept(false),
                    DNS => self.read_questions(),
                    CONTROL => self.accept_control(),
                    LIFE => {
                        self.finish();
                        return Ok(());
                    }
                    // Both sides of a connection took their step together.
                    _ if token >> 1 == last => {}
                    _ => {
                        last = token >> 1;
                        self.event(last);
                    }
                }
            }
            self.take_turns(Instant::now() + TURNS);
            self.refill();
            self.check_deadlines();
        }
    }

    /// Wait for events. Records are written when there is nothing else to do, so that connections do not
    /// wait for the disk; and after a while in any case.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, most: Option<Duration>) -> Result<()> {
        if self.records.is_pending() {
            self.poll(events, Some(Duration::ZERO))?;
            if events.is_empty() || self.flushed.elapsed() > FLUSH_EVERY {
                self.flushed = Instant::now();
                self.records.flush();
            }
            if !events.is_empty() {
                return Ok(());
            }
        }
        self.poll(events, most)
    }

    fn poll(&self, events: &mut Vec<epoll::Event>, most: Option<Duration>) -> Result<()> {
        events.clear();
        let most = most.map(|most| Timespec {
            tv_sec: 0,
            tv_nsec: most.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, spare_capacity(events), most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.raw_os_error()),
        }
    }

    /// Write the final counts, which can be read as long as the files of the sandbox exist.
    fn finish(mut self) {
        let mut record = self.counts();
        record["event"] = json!("ended");
        self.records.write(record);
        self.records.flush();
    }

    fn watch(&self, fd: impl AsFd, token: u64, events: epoll::EventFlags) -> Result<()> {
        let token = epoll::EventData::new_u64(token);
        plain(epoll::add(&self.epoll, fd, token, events))
    }

    /// Tokens are the id and one bit for the side.
    fn watch_item(&self, fd: impl AsFd, id: u64, side: u64) -> Result<()> {
        use epoll::EventFlags as On;
        self.watch(fd, id << 1 | side, On::IN | On::OUT | On::RDHUP | On::ET)
    }

    fn add(&mut self, item: Item) {
        self.items.insert(self.next, item);
        self.next += 1;
    }

    fn event(&mut self, id: u64) {
        match self.items.remove(&id) {
            Some(Item::Connection(connection)) => self.connection(id, connection),
            Some(Item::Lookup(mut lookup, waiting)) => match lookup.read() {
                Some(found) => self.looked_up(&lookup.name, found, waiting),
                None => {
                    self.items.insert(id, Item::Lookup(lookup, waiting));
                }
            },
            Some(Item::Control(fd, text)) => self.control(id, fd, text),
            None => {}
        }
    }

    /// Let a connection take another turn soon.
    fn go_on(&mut self, id: u64) {
        if !self.busy.contains(&id) {
            self.busy.push_back(id);
        }
    }

    /// Let connections that have more to move take a turn each, and stop after one that ends too late: an
    /// event may be a command, or the end of the sandbox.
    fn take_turns(&mut self, until: Instant) {
        for _ in 0..self.busy.len() {
            if let Some(id) = self.busy.pop_front() {
                self.event(id);
            }
            if Instant::now() >= until {
                return;
            }
        }
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        self.holding = false;
        let mut paused = Vec::new();
        for (id, item) in &self.items {
            let due = match item {
                Item::Connection(c) => match &c.state {
                    State::Inspecting(inspection) => inspection.due(),
                    _ => None,
                },
                _ => None,
            };
            self.holding |= due.is_some();
            if due.is_some_and(|due| due <= now) {
                paused.push(*id);
            }
        }
        paused.into_iter().for_each(|id| self.go_on(id));
        let idle = self.config.limits.idle;
        let late: Vec<u64> = self
            .items
            .iter()
            .filter(|(_, item)| match item {
                Item::Connection(c) => {
                    c.deadline.is_some_and(|d| d <= now)
                        || (matches!(c.state, State::Relaying | State::Inspecting(_))
                            && now.duration_since(c.active) > idle)
                }
                Item::Lookup(lookup, _) => lookup.deadline <= now,
                Item::Control(..) => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            match self.items.remove(&id) {
                Some(Item::Connection(mut connection)) => match connection.state {
                    State::Dialling(_) => {
                        connection.server = None;
                        self.dial_next(id, connection, libc::ETIMEDOUT);
                    }
                    State::Relaying if now.duration_since(connection.active) <= idle => {
                        // It has begun like TLS or HTTP and does not go on.
                        connection.deadline = None;
                        self.stop(id, connection, UNCLEAR);
                    }
                    // Its client reads slowly: the kernel still has a part of the last answer.
                    State::Inspecting(ref inspection)
                        if inspection.has_ended()
                            && delivers(&connection.client)
                            && now.duration_since(connection.active) <= idle =>
                    {
                        connection.deadline = Some(now + ENDING_PATIENCE);
                        self.items.insert(id, Item::Connection(connection));
                    }
                    State::Relaying | State::Inspecting(_) => self.late(id, &connection),
                    _ => reset(&connection.client),
                },
                Some(Item::Lookup(mut lookup, waiting)) => match lookup.late(now) {
                    Some(found) => self.looked_up(&lookup.name, found, waiting),
                    None => {
                        let _ = self.watch_item(lookup.fd(), id, 0);
                        self.items.insert(id, Item::Lookup(lookup, waiting));
                    }
                },
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
