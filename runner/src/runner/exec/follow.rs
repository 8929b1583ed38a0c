//! Streams that watch a command: each is served when the command changes or the client grants credit.

use super::{Execs, State};
use crate::context::Context;
use crate::wire::clients::StreamId;
use crate::wire::connection::{chunk_body, empty, Work};
use crate::wire::handler::Failure;
use serde_json::json;

/// What is left to do for a stream after a look at its command.
enum Next {
    Wait,
    /// Answer with the command as it is now.
    Answer,
    /// The stream was answered.
    Detach,
}

impl Execs {
    /// Open a stream that watches a command, and serve it at once.
    pub fn attach(&mut self, number: u64, stream: StreamId, work: Work, cx: &mut Context) {
        cx.clients.add_stream(stream, work);
        if let Some(exec) = self.get_mut(number) {
            exec.watchers.push(stream);
        }
        self.serve(stream, cx);
    }

    pub fn detach(&mut self, number: u64, stream: StreamId) {
        if let Some(exec) = self.get_mut(number) {
            exec.watchers.retain(|watcher| *watcher != stream);
        }
    }

    pub(super) fn answer(&mut self, number: u64, stream: StreamId, cx: &mut Context) {
        self.detach(number, stream);
        if let Some(exec) = self.get(number) {
            cx.clients.answer(stream, &exec.to_json());
        }
    }

    /// Serve the streams of every command that has changed.
    pub fn serve_changed(&mut self, cx: &mut Context) {
        while let Some(&number) = self.changed.iter().next() {
            self.changed.remove(&number);
            let watchers = match self.get(number) {
                Some(exec) => exec.watchers.clone(),
                None => continue,
            };
            for stream in watchers {
                self.serve(stream, cx);
            }
        }
    }

    /// Send a stream what its command has for it now.
    pub fn serve(&mut self, stream: StreamId, cx: &mut Context) {
        let open = cx.clients.stream_mut(stream);
        let Some(number) = open.and_then(|open| open.work.exec()) else {
            return;
        };
        let next = match cx.clients.stream_mut(stream).map(|open| &open.work) {
            Some(Work::Follow(_)) => self.send_output(number, stream, cx),
            Some(Work::Feed(_)) => self.check_feed(number, stream, cx),
            _ => self.check_state(number, stream, cx),
        };
        match next {
            Next::Wait => {}
            Next::Answer => self.answer(number, stream, cx),
            Next::Detach => self.detach(number, stream),
        }
    }

    /// Serve a stream that waits for the command to start, to end, or to be swept.
    fn check_state(&mut self, number: u64, stream: StreamId, cx: &mut Context) -> Next {
        let (Some(open), Some(exec)) = (cx.clients.stream_mut(stream), self.get(number)) else {
            return Next::Wait;
        };
        let done = match &mut open.work {
            Work::Sweep { until, .. } => {
                if exec.supervisor.is_some() && exec.sweeps_done < *until {
                    return Next::Wait;
                }
                cx.clients.answer(stream, &empty());
                return Next::Detach;
            }
            Work::Begin { .. } => exec.state != State::Queued || exec.is_shell(),
            Work::Wait { timer, .. } => {
                let over = exec.state.is_over();
                if let Some(timer) = timer.take().filter(|_| over) {
                    cx.timers.cancel(timer);
                }
                over
            }
            Work::Verb { .. } | Work::Follow(_) | Work::Feed(_) => false,
        };
        if done {
            Next::Answer
        } else {
            Next::Wait
        }
    }

    /// Serve an `exec.stdin`: it is over when all of it was written, or the command closed its input.
    fn check_feed(&mut self, number: u64, stream: StreamId, cx: &mut Context) -> Next {
        let (Some(open), Some(exec)) = (cx.clients.stream_mut(stream), self.get(number)) else {
            return Next::Wait;
        };
        let feed = match &open.work {
            Work::Feed(feed) => feed,
            _ => return Next::Wait,
        };
        let (received, written, close) = (feed.received, feed.written, feed.close);
        let unfinished = written < received || !open.ended;
        if unfinished && (exec.input.is_open() || exec.state == State::Queued) {
            return Next::Wait;
        }
        if written < received {
            let failure = Failure::new("closed", "the command closed its input");
            cx.clients.answer_error(stream, &failure);
        } else {
            cx.clients.answer(stream, &json!({ "bytes": written }));
            if close {
                self.close_input(number, cx);
            }
        }
        Next::Detach
    }

    /// Serve a reader of the output: send chunks as far as credit and room allow.
    fn send_output(&mut self, number: u64, stream: StreamId, cx: &mut Context) -> Next {
        let Some(exec) = self.get_mut(number) else {
            return Next::Wait;
        };
        let Some(connection) = cx.clients.get_mut(stream.0) else {
            return Next::Wait;
        };
        let Some(open) = connection.streams.get_mut(&stream.1) else {
            return Next::Wait;
        };
        let follow = match &mut open.work {
            Work::Follow(follow) => follow,
            _ => return Next::Wait,
        };
        if follow.announce && exec.state == State::Queued {
            return Next::Wait;
        }
        if follow.announce {
            follow.announce = false;
            let started = json!({
                "event": "started",
                "exec_id": exec.start.exec_id,
                "pid": exec.pid,
            });
            connection.out.event(stream.1, &started);
        }
        while let Some(chunk) = exec.ring.next(follow.seq, &follow.sent) {
            let cost = chunk_body(&chunk) as u64;
            if connection.out.room() == 0 {
                connection.out.stalled = true;
                return Next::Wait;
            }
            if open.credit < cost {
                return Next::Wait;
            }
            open.credit -= cost;
            connection.out.chunk(stream.1, &chunk);
            follow.seq = chunk.seq;
            follow.sent[usize::from(chunk.source)] = chunk.offset + chunk.len() as u64;
            let seq = chunk.seq;
            exec.ring.mark_seen(seq);
        }
        if exec.state.is_over() || !follow.to_the_end {
            Next::Answer
        } else {
            Next::Wait
        }
    }
}
