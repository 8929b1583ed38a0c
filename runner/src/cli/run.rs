//! `run` through a daemon: code in a new sandbox. Closing the connection ends it.

use crate::chunk::Chunk;
use crate::daemon::Daemon;
use crate::events::{Event, Parser};
use crate::http::{Connection, Lost, Request, Response};
use crate::json::Json;
use crate::line::Line;
use crate::signals::Signals;
use crate::{Outcome, Stop, INTERRUPTED, NO_READER};
use serde_json::{json, Map, Value};
use std::path::Path;
use std::time::Duration;

/// A daemon sends something every 15 s, if only a comment.
pub const SILENCE: Duration = Duration::from_secs(60);
const MAX_CODE: u64 = 8 << 20;
const MAX_ERROR: usize = 1 << 20;
/// The runtimes of files, which a test compares with `model/language_runtimes.py`.
const RUNTIME_OF_SUFFIX: [(&str, &str); 6] = [
    ("py", "python"),
    ("js", "node"),
    ("mjs", "node"),
    ("cjs", "node"),
    ("sh", "bash"),
    ("bash", "bash"),
];
/// A result that has one of these has more to report than its status.
const MORE_TO_REPORT: [&str; 5] = ["timed_out", "why", "warnings", "network", "signal"];

pub fn run(line: &Line) -> Outcome {
    let body = body(line).ok_or(Stop::Unusual)?.to_string();
    let daemon = Daemon::find(&line.before).ok_or(Stop::Unusual)?;
    let signals = Signals::catch().map_err(|_| Stop::Unusual)?;
    let connection = Connection::open(&daemon, &signals).map_err(|_| Stop::Unusual)?;
    let request = Request {
        accept: "text/event-stream",
        ..Request::post("/v1/run", body.as_bytes())
    };
    let run = Run {
        daemon: &daemon,
        signals: &signals,
    };
    // How long the sandbox takes to start is for the daemon to decide.
    let response = connection.ask(&daemon, &request, None);
    run.show(response.map_err(|lost| run.unanswered(&lost))?)
}

/// Return the request; None if something in it is unusual.
fn body(line: &Line) -> Option<Value> {
    let option = |name: &str| line.options.get(name).or_else(|| line.before.get(name));
    let (code, runtime, arguments) = program(line)?;
    if arguments.iter().any(|word| word.starts_with('-')) {
        return None;
    }
    let mut body = Map::new();
    body.insert("code".into(), code.into());
    body.insert("runtime".into(), runtime.into());
    if !arguments.is_empty() {
        body.insert("args".into(), arguments.into());
    }
    if line.options.has("env") {
        body.insert("env".into(), line.options.environment()?.into());
    }
    if let Some(seconds) = line.options.timeout().ok()? {
        body.insert("timeout_seconds".into(), seconds.into());
    }
    for name in ["image", "backend"] {
        if let Some(value) = option(name) {
            // An image with a tag may have to be pulled, which is reported.
            (!value.is_empty() && !value.contains(':')).then_some(())?;
            body.insert(name.into(), value.into());
        }
    }
    Some(body.into())
}

/// Return the code, its runtime and its arguments.
fn program(line: &Line) -> Option<(String, &str, &[String])> {
    let runtime = line
        .options
        .get("runtime")
        .filter(|runtime| !runtime.is_empty());
    if let Some(code) = line.options.get("code") {
        return Some((code.into(), runtime.unwrap_or("python"), &line.words));
    }
    let (name, arguments) = line.words.split_first()?;
    let path = Path::new(name);
    let file = std::fs::metadata(path).ok()?;
    // A pipe could not be read a second time.
    let readable = name != "-" && file.is_file() && file.len() <= MAX_CODE;
    let code = readable
        .then(|| std::fs::read_to_string(path).ok())
        .flatten()?;
    Some((code, runtime.unwrap_or_else(|| runtime_of(path)), arguments))
}

fn runtime_of(path: &Path) -> &'static str {
    let suffix = path.extension().unwrap_or_default();
    RUNTIME_OF_SUFFIX
        .iter()
        .find(|(known, _)| suffix == *known)
        .map_or("python", |(_, name)| name)
}

struct Run<'a> {
    daemon: &'a Daemon,
    signals: &'a Signals,
}

impl Run<'_> {
    fn show(&self, response: Response) -> Outcome {
        if response.status == 429 {
            // Nothing was done. The other command line knows when to ask again.
            return Err(Stop::Unusual);
        }
        if response.status >= 300 {
            return Err(self.refused(response));
        }
        let mut response = response;
        response.silence = Some(SILENCE);
        let mut parser = Parser::default();
        loop {
            let piece = response
                .piece()
                .map_err(|lost| self.broken(&lost))?
                .ok_or_else(|| {
                    self.unavailable(
                        "the connection was lost while the code ran".into(),
                        "the daemon ended the run; start it again",
                    )
                })?;
            let events = parser
                .feed(&piece)
                .map_err(|_| self.begun(json!({"too_large": true})))?;
            for event in events {
                if let Some(status) = self.event(&event)? {
                    return Ok(status);
                }
            }
        }
    }

    /// Show an event, and return the exit status if it is the last one.
    fn event(&self, event: &Event) -> Result<Option<i32>, Stop> {
        let value = Json::parse(event.data.as_bytes()).unwrap_or(Json::Null);
        let unusual = || self.begun(json!({"event": event.name, "data": event.data}));
        match event.name.as_str() {
            "chunk" => {
                let chunk = Chunk::of(&value).ok_or_else(unusual)?;
                chunk.print(
                    self.signals,
                    |number| Err(signalled(number)),
                    |errno| self.unwritten(errno),
                )?;
                Ok(None)
            }
            "done" => status(&value).map(Some).ok_or_else(unusual),
            "error" => Err(unusual()),
            _ if matches!(value, Json::Object(_)) => Ok(None),
            _ => Err(unusual()),
        }
    }

    fn refused(&self, response: Response) -> Stop {
        let status = response.status;
        match response.body(MAX_ERROR) {
            Ok(Some(body)) => {
                let text: String = body.into_iter().map(char::from).collect();
                self.begun(json!({"status": status, "body": text}))
            }
            Ok(None) => self.begun(json!({"status": status, "body": ""})),
            Err(lost) => self.unanswered(&lost),
        }
    }

    fn unwritten(&self, errno: i32) -> Stop {
        match errno {
            libc::EPIPE => Stop::Exit(NO_READER),
            errno => self.begun(json!({ "errno": errno })),
        }
    }

    fn unanswered(&self, lost: &Lost) -> Stop {
        let how = match lost {
            Lost::Signal(number) => return signalled(*number),
            Lost::Incomplete => "ServerDisconnectedError",
            Lost::Silent | Lost::Failed(_) => "ClientOSError",
        };
        self.unavailable(
            format!(
                "the connection was lost before POST /v1/run was answered ({})",
                how
            ),
            "it may have been done; check before you retry",
        )
    }

    fn broken(&self, lost: &Lost) -> Stop {
        let how = match lost {
            Lost::Signal(number) => return signalled(*number),
            Lost::Incomplete => "ClientPayloadError",
            Lost::Silent => "TimeoutError",
            Lost::Failed(_) => "ClientOSError",
        };
        self.unavailable(
            format!(
                "the connection to {} was lost while the code ran ({})",
                self.daemon.url(),
                how
            ),
            "the daemon may have been restarted; retry",
        )
    }

    fn unavailable(&self, message: String, hint: &str) -> Stop {
        self.begun(json!({"message": message, "hint": hint}))
    }

    fn begun(&self, mut begun: Value) -> Stop {
        begun["url"] = self.daemon.url().into();
        Stop::Begun(begun)
    }
}

fn signalled(number: i32) -> Stop {
    Stop::Exit(if number == libc::SIGINT {
        INTERRUPTED
    } else {
        128 + number
    })
}

/// Return the exit status of a result that has nothing else to report.
fn status(result: &Json) -> Option<i32> {
    exit_status(result, &MORE_TO_REPORT)
}

/// Return the exit status of a result in which all these values are empty.
pub fn exit_status(result: &Json, empty: &[&str]) -> Option<i32> {
    let plain = empty.iter().all(|name| result.get(name).is_empty());
    let status = result
        .get("exit_code")
        .int()
        .filter(|code| (0..256).contains(code))?;
    plain.then_some(status as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(text: &str) -> Option<Value> {
        let words: Vec<String> = text.split(' ').map(Into::into).collect();
        body(&Line::parse(&words).unwrap())
    }

    #[test]
    fn options_become_the_request() {
        assert_eq!(
            body_of("--backend local run -r sh -e A=1 --timeout 9 -i base -c x a"),
            Some(json!({
                "code": "x", "runtime": "sh", "args": ["a"], "env": {"A": "1"},
                "timeout_seconds": 9.0, "image": "base", "backend": "local",
            }))
        );
        assert_eq!(
            body_of("run -c x"),
            Some(json!({"code": "x", "runtime": "python"}))
        );
    }

    #[test]
    fn what_is_unusual_has_no_request() {
        for text in [
            "run",
            "run -",
            "run /nonexistent",
            "run /dev/null",
            "run -c x -y",
            "run -i a:b -c x",
            "run -i= -c x",
            "run --image= -c x",
            "run -e A -c x",
            "run --timeout 1s -c x",
        ] {
            let words: Vec<String> = text.split(' ').map(Into::into).collect();
            assert_eq!(
                Line::parse(&words).and_then(|line| body(&line)),
                None,
                "{}",
                text
            );
        }
    }

    #[test]
    fn the_suffix_decides_the_runtime() {
        for (name, runtime) in [
            ("a.py", "python"),
            ("b/a.x.sh", "bash"),
            (".sh", "python"),
            ("sh", "python"),
        ] {
            assert_eq!(runtime_of(Path::new(name)), runtime);
        }
    }

    #[test]
    fn only_a_result_without_more_to_report_is_a_status() {
        let status_of = |text: &str| status(&Json::parse(text.as_bytes()).unwrap());
        assert_eq!(
            status_of(r#"{"exit_code":7,"why":null,"warnings":[]}"#),
            Some(7)
        );
        for text in [
            "{}",
            r#"{"exit_code":null}"#,
            r#"{"exit_code":256}"#,
            r#"{"exit_code":0,"why":{"code":"X"}}"#,
        ] {
            assert_eq!(status_of(text), None);
        }
    }
}
