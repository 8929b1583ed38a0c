//! Clients come and go: the listener, reading frames, closing, and the pause of `quiesce`.

use super::{Listen, Server};
use crate::poll::{self, Source};
use crate::sys::{self, Errno};
use crate::timers::Due;
use crate::wire::bytes;
use crate::wire::clients::{Call, StreamId};
use crate::wire::connection::{Connection, Stream, Work};
use crate::wire::frame::{self, Piece};
use crate::wire::handler::Failure;
use crate::wire::protocol;
use serde_json::json;
use std::os::unix::io::{AsRawFd, OwnedFd};

const READ_BLOCK: usize = 256 << 10;
/// How long to wait for the process that gives us a listener: its container may start after ours.
const GIVER_NS: u64 = 300_000_000_000;
const RETRY: std::time::Duration = std::time::Duration::from_millis(2);

/// Return a listener and the connection over which it came. Nothing but us runs in the sandbox yet, and
/// the socket at `path` serves one connection.
fn receive_listener(path: &[u8]) -> Result<(OwnedFd, OwnedFd), Errno> {
    let until = sys::boot_ns() + GIVER_NS;
    let giver = loop {
        match sys::connect_unix(path, 10_000) {
            Ok(giver) => break giver,
            Err(errno) if sys::boot_ns() > until => return Err(errno),
            Err(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN) => std::thread::sleep(RETRY),
            Err(errno) => return Err(errno),
        }
    };
    let mut given = sys::receive_descriptors(giver.as_raw_fd(), 1)?;
    Ok((given.pop().ok_or(libc::EPROTO)?, giver))
}

impl Server {
    pub fn listen(&mut self, listen: Listen) -> Result<(), Errno> {
        match listen {
            Listen::Inherited(fd) => {
                sys::set_nonblocking(fd.as_raw_fd())?;
                self.listener = Some(self.cx.poll.watch(fd, Source::Listener, poll::READ)?);
            }
            Listen::Path(path) => {
                let identity = &self.cx.config.identity;
                let fd = identity.as_runner(|| sys::listen_unix(&path))?;
                self.listener = Some(self.cx.poll.watch(fd, Source::Listener, poll::READ)?);
                self.path = Some(path);
            }
            Listen::Received(path) => {
                let identity = &self.cx.config.identity;
                let (fd, giver) = identity.as_runner(|| receive_listener(&path))?;
                sys::set_nonblocking(fd.as_raw_fd())?;
                self.listener = Some(self.cx.poll.watch(fd, Source::Listener, poll::READ)?);
                self.giver = Some(self.cx.poll.watch(giver, Source::Giver, poll::READ)?);
            }
            Listen::Stdio(input, output) => {
                self.stdio = true;
                self.add_connection(input, output)?;
            }
        }
        Ok(())
    }

    pub(super) fn accept(&mut self) {
        for _ in 0..protocol::MAX_CONNECTIONS {
            let fd = match self.listener.as_ref().map(|l| sys::accept(l.raw())) {
                Some(Ok(fd)) => fd,
                _ => return,
            };
            if self.cx.clients.len() >= protocol::MAX_CONNECTIONS {
                continue;
            }
            sys::widen_socket(fd.as_raw_fd());
            if let Ok(output) = sys::duplicate(fd.as_raw_fd()) {
                let _refused = self.add_connection(fd, output);
            }
        }
    }

    /// Greet a new client.
    fn add_connection(&mut self, input: OwnedFd, output: OwnedFd) -> Result<(), Errno> {
        sys::set_nonblocking(input.as_raw_fd())?;
        sys::set_nonblocking(output.as_raw_fd())?;
        let id = self.cx.next_serial();
        let source = Source::Connection(id);
        let token = self.cx.poll.add(input.as_raw_fd(), source, poll::READ)?;
        let mut connection = Connection::new(input, output, token);
        let config = &self.cx.config;
        connection.out.hello(&json!({
            "generation": protocol::GENERATION,
            "version": env!("CARGO_PKG_VERSION"),
            "uid": config.identity.own.uid,
            "user_uid": config.identity.user_uid(),
            "shell": config.shell.as_deref().map(bytes::to_json),
            "features": protocol::FEATURES,
        }));
        self.cx.clients.insert(id, connection);
        Ok(())
    }

    pub(super) fn read_connection(&mut self, id: u64) {
        let fd = match self.cx.clients.get_mut(id) {
            Some(connection) => connection.input.as_raw_fd(),
            None => return,
        };
        let mut block = self.cx.take_block(READ_BLOCK);
        match sys::read(fd, &mut block) {
            Err(libc::EAGAIN) => {}
            Err(_) | Ok(0) => self.close_connection(id),
            Ok(count) => self.take_input(id, &block[..count]),
        }
        self.cx.return_block(block);
    }

    fn take_input(&mut self, id: u64, mut input: &[u8]) {
        let mut decoder = match self.cx.clients.get_mut(id) {
            Some(connection) => std::mem::take(&mut connection.decoder),
            None => return,
        };
        loop {
            let valid = match decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(Piece::Data { stream, bytes })) => self.take_data((id, stream), bytes),
                Ok(Some(Piece::Frame { kind, stream, body })) => {
                    self.take_frame(kind, (id, stream), body)
                }
                Err(frame::Malformed) => false,
            };
            if !valid {
                self.close_connection(id);
                return;
            }
        }
        if let Some(connection) = self.cx.clients.get_mut(id) {
            connection.decoder = decoder;
        }
    }

    /// Return false when the client broke the protocol.
    fn take_frame(&mut self, kind: u8, stream: StreamId, body: &[u8]) -> bool {
        match kind {
            frame::OPEN => return self.open(stream, body),
            frame::END => self.end(stream),
            frame::CANCEL => self.cancel(stream),
            frame::CREDIT => match body {
                [a, b, c, d] => self.take_credit(stream, u32::from_be_bytes([*a, *b, *c, *d])),
                _ => return false,
            },
            _ => return false,
        }
        true
    }

    /// Return false when the client sent more than it was granted.
    fn take_data(&mut self, stream: StreamId, bytes: &[u8]) -> bool {
        let (execs, cx) = (&mut self.execs, &mut self.cx);
        let open = match cx.clients.stream_mut(stream) {
            Some(open) if !open.ended => open,
            _ => return true,
        };
        let length = bytes.len() as u64;
        if length > open.window {
            return false;
        }
        open.window -= length;
        match &mut open.work {
            Work::Verb { .. } => cx
                .clients
                .call_handler(stream, Call::Data(bytes), &mut cx.poll),
            Work::Feed(feed) => {
                feed.received += length;
                let exec = feed.exec;
                execs.push_input(exec, bytes, stream, cx);
                execs.serve(stream, cx);
            }
            work => match work.fed_exec() {
                Some(exec) => execs.push_input(exec, bytes, stream, cx),
                None => cx.clients.grant(stream, length),
            },
        }
        true
    }

    /// The client sends no more DATA on this stream.
    fn end(&mut self, stream: StreamId) {
        let (execs, cx) = (&mut self.execs, &mut self.cx);
        let open = match cx.clients.stream_mut(stream) {
            Some(open) if !open.ended => open,
            _ => return,
        };
        open.ended = true;
        match &open.work {
            Work::Verb { .. } => cx.clients.call_handler(stream, Call::End, &mut cx.poll),
            Work::Feed(_) => execs.serve(stream, cx),
            work => {
                if let Some(exec) = work.fed_exec() {
                    execs.close_input(exec, cx);
                }
            }
        }
    }

    fn take_credit(&mut self, stream: StreamId, amount: u32) {
        if let Some(open) = self.cx.clients.stream_mut(stream) {
            open.credit = open.credit.saturating_add(u64::from(amount));
            match open.work {
                Work::Verb { .. } => self.step_handler(stream),
                _ => self.execs.serve(stream, &mut self.cx),
            }
        }
    }

    fn cancel(&mut self, stream: StreamId) {
        let connection = self.cx.clients.get_mut(stream.0);
        if let Some(open) = connection.and_then(|c| c.streams.remove(&stream.1)) {
            self.abandon(stream, open);
            let failure = Failure::new("cancelled", "as the client asked");
            self.cx.clients.answer_error(stream, &failure);
        }
    }

    /// The stream ends without its answer: undo what is half done.
    fn abandon(&mut self, stream: StreamId, open: Stream) {
        let exec = open.work.exec();
        match open.work {
            Work::Verb {
                watch: Some(watch), ..
            } => self.cx.poll.remove(watch.fd, watch.token),
            Work::Wait {
                timer: Some(timer), ..
            } => self.cx.timers.cancel(timer),
            _ => {}
        }
        if let Some(exec) = exec {
            self.execs.detach(exec, stream);
        }
    }

    pub(super) fn step_handler(&mut self, stream: StreamId) {
        let cx = &mut self.cx;
        cx.clients.call_handler(stream, Call::Step, &mut cx.poll);
    }

    /// Serve a stream out of the queue: a handler's next step, or a reader that had no room before.
    pub(super) fn serve_queued(&mut self, stream: StreamId) {
        match self.cx.clients.stream_mut(stream).map(|s| &mut s.work) {
            Some(Work::Verb { queued, .. }) => {
                *queued = false;
                self.step_handler(stream);
            }
            Some(_) => self.execs.serve(stream, &mut self.cx),
            None => {}
        }
    }

    pub(super) fn close_connection(&mut self, id: u64) {
        if let Some(mut connection) = self.cx.clients.remove(id) {
            let poll = &mut self.cx.poll;
            poll.remove(connection.input.as_raw_fd(), connection.token);
            if let Some(token) = connection.write_token {
                poll.remove(connection.out.raw(), token);
            }
            // Answers given before the client left may still be read.
            connection.out.flush();
            for (stream, open) in connection.streams.drain() {
                self.abandon((id, stream), open);
            }
            self.cx.touch_lease();
            if self.stdio {
                self.exit = Some(0);
            }
        }
    }

    /// Close every connection, and the listener if it is ours, and come back after `ms`.
    ///
    /// The connection that `asked` is closed last: when its client reads the answer, the others are closed.
    pub(super) fn quiesce(&mut self, ms: u64, asked: u64) {
        if let Some(path) = &self.path {
            if let Some(listener) = self.listener.take() {
                drop(self.cx.poll.unwatch(listener));
            }
            self.cx.config.identity.as_runner(|| sys::unlink(path));
        } else if let Some(listener) = &self.listener {
            let _unchanged = self.cx.poll.change(listener.raw(), listener.token, 0);
        }
        let mut ids = self.cx.clients.ids();
        ids.retain(|&id| id != asked);
        ids.push(asked);
        for id in ids {
            self.close_connection(id);
        }
        self.cx.timers.after_ms(ms, Due::Relisten);
    }

    pub(super) fn relisten(&mut self) {
        if let Some(listener) = &self.listener {
            let _unchanged = self
                .cx
                .poll
                .change(listener.raw(), listener.token, poll::READ);
            return;
        }
        let path = self.path.clone();
        if let Some(Err(_)) = path.map(|path| self.listen(Listen::Path(path))) {
            self.cx.timers.after_ms(100, Due::Relisten);
        }
    }
}
