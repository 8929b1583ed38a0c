//! One end of an HTTP/2 connection as the stream that its library reads and writes: the buffers of a side.

use crate::proxy::side::Side;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The library writes no more until something has left. It reads no frame that it must answer meanwhile.
const FULL: usize = 64 << 10;

/// A peer can send frames without an end that carry nothing: settings, pings, priorities, windows of one
/// byte. An eighth of what it sends must be bodies, heads, or bodies that it received. This much is counted
/// as such from the beginning, for settings and windows.
const FREE: u64 = 64 << 10;
/// And this much in each second, for pings of a connection that is silent for days.
const FREE_A_SECOND: u64 = 32;
const SHARE: u64 = 8;

#[derive(Default)]
struct Buffers {
    input: Vec<u8>,
    /// How much of the input was read.
    read: usize,
    output: Vec<u8>,
    /// The peer sends nothing more.
    ended: bool,
}

#[derive(Clone, Default)]
pub struct Wire(Rc<RefCell<Buffers>>);

/// The library's end of a wire, and what passed it.
pub struct End {
    wire: Wire,
    began: Instant,
    received: u64,
    /// Bytes of bodies and heads, in both directions.
    useful: u64,
}

impl End {
    pub fn new() -> End {
        End {
            wire: Wire::default(),
            began: Instant::now(),
            received: 0,
            useful: 0,
        }
    }

    pub fn wire(&self) -> Wire {
        self.wire.clone()
    }

    /// Take the buffers of a side. They are there again after `give_back`.
    pub fn lend(&mut self, side: &mut Side) {
        let mut buffers = self.wire.0.borrow_mut();
        // The library has written its first bytes when it was made.
        side.output.append(&mut buffers.output);
        std::mem::swap(&mut buffers.input, &mut side.input);
        std::mem::swap(&mut buffers.output, &mut side.output);
        buffers.ended = side.ended;
    }

    /// Return whether something was read or written meanwhile. `before` is how much the output had.
    pub fn give_back(&mut self, side: &mut Side, before: usize) -> bool {
        let mut buffers = self.wire.0.borrow_mut();
        let read = std::mem::take(&mut buffers.read);
        buffers.input.drain(..read);
        self.received += read as u64;
        std::mem::swap(&mut buffers.input, &mut side.input);
        std::mem::swap(&mut buffers.output, &mut side.output);
        read > 0 || side.output.len() > before
    }

    /// Whether more may be written now.
    pub fn has_room(&self) -> bool {
        self.wire.0.borrow().output.len() < FULL
    }

    /// What was received but not read.
    pub fn unread(&self) -> usize {
        let buffers = self.wire.0.borrow();
        buffers.input.len() - buffers.read
    }

    /// Note bytes of bodies or heads.
    pub fn useful(&mut self, bytes: usize) {
        self.useful += bytes as u64;
    }

    /// Whether the peer sends too many frames that carry nothing.
    pub fn is_flooded(&self) -> bool {
        let free = FREE + FREE_A_SECOND * self.began.elapsed().as_secs();
        self.received / SHARE > self.useful + free
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.0.borrow_mut();
        let rest = &buffers.input[buffers.read..];
        if rest.is_empty() && !buffers.ended {
            return Poll::Pending;
        }
        let taken = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..taken]);
        buffers.read += taken;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let output = &mut self.0.borrow_mut().output;
        let taken = data.len().min(FULL.saturating_sub(output.len()));
        if taken == 0 && !data.is_empty() {
            return Poll::Pending;
        }
        output.extend_from_slice(&data[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
