//! sandkasten: the command line. It runs the ordinary forms of `version`, `ls`, `exec` and `run` itself,
//! through the Unix socket of a daemon. For everything else it becomes the command line in Python, which
//! starts in ten times the time.
//!
//! What is understood here is a small part of what the other understands, and does exactly the same. If
//! something turns out to be unusual after the daemon has begun to work, the other one finishes the
//! command: it gets a document that says what was begun (`python.rs`). So messages and formats of failures
//! exist only there.

mod chunk;
mod daemon;
mod events;
mod exec;
mod http;
mod json;
mod line;
mod list;
mod output;
mod python;
mod run;
mod signals;

use line::Line;
use python::CommandLine;
use std::ffi::OsString;

/// The version of the Python packages, which a test compares.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The exit status if the reader of our output has left while a command ran.
const NO_READER: i32 = 1;
/// The exit status after Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Why this program does not go on with a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is over.
    Exit(i32),
    /// The other command line runs all of it; nothing was changed or printed.
    Unusual,
    /// The other command line finishes it.
    Begun(serde_json::Value),
}

/// The exit status of a command, or why it has none yet.
pub type Outcome = Result<i32, Stop>;

fn main() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let python = CommandLine::find();
    // The other command line refuses a closed stdout.
    let outcome = if !output::was_closed() && python.is_complete() {
        answer(&words)
    } else {
        Err(Stop::Unusual)
    };
    let begun = match outcome {
        Ok(status) | Err(Stop::Exit(status)) => std::process::exit(status),
        Err(Stop::Unusual) => None,
        Err(Stop::Begun(begun)) => Some(begun),
    };
    std::process::exit(python.become_it(&words, begun));
}

/// Run the command and return its exit status.
fn answer(words: &[OsString]) -> Outcome {
    if std::env::var_os("_SANDKASTEN_COMPLETE").is_some() {
        return Err(Stop::Unusual);
    }
    let words: Option<Vec<String>> = words.iter().map(|w| w.to_str().map(Into::into)).collect();
    let line = words
        .and_then(|words| Line::parse(&words))
        .ok_or(Stop::Unusual)?;
    match line.command {
        "version" => version(&line),
        "ls" => list::show(&line),
        "exec" => exec::execute(&line),
        _ => run::run(&line),
    }
}

fn version(line: &Line) -> Outcome {
    if !line.words.is_empty() {
        return Err(Stop::Unusual);
    }
    output::print(format!("sandkasten {}\n", VERSION).as_bytes())
}
