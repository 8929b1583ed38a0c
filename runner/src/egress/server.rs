//! The event loop: sockets inside the sandbox on one side, the network on the other.
//!
//! One thread, no blocking call. Every connection belongs to one sandbox, so whatever a hostile program
//! does here it does to its own network alone.

use crate::config::Config;
use crate::dns::{self, Question};
use crate::hello::{self, First};
use crate::names::Names;
use crate::record::Records;
use crate::relay::{Direction, Moved};
use crate::resolver::{Found, Lookup};
use crate::rules::{Destination, Rules, Verdict};
use crate::sys::{self, check, Result};
use serde_json::{json, Value};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const TCP4: u64 = 0;
const TCP6: u64 = 1;
const DNS: u64 = 2;
const CONTROL: u64 = 3;
const LIFE: u64 = 4;
const FIRST_ID: u64 = 8;

const DIAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long the first bytes of a connection are waited for, where they decide something.
const HELLO_PATIENCE: Duration = Duration::from_secs(3);
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);
const MAX_CONTROL: usize = 1 << 20;

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
    /// Refused; an HTTP client gets a 403 with the reason.
    Refused,
}

struct Connection {
    client: OwnedFd,
    server: Option<OwnedFd>,
    state: State,
    name: Option<String>,
    wanted: SocketAddr,
    dialled: Option<IpAddr>,
    verdict: Verdict,
    /// Whether the first bytes of the client may pass.
    checked: bool,
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
    minute: (Instant, u32),
    opened: u64,
    refused: u64,
    totals: (u64, u64),
}

impl Egress {
    pub fn new(config: Config, sockets: Sockets, records: Records) -> Result<Egress> {
        // SAFETY: plain system call.
        let epoll = sys::own(check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?);
        let egress = Egress {
            config,
            sockets,
            records,
            names: Names::default(),
            epoll,
            items: HashMap::new(),
            next: FIRST_ID,
            busy: VecDeque::new(),
            minute: (Instant::now(), 0),
            opened: 0,
            refused: 0,
            totals: (0, 0),
        };
        let s = &egress.sockets;
        for (fd, token) in [
            (Some(&s.tcp4), TCP4),
            (s.tcp6.as_ref(), TCP6),
            (Some(&s.dns), DNS),
            (Some(&s.control), CONTROL),
            (Some(&s.life), LIFE),
        ] {
            if let Some(fd) = fd {
                egress.watch(fd.as_raw_fd(), token, libc::EPOLLIN as u32)?;
            }
        }
        Ok(egress)
    }

    /// Serve until the sandbox ends.
    pub fn run(mut self) -> Result<()> {
        // SAFETY: all-zero events are valid values to be filled in.
        let mut events: [libc::epoll_event; 64] = unsafe { std::mem::zeroed() };
        loop {
            let wait = if !self.busy.is_empty() {
                0
            } else if self.items.is_empty() {
                -1
            } else {
                TICK.as_millis() as libc::c_int
            };
            // SAFETY: the array has the given length.
            let n =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 64, wait) };
            let n = match check(n) {
                Ok(n) => n as usize,
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            for event in &events[..n] {
                match event.u64 {
                    TCP4 => self.accept(true),
                    TCP6 => self.accept(false),
                    DNS => self.questions(),
                    CONTROL => self.accept_control(),
                    LIFE => return Ok(()),
                    token => self.event(token >> 1),
                }
            }
            for id in std::mem::take(&mut self.busy) {
                self.event(id);
            }
            self.check_deadlines();
        }
    }

    fn watch(&self, fd: RawFd, token: u64, events: u32) -> Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` is a filled-in epoll_event.
        let added =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        check(added).map(|_| ())
    }

    /// Tokens are the id and one bit for the side.
    fn watch_item(&self, fd: RawFd, id: u64, side: u64) -> Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.watch(fd, id << 1 | side, events as u32)
    }

    fn add(&mut self, item: Item) -> u64 {
        let id = self.next;
        self.next += 1;
        self.items.insert(id, item);
        id
    }

    fn event(&mut self, id: u64) {
        match self.items.remove(&id) {
            Some(Item::Connection(connection)) => self.connection(id, connection),
            Some(Item::Lookup(mut lookup, waiting)) => match lookup.read() {
                Some(found) => self.resolved(&lookup.name, found, waiting),
                None => {
                    self.items.insert(id, Item::Lookup(lookup, waiting));
                }
            },
            Some(Item::Control(fd, text)) => self.control(id, fd, text),
            None => {}
        }
    }

    // ---- names

    fn questions(&mut self) {
        let mut buffer = [0u8; 512];
        for _ in 0..64 {
            let (n, from) = match receive_from(self.sockets.dns.as_raw_fd(), &mut buffer) {
                Some(got) => got,
                None => return,
            };
            if let Some(question) = dns::question(&buffer[..n]) {
                self.question(question, from);
            }
        }
    }

    fn question(&mut self, question: Question, from: SocketAddr) {
        let now = Instant::now();
        let name = question.name.clone();
        if question.kind != dns::A || name.is_empty() {
            // The address that stands for a name is always IPv4.
            return self.reply(&dns::answer(&question, dns::NO_ERROR, None), from);
        }
        if !self.config.rules.may_resolve(&name) || self.config.hosts.contains_key(&name) {
            // A refused name is not looked up, so nothing leaves; the connection is refused with a reason.
            let address = self.names.stand_in(&name, now);
            return self.reply(&dns::answer(&question, dns::NO_ERROR, Some(address)), from);
        }
        self.look_up(&name, Waiter::Question(question, from), now);
    }

    fn look_up(&mut self, name: &str, waiter: Waiter, now: Instant) {
        if let Some(addresses) = self.config.hosts.get(name) {
            let found = Found::Addresses(addresses.clone());
            return self.resolved(name, found, vec![waiter]);
        }
        if let Some(addresses) = self.names.fresh(name, now) {
            let found = Found::Addresses(addresses.to_vec());
            return self.resolved(name, found, vec![waiter]);
        }
        for item in self.items.values_mut() {
            match item {
                Item::Lookup(lookup, waiting) if lookup.name == name => {
                    if waiting.len() < 256 {
                        waiting.push(waiter);
                    }
                    return;
                }
                _ => {}
            }
        }
        if !self.may_ask(now) {
            return self.resolved(name, Found::Failed, vec![waiter]);
        }
        match Lookup::start(name, &self.config.servers, now) {
            Some(lookup) => {
                let fd = lookup.fd();
                let id = self.add(Item::Lookup(lookup, vec![waiter]));
                let _ = self.watch_item(fd, id, 0);
            }
            None => self.resolved(name, Found::Failed, vec![waiter]),
        }
    }

    /// Bound the lookups: data can be hidden in names.
    fn may_ask(&mut self, now: Instant) -> bool {
        if now.duration_since(self.minute.0) > Duration::from_secs(60) {
            self.minute = (now, 0);
        }
        self.minute.1 += 1;
        let lookups = |item: &&Item| matches!(item, Item::Lookup(..));
        self.minute.1 <= self.config.names_per_minute
            && self.items.values().filter(lookups).count() < 64
    }

    fn resolved(&mut self, name: &str, found: Found, waiting: Vec<Waiter>) {
        let now = Instant::now();
        if let Found::Addresses(addresses) = &found {
            self.names.found(name, addresses.clone(), now);
        }
        for waiter in waiting {
            match waiter {
                Waiter::Question(question, from) => {
                    let message = match &found {
                        Found::Addresses(list) if list.is_empty() => {
                            dns::answer(&question, dns::NO_ERROR, None)
                        }
                        Found::Addresses(_) => {
                            let address = self.names.stand_in(name, now);
                            dns::answer(&question, dns::NO_ERROR, Some(address))
                        }
                        Found::NoSuchName => dns::answer(&question, dns::NO_SUCH_NAME, None),
                        Found::Failed => dns::answer(&question, dns::SERVER_FAILURE, None),
                    };
                    self.reply(&message, from);
                }
                Waiter::Connection(id) => {
                    if let Some(Item::Connection(connection)) = self.items.remove(&id) {
                        let list = match &found {
                            Found::Addresses(list) => list.clone(),
                            _ => Vec::new(),
                        };
                        self.dial(id, connection, list);
                    }
                }
            }
        }
    }

    fn reply(&self, message: &[u8], to: SocketAddr) {
        send_to(self.sockets.dns.as_raw_fd(), message, to);
    }

    // ---- connections

    fn accept(&mut self, v4: bool) {
        for _ in 0..64 {
            let listener = match (v4, &self.sockets.tcp6) {
                (true, _) => self.sockets.tcp4.as_raw_fd(),
                (false, Some(fd)) => fd.as_raw_fd(),
                (false, None) => return,
            };
            let client = match sys::accept(listener) {
                Ok(client) => client,
                Err(_) => return,
            };
            if let Ok(wanted) = sys::original_destination(client.as_raw_fd(), v4) {
                self.begin(client, wanted);
            }
        }
    }

    fn begin(&mut self, client: OwnedFd, wanted: SocketAddr) {
        let now = Instant::now();
        let name = self.names.known(wanted.ip(), now).map(|k| k.name.clone());
        let to = match &name {
            Some(name) => Destination::Name(name),
            None => Destination::Address(wanted.ip()),
        };
        let mut verdict = self.config.rules.decide(to, wanted.port());
        let open = self.items.len();
        if open >= self.config.connections {
            verdict = Verdict {
                allowed: false,
                rule: "limit of connections".to_owned(),
            };
        }
        let dry = self.config.rules.dry_run && !verdict.allowed && open < self.config.connections;
        let allowed = verdict.allowed || dry;
        let connection = Connection {
            client,
            server: None,
            state: State::Resolving,
            checked: name.is_none() || self.config.rules.full || dry,
            name,
            wanted,
            dialled: None,
            verdict,
            up: None,
            down: None,
            began: now,
            active: now,
            deadline: None,
        };
        let fd = connection.client.as_raw_fd();
        let id = self.next;
        self.next += 1;
        if self.watch_item(fd, id, 0).is_err() {
            return;
        }
        let connection = Box::new(connection);
        if !allowed {
            return self.refuse(id, connection, "refused");
        }
        match connection.name.clone() {
            Some(name) => {
                self.items.insert(id, Item::Connection(connection));
                self.look_up(&name, Waiter::Connection(id), now);
            }
            None => self.dial(id, connection, vec![wanted.ip()]),
        }
    }

    fn refuse(&mut self, id: u64, mut connection: Box<Connection>, verdict: &str) {
        self.refused += 1;
        self.note(id, &connection, verdict, None);
        connection.state = State::Refused;
        connection.server = None;
        connection.deadline = Some(Instant::now() + REFUSAL_PATIENCE);
        self.connection(id, connection);
    }

    fn dial(&mut self, id: u64, mut connection: Box<Connection>, found: Vec<IpAddr>) {
        let open: VecDeque<IpAddr> = found
            .iter()
            .copied()
            .filter(|address| self.config.may_dial(*address))
            .collect();
        if open.is_empty() {
            if !found.is_empty() {
                connection.verdict.rule = "address that is not public".to_owned();
                return self.refuse(id, connection, "refused");
            }
            self.note(id, &connection, "failed", Some("the name has no address"));
            return reset(&connection.client);
        }
        connection.state = State::Dialling(open);
        self.dial_next(id, connection, libc::EHOSTUNREACH);
    }

    fn dial_next(&mut self, id: u64, mut connection: Box<Connection>, last: i32) {
        let port = connection.wanted.port();
        loop {
            let address = match &mut connection.state {
                State::Dialling(rest) => rest.pop_front(),
                _ => None,
            };
            let address = match address {
                Some(address) => address,
                None => {
                    let reason = std::io::Error::from_raw_os_error(last).to_string();
                    self.note(id, &connection, "failed", Some(&reason));
                    return reset(&connection.client);
                }
            };
            if let Ok(server) = connect(SocketAddr::new(address, port)) {
                if self.watch_item(server.as_raw_fd(), id, 1).is_ok() {
                    connection.server = Some(server);
                    connection.dialled = Some(address);
                    connection.deadline = Some(Instant::now() + DIAL_PATIENCE);
                    self.items.insert(id, Item::Connection(connection));
                    return;
                }
            }
        }
    }

    /// Take the next step of a connection. It is put back unless it has ended.
    fn connection(&mut self, id: u64, mut connection: Box<Connection>) {
        match connection.state {
            State::Resolving => {
                self.items.insert(id, Item::Connection(connection));
            }
            State::Refused => self.refused_step(id, connection),
            State::Dialling(_) => {
                let fd = connection.server.as_ref().map_or(-1, |s| s.as_raw_fd());
                match connected(fd) {
                    Ok(false) => {
                        self.items.insert(id, Item::Connection(connection));
                    }
                    Ok(true) => match (Direction::new(), Direction::new()) {
                        (Ok(up), Ok(down)) => {
                            self.opened += 1;
                            self.note(id, &connection, "opened", None);
                            connection.up = Some(up);
                            connection.down = Some(down);
                            connection.state = State::Relaying;
                            connection.deadline =
                                (!connection.checked).then(|| Instant::now() + HELLO_PATIENCE);
                            self.relay(id, connection);
                        }
                        _ => reset(&connection.client),
                    },
                    Err(errno) => {
                        connection.server = None;
                        self.dial_next(id, connection, errno);
                    }
                }
            }
            State::Relaying => self.relay(id, connection),
        }
    }

    fn relay(&mut self, id: u64, mut connection: Box<Connection>) {
        if !connection.checked {
            match self.first_bytes(&connection) {
                None => {}
                Some(true) => {
                    connection.checked = true;
                    connection.deadline = None;
                }
                Some(false) => {
                    connection.verdict.rule = "the client names another host".to_owned();
                    return self.refuse(id, connection, "refused");
                }
            }
        }
        let c = &mut *connection;
        let (server, up, down) = match (&c.server, &mut c.up, &mut c.down) {
            (Some(server), Some(up), Some(down)) => (server, up, down),
            _ => return,
        };
        let (inside, outside) = (c.client.as_raw_fd(), server.as_raw_fd());
        let before = up.bytes + down.bytes;
        let sent = if c.checked {
            up.step(inside, outside)
        } else {
            Ok(Moved::Idle)
        };
        let received = down.step(outside, inside);
        if up.bytes + down.bytes != before {
            c.active = Instant::now();
        }
        match (sent, received) {
            (Ok(Moved::Done), Ok(Moved::Done)) => self.close(id, &connection, None),
            (Ok(a), Ok(b)) => {
                if a == Moved::Busy || b == Moved::Busy {
                    self.busy.push_back(id);
                }
                self.items.insert(id, Item::Connection(connection));
            }
            (Err(errno), _) | (_, Err(errno)) => {
                let reason = std::io::Error::from_raw_os_error(errno).to_string();
                self.close(id, &connection, Some(&reason));
                reset(&connection.client);
            }
        }
    }

    /// Whether the first bytes may pass; None while that is not known.
    fn first_bytes(&self, connection: &Connection) -> Option<bool> {
        let mut buffer = [0u8; hello::MOST];
        let bytes = peek(connection.client.as_raw_fd(), &mut buffer)?;
        if bytes.is_empty() {
            // It has ended without a word.
            return Some(true);
        }
        let same = |host: Option<String>| host.map_or(true, |host| Some(host) == connection.name);
        match hello::look(bytes) {
            First::More => None,
            First::Tls(host) | First::Http(host) => Some(same(host)),
            First::Other => Some(true),
        }
    }

    fn refused_step(&mut self, id: u64, connection: Box<Connection>) {
        let fd = connection.client.as_raw_fd();
        let mut buffer = [0u8; hello::MOST];
        let first = peek(fd, &mut buffer).map(|bytes| match bytes {
            // It has ended without a word.
            [] => First::Other,
            _ => hello::look(bytes),
        });
        match first {
            None | Some(First::More) => {
                self.items.insert(id, Item::Connection(connection));
            }
            Some(First::Http(_)) => {
                // Read it, or closing would reset the connection before the answer is read.
                // SAFETY: the buffer has the given length.
                unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
                let _ = sys::write_all(fd, forbidden(&connection).as_bytes());
            }
            Some(_) => reset(&connection.client),
        }
    }

    fn close(&mut self, id: u64, connection: &Connection, reason: Option<&str>) {
        self.note(id, connection, "closed", reason);
        self.totals.0 += connection.up.as_ref().map_or(0, |d| d.bytes);
        self.totals.1 += connection.down.as_ref().map_or(0, |d| d.bytes);
    }

    fn note(&mut self, id: u64, connection: &Connection, event: &str, reason: Option<&str>) {
        let mut record = json!({
            "connection": id,
            "event": event,
            "host": connection.name,
            "port": connection.wanted.port(),
            "address": connection.dialled.or_else(|| {
                connection.name.is_none().then(|| connection.wanted.ip())
            }).map(|a| a.to_string()),
            "rule": connection.verdict.rule,
            "allowed": connection.verdict.allowed,
        });
        if let (Some(up), Some(down), "closed") = (&connection.up, &connection.down, event) {
            record["bytes_out"] = json!(up.bytes);
            record["bytes_in"] = json!(down.bytes);
            record["ms"] = json!(connection.began.elapsed().as_millis() as u64);
        }
        if let Some(reason) = reason {
            record["reason"] = json!(reason);
        }
        self.records.write(record);
    }

    // ---- time

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        let idle = self.config.idle;
        let late: Vec<u64> = self
            .items
            .iter()
            .filter(|(_, item)| match item {
                Item::Connection(c) => {
                    c.deadline.map_or(false, |d| d <= now)
                        || (matches!(c.state, State::Relaying)
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
                        // What is neither TLS nor HTTP by now is something else.
                        connection.checked = true;
                        connection.deadline = None;
                        self.relay(id, connection);
                    }
                    State::Relaying => {
                        self.close(id, &connection, Some("idle"));
                        reset(&connection.client);
                    }
                    _ => reset(&connection.client),
                },
                Some(Item::Lookup(mut lookup, waiting)) => match lookup.late(now) {
                    Some(found) => self.resolved(&lookup.name, found, waiting),
                    None => {
                        let _ = self.watch_item(lookup.fd(), id, 0);
                        self.items.insert(id, Item::Lookup(lookup, waiting));
                    }
                },
                _ => {}
            }
        }
    }

    // ---- control

    fn accept_control(&mut self) {
        if let Ok(fd) = sys::accept(self.sockets.control.as_raw_fd()) {
            let raw = fd.as_raw_fd();
            let id = self.add(Item::Control(fd, Vec::new()));
            if self.watch_item(raw, id, 0).is_err() {
                self.items.remove(&id);
            }
        }
    }

    /// One line of JSON in, one out.
    fn control(&mut self, id: u64, fd: OwnedFd, mut text: Vec<u8>) {
        let mut buffer = [0u8; 16 << 10];
        loop {
            // SAFETY: the buffer has the given length.
            let n =
                unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            match check(n as libc::c_int) {
                Ok(n) if n > 0 && text.len() < MAX_CONTROL => {
                    text.extend_from_slice(&buffer[..n as usize]);
                }
                Err(libc::EAGAIN) => break,
                _ => return,
            }
            if text.ends_with(b"\n") {
                let mut answer = self.command(&text).to_string();
                answer.push('\n');
                let _ = sys::write_all(fd.as_raw_fd(), answer.as_bytes());
                return;
            }
        }
        self.items.insert(id, Item::Control(fd, text));
    }

    fn command(&mut self, text: &[u8]) -> Value {
        let v: Value = match serde_json::from_slice(text) {
            Ok(v) => v,
            Err(_) => return json!({"error": "not JSON"}),
        };
        if !v["rules"].is_null() {
            match Rules::parse(&v["rules"]) {
                Some(rules) => self.change(rules),
                None => return json!({"error": "the rules are not valid"}),
            }
        }
        let connections = |item: &&Item| matches!(item, Item::Connection(_));
        let open = self.items.values().filter(connections).count();
        let live = |pick: fn(&Connection) -> &Option<Direction>| -> u64 {
            self.items
                .values()
                .map(|item| match item {
                    Item::Connection(c) => pick(c).as_ref().map_or(0, |d| d.bytes),
                    _ => 0,
                })
                .sum()
        };
        json!({
            "open": open,
            "opened": self.opened,
            "refused": self.refused,
            "bytes_out": self.totals.0 + live(|c| &c.up),
            "bytes_in": self.totals.1 + live(|c| &c.down),
        })
    }

    /// Use new rules; connections that they refuse end at once.
    fn change(&mut self, rules: Rules) {
        self.config.rules = rules;
        let refused: Vec<u64> = self
            .items
            .iter()
            .filter_map(|(id, item)| match item {
                Item::Connection(c) if !matches!(c.state, State::Refused) => {
                    let to = match &c.name {
                        Some(name) => Destination::Name(name),
                        None => Destination::Address(c.wanted.ip()),
                    };
                    let verdict = self.config.rules.decide(to, c.wanted.port());
                    (!verdict.allowed && !self.config.rules.dry_run).then_some(*id)
                }
                _ => None,
            })
            .collect();
        for id in refused {
            if let Some(Item::Connection(connection)) = self.items.remove(&id) {
                self.close(id, &connection, Some("the rules were changed"));
                reset(&connection.client);
            }
        }
    }
}

/// The answer to a refused request, for a person or a model to read.
fn forbidden(connection: &Connection) -> String {
    let host = match &connection.name {
        Some(name) => name.clone(),
        None => connection.wanted.ip().to_string(),
    };
    let body = format!(
        "This sandbox may not reach {}:{} ({}).\nIts creator sets what it may reach (network.allow); \
         only the operator opens addresses that are not public (network.reachable).\n",
        host,
        connection.wanted.port(),
        connection.verdict.rule
    );
    format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\nX-Sandkasten-Network: refused\r\n\r\n{}",
        body.len(),
        body
    )
}

/// Close with a reset instead of an orderly end.
fn reset(fd: &OwnedFd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the option value is one linger.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&linger as *const libc::linger).cast(),
            std::mem::size_of::<libc::linger>() as libc::socklen_t,
        );
        libc::shutdown(fd.as_raw_fd(), libc::SHUT_RD);
    }
}

fn peek(fd: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the buffer has the given length.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK) };
    check(n as libc::c_int).ok().map(|n| &buffer[..n as usize])
}

/// Whether a connection is made; an errno if it failed.
fn connected(fd: RawFd) -> Result<bool> {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one pollfd.
    if check(unsafe { libc::poll(&mut poll, 1, 0) })? == 0 {
        return Ok(false);
    }
    let (mut error, mut length) = (0i32, 4 as libc::socklen_t);
    // SAFETY: the option value is one int.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&mut error as *mut i32).cast(),
            &mut length,
        )
    })?;
    if error == 0 {
        Ok(true)
    } else {
        Err(error)
    }
}

fn connect(to: SocketAddr) -> Result<OwnedFd> {
    let family = if to.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
    let (address, length) = sys::socket_address(to);
    // SAFETY: `address` is a filled-in socket address of the given length.
    let result = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            (&address as *const libc::sockaddr_storage).cast(),
            length,
        )
    };
    match check(result) {
        Ok(_) | Err(libc::EINPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

fn receive_from(fd: RawFd, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    // SAFETY: an all-zero sockaddr_storage is valid, and the lengths are those of the buffers.
    unsafe {
        let mut from: libc::sockaddr_storage = std::mem::zeroed();
        let mut length = std::mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let n = libc::recvfrom(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            (&mut from as *mut libc::sockaddr_storage).cast(),
            &mut length,
        );
        let n = check(n as libc::c_int).ok()?;
        let ip = sys::ip_of((&from as *const libc::sockaddr_storage).cast())?;
        let port = (*(&from as *const _ as *const libc::sockaddr_in)).sin_port;
        Some((n as usize, SocketAddr::new(ip, u16::from_be(port))))
    }
}

fn send_to(fd: RawFd, message: &[u8], to: SocketAddr) {
    let (address, length) = sys::socket_address(to);
    // SAFETY: both buffers have the given lengths. A reply that cannot be sent is asked for again.
    unsafe {
        libc::sendto(
            fd,
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT,
            (&address as *const libc::sockaddr_storage).cast(),
            length,
        )
    };
}
