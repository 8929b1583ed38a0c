//! A byte stream to a port inside the sandbox, for previews where there is no network.

use crate::sys::{self, plain};
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use crate::wire::request::Fields;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_error;
use rustix::net::{
    connect, shutdown, socket_with, AddressFamily, Shutdown, SocketFlags, SocketType,
};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const BLOCK: usize = 64 << 10;

struct Port {
    socket: OwnedFd,
    address: SocketAddr,
    connected: bool,
    /// Data from the client that the server has not taken yet.
    pending: Vec<u8>,
    pending_at: usize,
    client_ended: bool,
    half_closed: bool,
    server_ended: bool,
    sent: u64,
    received: u64,
    starved: bool,
}

pub fn open(fields: &Fields) -> Result<Box<dyn Handler>, Failure> {
    let port = match fields.needed_number("port")? {
        port @ 1..=65535 => port as u16,
        _ => return Err(Failure::invalid("port must be 1 to 65535")),
    };
    let host = fields.text("host")?.unwrap_or("127.0.0.1");
    let host = if host == "localhost" {
        "127.0.0.1"
    } else {
        host
    };
    let ip: IpAddr = host
        .parse()
        .map_err(|_| Failure::invalid("host must be an IP address or localhost"))?;
    let address = SocketAddr::new(ip, port);
    let failed = |errno| Failure::from_errno(errno, format!("cannot connect to {address}"));
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None);
    let socket = plain(socket).map_err(failed)?;
    match plain(connect(&socket, &address)) {
        Ok(()) | Err(libc::EINPROGRESS) => {}
        Err(errno) => return Err(failed(errno)),
    }
    Ok(Box::new(Port {
        socket,
        address,
        connected: false,
        pending: Vec::new(),
        pending_at: 0,
        client_ended: false,
        half_closed: false,
        server_ended: false,
        sent: 0,
        received: 0,
        starved: false,
    }))
}

impl Port {
    /// `None` while the connection is being made.
    fn outcome(&self) -> Option<Result<(), sys::Errno>> {
        let mut state = [PollFd::new(&self.socket, PollFlags::OUT)];
        let ready = poll(&mut state, Some(&Timespec::default()));
        let over = ready.is_ok_and(|count| count > 0);
        over.then(|| plain(socket_error(&self.socket).and_then(|outcome| outcome)))
    }

    fn write_pending(&mut self, out: &mut dyn Out) {
        while self.pending_at < self.pending.len() {
            match sys::write(self.socket.as_raw_fd(), &self.pending[self.pending_at..]) {
                Ok(count) => {
                    self.pending_at += count;
                    self.sent += count as u64;
                    out.grant(count as u32);
                }
                Err(libc::EAGAIN) => return,
                Err(_) => {
                    // The server reads no more; drop what the client still sends.
                    out.grant((self.pending.len() - self.pending_at) as u32);
                    self.pending_at = self.pending.len();
                    self.half_closed = true;
                }
            }
        }
        self.pending.clear();
        self.pending_at = 0;
        if self.client_ended && !self.half_closed {
            self.half_closed = true;
            let _gone = shutdown(&self.socket, Shutdown::Write);
        }
    }

    fn read_some(&mut self, out: &mut dyn Out) -> bool {
        let room = out.credit().min(BLOCK);
        self.starved = room == 0;
        if self.server_ended || room == 0 {
            return false;
        }
        let mut block = vec![0u8; room];
        match sys::read(self.socket.as_raw_fd(), &mut block) {
            Ok(0) => self.server_ended = true,
            Ok(count) => {
                self.received += count as u64;
                out.data(&block[..count]);
                return true;
            }
            Err(libc::EAGAIN) => {}
            Err(_) => {
                self.server_ended = true;
                self.half_closed = true;
            }
        }
        false
    }
}

impl Handler for Port {
    fn step(&mut self, out: &mut dyn Out) -> Stepped {
        if !self.connected {
            match self.outcome() {
                None => return Ok(Step::Idle),
                Some(Ok(())) => {
                    self.connected = true;
                    out.event(json!({"event": "connected"}));
                }
                Some(Err(errno)) => {
                    let what = format!("cannot connect to {}", self.address);
                    return Err(Failure::from_errno(errno, what));
                }
            }
        }
        self.write_pending(out);
        let more = self.read_some(out);
        // A server that closed its side sends nothing more: a client whose answer ends with the
        // connection waits for exactly this.
        if self.server_ended && self.pending.is_empty() {
            out.result(json!({"sent": self.sent, "received": self.received}));
            return Ok(Step::Done);
        }
        Ok(if more { Step::Again } else { Step::Idle })
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Out) -> Stepped {
        if self.half_closed {
            out.grant(bytes.len() as u32);
            return Ok(Step::Idle);
        }
        self.pending.extend_from_slice(bytes);
        self.step(out)
    }

    fn end(&mut self, out: &mut dyn Out) -> Stepped {
        self.client_ended = true;
        self.step(out)
    }

    fn interest(&self) -> Option<(RawFd, bool, bool)> {
        let write = !self.connected || self.pending_at < self.pending.len();
        let read = self.connected && !self.server_ended && !self.starved;
        (read || write).then(|| (self.socket.as_raw_fd(), read, write))
    }
}
