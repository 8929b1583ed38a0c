//! `exec` through a daemon: a command that gets no input.
//!
//! A command is started under a key. If its start is not confirmed, the other command line asks again
//! under the same key, and if its output breaks off, the other one follows it from there. So nothing runs
//! twice and nothing is printed twice.

use crate::chunk::Chunk;
use crate::daemon::Daemon;
use crate::events::Parser;
use crate::http::{Connection, Lost, Request, Response};
use crate::json::Json;
use crate::line::Line;
use crate::output::{is_terminal, STDERR};
use crate::run::{exit_status, SILENCE};
use crate::signals::Signals;
use crate::{Outcome, Stop, INTERRUPTED, NO_READER};
use sandkasten_runner::sys;
use serde_json::{json, Map, Value};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The most that a sandbox keeps for a slow reader, as in `commands/exec.py`.
const KEPT_BYTES: u32 = 8 << 20;
/// How long a command has to end after SIGTERM before it is killed.
const TERM_GRACE_S: u32 = 2;
const ANSWER: Duration = Duration::from_secs(60);
/// A signal is not worth a longer wait.
const SIGNAL: Duration = Duration::from_secs(10);
const MAX_WORDS: usize = 64 << 10;
const MAX_JSON: usize = 4 << 20;
/// A result that has one of these has more to report than its status.
const MORE_TO_REPORT: [&str; 5] = ["timed_out", "why", "network", "signal", "shell_reset"];

pub fn execute(line: &Line) -> Outcome {
    let (id, command) = command(&line.words).ok_or(Stop::Unusual)?;
    // A person sees that the shell is busy.
    let watched = command.len() == 1 && is_terminal(STDERR);
    if line.before.has("backend") || watched || has_input() {
        return Err(Stop::Unusual);
    }
    let options = options(line).ok_or(Stop::Unusual)?;
    let daemon = Daemon::find(&line.before).ok_or(Stop::Unusual)?;
    let mut signals = Signals::catch().map_err(|_| Stop::Unusual)?;
    let timeout = options.get("timeout_seconds").cloned();
    let timeout = timeout.map_or_else(|| default_timeout(&daemon, &signals, id), Ok)?;
    let key = new_key().ok_or(Stop::Unusual)?;
    let body = body(options, timeout, &key, command);
    let exec_id = start(&daemon, &signals, id, &body).map_err(|lost| match lost {
        Some(Lost::Signal(number)) => signalled(number),
        _ => Stop::Begun(json!({"url": daemon.url(), "key": key})),
    })?;
    let caught = signals.catch_interrupt().is_ok();
    let mut execution = Execution {
        daemon: &daemon,
        signals: &signals,
        path: format!("/v1/sessions/{}/execs/{}", id, exec_id),
        exec_id,
        seen: 0,
        interrupted: false,
    };
    if caught {
        execution.follow()
    } else {
        Err(execution.rest())
    }
}

/// Return the sandbox and the command; None if a word is unusual there.
fn command(words: &[String]) -> Option<(&str, &[String])> {
    let (id, rest) = words.split_first()?;
    let command = match rest.split_first()? {
        (first, command) if first == "--" => command,
        // It may be an option of exec in the wrong place.
        (first, _) if first.starts_with('-') => return None,
        _ => rest,
    };
    let size: usize = command.iter().map(String::len).sum();
    (is_id(id) && !command.is_empty() && size <= MAX_WORDS).then_some((id.as_str(), command))
}

/// Return whether this is a whole id; the other command line looks for the start of one.
fn is_id(word: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    word.strip_prefix("sbx_")
        .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(is_digit))
}

/// Return whether stdin is a pipe or a file: not a terminal, /dev/null or closed.
fn has_input() -> bool {
    let (input, null) = (
        std::fs::metadata("/dev/stdin"),
        std::fs::metadata("/dev/null"),
    );
    match (input, null) {
        (Ok(input), Ok(null)) => {
            !is_terminal(0) && (input.dev(), input.ino()) != (null.dev(), null.ino())
        }
        // The other command line looks without /proc.
        _ => true,
    }
}

/// Return the options by their names in a request; None if one is unusual.
fn options(line: &Line) -> Option<Map<String, Value>> {
    let mut options = Map::new();
    if let Some(seconds) = line.options.timeout().ok()? {
        (seconds > 0.0).then_some(())?;
        options.insert("timeout_seconds".into(), seconds.into());
    }
    if let Some(cwd) = line.options.get("cwd") {
        options.insert("cwd".into(), cwd.into());
    }
    if line.options.has("env") {
        options.insert("env".into(), line.options.environment()?.into());
    }
    let shell = line.options.get("shell").filter(|shell| !shell.is_empty());
    options.insert("shell".into(), shell.unwrap_or("default").into());
    Some(options)
}

/// Ask for the deadline that a command has in this sandbox if it is waited for.
fn default_timeout(daemon: &Daemon, signals: &Signals, id: &str) -> Result<Value, Stop> {
    let path = format!("/v1/sessions/{}", id);
    let info = Connection::open(daemon, signals)
        .and_then(|connection| connection.ask(daemon, &Request::get(&path), Some(ANSWER)))
        .and_then(|response| {
            if response.status == 200 {
                response.json(MAX_JSON)
            } else {
                Ok(None)
            }
        });
    let info = match info {
        Err(Lost::Signal(number)) => return Err(signalled(number)),
        info => info
            .ok()
            .flatten()
            .filter(|info| info.get("id").string() == Some(id)),
    };
    match info
        .as_ref()
        .map(|info| info.get("limits").get("exec_timeout_seconds"))
    {
        Some(Json::Float(seconds)) => Ok((*seconds).into()),
        _ => Err(Stop::Unusual),
    }
}

fn new_key() -> Option<String> {
    Some(format!(
        "auto-{}{}",
        sys::random_name().ok()?,
        &sys::random_name().ok()?[..8]
    ))
}

fn body(options: Map<String, Value>, timeout: Value, key: &str, command: &[String]) -> String {
    let mut body = options;
    body.insert("timeout_seconds".into(), timeout);
    body.insert("idempotency_key".into(), key.into());
    body.insert("max_output_bytes".into(), KEPT_BYTES.into());
    body.insert("background".into(), true.into());
    if let [script] = command {
        body.insert("stateful".into(), true.into());
        body.insert("cmd".into(), script.as_str().into());
    } else {
        body.insert("cmd".into(), command.into());
    }
    Value::from(body).to_string()
}

/// Start the command and return its id; without one the start was not confirmed.
fn start(daemon: &Daemon, signals: &Signals, id: &str, body: &str) -> Result<String, Option<Lost>> {
    let path = format!("/v1/sessions/{}/exec", id);
    let request = Request::post(&path, body.as_bytes());
    let response = Connection::open(daemon, signals)?.ask(daemon, &request, Some(ANSWER))?;
    if response.status >= 300 {
        return Err(None);
    }
    let started = response.json(MAX_JSON)?.ok_or(None)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let exec_id = started
        .get("exec_id")
        .string()
        .filter(|id| id.bytes().all(is_plain));
    exec_id
        .filter(|id| !id.is_empty())
        .map(Into::into)
        .ok_or(None)
}

fn signalled(number: i32) -> Stop {
    Stop::Exit(if number == libc::SIGINT {
        INTERRUPTED
    } else {
        128 + number
    })
}

/// A command that has started.
struct Execution<'a> {
    daemon: &'a Daemon,
    signals: &'a Signals,
    path: String,
    exec_id: String,
    /// The number of the last piece of output that was printed.
    seen: i64,
    /// Whether Ctrl-C was sent to it.
    interrupted: bool,
}

impl<'a> Execution<'a> {
    /// Show the output until the end; signals go to the command.
    fn follow(&mut self) -> Outcome {
        let mut response = self.output()?;
        let mut parser = Parser::default();
        loop {
            let piece = match response.piece() {
                Err(Lost::Signal(number)) => {
                    self.signalled(number)?;
                    continue;
                }
                piece => piece.ok().flatten().ok_or_else(|| self.rest())?,
            };
            for event in parser.feed(&piece).map_err(|_| self.rest())? {
                let value = Json::parse(event.data.as_bytes()).ok_or_else(|| self.rest())?;
                match event.name.as_str() {
                    "done" => {
                        return exit_status(&value, &MORE_TO_REPORT).ok_or_else(|| self.rest())
                    }
                    "chunk" => self.show(&value)?,
                    "error" => return Err(self.rest()),
                    _ => {}
                }
            }
        }
    }

    /// Ask for the output from the beginning.
    fn output(&mut self) -> Result<Response<'a>, Stop> {
        let path = format!("{}/output?since_seq=0", self.path);
        let request = Request {
            accept: "text/event-stream",
            ..Request::get(&path)
        };
        let (daemon, signals) = (self.daemon, self.signals);
        loop {
            let response = Connection::open(daemon, signals)
                .and_then(|connection| connection.ask(daemon, &request, Some(SILENCE)));
            match response {
                Err(Lost::Signal(number)) => self.signalled(number)?,
                Ok(mut response) if response.status == 200 => {
                    response.silence = Some(SILENCE);
                    return Ok(response);
                }
                _ => return Err(self.rest()),
            }
        }
    }

    fn show(&mut self, value: &Json) -> Result<(), Stop> {
        let seq = value.get("seq").int().ok_or_else(|| self.rest())?;
        if seq <= self.seen {
            return Ok(());
        }
        let chunk = Chunk::of(value).ok_or_else(|| self.rest())?;
        let mut failure = None;
        let printed = chunk.print(
            self.signals,
            |number| self.signalled(number).map_err(Some),
            |errno| {
                failure = Some(errno);
                None
            },
        );
        match (printed, failure) {
            (Ok(()), _) => {
                self.seen = seq;
                Ok(())
            }
            (Err(Some(stop)), _) => Err(stop),
            (Err(None), Some(libc::EPIPE)) => {
                // The reader has left, as with `yes | head`: the output would go nowhere.
                self.send(libc::SIGPIPE);
                Err(Stop::Exit(NO_READER))
            }
            (Err(None), _) => Err(self.rest()),
        }
    }

    /// Do what a signal is for: Ctrl-C is for the command, the others end us and the command with us.
    fn signalled(&mut self, number: i32) -> Result<(), Stop> {
        if number == libc::SIGINT {
            self.interrupted = true;
            self.send(number);
            return Ok(());
        }
        // A second one ends this process at once.
        self.signals.let_through(number);
        self.end();
        Err(Stop::Exit(128 + number))
    }

    fn end(&self) {
        self.send(libc::SIGTERM);
        let path = format!("{}?wait_seconds={}", self.path, TERM_GRACE_S);
        let state = self.ask(&Request::get(&path), ANSWER);
        if state.is_some_and(|state| state.get("status").string() == Some("running")) {
            self.send(libc::SIGKILL);
        }
    }

    /// Send a signal to the command, which may have ended just now.
    fn send(&self, number: i32) {
        let path = format!("{}/signal", self.path);
        let body = json!({ "signal": number }).to_string();
        self.ask(&Request::post(&path, body.as_bytes()), SIGNAL);
    }

    fn ask(&self, request: &Request, limit: Duration) -> Option<Json> {
        let signals = Signals::none().ok()?;
        let connection = Connection::open(self.daemon, &signals).ok()?;
        connection
            .ask(self.daemon, request, Some(limit))
            .ok()?
            .json(MAX_JSON)
            .ok()?
    }

    /// Leave what is still to be shown to the other command line.
    fn rest(&self) -> Stop {
        Stop::Begun(json!({
            "url": self.daemon.url(), "exec_id": self.exec_id, "seen": self.seen,
            "interrupted": self.interrupted,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sbx_0123456789abcdef";

    fn line(text: &str) -> Line {
        let words: Vec<String> = format!("exec {}", text)
            .split(' ')
            .map(Into::into)
            .collect();
        Line::parse(&words).unwrap()
    }

    #[test]
    fn the_command_is_what_follows_the_id() {
        let words = |text: &str| line(&format!("{} {}", ID, text)).words;
        let after_dashes = words("-- -x y");
        assert_eq!(
            command(&after_dashes),
            Some((ID, &["-x".to_owned(), "y".to_owned()][..]))
        );
        assert_eq!(command(&words("ls")).unwrap().1, ["ls"]);
        for text in ["-x", "--", "--json ls"] {
            assert_eq!(command(&words(text)), None, "{}", text);
        }
        assert_eq!(command(&[ID.into()]), None);
        assert_eq!(command(&[ID.into(), "x".repeat(MAX_WORDS + 1)]), None);
    }

    #[test]
    fn only_a_whole_id_is_one() {
        assert!(is_id(ID));
        for word in [
            "sbx_",
            "sbx_0123456789abcde",
            "sbx_0123456789abcdeF",
            "0123456789abcdef",
            "",
        ] {
            assert!(!is_id(word), "{}", word);
        }
    }

    #[test]
    fn one_word_is_for_the_shell() {
        let options = options(&line("--timeout 9 -w /tmp -e A=1 x y")).unwrap();
        let request = body(options.clone(), json!(9.0), "k", &["a b".into()]);
        let expected = json!({
            "timeout_seconds": 9.0, "cwd": "/tmp", "env": {"A": "1"}, "shell": "default",
            "idempotency_key": "k", "max_output_bytes": 8388608, "background": true, "stateful": true,
            "cmd": "a b",
        });
        assert_eq!(serde_json::from_str::<Value>(&request).unwrap(), expected);
        let request = body(options, json!(9.0), "k", &["a".into(), "b".into()]);
        let request = serde_json::from_str::<Value>(&request).unwrap();
        assert_eq!(
            (&request["cmd"], &request["stateful"]),
            (&json!(["a", "b"]), &Value::Null)
        );
    }

    #[test]
    fn unusual_options_are_left_to_the_other_parser() {
        for text in ["--timeout 0 x y", "--timeout 1m x y", "-e A x y"] {
            assert_eq!(options(&line(text)), None, "{}", text);
        }
    }

    #[test]
    fn every_key_is_new() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert!(one != other && one.len() == 29 && one.starts_with("auto-"));
    }
}
