//! The messages of a WebSocket (RFC 6455) or of gRPC from a server, searched for values. Pure.
//!
//! Frames keep their heads, order and lengths. A value is found however a message is divided into them.
//! When a message is complete, all of it is released, because its answer may be awaited.

use super::mask::Mask;
use crate::proxy::websocket_frame::{FrameHead, CLOSE};
use std::collections::VecDeque;

/// Heads and control frames that may wait for the payload before them.
const MOST_WAITING: usize = 1024;
/// Frames that are taken at a time.
const MOST_TAKEN: usize = 1024;

/// A flag and the length of a message.
const GRPC_HEAD: usize = 5;

#[derive(Default)]
pub struct Frames {
    /// Whether the messages are those of gRPC.
    grpc: bool,
    /// Payload of the current frame that has not arrived yet.
    left: u64,
    /// Whether the current frame is the last one of its message.
    last: bool,
    /// Payload that has arrived, and that has been released.
    arrived: u64,
    released: u64,
    /// What is not payload of a message, each with the payload that goes before it.
    others: VecDeque<(u64, Vec<u8>)>,
}

/// Return the head of a message of gRPC as that of a frame of a WebSocket: it has no key and is the last
/// one of its message. That of a compressed message is not valid.
fn grpc_head(input: &[u8]) -> Option<FrameHead> {
    let (flag, length) = input.get(..GRPC_HEAD)?.split_first()?;
    let length = length.iter();
    Some(FrameHead {
        first: if *flag == 0 { 0x82 } else { 0xc2 },
        key: None,
        length: length.fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        bytes: GRPC_HEAD,
    })
}

impl Frames {
    pub fn of_grpc() -> Frames {
        Frames {
            grpc: true,
            ..Frames::default()
        }
    }

    /// Take what is complete out of the input, and append what can be shown to the output. The payload is
    /// searched once, however many frames it is in.
    pub fn take(
        &mut self,
        input: &mut Vec<u8>,
        mask: &mut Mask,
        output: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let (mut used, mut taken, mut payload) = (0, 0, Vec::new());
        // Up to here the payload is released, because its message is complete.
        let mut due = self.released;
        while used < input.len() && taken < MOST_TAKEN {
            if self.left > 0 {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX);
                let end = input.len().min(used.saturating_add(most));
                self.left -= (end - used) as u64;
                self.arrived += (end - used) as u64;
                payload.extend_from_slice(&input[used..end]);
                used = end;
            } else {
                let read = if self.grpc {
                    grpc_head
                } else {
                    FrameHead::parse
                };
                let head = match read(&input[used..]) {
                    Some(head) => head,
                    None => break,
                };
                // A compressed payload, or one with a key, would not be what it says.
                if !head.is_valid() || head.key.is_some() {
                    return Err("a message cannot be searched for secrets");
                }
                let bytes = match head.is_control() {
                    true => head.bytes + head.length as usize,
                    false => head.bytes,
                };
                let mut other = match input.get(used..used + bytes) {
                    Some(other) => other.to_vec(),
                    None => break,
                };
                mask.whole(&mut other[head.bytes..]);
                self.others.push_back((self.arrived, other));
                if !head.is_control() {
                    self.left = head.length;
                    self.last = head.is_last();
                }
                used += bytes;
                taken += 1;
                if head.kind() == CLOSE {
                    due = self.arrived;
                }
            }
            if self.left == 0 && self.last {
                due = self.arrived;
            }
        }
        input.drain(..used);
        let shown = mask.pass(&payload);
        self.release(&shown, output);
        let shown = mask.release(due.saturating_sub(self.released));
        self.release(&shown, output);
        // To release them would show the beginning of a value that a host divides by them.
        match self.others.len() > MOST_WAITING {
            true => Err("a message of the WebSocket is in too many frames"),
            false => Ok(()),
        }
    }

    /// Whether the rest of a frame has not arrived yet. It comes soon, or never.
    pub fn is_inside(&self) -> bool {
        self.left > 0
    }

    /// Append released payload, with what lies between it.
    pub fn release(&mut self, mut payload: &[u8], output: &mut Vec<u8>) {
        loop {
            let before = match self.others.front() {
                Some((at, _)) => (at - self.released).min(payload.len() as u64) as usize,
                None => payload.len(),
            };
            output.extend_from_slice(&payload[..before]);
            payload = &payload[before..];
            self.released += before as u64;
            match self.others.front() {
                Some((at, _)) if *at == self.released => {
                    let other = self.others.pop_front();
                    output.extend(other.into_iter().flat_map(|(_, bytes)| bytes));
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "0123456789abcdef";

    fn read(wire: &[u8], step: usize) -> Result<Vec<u8>, &'static str> {
        let mut mask = Mask::new(&[VALUE.to_owned()]);
        let (mut frames, mut input, mut out) = (Frames::default(), Vec::new(), Vec::new());
        for piece in wire.chunks(step) {
            input.extend_from_slice(piece);
            frames.take(&mut input, &mut mask, &mut out)?;
        }
        assert_eq!((input.len(), frames.others.len()), (0, 0));
        Ok(out)
    }

    #[test]
    fn a_message_is_searched_however_it_is_divided() {
        let wire = [
            &b"\x01\x08-0123456"[..],
            b"\x89\x011",
            b"\x00\x00",
            b"\x80\x0a789abcdef-",
            b"\x82\x7e\x00\x03xyz",
            b"\x88\x12\x03\xe80123456789abcdef",
        ]
        .concat();
        let mut shown = wire.clone();
        shown.iter_mut().for_each(|byte| {
            if VALUE.as_bytes().contains(byte) {
                *byte = b'*';
            }
        });
        // That of the control frame is none of the value's.
        let ping = wire.iter().position(|&byte| byte == 0x89).unwrap();
        shown[ping + 2] = b'1';
        for step in 1..wire.len() {
            assert_eq!(read(&wire, step).unwrap(), shown, "{}", step);
        }
    }

    #[test]
    fn only_between_frames_a_pause_of_the_server_counts() {
        let mut mask = Mask::new(&[VALUE.to_owned()]);
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        for (wire, inside) in [
            (&b"\x01\x0401"[..], true),
            (b"23", false),
            (b"\x80\x7e\x00\x80", true),
        ] {
            let mut input = wire.to_vec();
            frames.take(&mut input, &mut mask, &mut out).unwrap();
            assert_eq!(frames.is_inside(), inside, "{:?}", wire);
        }
    }

    #[test]
    fn what_cannot_be_searched_is_refused() {
        for wire in [
            // Compressed, with a key, of an unknown kind, a control frame in parts or too long.
            &b"\xc1\x01x"[..],
            b"\x81\x81keyxx",
            b"\x83\x01x",
            b"\x09\x01x",
            b"\x89\x7e\x00\x80",
            b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert!(read(wire, 100).is_err(), "{:?}", wire);
        }
    }

    #[test]
    fn what_waits_is_never_released_because_there_is_much_of_it() {
        let parts = |pongs: usize| {
            let pongs = b"\x8a\x00".repeat(pongs);
            [b"\x01\x0801234567", &pongs[..], b"\x80\x0889abcdef"].concat()
        };
        let shown = [
            b"\x01\x08********",
            &b"\x8a\x00".repeat(1000)[..],
            b"\x80\x08********",
        ]
        .concat();
        assert_eq!(read(&parts(1000), 100).unwrap(), shown);
        for (pongs, step) in [(1024, 7), (1200, 100), (5000, 1)] {
            assert!(read(&parts(pongs), step).is_err(), "{}", pongs);
        }
    }
}
