//! Bytes between a command and us: its output into the ring, a client's data into its standard input.

use crate::exec::ring::SOURCES;
use crate::exec::{Pending, State, PTY};
use crate::poll::{self, Source};
use crate::server::Server;
use crate::sys;
use crate::timers::Due;
use std::os::unix::io::AsRawFd;

const BLOCK: usize = 64 << 10;
/// Input that waits for one command, over all streams that feed it.
const MAX_INPUT: usize = 4 << 20;
/// How long a terminal rests when nobody has it open.
const TERMINAL_MS: u64 = 20;
const READER_NS: u64 = 200_000;
const END_OF_TRANSMISSION: &[u8] = &[4];

impl Server {
    pub fn read_output(&mut self, number: u64, source: u8) {
        // A few blocks a turn: a flood is taken quickly, and others still get theirs. Readers that keep up
        // see each block before the next one can push it out of the ring.
        for _ in 0..4 {
            if self.take_output(number, source, BLOCK) < BLOCK {
                break;
            }
            self.tell_watchers();
        }
        let exec = match self.execs.get(&number) {
            Some(exec) => exec,
            None => return,
        };
        let closed = source == PTY && exec.outputs[usize::from(PTY)].is_none();
        let ended = exec.ending.is_some() || (exec.status.is_some() && !exec.timed_out);
        if closed && ended && exec.state == State::Running {
            // The terminal of an ended command has said its last word.
            self.settle_output(number);
        }
    }

    /// Reads at most `most` bytes of what is there now, and says how many came.
    fn take_output(&mut self, number: u64, source: u8, most: usize) -> usize {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return 0,
        };
        let slot = &mut exec.outputs[usize::from(source)];
        let fd = match slot {
            Some(watched) => watched.raw(),
            None => return 0,
        };
        let mut block = std::mem::take(&mut self.scratch);
        if block.len() < BLOCK {
            block.resize(BLOCK, 0);
        }
        let mut left = most;
        let mut open = true;
        while left > 0 {
            match sys::read(fd, &mut block[..left.min(BLOCK)]) {
                Ok(0) => {
                    open = false;
                    break;
                }
                Ok(count) => {
                    exec.ring.append(source, &block[..count]);
                    left -= count;
                    self.changed.insert(number);
                }
                Err(libc::EAGAIN) => break,
                // EIO: nobody holds the terminal's other side any more.
                Err(_) => {
                    open = false;
                    break;
                }
            }
        }
        self.scratch = block;
        if !open {
            if let Some(watched) = slot.take() {
                let fd = self.poll.unwatch(watched);
                let ended = exec.status.is_some() || exec.ending.is_some();
                if source == PTY && exec.state == State::Running && !ended {
                    exec.resting = Some(fd);
                    self.timers.after_ms(TERMINAL_MS, Due::Terminal(number));
                }
            }
        }
        most - left
    }

    pub fn look_at_terminal(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        if let Some(fd) = exec.resting.take().filter(|_| exec.state == State::Running) {
            let source = Source::Output(number, PTY);
            exec.outputs[usize::from(PTY)] = self.poll.watch(fd, source, poll::READ).ok();
        }
    }

    /// Takes what has been written up to now, and no more: others may go on writing for ever.
    pub fn drain_outputs(&mut self, number: u64) {
        for source in 0..SOURCES as u8 {
            let fd = match self.execs.get(&number) {
                Some(exec) => exec.outputs[usize::from(source)].as_ref().map(|w| w.raw()),
                None => return,
            };
            if let Some(fd) = fd {
                // A terminal hands out less than it has; of a pipe, one byte more than is there, to
                // notice the end of the file as well.
                let most = if source == PTY {
                    4 * BLOCK
                } else {
                    sys::readable_bytes(fd) + 1
                };
                self.take_output(number, source, most);
            }
        }
    }

    pub fn takes_input(&self, number: u64) -> bool {
        let exec = match self.execs.get(&number) {
            Some(exec) => exec,
            None => return false,
        };
        let open = exec.input.is_open() || exec.state == State::Queued;
        let wanted = exec.start.stdin_stream || exec.start.pty.is_some();
        open && wanted && !exec.input.closing && !exec.state.is_over()
    }

    pub fn push_input(&mut self, number: u64, bytes: &[u8], owner: (u64, u32)) {
        let fits = self.takes_input(number);
        if let Some(exec) = self.execs.get_mut(&number).filter(|_| fits) {
            let queue = &mut exec.input.queue;
            let waiting: usize = queue.iter().map(|p| p.bytes.len() - p.done).sum();
            if waiting + bytes.len() <= MAX_INPUT {
                queue.push_back(Pending {
                    bytes: bytes.to_vec(),
                    done: 0,
                    owner,
                });
                self.write_input(number, false);
                return;
            }
        }
        // Nobody will ever read it; the stream itself goes on.
        if let Some(connection) = self.connections.get_mut(&owner.0) {
            connection.grant(owner.1, bytes.len() as u64);
        }
    }

    /// The shell opens its command's input within microseconds; until then we only hold it.
    pub fn look_for_reader(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        if let Some(fifo) = exec.input.early.take() {
            if sys::has_reader(fifo.as_raw_fd()) {
                exec.input.pipe = self.poll.watch(fifo, Source::Input(number), 0).ok();
                self.write_input(number, false);
            } else {
                exec.input.early = Some(fifo);
                self.timers.after_ns(READER_NS, Due::Reader(number));
            }
        }
    }

    pub fn close_input(&mut self, number: u64) {
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.input.closing = true;
            self.write_input(number, false);
        }
    }

    /// Writes what the command takes. `broken`: it has closed its side.
    pub fn write_input(&mut self, number: u64, broken: bool) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        let fd = match &exec.input.pipe {
            Some(pipe) => pipe.raw(),
            None => return,
        };
        let mut granted: Vec<((u64, u32), u64)> = Vec::new();
        let mut dead = broken;
        while let Some(next) = exec.input.queue.front_mut().filter(|_| !dead) {
            match sys::write(fd, &next.bytes[next.done..]) {
                Ok(count) => {
                    next.done += count;
                    granted.push((next.owner, count as u64));
                    if next.done == next.bytes.len() {
                        exec.input.queue.pop_front();
                    }
                }
                Err(libc::EAGAIN) => break,
                Err(_) => dead = true,
            }
        }
        let idle = exec.input.queue.is_empty();
        if idle && exec.input.closing && !dead {
            if exec.input.terminal {
                // A terminal has no end of file of its own; this is how a person types it.
                dead = sys::write(fd, END_OF_TRANSMISSION) != Err(libc::EAGAIN);
            } else {
                dead = true;
            }
        }
        if let Some(pipe) = exec.input.pipe.as_ref().filter(|_| !dead) {
            let wants = !idle || exec.input.closing;
            if wants != exec.input.armed {
                exec.input.armed = wants;
                let interest = if wants { poll::WRITE } else { 0 };
                let _watched = self.poll.change(fd, pipe.token, interest);
            }
        }
        for (owner, count) in granted {
            self.input_taken(owner, count);
        }
        if dead {
            self.drop_input(number);
        }
        self.changed.insert(number);
    }

    fn input_taken(&mut self, owner: (u64, u32), count: u64) {
        if let Some(connection) = self.connections.get_mut(&owner.0) {
            connection.grant(owner.1, count);
            if let Some(open) = connection.streams.get_mut(&owner.1) {
                if let crate::wire::connection::Work::Feed(feed) = &mut open.work {
                    feed.written += count;
                }
            }
        }
    }

    /// Closes the command's standard input; what waited for it is dropped, its senders get their credit.
    pub fn drop_input(&mut self, number: u64) {
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        exec.input.early = None;
        if let Some(pipe) = exec.input.pipe.take() {
            drop(self.poll.unwatch(pipe));
        }
        let queue = std::mem::take(&mut exec.input.queue);
        for pending in queue {
            if let Some(connection) = self.connections.get_mut(&pending.owner.0) {
                connection.grant(pending.owner.1, (pending.bytes.len() - pending.done) as u64);
            }
        }
        self.changed.insert(number);
    }
}
