//! `--relay`: copies standard input to a socket and the socket to standard output: that of the runner,
//! or a port of this machine, where its gate is.
//!
//! For a host that cannot reach the socket itself and has to use a stream that a container engine or a
//! provider of machines starts. It knows nothing of the protocol. Each direction has one buffer, and reads only when that is
//! written, so a side that does not read slows the other one down and costs no memory.
//!
//! The end of the input is passed on, and what the runner still sends after it is written. The relay
//! ends when the runner ends, or when the output has no reader. So that no relay is left behind, it
//! also ends when the input is over and nothing has moved for `GRACE`.

use crate::sys;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{shutdown, Shutdown};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

const BUFFER: usize = 256 << 10;
/// How many blocks one direction may copy before the other gets its turn.
const ROUNDS: usize = 16;
const GRACE_MS: i32 = 10_000;
const GONE: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);

struct Way {
    from: RawFd,
    to: RawFd,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// No more data will come.
    ended: bool,
    reset: bool,
}

impl Way {
    fn new(from: RawFd, to: RawFd) -> Way {
        Way {
            from,
            to,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            ended: false,
            reset: false,
        }
    }

    fn pending(&self) -> bool {
        self.start < self.end
    }

    fn done(&self) -> bool {
        self.ended && !self.pending()
    }

    /// Copy until one side would block; an error is that of the writing side.
    fn pump(&mut self) -> sys::Result<()> {
        for _ in 0..ROUNDS {
            if !self.pending() {
                if self.ended || !self.fill() {
                    return Ok(());
                }
                continue;
            }
            match sys::write(self.to, &self.buffer[self.start..self.end]) {
                Ok(count) => self.start += count,
                Err(libc::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Return false when there is nothing to write now.
    fn fill(&mut self) -> bool {
        match sys::read(self.from, &mut self.buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                self.start = 0;
                self.end = count;
            }
            Err(libc::EAGAIN) => {}
            // Reported once for a socket that was closed with data unread; more data may follow.
            Err(libc::ECONNRESET) if !self.reset => {
                self.reset = true;
                return self.fill();
            }
            Err(_) => self.ended = true,
        }
        self.pending()
    }
}

struct Relay {
    up: Way,
    down: Way,
    /// The writer of the input is gone, though not everything was read.
    hung_up: bool,
    /// The runner takes no more data.
    refused: bool,
    /// The end of the input was passed on to the runner.
    end_sent: bool,
}

/// Run the relay. An error means that the socket could not be reached. `place` is its path, or the
/// number of a port.
pub fn run(place: &[u8]) -> sys::Result<()> {
    let port = std::str::from_utf8(place)
        .ok()
        .and_then(|text| text.parse().ok());
    let socket = match port {
        Some(port) => connect_port(port)?,
        None => sys::connect_unix(place, GRACE_MS)?,
    };
    let fd = socket.as_raw_fd();
    sys::widen_socket(fd);
    for end in [0, 1] {
        sys::widen_pipe(end, BUFFER);
    }
    for end in [0, 1, fd] {
        sys::set_nonblocking(end)?;
    }
    let mut relay = Relay {
        up: Way::new(0, fd),
        down: Way::new(fd, 1),
        hung_up: false,
        refused: false,
        end_sent: false,
    };
    while relay.turn(fd) {}
    Ok(())
}

fn connect_port(port: u16) -> sys::Result<OwnedFd> {
    let grace = Duration::from_millis(GRACE_MS as u64);
    let reached = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), grace);
    // A connection that was not made in time has no errno.
    let stream = reached.map_err(|error| error.raw_os_error().unwrap_or(libc::ETIMEDOUT))?;
    // What is copied is a whole message already; a side that is gone is noticed later.
    let _unread = stream.set_nodelay(true);
    Ok(stream.into())
}

impl Relay {
    /// Wait until data can move, and move it. Return false at the end.
    fn turn(&mut self, socket: RawFd) -> bool {
        let when = |wanted: bool, event: PollFlags| match wanted {
            true => event,
            false => PollFlags::empty(),
        };
        let input_over = self.up.ended || self.hung_up;
        let takes_input = !self.up.pending() && !self.refused;
        let to_socket = when(self.up.pending(), PollFlags::OUT);
        let from_socket = when(!self.down.pending(), PollFlags::IN);
        let of_socket = to_socket | from_socket;
        // The input is polled for its end even while it may not be read, and only until then: an end is
        // reported again and again.
        let of_input = !input_over || takes_input && !self.up.ended;
        // The kernel leaves out negative numbers.
        let watched = |fd: RawFd, wanted: bool| if wanted { fd } else { -1 };
        let fds = [
            watched(0, of_input),
            watched(socket, !of_socket.is_empty()),
            1,
        ];
        let entry = |at: usize, events| PollFd::from_borrowed_fd(sys::borrow(&fds[at]), events);
        let mut polled = [
            entry(0, when(takes_input, PollFlags::IN)),
            entry(1, of_socket),
            entry(2, when(self.down.pending(), PollFlags::OUT)),
        ];
        let timeout = input_over.then_some(Timespec {
            tv_sec: i64::from(GRACE_MS / 1000),
            tv_nsec: 0,
        });
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) => return true,
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        let [input, socket_said, output] = polled.map(|entry| entry.revents());
        if output.intersects(GONE) {
            return false;
        }
        if input.intersects(GONE) {
            self.hung_up = true;
        }
        let socket_writable =
            socket_said.intersects(PollFlags::OUT | GONE) && !to_socket.is_empty();
        if (!input.is_empty() && takes_input || socket_writable) && self.up.pump().is_err() {
            self.refused = true;
            self.up.start = self.up.end;
        }
        let readable = socket_said.intersects(PollFlags::IN | GONE) && !from_socket.is_empty();
        if (readable || !output.is_empty()) && self.down.pump().is_err() {
            return false;
        }
        if self.up.done() && !self.end_sent {
            self.end_sent = true;
            // A socket that is gone needs no notice.
            let _gone = shutdown(sys::borrow(&socket), Shutdown::Write);
        }
        !self.down.done()
    }
}
