//! Persistent shells: one for each name, which runs one command after the other and keeps its state.
//!
//! This file handles names, queues and results; `lifecycle` the process of a shell. A shell gets its commands
//! through a FIFO and answers on a private descriptor (`script`, `answer`); both are closed for the processes
//! that it starts.

mod answer;
pub mod files;
mod lifecycle;
mod memory;
mod script;

use crate::context::Context;
use crate::exec::{parse_env, Execs, ShellEnd};
use crate::poll::Watched;
use crate::processes;
use crate::python_alias;
use crate::supervisor::program::{env_set, Env};
use crate::supervisor::{Order, Usage};
use crate::sys;
use crate::timers::TimerId;
use crate::wire::bytes;
use crate::wire::connection::empty;
use crate::wire::handler::Failure;
use crate::wire::protocol;
use crate::wire::request::{missing, Fields};
use answer::Answer;
use files::Directory;
use memory::Memory;
use serde_json::{json, Value};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No process.
    Absent,
    Starting,
    Idle,
    /// The supervisor is recording which processes exist before the command.
    Recording,
    Delivering,
    Running,
    /// It has answered after its deadline; the processes that the command left are being killed.
    Settling,
    /// It was ordered to end; only its death counts now.
    Ending,
}

struct Shell {
    name: String,
    program: Vec<u8>,
    phase: Phase,
    pid: i32,
    current: Option<u64>,
    queue: VecDeque<u64>,
    cwd: Vec<u8>,
    supervisor: Option<i32>,
    /// Our end of the descriptor that the shell answers on.
    answer: Option<Watched>,
    /// What the shell has written of its next answer.
    received: Vec<u8>,
    /// The answer of a command past its deadline, kept until every process that it started is dead.
    late_answer: Option<Answer>,
    directory: Option<Directory>,
    env: Option<Env>,
    last_code: i32,
    /// Resources that it had used before the current command.
    used: Usage,
    /// It died since its last command: the next one must report that.
    lost_state: bool,
    restarts: u32,
    retries: u32,
    answer_timer: Option<TimerId>,
    watch_timer: Option<TimerId>,
    memory: Memory,
    closing: bool,
}

impl Shell {
    fn new(name: &str, program: Vec<u8>, cwd: Vec<u8>) -> Shell {
        Shell {
            name: name.to_owned(),
            program,
            phase: Phase::Absent,
            pid: 0,
            current: None,
            queue: VecDeque::new(),
            cwd,
            supervisor: None,
            answer: None,
            received: Vec::new(),
            late_answer: None,
            directory: None,
            env: None,
            last_code: 0,
            used: Usage::default(),
            lost_state: false,
            restarts: 0,
            retries: 0,
            answer_timer: None,
            watch_timer: None,
            memory: Memory::default(),
            closing: false,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "pid": self.pid,
            "busy": self.current.is_some(),
            "queued": self.queue.len(),
            "cwd": bytes::to_json(&self.cwd),
            "program": bytes::to_json(&self.program),
        })
    }
}

pub struct Shells {
    by_id: BTreeMap<u64, Shell>,
    /// Where each shell has its own directory.
    state_dir: Vec<u8>,
}

impl Shells {
    pub fn new(state_dir: Vec<u8>) -> Shells {
        Shells {
            by_id: BTreeMap::new(),
            state_dir,
        }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Return the command that this shell runs now.
    pub fn current_exec(&self, id: u64) -> Option<u64> {
        self.by_id.get(&id)?.current
    }

    /// Return the pids of shells that wait for their next command.
    pub fn idle_pids(&self) -> impl Iterator<Item = i32> + '_ {
        let idle = self.by_id.values().filter(|s| s.phase == Phase::Idle);
        idle.map(|shell| shell.pid)
    }

    /// Return the last directory of a shell and what it last exported, for a process that starts beside it.
    pub fn state(&self, name: &str) -> Option<(Vec<u8>, Option<Env>)> {
        let shell = self.by_id.get(&self.find(name)?)?;
        if !files::is_directory(&shell.cwd) {
            return None;
        }
        let env = shell.env.as_ref();
        let env = env.map(|saved| files::start_env(saved, None, &shell.cwd));
        Some((shell.cwd.clone(), env))
    }

    fn find(&self, name: &str) -> Option<u64> {
        let mut shells = self.by_id.iter();
        let found = shells.find(|(_, shell)| shell.name == name && !shell.closing);
        found.map(|(id, _)| *id)
    }

    /// Put a command into the queue of its shell, which is started on first use.
    pub fn queue(
        &mut self,
        name: &str,
        number: u64,
        execs: &mut Execs,
        cx: &mut Context,
    ) -> Result<(), Failure> {
        let program = cx.config.shell.clone();
        let program = program.ok_or_else(|| Failure::new("no_shell", "the image has no shell"))?;
        let id = match self.find(name) {
            Some(id) => id,
            None => {
                if self.by_id.len() >= protocol::MAX_SHELLS {
                    return Err(Failure::new("busy", "64 shells are open"));
                }
                let id = cx.next_serial();
                let shell = Shell::new(name, program, cx.config.workspace.clone());
                self.by_id.insert(id, shell);
                id
            }
        };
        if let Some(shell) = self.by_id.get_mut(&id) {
            shell.queue.push_back(number);
        }
        self.advance(id, execs, cx);
        Ok(())
    }

    /// Take the next command, if the shell is free for it.
    fn advance(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        loop {
            let Some(shell) = self.by_id.get_mut(&id) else {
                return;
            };
            if shell.current.is_none() {
                match shell.queue.pop_front() {
                    Some(number) => shell.current = Some(number),
                    None => return,
                }
                shell.restarts = 0;
                if let Some(failure) = invalid_directory(shell, execs) {
                    self.refuse_current(id, &failure, execs, cx);
                    continue;
                }
            }
            let outcome = match shell.phase {
                Phase::Absent => self.launch(id, cx),
                Phase::Idle => {
                    self.record_processes(id, execs, cx);
                    Ok(())
                }
                _ => Ok(()),
            };
            match outcome {
                Ok(()) => return,
                Err(failure) => self.refuse_current(id, &failure, execs, cx),
            }
        }
    }

    fn refuse_current(&mut self, id: u64, failure: &Failure, execs: &mut Execs, cx: &mut Context) {
        let shell = self.by_id.get_mut(&id);
        if let Some(number) = shell.and_then(|shell| shell.current.take()) {
            execs.refuse(number, failure, cx);
        }
    }

    /// Have the supervisor record which processes exist, so that a sweep of the command spares them.
    fn record_processes(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        let childless = |pid| processes::children(pid).is_some_and(|list| list.is_empty());
        let only_shell = |pid| processes::children(pid).is_some_and(|list| list == [shell.pid]);
        if childless(shell.pid) && shell.supervisor.is_some_and(only_shell) {
            // There is nothing to spare: no need to wait for the supervisor.
            self.prepare(id, execs, cx);
        } else {
            shell.phase = Phase::Recording;
            cx.supervisors
                .order(shell.supervisor, Order::RecordProcesses);
        }
    }

    /// The shell has answered: its command is over, unless that is past its deadline and left processes.
    fn command_done(&mut self, id: u64, answer: Answer, execs: &mut Execs, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        shell.received.clear();
        shell.received.shrink_to(64 << 10);
        if let Some(timer) = shell.answer_timer.take() {
            cx.timers.cancel(timer);
        }
        let late = shell
            .current
            .is_some_and(|number| execs.cancel_grace(number, cx));
        if late {
            shell.phase = Phase::Settling;
            shell.late_answer = Some(answer);
            cx.supervisors.order(shell.supervisor, Order::Sweep);
        } else {
            self.take_answer(id, answer, execs, cx);
        }
    }

    /// The processes of a command past its deadline are dead: its answer counts now.
    fn take_late_answer(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        let shell = self.by_id.get_mut(&id);
        if let Some(answer) = shell.and_then(|shell| shell.late_answer.take()) {
            self.take_answer(id, answer, execs, cx);
        }
    }

    fn take_answer(&mut self, id: u64, answer: Answer, execs: &mut Execs, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        shell.phase = Phase::Idle;
        shell.last_code = answer.exit_code;
        shell.cwd = files::current_directory(shell.pid, answer.pwd);
        shell.env = Some(answer.env);
        let io = files::io_counts(shell.pid);
        shell.memory.finish(shell.pid);
        let usage = Usage {
            cpu_ms: answer.cpu_ms.saturating_sub(shell.used.cpu_ms),
            peak_rss_bytes: shell.memory.peak_bytes,
            read_bytes: io.0.saturating_sub(shell.used.read_bytes),
            write_bytes: io.1.saturating_sub(shell.used.write_bytes),
        };
        shell.used = Usage {
            cpu_ms: answer.cpu_ms,
            peak_rss_bytes: 0,
            read_bytes: io.0,
            write_bytes: io.1,
        };
        let end = ShellEnd::Answered {
            exit_code: answer.exit_code,
            usage,
        };
        self.end_command(id, end, execs, cx);
        self.advance(id, execs, cx);
    }

    /// The current command is over: take its last output and remove its files.
    fn end_command(&mut self, id: u64, end: ShellEnd, execs: &mut Execs, cx: &mut Context) {
        let Some(shell) = self.by_id.get_mut(&id) else {
            return;
        };
        let Some(number) = shell.current.take() else {
            return;
        };
        if let Some(timer) = shell.watch_timer.take() {
            cx.timers.cancel(timer);
        }
        shell.memory.stop(cx);
        execs.end_in_shell(number, end, shell.cwd.clone(), cx);
        if let Some(directory) = shell.directory.as_mut() {
            directory.clean(&cx.config.identity, execs.get(number));
        }
    }

    /// Take a command out of its queue. Return false if it is not queued any more.
    pub fn withdraw(&mut self, number: u64) -> bool {
        for shell in self.by_id.values_mut() {
            shell.queue.retain(|queued| *queued != number);
        }
        let mut shells = self.by_id.values();
        !shells.any(|shell| shell.current == Some(number))
    }

    /// Remove the directories of all shells, and the state directory if nothing else is in it.
    pub fn remove_directories(&mut self, cx: &Context) {
        let identity = &cx.config.identity;
        for shell in self.by_id.values_mut() {
            if let Some(directory) = shell.directory.take() {
                directory.remove(identity);
            }
        }
        python_alias::remove(&self.state_dir, identity);
        identity.as_runner(|| sys::remove_dir(&self.state_dir));
    }

    pub fn list(&self) -> Value {
        let shells: Vec<Value> = self.by_id.values().map(Shell::to_json).collect();
        json!({ "shells": shells })
    }

    /// Return the shells with what each has exported, and `base`, with which all of them started. An
    /// environment that an answer has no room for is null.
    pub fn list_with_state(&self, base: &Env) -> Value {
        let mut room = protocol::MAX_SHELL_STATE;
        let mut env = |env: &Env| {
            let pairs = env.iter();
            let pairs = pairs.filter_map(|(name, value)| {
                let name = std::str::from_utf8(name).ok()?;
                Some((name.to_owned(), bytes::to_json(value)))
            });
            let object = Value::Object(pairs.collect());
            let size = object.to_string().len();
            if size > room {
                return Value::Null;
            }
            room -= size;
            object
        };
        let base = env(base);
        let shells = self.by_id.values().map(|shell| {
            let mut state = shell.to_json();
            state["env"] = shell.env.as_ref().map_or(Value::Null, &mut env);
            state
        });
        json!({ "shells": shells.collect::<Vec<Value>>(), "env": base })
    }

    /// Open the shells that another sandbox had, each in its directory and with what it had exported or
    /// removed from the environment. Their processes start with their first commands.
    pub fn restore(&mut self, fields: &Fields, cx: &mut Context) -> Result<(), Failure> {
        let list = match fields.get("shells") {
            None => return Ok(()),
            Some(list) => list,
        };
        let list = list
            .as_array()
            .filter(|list| list.len() <= protocol::MAX_SHELLS && self.by_id.is_empty());
        let list = list.ok_or_else(|| Failure::invalid("shells must be a list, and only once"))?;
        for item in list {
            let fields = Fields(item);
            let name = fields.name("name", protocol::MAX_SHELL_NAME, b"_.-")?;
            let cwd = fields.bytes("cwd")?.ok_or_else(|| missing("cwd"))?;
            let mut env = cx.config.env.clone();
            for (name, value) in parse_env(&fields, false)? {
                env_set(&mut env, &name, value);
            }
            if let Some(unset) = fields.get("unset").and_then(Value::as_array) {
                env.retain(|(name, _)| !unset.iter().any(|gone| is_name(gone, name)));
            }
            if let Some(program) = cx.config.shell.clone() {
                let mut shell = Shell::new(name, program, cwd);
                shell.env = Some(env);
                self.by_id.insert(cx.next_serial(), shell);
            }
        }
        Ok(())
    }

    /// Close a shell: kill it and every process that it started, and refuse what is queued.
    pub fn close(
        &mut self,
        fields: &Fields,
        execs: &mut Execs,
        cx: &mut Context,
    ) -> Result<Value, Failure> {
        let name = fields.name("name", protocol::MAX_SHELL_NAME, b"_.-")?;
        let Some(id) = self.find(name) else {
            return Err(Failure::new("not_found", "no shell has that name"));
        };
        if let Some(shell) = self.by_id.get_mut(&id) {
            shell.closing = true;
            let waiting: Vec<u64> = shell.queue.drain(..).collect();
            let (absent, supervisor) = (shell.phase == Phase::Absent, shell.supervisor);
            if let Some(number) = shell.current {
                execs.mark_killed(number);
            }
            for number in waiting {
                execs.refuse(number, &closed(), cx);
            }
            if absent {
                self.remove(id, execs, cx);
            } else {
                cx.supervisors.order(supervisor, Order::End);
            }
        }
        Ok(empty())
    }

    fn remove(&mut self, id: u64, execs: &mut Execs, cx: &mut Context) {
        self.refuse_current(id, &closed(), execs, cx);
        self.by_id.remove(&id);
    }
}

fn is_name(value: &Value, name: &[u8]) -> bool {
    value.as_str().is_some_and(|text| text.as_bytes() == name)
}

fn closed() -> Failure {
    Failure::new("closed", "the shell was closed")
}

/// Check the directory of the current command before anything runs, so that a bad one is an error.
fn invalid_directory(shell: &Shell, execs: &Execs) -> Option<Failure> {
    let exec = execs.get(shell.current?)?;
    let cwd = exec.start.cwd.as_ref()?;
    let path = if cwd.starts_with(b"/") {
        cwd.clone()
    } else {
        [&shell.cwd[..], b"/", cwd].concat()
    };
    let errno = match sys::stat(&path) {
        Ok(stat) if sys::is_dir(&stat) => return None,
        Ok(_) => libc::ENOTDIR,
        Err(errno) => errno,
    };
    let shown = String::from_utf8_lossy(cwd);
    Some(Failure::from_errno(errno, format!("cannot enter {shown}")))
}
