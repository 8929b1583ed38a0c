//! The server's side of a WebSocket (RFC 6455), for a gate behind a proxy that passes only HTTP on.
//!
//! A WebSocket carries the same bytes as a plain connection, in binary messages; TLS and the token are
//! inside it. So whatever connects is untrusted here. The head of its request is bounded, and of a
//! message nothing is kept but the bytes that were received and not passed on yet.

use crate::base64;
use crate::proxy::side::Side;
use crate::proxy::websocket_frame::{FrameHead, BINARY, CLOSE, PING, PONG, TEXT};
use crate::sys::{self, Errno};
use ring::digest;
use rustix::event::PollFlags;
use rustix::net::{recv, shutdown, RecvFlags, Shutdown};
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MOST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 100;
const PIECE: usize = 32 << 10;
const KEY_BYTES: usize = 16;
const STACK: usize = 128 << 10;
/// For the next piece of what is left to send when the other side has ended.
const FAREWELL: Duration = Duration::from_secs(5);
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const REFUSAL: &[u8] = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
Connection: close, Upgrade\r\nContent-Length: 0\r\n\r\n";

/// The bytes in the messages of a client, as a stream, and the thread that passes them on until either
/// end is closed.
pub struct Unwrapped {
    pub stream: OwnedFd,
    thread: JoinHandle<()>,
}

impl Unwrapped {
    /// Close the stream, and wait until what was sent has left. A client that has been shut down, or
    /// reads nothing, is not waited for.
    pub fn end(self) {
        drop(self.stream);
        let _ended = self.thread.join();
    }
}

/// Return the stream of a client that asks for a WebSocket.
pub fn unwrapped(client: &OwnedFd, until: Instant) -> Result<Unwrapped, String> {
    let fd = client.as_raw_fd();
    let mut outer = Side::new(None);
    let head = loop {
        outer.begin_turn();
        outer.receive(fd)?;
        if let Some(end) = end_of_head(&outer.input) {
            break outer.input.drain(..end).collect::<Vec<u8>>();
        }
        if outer.ended || outer.input.len() > MOST_HEAD || Instant::now() > until {
            return Err("no request".to_owned());
        }
        wait(&[(client.as_fd(), PollFlags::IN)], Some(until)).map_err(failed)?;
    };
    let Some(key) = key_in(&head) else {
        let _unread = sys::write_all(fd, REFUSAL);
        return Err("not a WebSocket".to_owned());
    };
    outer.output.extend_from_slice(&switching(&key));
    let (inside, outside) = UnixStream::pair().map_err(|error| error.to_string())?;
    inside
        .set_nonblocking(true)
        .map_err(|error| error.to_string())?;
    let client = sys::duplicate(fd).map_err(failed)?;
    let thread = std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            let _reason = pass_on(&mut outer, client.as_fd(), inside.as_fd());
            // The client may be gone already.
            let _gone = shutdown(&client, Shutdown::Both);
        })
        .map_err(|error| error.to_string())?;
    Ok(Unwrapped {
        stream: outside.into(),
        thread,
    })
}

/// Return whether a client begins like HTTP, as soon as it has sent something.
pub fn is_http(client: &OwnedFd, until: Instant) -> Result<bool, String> {
    let mut first = [0u8; 1];
    loop {
        match recv(client, &mut first, RecvFlags::PEEK) {
            Ok((1, _)) => return Ok(first[0] == b'G'),
            Err(rustix::io::Errno::AGAIN) if Instant::now() < until => {
                wait(&[(client.as_fd(), PollFlags::IN)], Some(until)).map_err(failed)?
            }
            _ => return Err("nothing was sent".to_owned()),
        }
    }
}

fn failed(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Wait until one is ready, or until the time has come.
fn wait(sides: &[(BorrowedFd<'_>, PollFlags)], until: Option<Instant>) -> Result<(), Errno> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    crate::server::poll_both(sides, left)
}

/// Copy in both directions until one side has ended and what it sent has left.
fn pass_on(outer: &mut Side, client: BorrowedFd<'_>, inside: BorrowedFd<'_>) -> Result<(), String> {
    let mut inner = Side::new(None);
    let mut decoder = Decoder::default();
    let mut until = None;
    loop {
        outer.begin_turn();
        inner.begin_turn();
        let mut any = outer.receive(client.as_raw_fd())? | inner.receive(inside.as_raw_fd())?;
        while inner.has_room() && outer.has_room() && !outer.input.is_empty() && !decoder.closed {
            let before = outer.input.len();
            decoder.take(&mut outer.input, &mut inner.output, &mut outer.output)?;
            if outer.input.len() == before {
                break;
            }
            any = true;
        }
        if outer.has_room() && !inner.input.is_empty() {
            let most = inner.input.len().min(PIECE);
            let piece: Vec<u8> = inner.input.drain(..most).collect();
            frame(BINARY, &piece, &mut outer.output);
            any = true;
        }
        if (outer.ended || decoder.closed) && !inner.closing {
            inner.closing = true;
            any = true;
        }
        if inner.ended && inner.input.is_empty() && !outer.closing {
            if !decoder.closed {
                // 1000: a normal end.
                frame(CLOSE, &1000u16.to_be_bytes(), &mut outer.output);
            }
            outer.closing = true;
            any = true;
        }
        let moved = inner.send(inside.as_raw_fd())? | outer.send(client.as_raw_fd())?;
        any |= moved;
        if outer.finished() || (inner.finished() && outer.ended) {
            return Ok(());
        }
        if moved {
            until = None;
        }
        if outer.closing || inner.closing || inner.ended {
            let end = *until.get_or_insert_with(|| Instant::now() + FAREWELL);
            if Instant::now() > end {
                return Err("the other side does not end".to_owned());
            }
        }
        if !any {
            let sides = [
                (client, crate::server::events(outer)),
                (inside, crate::server::events(&inner)),
            ];
            wait(&sides, until).map_err(failed)?;
        }
    }
}

fn end_of_head(input: &[u8]) -> Option<usize> {
    let most = input.len().min(MOST_HEAD);
    input[..most]
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .map(|at| at + 4)
}

/// Return the key of a request for a WebSocket; None if it is another request.
fn key_in(head: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ');
    if (words.next(), words.nth(1)) != (Some("GET"), Some("HTTP/1.1")) {
        return None;
    }
    let (mut upgrade, mut version, mut key) = (false, false, None);
    for line in lines.take(MOST_HEADERS) {
        let (name, value) = match line.split_once(':') {
            Some((name, value)) => (name.to_ascii_lowercase(), value.trim()),
            None => continue,
        };
        match name.as_str() {
            "upgrade" => upgrade = value.eq_ignore_ascii_case("websocket"),
            "sec-websocket-version" => version = value == "13",
            "sec-websocket-key" => key = Some(value.to_owned()),
            _ => {}
        }
    }
    let key = key.filter(|key| {
        base64::decode(key.as_bytes()).is_some_and(|bytes| bytes.len() == KEY_BYTES)
    })?;
    (upgrade && version).then_some(key)
}

fn switching(key: &str) -> Vec<u8> {
    let mut hashed = key.as_bytes().to_vec();
    hashed.extend_from_slice(GUID);
    let accepted = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &hashed);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Accept: {}\r\n\r\n",
        base64::encode(accepted.as_ref())
    )
    .into_bytes()
}

/// Append one frame of a server, which is not masked.
fn frame(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(0x80 | kind);
    match payload.len() {
        length @ 0..=125 => out.push(length as u8),
        length @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// Takes the frames of a client apart.
#[derive(Default)]
struct Decoder {
    /// The bytes of a message that have not arrived yet.
    left: u64,
    mask: [u8; 4],
    at: usize,
    /// The client has sent the end.
    closed: bool,
}

impl Decoder {
    /// Move bytes of messages from `input` to `out`, and what control frames ask for to `answers`.
    /// What is not complete stays in `input`: a head of 14 bytes or a control frame at most.
    fn take(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
        answers: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut used = 0;
        while used < input.len() && !self.closed {
            if self.left > 0 {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX);
                let end = input.len().min(used.saturating_add(most));
                for &byte in &input[used..end] {
                    out.push(byte ^ self.mask[self.at % 4]);
                    self.at += 1;
                }
                self.left -= (end - used) as u64;
                used = end;
                continue;
            }
            let Some(head) = FrameHead::parse(&input[used..]) else {
                break;
            };
            let key = match head.key {
                Some(key) if head.is_valid() && head.kind() != TEXT => key,
                _ => return Err("not a frame of a client".to_owned()),
            };
            if head.is_control() {
                let (begin, length) = (used + head.bytes, head.length as usize);
                let payload: Vec<u8> = match input.get(begin..begin + length) {
                    Some(masked) => {
                        let mask = key.iter().cycle();
                        masked.iter().zip(mask).map(|(a, b)| a ^ b).collect()
                    }
                    None => break,
                };
                match head.kind() {
                    PING => frame(PONG, &payload, answers),
                    CLOSE => {
                        frame(CLOSE, &payload[..payload.len().min(2)], answers);
                        self.closed = true;
                    }
                    _ => {}
                }
                used = begin + length;
                continue;
            }
            used += head.bytes;
            self.left = head.length;
            self.mask = key;
            self.at = 0;
        }
        input.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
pub mod tests;
