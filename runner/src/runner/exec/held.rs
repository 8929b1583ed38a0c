//! Held programs: processes that are started before their command is known, and become that command.
//!
//! A held program writes one byte to its standard output when it is ready, and then reads its standard
//! input. One message arrives there with what a fresh process gets from exec (arguments, environment,
//! directory); the bytes after it are the command's input. A program that did anything else is ended,
//! and the command gets a fresh process. Which programs are held, and why, only the engine knows.

use super::command::Pending;
use super::process::{environment, working_directory};
use super::{Execs, Start, State, What, STDERR, STDOUT};
use crate::context::Context;
use crate::ring::Ring;
use crate::supervisor::Order;
use crate::sys;
use crate::wire::handler::Failure;

const READY: &[u8] = &[6];

impl Execs {
    /// Return the held program that the request names. `None` if there is none. One that is not ready, or
    /// that wrote more than the byte, is ended, and is `None` too.
    pub fn find_held(&mut self, start: &Start, cx: &mut Context) -> Option<u64> {
        let number = *self.by_id.get(start.held.as_deref()?)?;
        self.drain_outputs(number, cx);
        let exec = self.by_number.get_mut(&number)?;
        if !exec.start.hold || exec.state.is_over() {
            return None;
        }
        let silent = exec.ring.written(STDOUT) == READY.len() as u64
            && exec.ring.written(STDERR) == 0
            && exec.ring.starts_with(STDOUT, READY);
        let waits = exec.state == State::Running && exec.status.is_none();
        let open = exec.input.pipe.is_some() && exec.has_output(STDOUT) && exec.has_output(STDERR);
        if silent && waits && open && start.pty.is_none() && !start.hold {
            return Some(number);
        }
        exec.killed_by_us = true;
        cx.supervisors.order(exec.supervisor, Order::Sweep);
        None
    }

    /// Make a held program the command of this request. The command begins now.
    pub fn hand_over(&mut self, number: u64, start: Start, cx: &mut Context) {
        let message = message(&start, cx);
        let Some(exec) = self.by_number.get_mut(&number) else {
            return;
        };
        self.by_id.remove(&exec.start.exec_id);
        self.by_id.insert(start.exec_id.clone(), number);
        if let Some(key) = &start.key {
            self.by_key.insert(key.clone(), number);
        }
        exec.start = start;
        exec.start.base_env = None;
        exec.ring = Ring::new(exec.start.caps);
        exec.cpu_before_ms = sys::cpu_ms_of(exec.pid);
        exec.input.closing = !exec.start.stdin_stream;
        exec.input.queue.push_back(Pending {
            bytes: message,
            done: 0,
            owner: None,
        });
        let failure = Failure::new("closed", "the held program became another command");
        for stream in std::mem::take(&mut exec.watchers) {
            cx.clients.answer_error(stream, &failure);
        }
        exec.about_to_begin();
        self.arm_deadline(number, cx);
        self.write_input(number, false, cx);
    }
}

/// Return the message to a held program: `u32be length`, then strings with a NUL between them. They are
/// `none` or `stream` for the rest of the input, the directory, the number of arguments, the arguments,
/// and the environment as `NAME=VALUE`.
fn message(start: &Start, cx: &Context) -> Vec<u8> {
    let argv: &[Vec<u8>] = match &start.what {
        What::Argv { words, .. } => words,
        What::Shell { .. } => &[],
    };
    let input: &[u8] = if start.stdin_stream {
        b"stream"
    } else {
        b"none"
    };
    let mut parts: Vec<Vec<u8>> = vec![
        input.to_vec(),
        working_directory(start, &cx.config),
        argv.len().to_string().into_bytes(),
    ];
    parts.extend_from_slice(argv);
    for (name, value) in environment(start, &cx.config) {
        parts.push([&name[..], b"=", &value].concat());
    }
    let body = parts.join(&0);
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}
