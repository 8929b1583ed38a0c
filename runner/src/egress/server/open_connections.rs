//! Open connections: move as many bytes as the checks of plain HTTP and the limits allow.

use super::connections::HELLO_PATIENCE;
use super::{Connection, Egress, Item};
use crate::http::{Next, UNCLEAR};
use crate::limits::Room;
use crate::relay::Moved;
use crate::sockets::{reset, sends_no_more};
use crate::sys::{peek, Result};
use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::Instant;

/// How many requests of one connection are checked in one turn.
const REQUESTS_A_TURN: usize = 64;

/// The result of moving the bytes of one direction.
enum Flow {
    Idle,
    Busy,
    Done,
    /// It waits for bandwidth.
    Throttled,
    /// A request may not pass.
    Refused(&'static str),
    /// A limit of the sandbox is reached.
    Ended(&'static str),
}

impl Egress {
    /// Move what may be moved, in both directions. The connection is put back unless it has ended.
    pub(super) fn shift(&mut self, id: u64, mut connection: Box<Connection>) {
        let now = Instant::now();
        let bytes = |c: &Connection| {
            let of = |d: &Option<crate::relay::Direction>| d.as_ref().map_or(0, |d| d.bytes);
            of(&c.up) + of(&c.down)
        };
        let before = bytes(&connection);
        let sent = self.outwards(&mut connection, now);
        let received = match sent {
            Ok(Flow::Refused(_)) => Ok(Flow::Idle),
            _ => self.inwards(&mut connection, now),
        };
        if bytes(&connection) != before {
            connection.active = now;
        }
        let (sent, received) = match (sent, received) {
            (Ok(sent), Ok(received)) => (sent, received),
            (Err(errno), _) | (_, Err(errno)) => {
                let reason = std::io::Error::from_raw_os_error(errno).to_string();
                self.close(id, &connection, Some(&reason));
                return reset(&connection.client);
            }
        };
        match (&sent, &received) {
            (Flow::Refused(rule), _) => return self.stop(id, connection, rule),
            (Flow::Ended(rule), _) | (_, Flow::Ended(rule)) => {
                connection.verdict.allowed = false;
                connection.verdict.rule = (*rule).to_owned();
                return self.end(id, connection);
            }
            (Flow::Done, Flow::Done) => return self.close(id, &connection, None),
            _ => {}
        }
        let any = |test: fn(&Flow) -> bool| test(&sent) || test(&received);
        if any(|flow| matches!(flow, Flow::Busy)) {
            self.go_on(id);
        } else if any(|flow| matches!(flow, Flow::Throttled)) && !self.throttled.contains(&id) {
            self.throttled.push_back(id);
        }
        self.items.insert(id, Item::Connection(connection));
    }

    /// Let the connections that wait for bandwidth go on.
    pub(super) fn refill(&mut self) {
        for _ in 0..self.throttled.len() {
            if let Some(id) = self.throttled.pop_front() {
                self.event(id);
            }
        }
    }

    fn outwards(&mut self, c: &mut Connection, now: Instant) -> Result<Flow> {
        if !c.checked {
            return Ok(Flow::Idle);
        }
        for _ in 0..REQUESTS_A_TURN {
            if c.passes == 0 {
                if let Some(flow) = next_request(c, &mut self.first, now) {
                    return Ok(flow);
                }
            }
            let (Some(server), Some(up)) = (&c.server, &mut c.up) else {
                return Ok(Flow::Done);
            };
            let passes = if c.requests.is_some() {
                c.passes
            } else {
                u64::MAX
            };
            let room = self.outward.room(now, self.throttled.len());
            let most = if let Room::Bytes(n) = room {
                n.min(passes)
            } else {
                0
            };
            let before = up.bytes;
            let client = &c.client;
            let mut moved = up.step(client, server, most, &mut self.pipes)?;
            if moved == Moved::Held && room == Room::Never && has_ended(client) {
                moved = up.step(client, server, 1, &mut self.pipes)?;
            }
            let taken = up.bytes - before;
            self.outward.moved(taken);
            c.passes = c.passes.saturating_sub(taken);
            match moved {
                Moved::Held if c.requests.is_some() && c.passes == 0 => continue,
                moved => {
                    let now_room = self.outward.room(now, self.throttled.len());
                    let rule = self.outward.rule("limit:bytes_out");
                    return Ok(flow(moved, now_room, client, rule));
                }
            }
        }
        Ok(Flow::Busy)
    }

    fn inwards(&mut self, c: &mut Connection, now: Instant) -> Result<Flow> {
        let (Some(server), Some(down)) = (&c.server, &mut c.down) else {
            return Ok(Flow::Done);
        };
        let mut answered = false;
        if let Some(requests) = c.requests.as_mut().filter(|r| r.waits_for_answer()) {
            let mut buffer = [0u8; 16];
            match peek(server.as_raw_fd(), &mut buffer).map(|bytes| requests.answered(bytes)) {
                Some(Some(())) => answered = true,
                _ => return Ok(Flow::Idle),
            }
        }
        let room = self.inward.room(now, self.throttled.len());
        let most = if let Room::Bytes(n) = room { n } else { 0 };
        let before = down.bytes;
        let client = &c.client;
        let mut moved = down.step(server, client, most, &mut self.pipes)?;
        if moved == Moved::Held && room == Room::Never && has_ended(server) {
            moved = down.step(server, client, 1, &mut self.pipes)?;
        }
        self.inward.moved(down.bytes - before);
        if answered {
            // The client's next bytes may wait for this.
            return Ok(Flow::Busy);
        }
        let now_room = self.inward.room(now, self.throttled.len());
        let rule = self.inward.rule("limit:bytes_in");
        Ok(flow(moved, now_room, server, rule))
    }

    /// End a connection at a limit; it may be in the middle of an answer, so no 403 is possible.
    pub(super) fn end(&mut self, id: u64, connection: Box<Connection>) {
        self.refused += 1;
        self.note(id, &connection, "refused", None);
        reset(&connection.client);
    }
}

/// Check the client's next request. Return what ends the turn, or None if bytes may pass.
fn next_request(c: &mut Connection, buffer: &mut [u8], now: Instant) -> Option<Flow> {
    let (Some(requests), Some(name)) = (&mut c.requests, &c.name) else {
        return None;
    };
    let bytes = match recv(&c.client, &mut *buffer, RecvFlags::PEEK) {
        Err(Errno::AGAIN) => return Some(Flow::Idle),
        Err(_) | Ok((0, _)) => {
            // Its end may pass, and its failure is found by the next step.
            c.passes = 1;
            return None;
        }
        Ok((count, _)) => &buffer[..count],
    };
    match requests.look(bytes, name, c.wanted.port()) {
        Next::Pass(n) => {
            c.passes = n;
            c.deadline = None;
        }
        Next::Open => c.requests = None,
        Next::Answer => return Some(Flow::Idle),
        Next::More if sends_no_more(&c.client) => return Some(Flow::Refused(UNCLEAR)),
        Next::More => {
            c.deadline.get_or_insert(now + HELLO_PATIENCE);
            return Some(Flow::Idle);
        }
        Next::Refused(rule) => return Some(Flow::Refused(rule)),
    }
    None
}

/// `room` is what is left after the step, `source` where the bytes come from.
fn flow(moved: Moved, room: Room, source: &OwnedFd, rule: &'static str) -> Flow {
    match (moved, room) {
        (Moved::Idle, _) => Flow::Idle,
        (Moved::Busy, _) => Flow::Busy,
        (Moved::Done, _) => Flow::Done,
        (Moved::Held, Room::Bytes(_)) => Flow::Busy,
        (Moved::Held, Room::Later) => Flow::Throttled,
        (Moved::Held, Room::Never) => match peek(source.as_raw_fd(), &mut [0u8; 1]) {
            // Nothing more came until now.
            None => Flow::Idle,
            Some([]) => Flow::Busy,
            Some(_) => Flow::Ended(rule),
        },
    }
}

fn has_ended(source: &OwnedFd) -> bool {
    peek(source.as_raw_fd(), &mut [0u8; 1]).is_some_and(|bytes| bytes.is_empty())
}
