//! The messages of a WebSocket (RFC 6455) from a server, searched for values. Pure.
//!
//! Frames keep their heads, order and lengths. A value is found however a message is divided into them.
//! When a message is complete, all of it is released, because its answer may be awaited.

use super::mask::Mask;
use crate::websocket::{FrameHead, CLOSE};
use std::collections::VecDeque;

/// Heads and control frames that may wait for the payload before them.
const MOST_WAITING: usize = 1024;

#[derive(Default)]
pub struct Frames {
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

impl Frames {
    /// Take what is complete out of the input, and append what can be shown to the output.
    pub fn take(
        &mut self,
        input: &mut Vec<u8>,
        mask: &mut Mask,
        output: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let mut used = 0;
        while used < input.len() {
            if self.left > 0 {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX);
                let end = input.len().min(used.saturating_add(most));
                self.left -= (end - used) as u64;
                self.arrived += (end - used) as u64;
                let shown = mask.pass(&input[used..end]);
                self.release(&shown, output);
                used = end;
            } else {
                let head = match FrameHead::parse(&input[used..]) {
                    Some(head) => head,
                    None => break,
                };
                // A compressed payload, or one with a key, would not be what it says.
                if !head.is_valid() || head.key.is_some() {
                    return Err("a frame of the WebSocket cannot be searched for secrets");
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
                self.release(&[], output);
                if self.others.len() > MOST_WAITING || head.kind() == CLOSE {
                    self.release(&mask.rest(), output);
                }
            }
            if self.left == 0 && self.last {
                self.release(&mask.rest(), output);
            }
        }
        input.drain(..used);
        Ok(())
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
