//! Shell code: the loop that a shell runs, and for each command one line and one file.
//!
//! The loop is parsed once, before user code can define an alias, and consists of assignments and
//! special builtins alone. In bash, assigning POSIXLY_CORRECT switches to POSIX mode, where special
//! builtins take precedence over functions of the same name. Words that start a command have a
//! backslash, so no alias applies.

use crate::shell::answer::{quote, STATUS};

/// Return the loop. `directory` was made by us and contains no quote.
pub fn main_loop(directory: &[u8]) -> Vec<u8> {
    let cmd = quote(&[directory, b"/cmd"].concat());
    [
        b"while :; do . ",
        &cmd[..],
        b"; ",
        STATUS,
        b"=$?; POSIXLY_CORRECT=1; export ",
        STATUS,
        b"; export -p >&9; times >&9; done",
    ]
    .concat()
}

pub enum Standard<'a> {
    /// Paths of stdin, stdout and stderr.
    Files([&'a [u8]; 3]),
    Terminal(&'a [u8]),
}

/// Return the line for the command FIFO: source the file with its own standard descriptors.
pub fn call(body: &[u8], standard: &Standard) -> Vec<u8> {
    let mut line = [b"\\. ", &quote(body)[..]].concat();
    match standard {
        Standard::Files([input, output, error]) => {
            // `>|` because the user may have set noclobber.
            for (operator, path) in [(&b" <"[..], input), (b" >|", output), (b" 2>|", error)] {
                line.extend_from_slice(operator);
                line.extend_from_slice(&quote(path));
            }
        }
        Standard::Terminal(path) => {
            line.extend_from_slice(b" <>");
            line.extend_from_slice(&quote(path));
            line.extend_from_slice(b" >&0 2>&0");
        }
    }
    line.extend_from_slice(b" 9>&-\n");
    line
}

pub struct Body<'a> {
    pub env: &'a [(Vec<u8>, Vec<u8>)],
    pub cwd: Option<&'a [u8]>,
    /// The value of `$?` at the beginning.
    pub last_code: i32,
    pub command: &'a [u8],
}

/// Return the file to source: a prologue on its first line, then the command as it came.
pub fn body(parts: &Body) -> Vec<u8> {
    let mut text = Vec::with_capacity(parts.command.len() + 256);
    // Still in POSIX mode: a function named export or unset is not called.
    for (name, value) in parts.env {
        text.extend_from_slice(b"\\export ");
        text.extend_from_slice(name);
        text.push(b'=');
        text.extend_from_slice(&quote(value));
        text.push(b';');
    }
    // In braces, so that `set -x` does not show it.
    text.extend_from_slice(b"{ \\unset ");
    text.extend_from_slice(STATUS);
    text.extend_from_slice(b" POSIXLY_CORRECT;} 2>/dev/null");
    if let Some(cwd) = parts.cwd {
        // `./` prevents that CDPATH, `-` or options apply. A command never runs in the wrong directory.
        let path = if cwd.starts_with(b"/") {
            cwd.to_vec()
        } else {
            [b"./", cwd].concat()
        };
        text.extend_from_slice(b";\\cd ");
        text.extend_from_slice(&quote(&path));
        text.extend_from_slice(b"||\\return 1");
    }
    if parts.last_code != 0 {
        // `&&` keeps set -e and ERR traps from firing.
        text.extend_from_slice(format!(";(\\exit {})&&\\:", parts.last_code).as_bytes());
    }
    text.push(b'\n');
    text.extend_from_slice(parts.command);
    text.push(b'\n');
    text
}
