//! The exec verbs that need only commands: output, wait, stdin, resize, list.

use super::start::parse_size;
use super::{pty, Exec, Execs, PTY};
use crate::context::Context;
use crate::ring::SOURCES;
use crate::timers::Due;
use crate::wire::clients::StreamId;
use crate::wire::connection::{empty, Feed, Follow, Work};
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::Fields;
use serde_json::{json, Value};
use std::os::unix::io::AsRawFd;

impl Execs {
    /// Serve the stream of an `exec.start`. `feeds`: its DATA is the command's standard input.
    pub fn follow_start(
        &mut self,
        number: u64,
        follow: bool,
        feeds: bool,
        stream: StreamId,
        cx: &mut Context,
    ) {
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
        self.attach(number, stream, work, cx);
    }

    /// Return the number of the command that `exec_id` names.
    pub fn find(&self, fields: &Fields) -> Result<u64, Failure> {
        let exec_id = fields.needed_text("exec_id")?;
        self.by_id
            .get(exec_id)
            .copied()
            .ok_or_else(|| Failure::new("unknown_exec", "no command has that exec_id"))
    }

    pub fn output(
        &mut self,
        stream: StreamId,
        fields: &Fields,
        cx: &mut Context,
    ) -> Result<(), Failure> {
        let exec = self.find(fields)?;
        let follow = Follow {
            exec,
            seq: fields.number("since_seq")?.unwrap_or(0),
            sent: [0; SOURCES],
            announce: false,
            to_the_end: fields.flag("follow", false)?,
            feeds: false,
        };
        self.attach(exec, stream, Work::Follow(follow), cx);
        Ok(())
    }

    pub fn wait(
        &mut self,
        stream: StreamId,
        fields: &Fields,
        cx: &mut Context,
    ) -> Result<(), Failure> {
        let exec = self.find(fields)?;
        let timer = match fields.number("timeout_ms")? {
            Some(ms) => Some(cx.timers.after_ms(ms, Due::Wait(stream.0, stream.1))),
            None => None,
        };
        self.attach(exec, stream, Work::Wait { exec, timer }, cx);
        Ok(())
    }

    /// The timeout of an `exec.wait` is over: answer with the present state.
    pub fn wait_over(&mut self, stream: StreamId, cx: &mut Context) {
        let exec = match cx.clients.stream_mut(stream).map(|open| &open.work) {
            Some(Work::Wait { exec, .. }) => *exec,
            _ => return,
        };
        self.answer(exec, stream, cx);
    }

    pub fn stdin(
        &mut self,
        stream: StreamId,
        fields: &Fields,
        cx: &mut Context,
    ) -> Result<(), Failure> {
        let number = self.find(fields)?;
        let close = fields.flag("close", false)?;
        if !self.get(number).is_some_and(Exec::takes_input) {
            return Err(Failure::new("closed", "the command takes no input"));
        }
        let feed = Feed {
            exec: number,
            close,
            received: 0,
            written: 0,
        };
        self.attach(number, stream, Work::Feed(feed), cx);
        Ok(())
    }

    pub fn resize(&mut self, fields: &Fields) -> Result<Value, Failure> {
        let number = self.find(fields)?;
        let size = parse_size(fields)?;
        let master = self
            .get(number)
            .and_then(|exec| match &exec.outputs[usize::from(PTY)] {
                Some(watched) => Some(watched.raw()),
                None => exec.unused_terminal.as_ref().map(|fd| fd.as_raw_fd()),
            });
        match master {
            Some(master) => pty::resize(master, size)
                .map(|()| empty())
                .map_err(|errno| Failure::from_errno(errno, "cannot resize the terminal")),
            None => Err(Failure::new("closed", "the command has no terminal")),
        }
    }

    pub fn list(&self) -> Value {
        let commands = self.by_number.values().filter(|exec| !exec.start.hold);
        let newest = commands.rev().take(protocol::KEPT_RESULTS);
        let mut execs: Vec<Value> = newest.map(Exec::to_json).collect();
        execs.reverse();
        json!({ "execs": execs })
    }
}
