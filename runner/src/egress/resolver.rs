//! Lookups of names at the host's name servers.
//!
//! Each lookup has its own socket and two random ids, so a false reply must guess 48 bits. Both
//! address families are asked for at once; a server that does not answer is followed by the next one.

use crate::dns_messages::{self, Reply};
use ring::rand::{SecureRandom, SystemRandom};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::io::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_millis(2500);
const ROUNDS: usize = 2;
const KINDS: [u16; 2] = [dns_messages::A, dns_messages::AAAA];

pub struct Lookup {
    pub name: String,
    pub deadline: Instant,
    servers: Vec<SocketAddr>,
    attempt: usize,
    socket: UdpSocket,
    ids: [u16; 2],
    replies: [Option<Reply>; 2],
}

#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    Failed,
}

impl Lookup {
    /// Ask the first server; None if there is no server or the name cannot be asked for.
    pub fn start(name: &str, servers: &[SocketAddr], now: Instant) -> Option<Lookup> {
        let servers: Vec<SocketAddr> = servers.repeat(ROUNDS);
        let (socket, ids) = ask(name, *servers.first()?)?;
        Some(Lookup {
            name: name.to_owned(),
            deadline: now + PATIENCE,
            servers,
            attempt: 0,
            socket,
            ids,
            replies: [None, None],
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Read what arrived; return the result when it is complete.
    pub fn read(&mut self) -> Option<Found> {
        let mut buffer = [0u8; 1500];
        while let Ok(n) = self.socket.recv(&mut buffer) {
            for (i, kind) in KINDS.iter().enumerate() {
                if let Some(reply) =
                    dns_messages::reply(&buffer[..n], self.ids[i], &self.name, *kind)
                {
                    self.replies[i].get_or_insert(reply);
                }
            }
        }
        if self.replies.iter().all(Option::is_some) {
            return Some(self.outcome());
        }
        None
    }

    /// After the deadline: use what is there, ask the next server, or give up. The caller watches the
    /// new socket.
    pub fn late(&mut self, now: Instant) -> Option<Found> {
        if self.replies.iter().any(Option::is_some) {
            return Some(self.outcome());
        }
        self.attempt += 1;
        let next = self.servers.get(self.attempt).copied();
        match next.and_then(|server| ask(&self.name, server)) {
            Some((socket, ids)) => {
                self.socket = socket;
                self.ids = ids;
                self.deadline = now + PATIENCE;
                None
            }
            None => Some(Found::Failed),
        }
    }

    fn outcome(&mut self) -> Found {
        let replies: Vec<Reply> = self.replies.iter_mut().filter_map(Option::take).collect();
        let addresses: Vec<IpAddr> = replies.iter().flat_map(|r| r.addresses.clone()).collect();
        if !addresses.is_empty() {
            return Found::Addresses(addresses);
        }
        if replies.iter().any(|r| r.code == dns_messages::NO_SUCH_NAME) {
            return Found::NoSuchName;
        }
        if replies.iter().all(|r| r.code == dns_messages::NO_ERROR) {
            return Found::Addresses(Vec::new());
        }
        Found::Failed
    }
}

fn ask(name: &str, server: SocketAddr) -> Option<(UdpSocket, [u16; 2])> {
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(server).ok()?;
    socket.set_nonblocking(true).ok()?;
    let ids = random_ids()?;
    for (id, kind) in ids.iter().zip(KINDS) {
        socket.send(&dns_messages::query(*id, name, kind)?).ok()?;
    }
    Some((socket, ids))
}

fn random_ids() -> Option<[u16; 2]> {
    let mut bytes = [0u8; 4];
    SystemRandom::new().fill(&mut bytes).ok()?;
    let first = u16::from_ne_bytes([bytes[0], bytes[1]]);
    Some([
        first,
        u16::from_ne_bytes([bytes[2], bytes[3]]) ^ u16::from(first == 0),
    ])
}
