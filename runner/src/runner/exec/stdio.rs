//! Bytes between a command and the runner: its output into the ring, a client's data into its input.

use super::command::Pending;
use super::{Execs, State, PTY};
use crate::context::Context;
use crate::poll::{self, Source};
use crate::ring::SOURCES;
use crate::sys;
use crate::timers::Due;
use crate::wire::clients::StreamId;
use crate::wire::connection::Work;
use std::os::unix::io::AsRawFd;

const BLOCK: usize = 64 << 10;
/// Input that may wait for one command, over all streams that feed it.
const MAX_INPUT: usize = 4 << 20;
/// How long a terminal that no process has open is kept.
const TERMINAL_MS: u64 = 20;
const READER_NS: u64 = 200_000;
const END_OF_TRANSMISSION: &[u8] = &[4];

impl Execs {
    /// Take what a command has written.
    pub fn read_output(&mut self, number: u64, source: u8, cx: &mut Context) {
        // A few blocks a turn: a flood is taken quickly, and others still get theirs. Readers that keep up
        // see each block before the next one can push it out of the ring.
        for _ in 0..4 {
            if self.take_output(number, source, BLOCK, cx) < BLOCK {
                break;
            }
            self.serve_changed(cx);
        }
        let Some(exec) = self.get(number) else {
            return;
        };
        let closed = source == PTY && !exec.has_output(PTY);
        let ended = exec.ending.is_some() || (exec.status.is_some() && !exec.timed_out);
        if closed && ended && exec.state == State::Running {
            // The command has ended, and its terminal has no more output.
            self.settle_output(number, cx);
        }
    }

    /// Read at most `most` bytes of what is there now. Return how many came.
    fn take_output(&mut self, number: u64, source: u8, most: usize, cx: &mut Context) -> usize {
        let Some(exec) = self.by_number.get_mut(&number) else {
            return 0;
        };
        let slot = &mut exec.outputs[usize::from(source)];
        let fd = match slot {
            Some(watched) => watched.raw(),
            None => return 0,
        };
        let mut block = cx.take_block(BLOCK);
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
                // EIO: no process holds the other side of the terminal any more.
                Err(_) => {
                    open = false;
                    break;
                }
            }
        }
        cx.return_block(block);
        if !open {
            if let Some(watched) = slot.take() {
                let fd = cx.poll.unwatch(watched);
                let ended = exec.status.is_some() || exec.ending.is_some();
                if source == PTY && exec.state == State::Running && !ended {
                    exec.unused_terminal = Some(fd);
                    cx.timers.after_ms(TERMINAL_MS, Due::Terminal(number));
                }
            }
        }
        most - left
    }

    /// Poll a terminal again that was open in no process.
    pub fn poll_terminal_again(&mut self, number: u64, cx: &mut Context) {
        let Some(exec) = self.get_mut(number) else {
            return;
        };
        let running = exec.state == State::Running;
        if let Some(fd) = exec.unused_terminal.take().filter(|_| running) {
            let _closed = exec.watch_output(number, PTY, fd, &mut cx.poll);
        }
    }

    /// Take what has been written up to now, and no more: other processes may go on writing for ever.
    pub(super) fn drain_outputs(&mut self, number: u64, cx: &mut Context) {
        for source in 0..SOURCES as u8 {
            let fd = match self.get(number) {
                Some(exec) => exec.outputs[usize::from(source)].as_ref().map(|w| w.raw()),
                None => return,
            };
            if let Some(fd) = fd {
                // A terminal returns less than it has; from a pipe, one byte more than is there is
                // asked for, to notice the end of the file as well.
                let most = if source == PTY {
                    4 * BLOCK
                } else {
                    sys::readable_bytes(fd) + 1
                };
                self.take_output(number, source, most, cx);
            }
        }
    }

    /// Queue a client's data for the standard input of a command.
    pub fn push_input(&mut self, number: u64, bytes: &[u8], owner: StreamId, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number).filter(|exec| exec.takes_input()) {
            if exec.start.observe && !bytes.is_empty() {
                exec.start.observe = false;
                cx.touch_lease();
            }
            let queue = &mut exec.input.queue;
            let waiting: usize = queue.iter().map(|p| p.bytes.len() - p.done).sum();
            if waiting + bytes.len() <= MAX_INPUT {
                queue.push_back(Pending {
                    bytes: bytes.to_vec(),
                    done: 0,
                    owner: Some(owner),
                });
                self.write_input(number, false, cx);
                return;
            }
        }
        // The command will never read it; the stream itself goes on.
        cx.clients.grant(owner, bytes.len() as u64);
    }

    /// A shell opens the input of its command within microseconds. Until then it is only held.
    pub fn look_for_reader(&mut self, number: u64, cx: &mut Context) {
        let exec = match self.get_mut(number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        if let Some(fifo) = exec.input.early.take() {
            if sys::has_reader(fifo.as_raw_fd()) {
                exec.input.pipe = cx.poll.watch(fifo, Source::Input(number), 0).ok();
                self.write_input(number, false, cx);
            } else {
                exec.input.early = Some(fifo);
                cx.timers.after_ns(READER_NS, Due::Reader(number));
            }
        }
    }

    /// Close the standard input once everything queued is written.
    pub fn close_input(&mut self, number: u64, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            exec.input.closing = true;
            self.write_input(number, false, cx);
        }
    }

    /// Write what the command takes. `broken`: it has closed its side.
    pub fn write_input(&mut self, number: u64, broken: bool, cx: &mut Context) {
        let exec = match self.by_number.get_mut(&number) {
            Some(exec) if exec.state == State::Running => exec,
            _ => return,
        };
        let fd = match &exec.input.pipe {
            Some(pipe) => pipe.raw(),
            None => return,
        };
        let mut written: Vec<(StreamId, u64)> = Vec::new();
        let mut dead = broken;
        while let Some(next) = exec.input.queue.front_mut().filter(|_| !dead) {
            match sys::write(fd, &next.bytes[next.done..]) {
                Ok(count) => {
                    next.done += count;
                    written.extend(next.owner.map(|owner| (owner, count as u64)));
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
                // A terminal has no end of file; this is how a person types it.
                dead = sys::write(fd, END_OF_TRANSMISSION) != Err(libc::EAGAIN);
            } else {
                dead = true;
            }
        }
        if let Some(pipe) = exec.input.pipe.as_ref().filter(|_| !dead) {
            let unfinished = !idle || exec.input.closing;
            if unfinished != exec.input.armed {
                exec.input.armed = unfinished;
                let interest = if unfinished { poll::WRITE } else { 0 };
                let _watched = cx.poll.change(fd, pipe.token, interest);
            }
        }
        for (stream, count) in written {
            cx.clients.grant(stream, count);
            if let Some(Work::Feed(feed)) = cx.clients.stream_mut(stream).map(|s| &mut s.work) {
                feed.written += count;
            }
        }
        if dead {
            self.drop_input(number, cx);
        }
        self.changed.insert(number);
    }

    /// Close the standard input. Queued data is dropped, and its senders get their credit back.
    pub(super) fn drop_input(&mut self, number: u64, cx: &mut Context) {
        let Some(exec) = self.by_number.get_mut(&number) else {
            return;
        };
        exec.input.early = None;
        if let Some(pipe) = exec.input.pipe.take() {
            drop(cx.poll.unwatch(pipe));
        }
        for pending in std::mem::take(&mut exec.input.queue) {
            let dropped = pending.bytes.len() - pending.done;
            if let Some(owner) = pending.owner {
                cx.clients.grant(owner, dropped as u64);
            }
        }
        self.changed.insert(number);
    }

    /// A shell has taken this command and runs it in process `pid`. `reset`: the shell is a new one.
    pub fn begin_in_shell(&mut self, number: u64, pid: i32, reset: bool, cx: &mut Context) {
        if let Some(exec) = self.get_mut(number) {
            exec.shell_reset |= reset;
            exec.begin(pid);
        }
        self.changed.insert(number);
        self.arm_deadline(number, cx);
        self.look_for_reader(number, cx);
        self.write_input(number, false, cx);
    }
}
