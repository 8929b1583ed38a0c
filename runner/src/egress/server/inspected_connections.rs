//! Connections whose requests are inspected: how they begin, continue and end.

use super::{Connection, Egress, Item, State};
use crate::hello::First;
use crate::http::UNCLEAR;
use crate::inspect::{Begins, Event, Inspection, Moved};
use crate::limits::{Meter, Room};
use crate::rules::{verdict, Destination};
use crate::sockets::{delivers, reset};
use crate::sys::peek;
use serde_json::json;
use std::os::unix::io::AsRawFd;
use std::time::{Duration, Instant};

/// How long a client may take to end a connection when the last answer has arrived.
pub(super) const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// How long both TLS handshakes may take together.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);
const NO_HANDSHAKE: &str = "the TLS handshake did not end in time";

const IDLE: &str = "limit:idle_seconds";

/// Ports on which an inspected host gets only HTTP and TLS. Other ports may have protocols that cannot be
/// read, such as ssh and PostgreSQL.
const WEB_PORTS: [u16; 2] = [80, 443];
const NOT_WEB: &str = "bytes that are neither TLS nor HTTP";
const SPOKE_FIRST: &str = "a server that sends before the client";
const NOT_SEARCHED: &str = "another protocol to the host of a secret; a rule must name its port";

impl Egress {
    pub(super) fn inspects(&self, name: &str, port: u16) -> bool {
        let inspector = self.config.inspector.as_ref();
        inspector.is_some_and(|inspector| inspector.wants(name, port))
    }

    /// Begin to inspect a connection whose first bytes are known. None: it is relayed without inspection.
    /// An error is the rule that refuses it.
    pub(super) fn inspected(
        &mut self,
        connection: &mut Connection,
        seen: First,
    ) -> Option<Result<(), String>> {
        let (name, port) = (connection.name.clone()?, connection.wanted.port());
        let wanted = self.inspects(&name, port);
        let begins = match seen {
            First::Tls(Some(_)) => Begins::Tls,
            First::Tls(None) if wanted => return Some(Err("TLS without a server name".to_owned())),
            First::Http(_) => Begins::Http1,
            First::Http2 if wanted => Begins::Http2,
            First::Http2 => return Some(Err(UNCLEAR.to_owned())),
            First::Other if wanted && WEB_PORTS.contains(&port) => {
                return Some(Err(NOT_WEB.to_owned()))
            }
            // Code inside could have a host repeat a value in a protocol that is not searched.
            First::Other if self.keeps_secret(&name, port) => {
                return Some(Err(NOT_SEARCHED.to_owned()))
            }
            _ => return self.opaque(&name, port),
        };
        if !wanted {
            return self.opaque(&name, port);
        }
        // No server of HTTP or TLS does. What it has sent was not searched.
        if connection.down.as_ref().is_some_and(|down| down.bytes > 0) {
            return Some(Err(SPOKE_FIRST.to_owned()));
        }
        let inspector = self.config.inspector.as_mut()?;
        match Inspection::new(inspector, &name, port, begins) {
            Some(inspection) => {
                connection.state = State::Inspecting(Box::new(inspection));
                Some(Ok(()))
            }
            None => Some(Err("no certificate can be made for the name".to_owned())),
        }
    }

    /// Whether what a server has sent waits until the client has sent something: nothing but TLS and HTTP may
    /// pass here. The end of a server does not wait.
    pub(super) fn holds_server(&self, connection: &Connection) -> bool {
        let (Some(name), Some(server)) = (&connection.name, &connection.server) else {
            return false;
        };
        let port = connection.wanted.port();
        let only_web = WEB_PORTS.contains(&port)
            || self.keeps_secret(name, port)
            || self.opaque(name, port).is_some();
        only_web
            && !self.config.rules.dry_run
            && self.inspects(name, port)
            && peek(server.as_raw_fd(), &mut [0u8; 1]).is_some_and(|bytes| !bytes.is_empty())
    }

    /// Whether a host has a secret, and no rule allows other protocols on this port of it.
    fn keeps_secret(&self, name: &str, port: u16) -> bool {
        let inspector = self.config.inspector.as_ref();
        let rules = &self.config.rules;
        !rules.dry_run
            && !rules.names_port(Destination::Name(name), port)
            && inspector.is_some_and(|inspector| inspector.has_secret_on_any_port(name))
    }

    /// Refuse a connection that cannot be read, if only rules for requests allow its host.
    fn opaque(&self, name: &str, port: u16) -> Option<Result<(), String>> {
        let rules = &self.config.rules;
        let verdict = rules.decide_opaque(Destination::Name(name), port);
        (!verdict.allowed && !rules.dry_run).then_some(Err(verdict.rule))
    }

    /// Take the next step. The connection is put back unless it has ended.
    pub(super) fn inspect(&mut self, id: u64, mut connection: Box<Connection>) {
        let c = &mut *connection;
        let (inspection, server, inspector) =
            match (&mut c.state, &c.server, &self.config.inspector) {
                (State::Inspecting(inspection), Some(server), Some(inspector)) => {
                    (inspection, server, inspector)
                }
                _ => return,
            };
        let sockets = (c.client.as_raw_fd(), server.as_raw_fd());
        let before = inspection.bytes();
        let delivered = inspection.delivered();
        let (now, waiting) = (Instant::now(), self.throttled.len());
        let room = |meter: &mut Meter| match meter.room(now, waiting) {
            Room::Bytes(n) => n,
            _ => 0,
        };
        inspection.permit(room(&mut self.inward), room(&mut self.outward));
        let moved = inspection.step(&self.config.rules, inspector, sockets);
        let (sent, received) = inspection.bytes();
        let held = inspection.held();
        self.holding |= inspection.due().is_some();
        let events: Vec<Event> = inspection.events.drain(..).collect();
        let (ended, handshaking) = (inspection.has_ended(), inspection.handshaking());
        let moves = before != (sent, received) || delivered != inspection.delivered();
        let trouble = inspection.trouble.clone();
        self.outward.moved(sent - before.0);
        self.inward.moved(received - before.1);
        if let (Some(up), Some(down)) = (&mut c.up, &mut c.down) {
            up.bytes = sent;
            down.bytes = received;
        }
        if moves {
            c.active = now;
        }
        for event in events {
            self.note_request(id, &connection, event);
        }
        let none_in = held.0 && self.inward.room(now, 1) == Room::Never;
        let none_out = held.1 && self.outward.room(now, 1) == Room::Never;
        if none_in || none_out {
            let rule = if none_in {
                self.inward.rule("limit:bytes_in")
            } else {
                self.outward.rule("limit:bytes_out")
            };
            connection.verdict = verdict(false, rule);
            return self.end(id, connection);
        }
        match moved {
            Ok(Moved::Done) => self.close(id, &connection, trouble.as_deref()),
            Ok(moved) => {
                if moved == Moved::Busy {
                    self.go_on(id);
                } else if (held.0 || held.1) && !self.throttled.contains(&id) {
                    self.throttled.push_back(id);
                }
                connection.deadline = if ended {
                    let patience = now + ENDING_PATIENCE;
                    Some(connection.deadline.map_or(patience, |at| at.min(patience)))
                } else if handshaking {
                    Some(connection.deadline.unwrap_or(now + HANDSHAKE_PATIENCE))
                } else {
                    None
                };
                self.items.insert(id, Item::Connection(connection));
            }
            Err(reason) => {
                self.close(id, &connection, Some(&reason));
                reset(&connection.client);
            }
        }
    }

    /// End a connection that took too long.
    pub(super) fn late(&mut self, id: u64, connection: &Connection) {
        let reason = match &connection.state {
            State::Inspecting(inspection) => match &inspection.trouble {
                Some(trouble) => Some(&trouble[..]),
                None if inspection.handshaking() => Some(NO_HANDSHAKE),
                // The client has the whole answer; it only keeps its end open.
                None if inspection.has_ended() && !delivers(&connection.client) => None,
                None => Some(IDLE),
            },
            _ => Some(IDLE),
        };
        self.close(id, connection, reason);
        reset(&connection.client);
    }

    fn note_request(&mut self, id: u64, connection: &Connection, event: Event) {
        let kind = match (event.refused, event.allowed) {
            (true, _) => "refused",
            (false, true) => "request",
            (false, false) => "would_refuse",
        };
        self.refused += u64::from(event.refused);
        self.would_refuse += u64::from(kind == "would_refuse");
        let mut record = self.record(id, connection, kind);
        record["rule"] = json!(event.rule);
        record["allowed"] = json!(event.allowed);
        record["method"] = json!(event.method);
        record["path"] = json!(event.path);
        self.records.write(record);
    }
}
