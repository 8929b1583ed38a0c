//! Requests: from an OPEN frame to the part that serves its verb.

use super::Server;
use crate::exec::{parse_env, Signalled, Start, What};
use crate::fs;
use crate::port;
use crate::processes::{self, Owners};
use crate::python_alias;
use crate::shell::files;
use crate::stats;
use crate::supervisor::program::{env_get, env_set, Env};
use crate::supervisor::Owner;
use crate::sys;
use crate::wire::clients::StreamId;
use crate::wire::connection::{empty, Work};
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::Fields;
use serde_json::Value;
use std::collections::HashMap;

impl Server {
    /// Open a stream. Return false when the client broke the protocol.
    pub(super) fn open(&mut self, stream: StreamId, body: &[u8]) -> bool {
        let request: Value = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(_) => return false,
        };
        let open = match self.cx.clients.get_mut(stream.0) {
            Some(connection) => &connection.streams,
            None => return true,
        };
        if stream.1 == 0 || open.contains_key(&stream.1) {
            return false;
        }
        let full = open.len() >= protocol::MAX_STREAMS;
        let observes = request.get("observe").and_then(Value::as_bool) == Some(true);
        if !observes {
            self.cx.touch_lease();
        }
        let outcome = if full {
            Err(Failure::new(
                "busy",
                "256 streams are open on this connection",
            ))
        } else {
            self.begin(stream, &request)
        };
        if let Err(failure) = outcome {
            self.cx.clients.answer_error(stream, &failure);
        }
        if let Some(open) = self.cx.clients.stream_mut(stream) {
            open.observes = observes;
        }
        true
    }

    fn begin(&mut self, stream: StreamId, request: &Value) -> Result<(), Failure> {
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
        let (execs, cx) = (&mut self.execs, &mut self.cx);
        match verb {
            "exec.start" => return self.start_exec(stream, request),
            "exec.signal" => return self.signal_exec(stream, &fields),
            "exec.output" => return execs.output(stream, &fields, cx),
            "exec.wait" => return execs.wait(stream, &fields, cx),
            "exec.stdin" => return execs.stdin(stream, &fields, cx),
            "port.connect" => {
                let handler = port::open(&fields)?;
                cx.clients.add_handler(stream, handler, &mut cx.poll);
                return Ok(());
            }
            _ if verb.starts_with("fs.") => {
                let identity = &cx.config.identity;
                let handler = fs::open_as(verb, request, &self.fs, identity)?;
                cx.clients.add_handler(stream, handler, &mut cx.poll);
                return Ok(());
            }
            _ => {}
        }
        let body = self.answer_at_once(verb, &fields)?;
        self.cx.clients.answer(stream, &body);
        if verb == "quiesce" {
            self.quiesce(fields.needed_number("ms")?, stream.0);
        }
        Ok(())
    }

    /// Serve the verbs whose result is known without waiting for anything.
    fn answer_at_once(&mut self, verb: &str, fields: &Fields) -> Result<Value, Failure> {
        match verb {
            "ping" => Ok(empty()),
            "exec.resize" => self.execs.resize(fields),
            "exec.list" => Ok(self.execs.list()),
            "shell.list" if fields.flag("state", false)? => {
                Ok(self.shells.list_with_state(&self.cx.config.env))
            }
            "shell.list" => Ok(self.shells.list()),
            "shell.close" => self.shells.close(fields, &mut self.execs, &mut self.cx),
            "proc.list" => Ok(processes::list(&self.process_owners())),
            "stats" => Ok(self.stats()),
            "lease" => {
                let (idle, life) = (fields.number("idle_ms")?, fields.number("lifetime_ms")?);
                fields.flag("close_idle", false)?;
                if fields.get("env").is_some() {
                    self.claim(parse_env(fields, false)?)?;
                }
                self.shells.restore(fields, &mut self.cx)?;
                let now = self.cx.timers.work_now();
                self.cx.lease.set(now, sys::boot_ns(), idle, life);
                self.arm_lease();
                Ok(empty())
            }
            "freeze" => match fields.get("frozen").and_then(Value::as_bool) {
                Some(frozen) => {
                    self.cx.timers.freeze(frozen);
                    // The lifetime went on meanwhile.
                    self.arm_lease();
                    Ok(empty())
                }
                None => Err(Failure::invalid("frozen must be true or false")),
            },
            "quiesce" => fields.needed_number("ms").map(|_| empty()),
            _ => Err(Failure::new("internal", "a listed verb is not implemented")),
        }
    }

    /// Add the variables of the caller that the sandbox was kept ready for. Refused a second time: a
    /// sandbox has one owner.
    fn claim(&mut self, more: Env) -> Result<(), Failure> {
        let config = &mut self.cx.config;
        let refused = || Failure::invalid("the environment was set already");
        let mut env = config.unclaimed.take().ok_or_else(refused)?;
        for (name, value) in more {
            env_set(&mut env, &name, value);
        }
        python_alias::offer(&mut env, &config.state_dir, &config.identity);
        if !config.fixed_shell {
            config.shell = files::find_shell(env_get(&env, b"PATH"));
        }
        config.env = env;
        Ok(())
    }

    fn start_exec(&mut self, stream: StreamId, request: &Value) -> Result<(), Failure> {
        let start = Start::parse(request)?;
        let (follow, stdin_stream) = (start.follow, start.stdin_stream);
        let started = self.execs.find_started(&start);
        let feeds = stdin_stream && started.is_none();
        let number = match started {
            Some(number) => number,
            None => self.start_new(start)?,
        };
        self.execs
            .follow_start(number, follow, feeds, stream, &mut self.cx);
        Ok(())
    }

    fn start_new(&mut self, mut start: Start) -> Result<u64, Failure> {
        let shell = match &start.what {
            What::Shell { name, .. } => Some(name.clone()),
            What::Argv { state_of, .. } => {
                let state = state_of.as_ref().and_then(|name| self.shells.state(name));
                if let Some((cwd, env)) = state {
                    start.cwd.get_or_insert(cwd);
                    start.base_env = env;
                }
                None
            }
        };
        if shell.is_none() {
            if let Some(number) = self.execs.find_held(&start, &mut self.cx) {
                self.execs.hand_over(number, start, &mut self.cx);
                return Ok(number);
            }
        }
        let number = self.execs.add(start, &mut self.cx)?;
        let outcome = match shell {
            None => self.execs.start_process(number, &mut self.cx),
            Some(name) => self
                .shells
                .queue(&name, number, &mut self.execs, &mut self.cx),
        };
        self.execs.confirm(number, outcome)
    }

    fn signal_exec(&mut self, stream: StreamId, fields: &Fields) -> Result<(), Failure> {
        let exec = self.execs.find(fields)?;
        let signal = match fields.needed_number("signal")? {
            signal @ 1..=64 => signal as i32,
            _ => return Err(Failure::invalid("signal must be 1 to 64")),
        };
        let tree = fields.flag("tree", true)?;
        let until = match self.execs.signal(exec, signal, tree, &mut self.cx) {
            Signalled::Sent { until } => until,
            Signalled::InQueue => {
                if self.shells.withdraw(exec) {
                    self.execs.withdraw(exec, signal, &mut self.cx);
                }
                0
            }
        };
        let work = Work::Sweep { exec, until };
        self.execs.attach(exec, stream, work, &mut self.cx);
        Ok(())
    }

    /// Return which command each supervisor carries, for `proc.list`.
    fn process_owners(&self) -> Owners {
        let mut by_supervisor = HashMap::new();
        for (pid, owner) in self.cx.supervisors.owners() {
            let exec = match owner {
                Owner::Exec(exec) => Some(exec),
                Owner::Shell(shell) => self.shells.current_exec(shell),
                Owner::None => None,
            };
            if let Some(exec) = exec.and_then(|number| self.execs.get(number)) {
                let since = if exec.is_shell() {
                    exec.started_ms()
                } else {
                    0
                };
                by_supervisor.insert(pid, (exec.start.exec_id.clone(), since));
            }
        }
        Owners { by_supervisor }
    }

    fn stats(&self) -> Value {
        let config = &self.cx.config;
        stats::collect(&stats::Counts {
            started_ns: self.started_ns,
            running: self.execs.active(),
            shells: self.shells.len(),
            connections: self.cx.clients.len(),
            directories: [&config.workspace, b"/tmp", &config.home],
        })
    }
}
