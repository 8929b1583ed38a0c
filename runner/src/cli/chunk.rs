//! A piece of a command's output, as it comes in the events of a daemon.

use crate::json::Json;
use crate::output::{self, Unwritten, STDERR, STDOUT};
use crate::signals::Signals;
use sandkasten_runner::base64;
use std::os::unix::io::RawFd;

#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    fd: RawFd,
    /// Bytes before these that were not kept.
    pub gap_bytes: i64,
    data: Vec<u8>,
}

impl Chunk {
    /// Return the piece of output; None if the event has no valid one.
    pub fn of(event: &Json) -> Option<Chunk> {
        let fd = match event.get("stream").string()? {
            "stdout" => STDOUT,
            "stderr" => STDERR,
            _ => return None,
        };
        let gap_bytes = match event.get("gap_bytes") {
            Json::Null => 0,
            gap => gap.int().filter(|&gap| gap >= 0)?,
        };
        let data = match (event.get("text"), event.get("data_b64")) {
            (Json::String(text), Json::Null) => text.clone().into_bytes(),
            (Json::Null, Json::String(data)) => base64::decode(data.as_bytes())?,
            _ => return None,
        };
        Some(Chunk {
            fd,
            gap_bytes,
            data,
        })
    }

    /// Print it. `signalled` is called for each signal meanwhile, and may end it.
    pub fn print<E>(
        &self,
        signals: &Signals,
        mut signalled: impl FnMut(i32) -> Result<(), E>,
        mut failed: impl FnMut(i32) -> E,
    ) -> Result<(), E> {
        let warning = self.warning(output::has_colour(STDERR));
        for (fd, mut bytes) in [(STDERR, warning.as_bytes()), (self.fd, &self.data)] {
            loop {
                match output::write(fd, &mut bytes, signals) {
                    Ok(()) => break,
                    Err(Unwritten::Signal(number)) => signalled(number)?,
                    Err(Unwritten::Failed(errno)) => return Err(failed(errno)),
                }
            }
        }
        Ok(())
    }

    /// Return what is printed in place of bytes that were not kept.
    fn warning(&self, colour: bool) -> String {
        let label = if colour {
            "\x1b[1;33mwarning:\x1b[0m"
        } else {
            "warning:"
        };
        match self.gap_bytes {
            0 => String::new(),
            1 => format!("{} output was not kept: 1 byte\n", label),
            bytes => format!("{} output was not kept: {} bytes\n", label, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Option<Chunk> {
        Chunk::of(&Json::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_piece_is_text_or_base64() {
        let piece = |fd, gap_bytes, data: &[u8]| {
            Some(Chunk {
                fd,
                gap_bytes,
                data: data.into(),
            })
        };
        assert_eq!(
            chunk(r#"{"stream":"stdout","text":"é"}"#),
            piece(STDOUT, 0, "é".as_bytes())
        );
        let bytes = r#"{"stream":"stderr","data_b64":"/w==","gap_bytes":2}"#;
        assert_eq!(chunk(bytes), piece(STDERR, 2, b"\xff"));
        assert_eq!(
            chunk(bytes).unwrap().warning(false),
            "warning: output was not kept: 2 bytes\n"
        );
    }

    #[test]
    fn anything_else_is_no_piece() {
        for text in [
            "[]",
            "{}",
            r#"{"text":"x"}"#,
            r#"{"stream":"pty","text":"x"}"#,
            r#"{"stream":"stdout"}"#,
            r#"{"stream":"stdout","text":"x","data_b64":"eA=="}"#,
            r#"{"stream":"stdout","data_b64":"*"}"#,
            r#"{"stream":"stdout","text":"x","gap_bytes":-1}"#,
            r#"{"stream":"stdout","text":"x","gap_bytes":"1"}"#,
        ] {
            assert_eq!(chunk(text), None, "{}", text);
        }
    }
}
