//! The exec verbs as a client sees them: start, follow, wait, signal, feed, resize, list.

use crate::exec::pty;
use crate::exec::ring::SOURCES;
use crate::exec::{self, Exec, Start, State, What, PTY};
use crate::server::Server;
use crate::timers::Due;
use crate::wire::connection::{chunk_body, empty, Feed, Follow, Work};
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::Fields;
use serde_json::{json, Value};
use std::os::unix::io::AsRawFd;

impl Server {
    /// Commands that are running or stand in a queue.
    pub fn active(&self) -> usize {
        self.execs
            .values()
            .filter(|exec| !exec.state.is_over())
            .count()
    }

    pub fn exec_start(&mut self, id: u64, stream: u32, request: &Value) -> Result<(), Failure> {
        let start = Start::parse(request)?;
        let by_key = start.key.as_ref().and_then(|key| self.by_key.get(key));
        let known = self.by_id.get(&start.exec_id).or(by_key).copied();
        let follow = start.follow;
        let feeds = start.stdin_stream && known.is_none();
        let number = match known {
            Some(number) => number,
            None => self.exec_new(start)?,
        };
        let work = if follow {
            Work::Follow(Follow {
                exec: number,
                seq: 0,
                sent: [0; SOURCES],
                announce: true,
                to_the_end: true,
                feeds,
            })
        } else {
            Work::Begin {
                exec: number,
                feeds,
            }
        };
        self.watch_exec(id, stream, number, work);
        Ok(())
    }

    fn exec_new(&mut self, start: Start) -> Result<u64, Failure> {
        self.stillborn = None;
        if self.active() >= protocol::MAX_ACTIVE {
            return Err(Failure::new("busy", "256 commands are running or queued"));
        }
        let number = self.next_serial();
        let exec = Exec::new(start);
        let (exec_id, key) = (exec.start.exec_id.clone(), exec.start.key.clone());
        let shell = match &exec.start.what {
            What::Shell { name, .. } => Some(name.clone()),
            What::Argv(_) => None,
        };
        self.execs.insert(number, exec);
        self.by_id.insert(exec_id, number);
        if let Some(key) = key {
            self.by_key.insert(key, number);
        }
        let outcome = match shell {
            None => self.start_argv(number),
            Some(name) => self.queue_command(&name, number),
        };
        if outcome.is_err() {
            self.forget_exec(number);
        }
        match self.stillborn.take() {
            Some(failure) => Err(failure),
            None => outcome.map(|()| number),
        }
    }

    pub fn forget_exec(&mut self, number: u64) -> Option<Exec> {
        let exec = self.execs.remove(&number)?;
        self.by_id.remove(&exec.start.exec_id);
        if let Some(key) = &exec.start.key {
            self.by_key.remove(key);
        }
        Some(exec)
    }

    fn watch_exec(&mut self, id: u64, stream: u32, number: u64, work: Work) {
        self.add_stream(id, stream, work);
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.watchers.push((id, stream));
        }
        self.attend(id, stream);
    }

    fn find(&self, fields: &Fields) -> Result<u64, Failure> {
        let exec_id = fields.needed_text("exec_id")?;
        self.by_id
            .get(exec_id)
            .copied()
            .ok_or_else(|| Failure::new("unknown_exec", "no command has that exec_id"))
    }

    pub fn exec_output(&mut self, id: u64, stream: u32, fields: &Fields) -> Result<(), Failure> {
        let exec = self.find(fields)?;
        let follow = Follow {
            exec,
            seq: fields.number("since_seq")?.unwrap_or(0),
            sent: [0; SOURCES],
            announce: false,
            to_the_end: fields.flag("follow", false)?,
            feeds: false,
        };
        self.watch_exec(id, stream, exec, Work::Follow(follow));
        Ok(())
    }

    pub fn exec_wait(&mut self, id: u64, stream: u32, fields: &Fields) -> Result<(), Failure> {
        let exec = self.find(fields)?;
        let timer = match fields.number("timeout_ms")? {
            Some(ms) => Some(self.timers.after_ms(ms, Due::Wait(id, stream))),
            None => None,
        };
        self.watch_exec(id, stream, exec, Work::Wait { exec, timer });
        Ok(())
    }

    pub fn wait_over(&mut self, id: u64, stream: u32) {
        let exec = self.connections.get(&id).and_then(|connection| {
            match connection.streams.get(&stream).map(|open| &open.work) {
                Some(Work::Wait { exec, .. }) => Some(*exec),
                _ => None,
            }
        });
        if let Some(number) = exec {
            self.answer_exec(id, stream, number);
        }
    }

    pub fn exec_stdin(&mut self, id: u64, stream: u32, fields: &Fields) -> Result<(), Failure> {
        let number = self.find(fields)?;
        let close = fields.flag("close", false)?;
        let feed = Feed {
            exec: number,
            close,
            received: 0,
            written: 0,
        };
        if !self.takes_input(number) {
            return Err(Failure::new("closed", "the command takes no input"));
        }
        self.watch_exec(id, stream, number, Work::Feed(feed));
        Ok(())
    }

    pub fn exec_signal(&mut self, id: u64, stream: u32, fields: &Fields) -> Result<(), Failure> {
        let number = self.find(fields)?;
        let signal = match fields.needed_number("signal")? {
            signal @ 1..=64 => signal as i32,
            _ => return Err(Failure::invalid("signal must be 1 to 64")),
        };
        let tree = fields.flag("tree", true)?;
        let until = self.signal_exec(number, signal, tree);
        self.watch_exec(
            id,
            stream,
            number,
            Work::Sweep {
                exec: number,
                until,
            },
        );
        Ok(())
    }

    pub fn exec_resize(&mut self, fields: &Fields) -> Result<Value, Failure> {
        let number = self.find(fields)?;
        let size = exec::parse_size(fields)?;
        let master =
            self.execs
                .get(&number)
                .and_then(|exec| match &exec.outputs[usize::from(PTY)] {
                    Some(watched) => Some(watched.raw()),
                    None => exec.resting.as_ref().map(|fd| fd.as_raw_fd()),
                });
        match master {
            Some(master) => pty::resize(master, size)
                .map(|()| empty())
                .map_err(|errno| Failure::from_errno(errno, "cannot resize the terminal")),
            None => Err(Failure::new("closed", "the command has no terminal")),
        }
    }

    pub fn exec_list(&self) -> Value {
        let newest = self.execs.values().rev().take(protocol::KEPT_RESULTS);
        let mut execs: Vec<Value> = newest.map(Exec::to_json).collect();
        execs.reverse();
        json!({ "execs": execs })
    }

    fn answer_exec(&mut self, id: u64, stream: u32, number: u64) {
        let body = match self.execs.get_mut(&number) {
            Some(exec) => {
                exec.watchers.retain(|watcher| *watcher != (id, stream));
                exec.to_json()
            }
            None => return,
        };
        self.answer(id, stream, &body);
    }

    pub fn tell_watchers(&mut self) {
        while let Some(&number) = self.changed.iter().next() {
            self.changed.remove(&number);
            let watchers = match self.execs.get(&number) {
                Some(exec) => exec.watchers.clone(),
                None => continue,
            };
            for (id, stream) in watchers {
                self.attend(id, stream);
            }
        }
    }

    /// Gives a stream what its command has for it now.
    pub fn attend(&mut self, id: u64, stream: u32) {
        let connection = match self.connections.get_mut(&id) {
            Some(connection) => connection,
            None => return,
        };
        let open = match connection.streams.get_mut(&stream) {
            Some(open) => open,
            None => return,
        };
        let number = match open.work.exec() {
            Some(number) => number,
            None => return,
        };
        let exec = match self.execs.get_mut(&number) {
            Some(exec) => exec,
            None => return,
        };
        let over = exec.state.is_over();
        let done = match &mut open.work {
            Work::Verb { .. } => false,
            Work::Sweep { until, .. } => {
                if exec.supervisor.is_none() || exec.swept >= *until {
                    exec.watchers.retain(|watcher| *watcher != (id, stream));
                    self.answer(id, stream, &empty());
                }
                return;
            }
            Work::Begin { .. } => exec.state != State::Queued || exec.is_shell(),
            Work::Wait { timer, .. } => {
                if let Some(timer) = timer.take().filter(|_| over) {
                    self.timers.cancel(timer);
                }
                over
            }
            Work::Feed(feed) => {
                let (bytes, close) = (feed.written, feed.close);
                let waits = feed.written < feed.received || !open.ended;
                let open_or_soon = exec.input.is_open() || exec.state == State::Queued;
                if waits && open_or_soon {
                    return;
                }
                exec.watchers.retain(|watcher| *watcher != (id, stream));
                if feed.written < feed.received {
                    let failure = Failure::new("closed", "the command closed its input");
                    self.answer_error(id, stream, &failure);
                } else {
                    self.answer(id, stream, &json!({ "bytes": bytes }));
                    if close {
                        self.close_input(number);
                    }
                }
                return;
            }
            Work::Follow(follow) => {
                if follow.announce && exec.state == State::Queued {
                    return;
                }
                if follow.announce {
                    follow.announce = false;
                    let started = json!({
                        "event": "started",
                        "exec_id": exec.start.exec_id,
                        "pid": exec.pid,
                    });
                    connection.out.event(stream, &started);
                }
                loop {
                    let chunk = match exec.ring.next(follow.seq, &follow.sent) {
                        Some(chunk) => chunk,
                        None => break over || !follow.to_the_end,
                    };
                    let cost = chunk_body(&chunk) as u64;
                    if connection.out.room() == 0 {
                        connection.out.stalled = true;
                        return;
                    }
                    if open.credit < cost {
                        return;
                    }
                    open.credit -= cost;
                    connection.out.chunk(stream, &chunk);
                    follow.seq = chunk.seq;
                    follow.sent[usize::from(chunk.source)] = chunk.offset + chunk.len() as u64;
                    let seq = chunk.seq;
                    exec.ring.saw(seq);
                }
            }
        };
        if done {
            self.answer_exec(id, stream, number);
        }
    }

    /// The command never began: whoever waits for it gets the reason, and nothing remembers it.
    pub fn fail_exec(&mut self, number: u64, failure: &Failure) {
        let mut exec = match self.forget_exec(number) {
            Some(exec) => exec,
            None => return,
        };
        for output in exec.outputs.iter_mut().filter_map(Option::take) {
            drop(self.poll.unwatch(output));
        }
        if let Some(pipe) = exec.input.pipe.take() {
            drop(self.poll.unwatch(pipe));
        }
        if let Some(timer) = exec.timer.take() {
            self.timers.cancel(timer);
        }
        if exec.watchers.is_empty() {
            // Refused while its `exec.start` is still being read: that stream gets the reason.
            self.stillborn = Some(failure.clone());
        }
        for (id, stream) in exec.watchers {
            self.answer_error(id, stream, failure);
        }
    }
}
