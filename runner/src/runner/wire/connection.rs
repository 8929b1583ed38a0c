//! One client: its socket, the data that waits to be sent to it, and its open streams with their
//! credit.
//!
//! Knows nothing of commands or files. A client that does not read costs bounded memory: streams wait
//! once `HIGH_WATER` bytes are pending, and control frames beyond `OVERFLOW` end the connection.

use crate::ring::{Chunk, SOURCES};
use crate::sys;
use crate::timers::TimerId;
use crate::wire::frame::{self, Decoder};
use crate::wire::handler::{Failure, Handler, Out};
use crate::wire::protocol;
use serde_json::{json, Value};
use std::collections::{HashMap, VecDeque};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Streams wait while this much is pending.
pub const HIGH_WATER: usize = 1 << 20;
/// Pending bytes at which a client counts as gone.
pub const OVERFLOW: usize = 16 << 20;
const FLUSH_AT: usize = 256 << 10;

pub struct Outgoing {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sent: usize,
    /// Descriptors to send, each with the byte of `buffer` that it goes with.
    descriptors: VecDeque<(usize, OwnedFd)>,
    pub broken: bool,
    /// A stream had credit but no room; serve all of them once there is room.
    pub stalled: bool,
}

impl Outgoing {
    pub fn new(fd: OwnedFd) -> Outgoing {
        Outgoing {
            fd,
            buffer: Vec::new(),
            sent: 0,
            descriptors: VecDeque::new(),
            broken: false,
            stalled: false,
        }
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn pending(&self) -> usize {
        self.buffer.len() - self.sent
    }

    pub fn room(&self) -> usize {
        HIGH_WATER.saturating_sub(self.pending())
    }

    /// Write what the socket takes.
    pub fn flush(&mut self) {
        while self.sent < self.buffer.len() && !self.broken {
            match self.write_part() {
                Ok(count) => self.sent += count,
                Err(libc::EAGAIN) => break,
                Err(_) => self.broken = true,
            }
        }
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.sent = 0;
            self.buffer.shrink_to(64 << 10);
        } else if self.sent > FLUSH_AT {
            self.buffer.drain(..self.sent);
            for (at, _) in &mut self.descriptors {
                *at -= self.sent;
            }
            self.sent = 0;
        }
        if self.pending() > OVERFLOW {
            self.broken = true;
        }
    }

    /// Write the bytes up to the next descriptor, or that descriptor with the bytes that follow it.
    fn write_part(&mut self) -> sys::Result<usize> {
        let socket = self.fd.as_raw_fd();
        let (at, descriptor) = match self.descriptors.front() {
            None => return sys::write(socket, &self.buffer[self.sent..]),
            Some((at, descriptor)) => (*at, descriptor.as_raw_fd()),
        };
        if at > self.sent {
            return sys::write(socket, &self.buffer[self.sent..at]);
        }
        let end = self
            .descriptors
            .get(1)
            .map_or(self.buffer.len(), |next| next.0);
        match sys::send_with_descriptor(socket, &self.buffer[at..end], descriptor) {
            Err(libc::EAGAIN) => Err(libc::EAGAIN),
            outcome => {
                self.descriptors.pop_front();
                // A descriptor that cannot be passed (the connection is a pipe, or too many are on the
                // way) is lost. The bytes are not, and the client asks for the content.
                Ok(outcome.unwrap_or(0))
            }
        }
    }

    fn json(&mut self, kind: u8, stream: u32, body: &Value) {
        let start = self.buffer.len();
        frame::put_header(&mut self.buffer, kind, stream, 0);
        let body_at = self.buffer.len();
        // Writing a Value into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.buffer, body);
        let length = (self.buffer.len() - body_at + 5) as u32;
        self.buffer[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub fn hello(&mut self, body: &Value) {
        self.json(frame::HELLO, 0, body);
    }

    pub fn event(&mut self, stream: u32, body: &Value) {
        self.json(frame::EVENT, stream, body);
    }

    pub fn descriptor(&mut self, stream: u32, body: &Value, descriptor: OwnedFd) {
        self.descriptors.push_back((self.buffer.len(), descriptor));
        self.event(stream, body);
    }

    pub fn result(&mut self, stream: u32, body: &Value) {
        self.json(frame::RESULT, stream, body);
    }

    pub fn error(&mut self, stream: u32, failure: &Failure) {
        let known = Failure {
            code: protocol::known_code(failure.code),
            ..failure.clone()
        };
        self.json(frame::ERROR, stream, &known.to_json());
    }

    pub fn credit(&mut self, stream: u32, amount: u32) {
        frame::put_header(&mut self.buffer, frame::CREDIT, stream, 4);
        self.buffer.extend_from_slice(&amount.to_be_bytes());
    }

    pub fn data(&mut self, stream: u32, bytes: &[u8]) {
        for part in bytes.chunks(protocol::DATA_FRAME) {
            frame::put_header(&mut self.buffer, frame::DATA, stream, part.len());
            self.buffer.extend_from_slice(part);
            if self.pending() >= FLUSH_AT {
                self.flush();
            }
        }
    }

    pub fn chunk(&mut self, stream: u32, chunk: &Chunk) {
        frame::put_header(&mut self.buffer, frame::CHUNK, stream, chunk_body(chunk));
        self.buffer.extend_from_slice(&chunk.seq.to_be_bytes());
        self.buffer.extend_from_slice(&chunk.offset.to_be_bytes());
        self.buffer.push(chunk.source);
        self.buffer.extend_from_slice(chunk.pieces.0);
        self.buffer.extend_from_slice(chunk.pieces.1);
        if self.pending() >= FLUSH_AT {
            self.flush();
        }
    }
}

/// Return how much of the credit a CHUNK takes.
pub fn chunk_body(chunk: &Chunk) -> usize {
    17 + chunk.len()
}

/// How far a reader of a command's output has got.
pub struct Follow {
    pub exec: u64,
    pub seq: u64,
    pub sent: [u64; SOURCES],
    /// The `started` event is still to be sent.
    pub announce: bool,
    /// Continue until the command ends; otherwise answer with what is there.
    pub to_the_end: bool,
    /// DATA on this stream is the command's standard input.
    pub feeds: bool,
}

pub struct Feed {
    pub exec: u64,
    pub close: bool,
    pub received: u64,
    pub written: u64,
}

pub struct Watch {
    pub fd: RawFd,
    pub interest: u32,
    pub token: u64,
}

/// What a stream does.
pub enum Work {
    Verb {
        handler: Box<dyn Handler>,
        watch: Option<Watch>,
        /// Already in the queue of streams to be served again.
        queued: bool,
    },
    Follow(Follow),
    /// Answer once the command has started (or is in the queue of a shell).
    Begin {
        exec: u64,
        feeds: bool,
    },
    Wait {
        exec: u64,
        timer: Option<TimerId>,
    },
    Feed(Feed),
    /// Answer once no process of the command is left.
    Sweep {
        exec: u64,
        until: u32,
    },
}

impl Work {
    pub fn exec(&self) -> Option<u64> {
        match self {
            Work::Verb { .. } => None,
            Work::Follow(follow) => Some(follow.exec),
            Work::Begin { exec, .. } | Work::Wait { exec, .. } | Work::Sweep { exec, .. } => {
                Some(*exec)
            }
            Work::Feed(feed) => Some(feed.exec),
        }
    }

    /// Return the command whose standard input the DATA of this stream is.
    pub fn fed_exec(&self) -> Option<u64> {
        match self {
            Work::Follow(follow) if follow.feeds => Some(follow.exec),
            Work::Begin { exec, feeds: true } => Some(*exec),
            Work::Feed(feed) => Some(feed.exec),
            _ => None,
        }
    }
}

pub struct Stream {
    /// DATA and CHUNK bytes we may still send.
    pub credit: u64,
    /// DATA bytes the client may still send.
    pub window: u64,
    pub ended: bool,
    /// Its client only looks: the stream is not activity.
    pub observes: bool,
    pub work: Work,
}

impl Stream {
    pub fn new(work: Work) -> Stream {
        Stream {
            credit: protocol::INITIAL_CREDIT,
            window: protocol::INITIAL_CREDIT,
            ended: false,
            observes: false,
            work,
        }
    }
}

pub struct Connection {
    pub input: OwnedFd,
    pub token: u64,
    pub write_token: Option<u64>,
    pub decoder: Decoder,
    pub out: Outgoing,
    pub streams: HashMap<u32, Stream>,
}

impl Connection {
    pub fn new(input: OwnedFd, output: OwnedFd, token: u64) -> Connection {
        Connection {
            input,
            token,
            write_token: None,
            decoder: Decoder::default(),
            out: Outgoing::new(output),
            streams: HashMap::new(),
        }
    }

    /// The client's DATA was consumed: it may send as much again.
    pub fn grant(&mut self, stream: u32, amount: u64) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.window += amount;
            self.out
                .credit(stream, amount.min(u64::from(u32::MAX)) as u32);
        }
    }
}

/// The output of a handler: frames into the connection, counted against the stream's credit.
pub struct StreamOut<'a> {
    pub out: &'a mut Outgoing,
    pub stream: u32,
    pub credit: &'a mut u64,
    pub window: &'a mut u64,
    pub done: bool,
}

impl Out for StreamOut<'_> {
    fn credit(&self) -> usize {
        (*self.credit).min(self.out.room() as u64) as usize
    }

    fn data(&mut self, bytes: &[u8]) {
        *self.credit = self.credit.saturating_sub(bytes.len() as u64);
        self.out.data(self.stream, bytes);
    }

    fn event(&mut self, body: Value) {
        self.out.event(self.stream, &body);
    }

    fn descriptor(&mut self, body: Value, descriptor: OwnedFd) {
        self.out.descriptor(self.stream, &body, descriptor);
    }

    fn grant(&mut self, n: u32) {
        *self.window += u64::from(n);
        self.out.credit(self.stream, n);
    }

    fn result(&mut self, body: Value) {
        if !self.done {
            self.done = true;
            self.out.result(self.stream, &body);
        }
    }

    fn error(&mut self, failure: Failure) {
        if !self.done {
            self.done = true;
            self.out.error(self.stream, &failure);
        }
    }
}

pub fn empty() -> Value {
    json!({})
}
