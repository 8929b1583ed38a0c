//! The control socket: the engine asks for counts and changes the rules, one line of JSON each way.

use super::{Egress, Item, State};
use crate::config::networks;
use crate::inspect::{wipe_value, Inspector};
use crate::limits::{Allowance, Limits};
use crate::rules::{verdict, Destination, Rules};
use crate::sockets::{is_closed, reset};
use crate::sys;
use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};
use serde_json::{json, Value};
use std::os::unix::io::{AsRawFd, OwnedFd};

const MAX_CONTROL: usize = 4 << 20;

impl Egress {
    pub(super) fn accept_control(&mut self) {
        if let Ok(fd) = sys::accept(self.sockets.control.as_raw_fd()) {
            if self.watch_item(&fd, self.next, 0).is_ok() {
                self.add(Item::Control(fd, Vec::new()));
            }
        }
    }

    /// Read one command, a line of JSON, apply it and send one line of JSON back.
    pub(super) fn control(&mut self, id: u64, fd: OwnedFd, mut text: Vec<u8>) {
        let mut buffer = [0u8; 16 << 10];
        loop {
            match recv(&fd, &mut buffer, RecvFlags::empty()) {
                Ok((n, _)) if n > 0 && text.len() < MAX_CONTROL => {
                    text.extend_from_slice(&buffer[..n]);
                }
                Err(Errno::AGAIN) => break,
                _ => return,
            }
            if text.ends_with(b"\n") {
                // The sender gave up while this process was frozen, so the command must not be applied.
                if is_closed(&fd) {
                    text.fill(0);
                    return;
                }
                let mut answer = self.command(&text).to_string();
                // It may contain secrets.
                text.fill(0);
                // After the answer, the caller can read the records in their files.
                self.records.flush();
                answer.push('\n');
                let _ = sys::write_all(fd.as_raw_fd(), answer.as_bytes());
                return;
            }
        }
        self.items.insert(id, Item::Control(fd, text));
    }

    pub(super) fn command(&mut self, text: &[u8]) -> Value {
        let mut v: Value = match serde_json::from_slice(text) {
            Ok(v) => v,
            Err(_) => return json!({"error": "not JSON"}),
        };
        if !v["reachable"].is_null() {
            match networks(&v["reachable"]) {
                Some(found) => self.config.reachable = found,
                None => return json!({"error": "the networks are not valid"}),
            }
        }
        if !v["inspect"].is_null() {
            let changed = match &mut self.config.inspector {
                Some(inspector) => inspector.change(&v["inspect"]).is_some(),
                None => {
                    self.config.inspector = Inspector::parse(&v["inspect"]);
                    self.config.inspector.is_some()
                }
            };
            wipe_value(&mut v["inspect"]);
            if !changed {
                return json!({"error": "the inspection is not valid"});
            }
        }
        if !v["rules"].is_null() {
            match Rules::parse(&v["rules"]) {
                Some(rules) => self.change(rules),
                None => return json!({"error": "the rules are not valid"}),
            }
        }
        if !v["limits"].is_null() {
            match Limits::parse(&v["limits"]) {
                Some(limits) => self.limit(limits),
                None => return json!({"error": "the limits are not valid"}),
            }
        }
        if !v["allowance"].is_null() {
            match Allowance::parse(&v["allowance"]) {
                Some(allowance) => self.allow(allowance),
                None => return json!({"error": "the allowance is not valid"}),
            }
        }
        let mut answer = self.counts();
        if let Some(sequence) = v["after"].as_u64() {
            let since = v["since"].as_f64().unwrap_or(0.0);
            answer["records"] = Value::Array(self.records.after(sequence, since));
        }
        answer
    }

    pub(super) fn counts(&self) -> Value {
        json!({
            "open": self.open(),
            "opened": self.opened,
            "refused": self.refused,
            "failed": self.failed,
            "would_refuse": self.would_refuse,
            "bytes_out": self.outward.total,
            "bytes_in": self.inward.total,
        })
    }

    fn allow(&mut self, allowance: Allowance) {
        self.outward.allow(allowance.bytes_out);
        self.inward.allow(allowance.bytes_in);
    }

    fn limit(&mut self, limits: Limits) {
        self.outward.change(limits.bytes_out, limits.bandwidth_bps);
        self.inward.change(limits.bytes_in, limits.bandwidth_bps);
        self.config.limits = limits;
        self.end_surplus();
    }

    /// End the newest connections above the limit, because other sandboxes of the tenant may use the rest
    /// of its quota.
    fn end_surplus(&mut self) {
        let open = |(id, item): (&u64, &Item)| match item {
            Item::Connection(c) if !matches!(c.state, State::Refused) => Some(*id),
            _ => None,
        };
        let mut ids: Vec<u64> = self.items.iter().filter_map(open).collect();
        ids.sort_unstable();
        for id in ids.split_off(self.config.limits.connections.min(ids.len())) {
            if let Some(Item::Connection(mut connection)) = self.items.remove(&id) {
                connection.verdict = verdict(false, "limit:connections");
                self.end(id, connection);
            }
        }
    }

    /// Use new rules. Connections that they refuse, or whose checks they require, end at once.
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
                    let (rules, port) = (&self.config.rules, c.wanted.port());
                    let denied = |at| rules.denied(Destination::Address(at), port).is_some();
                    let unchecked = c.unchecked && !self.is_free(c.name.as_deref(), port);
                    // Its requests are not read, so rules for requests cannot be applied.
                    let opaque =
                        c.checked && c.name.is_some() && matches!(c.state, State::Relaying);
                    let refused = !rules.decide(to, port).allowed
                        || c.dialled.is_some_and(denied)
                        || unchecked
                        || opaque && !rules.decide_opaque(to, port).allowed;
                    let closed = c.dialled.is_some_and(|at| !self.config.may_dial(at));
                    (closed || refused && !rules.dry_run).then_some(*id)
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
