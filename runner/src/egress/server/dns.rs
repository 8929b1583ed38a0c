//! Answers to DNS questions of programs inside: which names are looked up is decided here, by the rules.

use super::{Egress, Item, Waiter};
use crate::dns_messages::{self, Question};
use crate::resolver::{Found, Lookup};
use crate::sockets::{receive_from, send_to};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const DNS_PORT: u16 = 53;
pub(super) const NO_ADDRESS: &str = "the name has no address";
/// How many refused lookups are recorded per minute; more would only displace older records.
const NOTED: u32 = 20;
/// How many questions and connections may wait for the same lookup.
const MOST_WAITING: usize = 256;

impl Egress {
    pub(super) fn read_questions(&mut self) {
        let mut buffer = [0u8; 512];
        for _ in 0..64 {
            let Some((n, from)) = receive_from(&self.sockets.dns, &mut buffer) else {
                return;
            };
            if let Some(question) = dns_messages::question(&buffer[..n]) {
                self.question(question, from);
            }
        }
    }

    /// Answer a question. Every name gets an address that stands for it; only a name that the rules allow
    /// is looked up first.
    fn question(&mut self, question: Question, from: SocketAddr) {
        let now = Instant::now();
        let name = question.name.clone();
        if question.kind != dns_messages::A || name.is_empty() {
            // The address that stands for a name is always IPv4.
            return self.reply(
                &dns_messages::answer(&question, dns_messages::NO_ERROR, None),
                from,
            );
        }
        if !self.config.rules.may_resolve(&name) || self.config.hosts.contains_key(&name) {
            // A refused name is not looked up, so nothing leaves; the connection is refused with a reason.
            let address = self.names.stand_in(&name, now);
            return self.reply(
                &dns_messages::answer(&question, dns_messages::NO_ERROR, Some(address)),
                from,
            );
        }
        self.look_up(&name, Waiter::Question(question, from), now);
    }

    pub(super) fn look_up(&mut self, name: &str, waiter: Waiter, now: Instant) {
        if let Some(addresses) = self.config.hosts.get(name) {
            let found = Found::Addresses(addresses.clone());
            return self.resolved(name, found, vec![waiter]);
        }
        if let Some(addresses) = self.names.fresh(name, now) {
            let found = Found::Addresses(addresses.to_vec());
            return self.resolved(name, found, vec![waiter]);
        }
        let waiting = self.items.values_mut().find_map(|item| match item {
            Item::Lookup(lookup, waiting) if lookup.name == name => Some(waiting),
            _ => None,
        });
        match waiting {
            Some(waiting) if waiting.len() < MOST_WAITING => return waiting.push(waiter),
            Some(_) => return self.resolved(name, Found::Failed, vec![waiter]),
            None => {}
        }
        if !self.may_ask(name, now) {
            return self.resolved(name, Found::Failed, vec![waiter]);
        }
        match Lookup::start(name, &self.config.servers, now) {
            Some(lookup) => {
                let _ = self.watch_item(lookup.fd(), self.next, 0);
                self.add(Item::Lookup(lookup, vec![waiter]));
            }
            None => self.looked_up(name, Found::Failed, vec![waiter]),
        }
    }

    /// Use the result of a lookup. A failed one is recorded, because the program inside does not get the
    /// reason.
    pub(super) fn looked_up(&mut self, name: &str, found: Found, waiting: Vec<Waiter>) {
        let reason = match &found {
            Found::Addresses(list) if !list.is_empty() => None,
            Found::Addresses(_) => Some(NO_ADDRESS),
            Found::NoSuchName => Some("no such name"),
            Found::Failed => Some("no name server answered"),
        };
        if let Some(reason) = reason {
            self.failed += 1;
            self.records.write(json!({
                "event": "failed",
                "host": name,
                "port": DNS_PORT,
                "rule": "lookup",
                "allowed": true,
                "reason": reason,
            }));
        }
        self.resolved(name, found, waiting);
    }

    /// Whether one more lookup is allowed. Lookups are limited because names can carry data.
    fn may_ask(&mut self, name: &str, now: Instant) -> bool {
        if now.duration_since(self.minute.0) > Duration::from_secs(60) {
            self.minute = (now, 0);
        }
        self.minute.1 = self.minute.1.saturating_add(1);
        let most = self.config.limits.names_per_minute;
        if self.minute.1 > most {
            self.refused += 1;
            if self.minute.1 - most <= NOTED {
                self.records.write(json!({
                    "event": "refused",
                    "host": name,
                    "port": DNS_PORT,
                    "rule": "limit:names_per_minute",
                }));
            }
            return false;
        }
        let lookups = |item: &&Item| matches!(item, Item::Lookup(..));
        self.items.values().filter(lookups).count() < 64
    }

    pub(super) fn resolved(&mut self, name: &str, found: Found, waiting: Vec<Waiter>) {
        let now = Instant::now();
        if let Found::Addresses(addresses) = &found {
            self.names.found(name, addresses.clone(), now);
        }
        for waiter in waiting {
            match waiter {
                Waiter::Question(question, from) => {
                    let message = match &found {
                        Found::Addresses(list) if list.is_empty() => {
                            dns_messages::answer(&question, dns_messages::NO_ERROR, None)
                        }
                        Found::Addresses(_) => {
                            let address = self.names.stand_in(name, now);
                            dns_messages::answer(&question, dns_messages::NO_ERROR, Some(address))
                        }
                        Found::NoSuchName => {
                            dns_messages::answer(&question, dns_messages::NO_SUCH_NAME, None)
                        }
                        Found::Failed => {
                            dns_messages::answer(&question, dns_messages::SERVER_FAILURE, None)
                        }
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
        send_to(&self.sockets.dns, message, to);
    }
}
