//! Streams of a connection: opening them by verb, feeding them, driving their handlers, ending them.

use crate::poll::{self, Source};
use crate::port;
use crate::processes::{self, Owners};
use crate::server::{Owner, Server};
use crate::stats;
use crate::sys;
use crate::wire::connection::{empty, Stream, StreamOut, Watch, Work};
use crate::wire::handler::{Failure, Handler, Step};
use crate::wire::protocol;
use crate::wire::request::Fields;
use serde_json::Value;
use std::collections::HashMap;

enum Call<'a> {
    Step,
    Data(&'a [u8]),
    End,
}

impl Server {
    /// False when the client broke the protocol.
    pub fn open(&mut self, id: u64, stream: u32, body: &[u8]) -> bool {
        let request: Value = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(_) => return false,
        };
        let open = match self.connections.get(&id) {
            Some(connection) => &connection.streams,
            None => return true,
        };
        if stream == 0 || open.contains_key(&stream) {
            return false;
        }
        let full = open.len() >= protocol::MAX_STREAMS;
        self.lease.touch(self.timers.work_now());
        let outcome = if full {
            Err(Failure::new(
                "busy",
                "256 streams are open on this connection",
            ))
        } else {
            self.begin(id, stream, &request)
        };
        if let Err(failure) = outcome {
            self.answer_error(id, stream, &failure);
        }
        true
    }

    fn begin(&mut self, id: u64, stream: u32, request: &Value) -> Result<(), Failure> {
        let fields = Fields(request);
        if !request.is_object() {
            return Err(Failure::invalid("a request is a JSON object"));
        }
        let verb = fields.needed_text("verb")?;
        if !protocol::is_verb(verb) {
            return Err(Failure::new(
                "unsupported",
                "this runner does not know that verb",
            ));
        }
        match verb {
            "exec.start" => return self.exec_start(id, stream, request),
            "exec.output" => return self.exec_output(id, stream, &fields),
            "exec.signal" => return self.exec_signal(id, stream, &fields),
            "exec.wait" => return self.exec_wait(id, stream, &fields),
            "exec.stdin" => return self.exec_stdin(id, stream, &fields),
            "port.connect" => {
                let handler = port::open(&fields)?;
                self.add_handler(id, stream, handler);
                return Ok(());
            }
            _ if verb.starts_with("fs.") => {
                let handler = crate::fs::open(verb, request, &self.fs)?;
                self.add_handler(id, stream, handler);
                return Ok(());
            }
            _ => {}
        }
        let body = self.answer_at_once(verb, &fields)?;
        self.answer(id, stream, &body);
        if verb == "quiesce" {
            self.quiesce(fields.needed_number("ms")?, id);
        }
        Ok(())
    }

    /// Verbs whose result is known without waiting for anything.
    fn answer_at_once(&mut self, verb: &str, fields: &Fields) -> Result<Value, Failure> {
        match verb {
            "ping" => Ok(empty()),
            "exec.resize" => self.exec_resize(fields),
            "exec.list" => Ok(self.exec_list()),
            "shell.list" => Ok(self.shell_list()),
            "shell.close" => self.shell_close(fields),
            "proc.list" => Ok(processes::list(&self.owners())),
            "stats" => Ok(stats::collect(self)),
            "lease" => {
                let (idle, life) = (fields.number("idle_ms")?, fields.number("lifetime_ms")?);
                fields.flag("close_idle", false)?;
                let now = self.timers.work_now();
                self.lease.set(now, sys::boot_ns(), idle, life);
                self.arm_lease();
                Ok(empty())
            }
            "freeze" => match fields.get("frozen").and_then(Value::as_bool) {
                Some(frozen) => {
                    self.timers.freeze(frozen);
                    // The lifetime went on meanwhile.
                    self.arm_lease();
                    Ok(empty())
                }
                None => Err(Failure::invalid("frozen must be true or false")),
            },
            "quiesce" => fields.needed_number("ms").map(|_| empty()),
            _ => Err(Failure::new("internal", "a listed verb without a meaning")),
        }
    }

    fn owners(&self) -> Owners {
        let mut by_supervisor = HashMap::new();
        for (&pid, supervisor) in &self.supervisors {
            let exec = match supervisor.owner {
                Owner::Exec(exec) => Some(exec),
                Owner::Shell(shell) => self.shells.get(&shell).and_then(|s| s.current),
                Owner::Nobody => None,
            };
            if let Some(exec) = exec.and_then(|number| self.execs.get(&number)) {
                let since = if exec.is_shell() { exec.started_ms } else { 0 };
                by_supervisor.insert(pid, (exec.start.exec_id.clone(), since));
            }
        }
        Owners { by_supervisor }
    }

    pub fn answer(&mut self, id: u64, stream: u32, body: &Value) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.remove(&stream);
            connection.out.result(stream, body);
        }
    }

    pub fn answer_error(&mut self, id: u64, stream: u32, failure: &Failure) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.remove(&stream);
            connection.out.error(stream, failure);
        }
    }

    pub fn add_stream(&mut self, id: u64, stream: u32, work: Work) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams.insert(stream, Stream::new(work));
        }
    }

    fn add_handler(&mut self, id: u64, stream: u32, handler: Box<dyn Handler>) {
        let work = Work::Verb {
            handler,
            watch: None,
            queued: false,
        };
        self.add_stream(id, stream, work);
        self.drive(id, stream, Call::Step);
    }

    /// False when the client sent more than it was granted.
    pub fn take_data(&mut self, id: u64, stream: u32, bytes: &[u8]) -> bool {
        let open = match self.connections.get_mut(&id) {
            Some(connection) => connection.streams.get_mut(&stream),
            None => return true,
        };
        let open = match open {
            Some(open) if !open.ended => open,
            _ => return true,
        };
        let length = bytes.len() as u64;
        if length > open.window {
            return false;
        }
        open.window -= length;
        match &mut open.work {
            Work::Verb { .. } => self.drive(id, stream, Call::Data(bytes)),
            Work::Follow(follow) if follow.feeds => {
                let exec = follow.exec;
                self.push_input(exec, bytes, (id, stream));
            }
            Work::Begin { exec, feeds: true } => {
                let exec = *exec;
                self.push_input(exec, bytes, (id, stream));
            }
            Work::Feed(feed) => {
                feed.received += length;
                let exec = feed.exec;
                self.push_input(exec, bytes, (id, stream));
                self.attend(id, stream);
            }
            _ => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.grant(stream, length);
                }
            }
        }
        true
    }

    pub fn end(&mut self, id: u64, stream: u32) {
        let open = match self.connections.get_mut(&id) {
            Some(connection) => connection.streams.get_mut(&stream),
            None => return,
        };
        let open = match open {
            Some(open) if !open.ended => open,
            _ => return,
        };
        open.ended = true;
        match &open.work {
            Work::Verb { .. } => self.drive(id, stream, Call::End),
            Work::Follow(follow) if follow.feeds => {
                let exec = follow.exec;
                self.close_input(exec);
            }
            Work::Begin { exec, feeds: true } => {
                let exec = *exec;
                self.close_input(exec);
            }
            Work::Feed(_) => self.attend(id, stream),
            _ => {}
        }
    }

    pub fn take_credit(&mut self, id: u64, stream: u32, amount: u32) {
        let open = match self.connections.get_mut(&id) {
            Some(connection) => connection.streams.get_mut(&stream),
            None => return,
        };
        if let Some(open) = open {
            open.credit = open.credit.saturating_add(u64::from(amount));
            match open.work {
                Work::Verb { .. } => self.drive(id, stream, Call::Step),
                _ => self.attend(id, stream),
            }
        }
    }

    pub fn cancel(&mut self, id: u64, stream: u32) {
        let open = match self.connections.get_mut(&id) {
            Some(connection) => connection.streams.remove(&stream),
            None => return,
        };
        if let Some(open) = open {
            self.abandon(id, stream, open);
            self.answer_error(
                id,
                stream,
                &Failure::new("cancelled", "as the client asked"),
            );
        }
    }

    /// The stream is over without an answer of its own: undo what is half done.
    pub fn abandon(&mut self, id: u64, stream: u32, open: Stream) {
        match open.work {
            Work::Verb {
                mut handler, watch, ..
            } => {
                handler.cancel();
                if let Some(watch) = watch {
                    self.poll.remove(watch.fd, watch.token);
                }
            }
            work => {
                if let Work::Wait {
                    timer: Some(timer), ..
                } = work
                {
                    self.timers.cancel(timer);
                }
                if let Some(exec) = work.exec().and_then(|number| self.execs.get_mut(&number)) {
                    exec.watchers.retain(|watcher| *watcher != (id, stream));
                }
            }
        }
    }

    pub fn step_ready(&mut self, id: u64, stream: u32) {
        self.drive(id, stream, Call::Step);
    }

    /// A stream out of the queue: a handler's next step, or a reader that had no room before.
    pub fn step_again(&mut self, id: u64, stream: u32) {
        let open = match self.connections.get_mut(&id) {
            Some(connection) => connection.streams.get_mut(&stream),
            None => return,
        };
        match open.map(|open| &mut open.work) {
            Some(Work::Verb { queued, .. }) => {
                *queued = false;
                self.drive(id, stream, Call::Step);
            }
            Some(_) => self.attend(id, stream),
            None => {}
        }
    }

    fn drive(&mut self, id: u64, stream: u32, call: Call) {
        let connection = match self.connections.get_mut(&id) {
            Some(connection) => connection,
            None => return,
        };
        let open = match connection.streams.get_mut(&stream) {
            Some(open) => open,
            None => return,
        };
        let (handler, watch, queued) = match &mut open.work {
            Work::Verb {
                handler,
                watch,
                queued,
            } => (handler, watch, queued),
            _ => return,
        };
        let mut out = StreamOut {
            out: &mut connection.out,
            stream,
            credit: &mut open.credit,
            window: &mut open.window,
            done: false,
        };
        let step = match call {
            Call::Step => handler.step(&mut out),
            Call::Data(bytes) => handler.data(bytes, &mut out),
            Call::End => handler.end(&mut out),
        };
        if step == Step::Done || out.done {
            if !out.done {
                let failure = Failure::new("internal", "a verb ended without an answer");
                out.out.error(stream, &failure);
            }
            if let Some(watch) = watch.take() {
                self.poll.remove(watch.fd, watch.token);
            }
            connection.streams.remove(&stream);
            return;
        }
        // A handler that waits for room must be asked again when the socket has taken some.
        connection.out.stalled |= connection.out.pending() > 0;
        let mut again = step == Step::Again;
        let wanted = handler.interest().map(|(fd, read, write)| {
            let bits = if read { poll::READ } else { 0 } | if write { poll::WRITE } else { 0 };
            (fd, bits)
        });
        let wanted = wanted.filter(|wanted| wanted.1 != 0);
        if watch.as_ref().map(|w| (w.fd, w.interest)) != wanted {
            if let Some(old) = watch.take() {
                self.poll.remove(old.fd, old.token);
            }
            if let Some((fd, interest)) = wanted {
                match self.poll.add(fd, Source::Handler(id, stream), interest) {
                    Ok(token) => {
                        *watch = Some(Watch {
                            fd,
                            interest,
                            token,
                        })
                    }
                    // Not pollable (a regular file): always ready.
                    Err(_) => again = true,
                }
            }
        }
        if again && !*queued {
            *queued = true;
            self.again.push_back((id, stream));
        }
    }
}
