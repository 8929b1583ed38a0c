//! All connections, and the handlers that run on their streams.
//!
//! Knows nothing of commands: a stream that follows one is served by `exec`.

use super::connection::{self, Connection, Stream, StreamOut, Watch, Work};
use super::handler::{Failure, Handler, Out, Step};
use crate::poll::{self, Poll, Source};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::io::RawFd;

/// A stream of a client: the number of its connection, and its own number there.
pub type StreamId = (u64, u32);

/// Why a handler is called.
pub enum Call<'a> {
    Step,
    Data(&'a [u8]),
    End,
}

#[derive(Default)]
pub struct Clients {
    connections: BTreeMap<u64, Connection>,
    /// Streams that are to be served again in the next turn of the loop.
    queue: VecDeque<StreamId>,
}

impl Clients {
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    pub fn insert(&mut self, id: u64, connection: Connection) {
        self.connections.insert(id, connection);
    }

    pub fn remove(&mut self, id: u64) -> Option<Connection> {
        self.connections.remove(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    pub fn ids(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    pub fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.connections.get_mut(&id.0)?.streams.get_mut(&id.1)
    }

    /// Report whether a stream is open whose client does more than look.
    pub fn has_open_streams(&self) -> bool {
        let mut streams = self.connections.values().flat_map(|c| c.streams.values());
        streams.any(|stream| !stream.observes)
    }

    /// Return the descriptors that the connections write to.
    pub fn outputs(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.connections.values().map(|c| c.out.raw())
    }

    pub fn add_stream(&mut self, id: StreamId, work: Work) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.streams.insert(id.1, Stream::new(work));
        }
    }

    /// Answer a stream and forget it.
    pub fn answer(&mut self, id: StreamId, body: &Value) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.streams.remove(&id.1);
            connection.out.result(id.1, body);
        }
    }

    /// Answer a stream with an error and forget it.
    pub fn answer_error(&mut self, id: StreamId, failure: &Failure) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.streams.remove(&id.1);
            connection.out.error(id.1, failure);
        }
    }

    /// Allow the client to send `amount` more bytes on this stream.
    pub fn grant(&mut self, id: StreamId, amount: u64) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.grant(id.1, amount);
        }
    }

    /// Send an event that belongs to no stream to every client.
    pub fn broadcast(&mut self, event: &Value) {
        for connection in self.connections.values_mut() {
            connection.out.event(0, event);
        }
    }

    /// Return how many streams are to be served again.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn next_queued(&mut self) -> Option<StreamId> {
        self.queue.pop_front()
    }

    /// Write what the sockets take. Return the connections that are broken.
    pub fn flush(&mut self, poll: &mut Poll) -> Vec<u64> {
        let mut broken = Vec::new();
        for (&id, connection) in &mut self.connections {
            connection.out.flush();
            if connection.out.broken {
                broken.push(id);
                continue;
            }
            let fd = connection.out.raw();
            match (connection.out.pending() > 0, connection.write_token) {
                (true, None) => {
                    let source = Source::ConnectionWrite(id);
                    connection.write_token = poll.add(fd, source, poll::WRITE).ok();
                }
                (false, Some(token)) => {
                    connection.write_token = None;
                    poll.remove(fd, token);
                }
                _ => {}
            }
            if connection.out.stalled && connection.out.pending() <= connection::HIGH_WATER / 2 {
                connection.out.stalled = false;
                let streams = connection.streams.keys();
                self.queue.extend(streams.map(|&stream| (id, stream)));
            }
        }
        broken
    }

    /// Open a stream that is served by a handler.
    pub fn add_handler(&mut self, id: StreamId, handler: Box<dyn Handler>, poll: &mut Poll) {
        let work = Work::Verb {
            handler,
            watch: None,
            queued: false,
        };
        self.add_stream(id, work);
        self.call_handler(id, Call::Step, poll);
    }

    /// Call the handler of a stream, and do what it asks for next.
    pub fn call_handler(&mut self, id: StreamId, call: Call, poll: &mut Poll) {
        let stream = id.1;
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        let Some(open) = connection.streams.get_mut(&stream) else {
            return;
        };
        let (handler, watch, queued) = match &mut open.work {
            Work::Verb {
                handler,
                watch,
                queued,
            } => (handler, watch, queued),
            _ => return,
        };
        let mut out = StreamOut {
            out: &mut connection.out,
            stream,
            credit: &mut open.credit,
            window: &mut open.window,
            done: false,
        };
        let step = match call {
            Call::Step => handler.step(&mut out),
            Call::Data(bytes) => handler.data(bytes, &mut out),
            Call::End => handler.end(&mut out),
        };
        let step = step.unwrap_or_else(|failure| {
            out.error(failure);
            Step::Done
        });
        if step == Step::Done || out.done {
            if !out.done {
                let failure = Failure::new("internal", "a verb ended without an answer");
                out.out.error(stream, &failure);
            }
            if let Some(watch) = watch.take() {
                poll.remove(watch.fd, watch.token);
            }
            connection.streams.remove(&stream);
            return;
        }
        // A handler that waits for room must be called again when the socket has taken some.
        connection.out.stalled |= connection.out.pending() > 0;
        let mut again = step == Step::Again;
        let interest = handler.interest().map(|(fd, read, write)| {
            let bits = if read { poll::READ } else { 0 } | if write { poll::WRITE } else { 0 };
            (fd, bits)
        });
        let interest = interest.filter(|interest| interest.1 != 0);
        if watch.as_ref().map(|w| (w.fd, w.interest)) != interest {
            if let Some(old) = watch.take() {
                poll.remove(old.fd, old.token);
            }
            if let Some((fd, interest)) = interest {
                match poll.add(fd, Source::Handler(id.0, stream), interest) {
                    Ok(token) => {
                        *watch = Some(Watch {
                            fd,
                            interest,
                            token,
                        })
                    }
                    // A regular file cannot be polled: it is always ready.
                    Err(_) => again = true,
                }
            }
        }
        if again && !*queued {
            *queued = true;
            self.queue.push_back(id);
        }
    }
}
