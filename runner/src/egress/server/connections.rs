//! New connections: the rules decide about each one, then it is dialled and relayed, or refused.

use super::dns::NO_ADDRESS;
use super::{Connection, Egress, Item, State, Waiter};
use crate::hello::{self, First};
use crate::http::{Requests, ANOTHER, UNCLEAR};
use crate::limits::{Room, TENANT_RULE};
use crate::relay::Direction;
use crate::rules::{Destination, Verdict};
use crate::sockets::{connect, connected, reset, sends_no_more};
use crate::sys::{self, peek};
use rustix::net::{recv, RecvFlags};
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The rule in the record of an address that only the operator opens.
const NOT_PUBLIC: &str = "address that is not public";
const DIAL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to send its first bytes completely, if they must be checked.
pub(super) const HELLO_PATIENCE: Duration = Duration::from_secs(3);
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// How many refused connections may wait for their first bytes, to be answered with a 403.
const REFUSED_AT_ONCE: usize = 256;

impl Egress {
    pub(super) fn accept(&mut self, v4: bool) {
        for _ in 0..64 {
            let listener = match (v4, &self.sockets.tcp6) {
                (true, _) => self.sockets.tcp4.as_raw_fd(),
                (false, Some(fd)) => fd.as_raw_fd(),
                (false, None) => return,
            };
            let Ok(client) = sys::accept(listener) else {
                return;
            };
            if let Ok(wanted) = sys::original_destination(client.as_raw_fd(), v4) {
                self.begin(client, wanted);
            }
        }
    }

    pub(super) fn begin(&mut self, client: OwnedFd, wanted: SocketAddr) {
        let now = Instant::now();
        let name = self.names.known(wanted.ip(), now).map(|k| k.name.clone());
        let to = match &name {
            Some(name) => Destination::Name(name),
            None => Destination::Address(wanted.ip()),
        };
        let mut verdict = self.config.rules.decide(to, wanted.port());
        let mut dry = self.config.rules.dry_run;
        if let Some(rule) = self.reached_limit() {
            verdict = Verdict {
                allowed: false,
                rule,
            };
            dry = false;
        }
        let allowed = verdict.allowed || dry;
        let unchecked = self.is_free(name.as_deref(), wanted.port());
        let connection = Connection {
            client,
            server: None,
            watched: false,
            state: State::Resolving,
            checked: unchecked || name.is_none(),
            unchecked,
            requests: None,
            passes: 0,
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
        let id = self.next;
        self.next += 1;
        let connection = Box::new(connection);
        if !allowed {
            return self.refuse(id, connection, "refused");
        }
        if !connection.verdict.allowed {
            self.would_refuse(id, &connection, None);
        }
        match connection.name.clone() {
            Some(name) => {
                self.items.insert(id, Item::Connection(connection));
                self.look_up(&name, Waiter::Connection(id), now);
            }
            None => self.dial(id, connection, vec![wanted.ip()]),
        }
    }

    /// Whether the bytes of a connection to this name pass unchecked: the network is full and not inspected.
    pub(super) fn is_free(&self, name: Option<&str>, port: u16) -> bool {
        name.is_some_and(|name| self.config.rules.full && !self.inspects(name, port))
    }

    /// Count the connections that are not refused.
    pub(super) fn open(&self) -> usize {
        let open = |item: &&Item| match item {
            Item::Connection(c) => !matches!(c.state, State::Refused),
            _ => false,
        };
        self.items.values().filter(open).count()
    }

    /// Return the rule of the limit that refuses a new connection; None if no limit is reached.
    fn reached_limit(&mut self) -> Option<String> {
        let now = Instant::now();
        if self.open() >= self.config.limits.connections {
            return Some("limit:connections".to_owned());
        }
        for (meter, rule) in [
            (&mut self.outward, "limit:bytes_out"),
            (&mut self.inward, "limit:bytes_in"),
        ] {
            if meter.room(now, 1) == Room::Never {
                return Some(meter.rule(rule).to_owned());
            }
        }
        None
    }

    pub(super) fn refuse(&mut self, id: u64, mut connection: Box<Connection>, verdict: &str) {
        self.refused += 1;
        self.note(id, &connection, verdict, None);
        connection.state = State::Refused;
        connection.server = None;
        connection.deadline = Some(Instant::now() + REFUSAL_PATIENCE);
        let full = self.items.len() >= self.config.limits.connections + REFUSED_AT_ONCE;
        if full || self.watch_client(id, &mut connection).is_err() {
            return reset(&connection.client);
        }
        self.connection(id, connection);
    }

    /// Refuse a connection that was open; a dry run only reports it.
    pub(super) fn stop(&mut self, id: u64, mut connection: Box<Connection>, rule: &str) {
        if self.config.rules.dry_run {
            self.would_refuse(id, &connection, Some(rule));
            connection.checked = true;
            connection.unchecked = true;
            connection.requests = None;
            return self.relay(id, connection);
        }
        connection.verdict.rule = rule.to_owned();
        self.refuse(id, connection, "refused");
    }

    fn would_refuse(&mut self, id: u64, connection: &Connection, rule: Option<&str>) {
        self.would_refuse += 1;
        let mut record = self.record(id, connection, "would_refuse");
        if let Some(rule) = rule {
            record["rule"] = json!(rule);
        }
        record["allowed"] = json!(false);
        self.records.write(record);
    }

    pub(super) fn dial(&mut self, id: u64, mut connection: Box<Connection>, found: Vec<IpAddr>) {
        let port = connection.wanted.port();
        let mut open: VecDeque<IpAddr> = found
            .iter()
            .copied()
            .filter(|address| self.config.may_dial(*address))
            .collect();
        let mut rule = NOT_PUBLIC.to_owned();
        // A name may resolve to an address that a rule denies.
        let rules = &self.config.rules;
        let mut denied = None;
        open.retain(|address| {
            let found = rules.denied(Destination::Address(*address), port);
            let closed = found.is_some();
            denied = found.or_else(|| denied.take());
            !closed || rules.dry_run
        });
        if let (Some(denied), true) = (&denied, rules.dry_run && connection.verdict.allowed) {
            self.would_refuse(id, &connection, Some(denied));
        }
        rule = denied.unwrap_or(rule);
        if open.is_empty() {
            if let Some(address) = found.first() {
                connection.dialled = Some(*address);
                connection.verdict.rule = rule;
                return self.refuse(id, connection, "refused");
            }
            self.failed += 1;
            self.note(id, &connection, "failed", Some(NO_ADDRESS));
            return reset(&connection.client);
        }
        connection.state = State::Dialling(open);
        self.dial_next(id, connection, libc::EHOSTUNREACH);
    }

    pub(super) fn dial_next(&mut self, id: u64, mut connection: Box<Connection>, last: i32) {
        let port = connection.wanted.port();
        loop {
            let address = match &mut connection.state {
                State::Dialling(rest) => rest.pop_front(),
                _ => None,
            };
            let Some(address) = address else {
                let reason = std::io::Error::from_raw_os_error(last).to_string();
                self.failed += 1;
                self.note(id, &connection, "failed", Some(&reason));
                return reset(&connection.client);
            };
            if let Ok(server) = connect(SocketAddr::new(address, port)) {
                // Not earlier, so that a server on this network can begin its work meanwhile.
                if self.watch_client(id, &mut connection).is_err() {
                    return reset(&connection.client);
                }
                if self.watch_item(&server, id, 1).is_ok() {
                    connection.server = Some(server);
                    connection.dialled = Some(address);
                    connection.deadline = Some(Instant::now() + DIAL_PATIENCE);
                    // A server on this network may have answered already.
                    return self.connection(id, connection);
                }
            }
        }
    }

    fn watch_client(&self, id: u64, connection: &mut Connection) -> sys::Result<()> {
        if !connection.watched {
            self.watch_item(&connection.client, id, 0)?;
            connection.watched = true;
        }
        Ok(())
    }

    /// Take the next step of a connection. It is put back unless it has ended.
    pub(super) fn connection(&mut self, id: u64, mut connection: Box<Connection>) {
        match connection.state {
            State::Resolving => {
                self.items.insert(id, Item::Connection(connection));
            }
            State::Refused => self.refused_step(id, connection),
            State::Dialling(_) => {
                let at = connection.dialled.unwrap_or_else(|| connection.wanted.ip());
                let to = SocketAddr::new(at, connection.wanted.port());
                let server = connection.server.as_ref().ok_or(libc::EBADF);
                match server.and_then(|server| connected(server, to)) {
                    Ok(false) => {
                        self.items.insert(id, Item::Connection(connection));
                    }
                    Ok(true) => {
                        self.opened += 1;
                        self.note(id, &connection, "opened", None);
                        connection.up = Some(Direction::default());
                        connection.down = Some(Direction::default());
                        connection.state = State::Relaying;
                        connection.deadline = None;
                        self.relay(id, connection);
                    }
                    Err(errno) => {
                        connection.server = None;
                        self.dial_next(id, connection, errno);
                    }
                }
            }
            State::Relaying => self.relay(id, connection),
            State::Inspecting(_) => self.inspect(id, connection),
        }
    }

    pub(super) fn relay(&mut self, id: u64, mut connection: Box<Connection>) {
        if !connection.checked {
            match first_bytes(&connection, &mut self.first) {
                Passage::Silent => {}
                Passage::Waits => {
                    let patience = Instant::now() + HELLO_PATIENCE;
                    connection.deadline.get_or_insert(patience);
                }
                Passage::Open(seen) => {
                    connection.checked = true;
                    connection.deadline = None;
                    if matches!(seen, First::Http(_)) {
                        connection.requests = Some(Requests::new());
                    }
                    match self.inspected(&mut connection, seen) {
                        Some(Ok(())) => return self.inspect(id, connection),
                        Some(Err(rule)) => return self.stop(id, connection, &rule),
                        None => {}
                    }
                }
                Passage::Closed(rule) => return self.stop(id, connection, rule),
            }
        }
        if !connection.checked && self.holds_server(&connection) {
            self.items.insert(id, Item::Connection(connection));
            return;
        }
        self.shift(id, connection);
    }

    fn refused_step(&mut self, id: u64, connection: Box<Connection>) {
        let fd = connection.client.as_raw_fd();
        let buffer = &mut self.first[..];
        let first = peek(fd, buffer).map(|bytes| match bytes {
            [] => First::Nothing,
            _ => hello::look(bytes),
        });
        match first {
            None => {
                self.items.insert(id, Item::Connection(connection));
            }
            Some(First::More) if !sends_no_more(&connection.client) => {
                self.items.insert(id, Item::Connection(connection));
            }
            Some(First::Http(_) | First::Http2 | First::Unclear)
                if !hello::is_tls_record(buffer[0]) =>
            {
                // Read it, or closing would reset the connection before the answer is read.
                let _read = recv(&connection.client, buffer, RecvFlags::empty());
                let _ = sys::write_all(fd, forbidden(&connection).as_bytes());
            }
            Some(_) => reset(&connection.client),
        }
    }

    pub(super) fn close(&mut self, id: u64, connection: &Connection, reason: Option<&str>) {
        self.note(id, connection, "closed", reason);
    }

    pub(super) fn note(
        &mut self,
        id: u64,
        connection: &Connection,
        event: &str,
        reason: Option<&str>,
    ) {
        let mut record = self.record(id, connection, event);
        if let (Some(up), Some(down), "closed" | "refused") =
            (&connection.up, &connection.down, event)
        {
            record["bytes_out"] = json!(up.bytes);
            record["bytes_in"] = json!(down.bytes);
            record["ms"] = json!(connection.began.elapsed().as_millis() as u64);
        }
        if let Some(reason) = reason {
            record["reason"] = json!(reason);
        }
        self.records.write(record);
    }

    pub(super) fn record(&self, id: u64, connection: &Connection, event: &str) -> Value {
        json!({
            "connection": id,
            "event": event,
            "host": connection.name,
            "port": connection.wanted.port(),
            "address": connection.dialled.or_else(|| {
                connection.name.is_none().then(|| connection.wanted.ip())
            }).map(|a| a.to_string()),
            "rule": connection.verdict.rule,
            "allowed": connection.verdict.allowed,
        })
    }
}

/// The decision about the first bytes of a connection to a name.
enum Passage {
    Silent,
    Waits,
    Open(First),
    Closed(&'static str),
}

fn first_bytes(connection: &Connection, buffer: &mut [u8]) -> Passage {
    let Some(bytes) = peek(connection.client.as_raw_fd(), buffer) else {
        return Passage::Silent;
    };
    if bytes.is_empty() {
        return Passage::Open(First::Nothing);
    }
    match hello::look(bytes) {
        First::More if sends_no_more(&connection.client) => Passage::Closed(UNCLEAR),
        First::More => Passage::Waits,
        First::Unclear => Passage::Closed(UNCLEAR),
        First::Tls(Some(host)) | First::Http(Some(host))
            if Some(&host) != connection.name.as_ref() =>
        {
            Passage::Closed(ANOTHER)
        }
        seen => Passage::Open(seen),
    }
}

/// Return the answer to a refused request: a 403 with the reason and a hint as text. A test compares
/// them with those of `model/sandbox/network_refusals.py`.
fn forbidden(connection: &Connection) -> String {
    let host = match &connection.name {
        Some(name) => name.clone(),
        None => connection.wanted.ip().to_string(),
    };
    let hint = if connection.verdict.rule == TENANT_RULE {
        "The tenant has used up its network bytes of this day (UTC); the operator sets the quota \
         (max_network_bytes_per_day)."
    } else if connection.verdict.rule.starts_with("limit:") {
        "The creator of the sandbox can raise the limit (network.limits), up to that of the operator."
    } else if connection.verdict.rule.starts_with("deny ") {
        "A deny rule refuses it; the creator of the sandbox can remove it (network.deny)."
    } else if connection.verdict.rule == NOT_PUBLIC {
        "Only the operator opens addresses that are not public (network.reachable)."
    } else {
        "The creator of the sandbox can allow it (network.allow); only the operator opens addresses \
         that are not public (network.reachable)."
    };
    let reason = match connection.verdict.rule.as_str() {
        "default" => "no rule allows it",
        rule => rule,
    };
    let body = format!(
        "This sandbox may not reach {}:{} ({}).\n{}\n",
        host,
        connection.wanted.port(),
        reason,
        hint
    );
    format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\nX-Sandkasten-Network: refused\r\n\r\n{}",
        body.len(),
        body
    )
}
