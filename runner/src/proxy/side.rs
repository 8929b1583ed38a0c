//! One end of a connection: plain bytes in two bounded buffers, with or without TLS below.

use crate::sys::borrow;
use rustix::net::{recv, send, shutdown, RecvFlags, SendFlags, Shutdown};
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{Connection as Tls, ServerConfig};
use std::io::{self, Read, Write};
use std::os::unix::io::RawFd;
use std::sync::Arc;

/// Above this nothing more is read or produced until something has left. A head fits twice.
const FULL: usize = 128 << 10;
const PIECE: usize = 16 << 10;
/// A peer can send without an end what produces no input, such as tickets and empty records. The TLS
/// library ends only some of it, such as warnings; the smallest records took it 20 ms for this much.
const TURN: u64 = 128 << 10;

pub struct Side {
    tls: Option<Box<Tls>>,
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    /// The peer sends nothing more.
    pub ended: bool,
    /// Send an end when the output has left.
    pub closing: bool,
    closed: bool,
    pub received: u64,
    pub sent: u64,
    /// What may be received and sent in this turn.
    pub most: (u64, u64),
    /// Whether that was not enough.
    pub held: (bool, bool),
    /// Bytes that may still be received before other connections take their turn.
    turn: u64,
}

/// The reason why a side failed, as text.
pub type Trouble = String;

/// A socket, what was moved through it, and what may still be moved.
struct Socket {
    fd: RawFd,
    moved: u64,
    most: u64,
    held: bool,
}

impl Socket {
    fn new(fd: RawFd, most: u64) -> Socket {
        Socket {
            fd,
            moved: 0,
            most,
            held: false,
        }
    }

    fn count(&mut self, n: usize) -> io::Result<usize> {
        self.moved += n as u64;
        self.most = self.most.saturating_sub(n as u64);
        Ok(n)
    }

    fn room(&self, wanted: usize) -> usize {
        usize::try_from(self.most).map_or(wanted, |most| wanted.min(most))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = self.room(buffer.len());
        if room == 0 {
            // Only an end may pass.
            return match recv(borrow(&self.fd), &mut [0u8; 1], RecvFlags::PEEK)? {
                (0, _) => Ok(0),
                _ => {
                    self.held = true;
                    Err(io::ErrorKind::WouldBlock.into())
                }
            };
        }
        let (n, _) = recv(borrow(&self.fd), &mut buffer[..room], RecvFlags::empty())?;
        self.count(n)
    }
}

impl Write for Socket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = self.room(data.len());
        if room == 0 {
            self.held = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = send(borrow(&self.fd), &data[..room], SendFlags::NOSIGNAL)?;
        self.count(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Send a client the reason why its hello is not answered, and return it.
fn refuse(fd: RawFd, (error, mut alert): (rustls::Error, AcceptedAlert)) -> Trouble {
    let _ = alert.write_all(&mut Socket::new(fd, u64::MAX));
    error.to_string()
}

impl Side {
    pub fn new(tls: Option<Tls>) -> Side {
        Side {
            tls: tls.map(|mut tls| {
                tls.set_buffer_limit(Some(FULL));
                Box::new(tls)
            }),
            input: Vec::new(),
            output: Vec::new(),
            ended: false,
            closing: false,
            closed: false,
            received: 0,
            sent: 0,
            most: (u64::MAX, u64::MAX),
            turn: TURN,
            held: (false, false),
        }
    }

    /// Read the hello of a client, of which every byte has arrived. Its answer is sent by the connection that
    /// is made of it.
    pub fn hello(fd: RawFd) -> Result<Accepted, Trouble> {
        let mut acceptor = Acceptor::default();
        loop {
            let read = acceptor.read_tls(&mut Socket::new(fd, u64::MAX));
            if read.map_err(|error| error.to_string())? == 0 {
                return Err("the client ended its hello".to_owned());
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => return Ok(accepted),
                Err(refused) => return Err(refuse(fd, refused)),
            }
        }
    }

    /// Answer a hello.
    pub fn answering(
        accepted: Accepted,
        config: Arc<ServerConfig>,
        fd: RawFd,
    ) -> Result<Side, Trouble> {
        match accepted.into_connection(config) {
            Ok(made) => Ok(Side::new(Some(made.into()))),
            Err(refused) => Err(refuse(fd, refused)),
        }
    }

    /// The protocol that was agreed on, once that is known.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.tls.as_ref().and_then(|tls| tls.alpn_protocol())
    }

    /// The name that a client asked for, once that is known.
    pub fn server_name(&self) -> Option<&str> {
        match self.tls.as_deref() {
            Some(Tls::Server(server)) => server.server_name(),
            _ => None,
        }
    }

    pub fn handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether something waits to be written.
    pub fn pending(&self) -> bool {
        !self.output.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether more may be read now.
    pub fn reads(&self) -> bool {
        !self.ended && self.input.len() < FULL
    }

    pub fn has_room(&self) -> bool {
        self.output.len() < FULL
    }

    /// Whether everything has left, the end included.
    pub fn finished(&self) -> bool {
        self.closed
    }

    pub fn begin_turn(&mut self) {
        self.turn = TURN;
    }

    /// Whether more may have arrived than was received in this turn.
    pub fn used_turn(&self) -> bool {
        self.turn == 0
    }

    /// Read what is there. Returns whether something was.
    pub fn receive(&mut self, fd: RawFd) -> Result<bool, Trouble> {
        let mut any = false;
        while !self.ended && self.input.len() < FULL && self.turn > 0 {
            let mut socket = Socket::new(fd, self.most.0);
            let mut buffer = [0u8; PIECE];
            let got = match &mut self.tls {
                Some(tls) => tls.read_tls(&mut socket),
                None => socket.read(&mut buffer),
            };
            self.received += socket.moved;
            self.turn = self.turn.saturating_sub(socket.moved);
            self.most.0 = socket.most;
            self.held.0 |= socket.held;
            let n = match got {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            any = true;
            match &mut self.tls {
                None if n == 0 => self.ended = true,
                None => self.input.extend_from_slice(&buffer[..n]),
                Some(tls) => {
                    if let Err(error) = tls.process_new_packets() {
                        // Send the peer the reason.
                        let _ = tls.write_tls(&mut Socket::new(fd, u64::MAX));
                        return Err(match error {
                            rustls::Error::General(why) => why,
                            error => error.to_string(),
                        });
                    }
                    self.ended = n == 0;
                    loop {
                        match tls.reader().read(&mut buffer) {
                            Ok(0) => {
                                self.ended = true;
                                break;
                            }
                            Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                            Err(_) => {
                                self.ended = true;
                                break;
                            }
                        }
                    }
                }
            }
        }
        Ok(any)
    }

    /// Write what can be written. Returns whether something was.
    pub fn send(&mut self, fd: RawFd) -> Result<bool, Trouble> {
        let mut socket = Socket::new(fd, self.most.1);
        let done = self.write(&mut socket);
        self.sent += socket.moved;
        self.most.1 = socket.most;
        self.held.1 |= socket.held;
        match done {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(error.to_string())
            }
            _ => {}
        }
        // Until the handshake is done, TLS holds back what we have given to it.
        let held = |tls: &Tls| tls.wants_write() || tls.is_handshaking();
        let empty = self.output.is_empty() && !self.tls.as_deref().is_some_and(held);
        if self.closing && empty && !self.closed {
            if let Some(tls) = &mut self.tls {
                tls.send_close_notify();
                let _ = tls.write_tls(&mut Socket::new(fd, u64::MAX));
            }
            // A peer that is gone already needs no notice.
            let _gone = shutdown(borrow(&fd), Shutdown::Write);
            self.closed = true;
            return Ok(true);
        }
        Ok(socket.moved > 0)
    }

    fn write(&mut self, socket: &mut Socket) -> io::Result<()> {
        loop {
            let mut moved = 0;
            match &mut self.tls {
                None => {
                    if !self.output.is_empty() {
                        moved = socket.write(&self.output)?;
                        self.output.drain(..moved);
                    }
                }
                Some(tls) => {
                    if !self.output.is_empty() {
                        let n = tls.writer().write(&self.output)?;
                        self.output.drain(..n);
                    }
                    if tls.wants_write() {
                        moved = tls.write_tls(socket)?;
                    }
                }
            }
            if moved == 0 {
                return Ok(());
            }
        }
    }
}
