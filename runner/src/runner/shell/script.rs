//! Shell code: the loop that a shell runs, and what it sources for each command.
//!
//! The loop is parsed once, before user code can define an alias, and consists of assignments and
//! special builtins alone. In bash, assigning POSIXLY_CORRECT switches to POSIX mode, where special
//! builtins take precedence over functions of the same name. Words that start a command have a
//! backslash, so no alias applies.
//!
//! The command runs in `eval`, so that messages of the shell name the shell and the line, as those of
//! `sh -c` do, and none of our files. bash would name what it is sourcing, so there that only
//! assigns the call to a variable and the loop evaluates it. Other shells evaluate it while sourcing, where
//! `return` ends the command and not the loop.

use crate::shell::answer::{quote, STATUS};

/// The variable that holds the call in bash. The call unsets it: if it is set afterwards, nothing ran.
const CALL: &[u8] = b"__sandkasten_call";

/// Return the loop. `directory` was made by us and contains no quote.
pub fn main_loop(directory: &[u8], bash: bool) -> Vec<u8> {
    let cmd = quote(&[directory, b"/cmd"].concat());
    let mut text = [b"while :; do . ", &cmd[..], b"; "].concat();
    if bash {
        // A status that is the text of the call is not a valid one.
        text.extend_from_slice(
            &[b"eval \"$", CALL, b"\"; ", STATUS, b"=${", CALL, b"-$?}"].concat(),
        );
    } else {
        text.extend_from_slice(&[STATUS, b"=$?"].concat());
    }
    text.extend_from_slice(b"; POSIXLY_CORRECT=1; export ");
    text.extend_from_slice(STATUS);
    text.extend_from_slice(b"; export -p >&9; times >&9; done");
    text
}

pub enum Standard<'a> {
    /// Paths of stdin, stdout and stderr.
    Files([&'a [u8]; 3]),
    Terminal(&'a [u8]),
}

pub struct Body<'a> {
    pub env: &'a [(Vec<u8>, Vec<u8>)],
    pub cwd: Option<&'a [u8]>,
    /// The value of `$?` at the beginning.
    pub last_code: i32,
    pub command: &'a [u8],
    pub standard: Standard<'a>,
}

/// Return the line that sources a file.
pub fn source(file: &[u8]) -> Vec<u8> {
    [b"\\. ", &quote(file)[..], b"\n"].concat()
}

/// Return what the shell sources for a command. It is read in POSIX mode: a function named export or unset
/// is not called.
pub fn body(parts: &Body, bash: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(parts.command.len() + 256);
    if bash {
        // A RETURN trap of an earlier command would also run at the end of what is sourced.
        text.extend_from_slice(b"\\trap - RETURN;\\set +T;");
    }
    for (name, value) in parts.env {
        text.extend_from_slice(b"\\export ");
        text.extend_from_slice(name);
        text.push(b'=');
        text.extend_from_slice(&quote(value));
        text.push(b';');
    }
    if bash {
        // Outside of POSIX mode a function named eval would be called instead of ours. If it cannot be
        // removed, nothing runs, and the loop sees that the call is still set.
        let unset = [b"\\unset ", STATUS, b" POSIXLY_CORRECT ", CALL, b";"].concat();
        let call = [
            b"\\unset -f eval&&{ ",
            &unset[..],
            &call(parts, bash),
            b";}",
        ]
        .concat();
        text.extend_from_slice(&[CALL, b"=", &quote(&call)].concat());
    } else {
        text.extend_from_slice(&[b"\\unset ", STATUS, b" POSIXLY_CORRECT;"].concat());
        text.extend_from_slice(&call(parts, bash));
    }
    text.push(b'\n');
    text
}

/// Return the call: the command in `eval`, with its own standard descriptors.
fn call(parts: &Body, bash: bool) -> Vec<u8> {
    // bash counts the lines of a command from the last line of the call, so that must have only one.
    let word: fn(&[u8]) -> Vec<u8> = if bash { one_line } else { quote };
    let mut text = Vec::new();
    if parts.last_code != 0 {
        // POSIX mode in the subshell: a function named exit is not called. `&&` keeps set -e and ERR traps
        // from firing.
        let code = format!("(POSIXLY_CORRECT=1;\\exit {})&&\\:;", parts.last_code);
        text.extend_from_slice(code.as_bytes());
    }
    text.extend_from_slice(b"\\eval ");
    // With a line feed, as in a file: a here-document may end without its delimiter.
    text.extend_from_slice(&word(&[parts.command, b"\n"].concat()));
    match parts.cwd {
        None => [&text[..], &redirections(&parts.standard, b"2")].concat(),
        Some(cwd) => {
            // `./` prevents that CDPATH, `-` or options apply. A command never runs in the wrong directory.
            let path = if cwd.starts_with(b"/") {
                cwd.to_vec()
            } else {
                [b"./", cwd].concat()
            };
            // Standard error stays what it was for this line, so that `set -x` does not show it.
            let cd = [b"{ \\cd ", &word(&path)[..], b" 2>&8&&{ "].concat();
            let rest = redirections(&parts.standard, b"8");
            [&cd[..], &text, b" 2>&8 8>&-;};}", &rest].concat()
        }
    }
}

/// Redirect the standard descriptors, with standard error as descriptor `error`, and close the answer.
fn redirections(standard: &Standard, error: &[u8]) -> Vec<u8> {
    match standard {
        // `>|` because the user may have set noclobber.
        Standard::Files([stdin, stdout, stderr]) => {
            let (stdin, stdout, stderr) = (quote(stdin), quote(stdout), quote(stderr));
            let input = [b" <", &stdin[..], b" >|", &stdout, b" "].concat();
            [&input[..], error, b">|", &stderr, b" 9>&-"].concat()
        }
        Standard::Terminal(path) => {
            let path = quote(path);
            [b" <>", &path[..], b" >&0 ", error, b">&0 9>&-"].concat()
        }
    }
}

/// Quote `bytes` as one word on one line, only for bash and independent of its locale.
fn one_line(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len() + 8);
    word.extend_from_slice(b"$'");
    for &c in bytes {
        match c {
            b'\\' => word.extend_from_slice(b"\\\\"),
            b'\n' => word.extend_from_slice(b"\\n"),
            b'\'' | 0..=0x1f | 0x7f..=0xff => word.extend_from_slice(&[
                b'\\',
                b'0' + (c >> 6),
                b'0' + (c >> 3 & 7),
                b'0' + (c & 7),
            ]),
            c => word.push(c),
        }
    }
    word.push(b'\'');
    word
}
