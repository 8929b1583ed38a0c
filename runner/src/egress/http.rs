//! The requests of a plain HTTP/1 connection: each one must name the host that was dialled. Pure.
//!
//! Only what decides is read: heads, and the sizes of chunks. Bodies are not looked at. What two parsers
//! could read in two ways is unclear and refused, so that no request hides in the body of another one.

use crate::head::{self, block, field, line, Framing, Parsed, MOST_REQUEST};

/// The longest line with the size of a chunk.
const MOST_CHUNK_LINE: usize = 256;

/// What decides about a request is not in its trailers.
const NO_TRAILERS: [&str; 3] = ["host", "content-length", "transfer-encoding"];

pub const UNCLEAR: &str = "the client does not name its host clearly";
pub const ANOTHER: &str = "the client names another host";

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Pass on this many bytes, then look again.
    Pass(u64),
    /// More bytes are needed.
    More,
    /// The answer of the server decides whether this stays HTTP.
    Answer,
    /// Everything may pass from now on.
    Open,
    Refused(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    ChunkSize,
    /// After the data of a chunk.
    ChunkEnd,
    Trailers,
    Answer,
    Open,
}

pub struct Requests {
    place: Place,
    first: bool,
}

impl Requests {
    pub fn new() -> Requests {
        Requests {
            place: Place::Head,
            first: true,
        }
    }

    /// Whether the server's first bytes are needed.
    pub fn waits_for_answer(&self) -> bool {
        self.place == Place::Answer
    }

    /// The first bytes of the server: None if more are needed.
    pub fn answered(&mut self, bytes: &[u8]) -> Option<()> {
        const SWITCHED: &[u8] = b"HTTP/1.1 101 ";
        let most = bytes.len().min(SWITCHED.len());
        if bytes[..most] == SWITCHED[..most] && most < SWITCHED.len() && most > 0 {
            return None;
        }
        self.place = if bytes.starts_with(SWITCHED) {
            Place::Open
        } else {
            Place::Head
        };
        Some(())
    }

    /// Decide about the client's next bytes, of which there is at least one.
    pub fn look(&mut self, bytes: &[u8], name: &str, port: u16) -> Next {
        let decided = match self.place {
            Place::Head => self.head(bytes, name, port),
            Place::ChunkSize => self.chunk(bytes, 0),
            Place::ChunkEnd => match bytes {
                [b'\r'] => Ok(Next::More),
                [b'\r', b'\n', rest @ ..] => self.chunk(rest, 2),
                _ => Err(UNCLEAR),
            },
            Place::Trailers => self.trailers(bytes),
            Place::Answer => Ok(Next::Answer),
            Place::Open => Ok(Next::Open),
        };
        decided.unwrap_or(Next::Refused(UNCLEAR))
    }

    fn head(&mut self, bytes: &[u8], name: &str, port: u16) -> Parsed<Next> {
        let Some((head, length)) = head::request(bytes)? else {
            return Ok(Next::More);
        };
        if !head.is_for(name, port)? {
            return Ok(Next::Refused(ANOTHER));
        }
        let first = std::mem::replace(&mut self.first, false);
        let body = match head.request_framing()? {
            Framing::Length(n) => n,
            Framing::Chunked => {
                self.place = Place::ChunkSize;
                0
            }
            _ => 0,
        };
        if first && head.opens_websocket() {
            self.place = Place::Answer;
        }
        Ok(Next::Pass(length as u64 + body))
    }

    fn chunk(&mut self, bytes: &[u8], before: u64) -> Parsed<Next> {
        let Some(line) = line(bytes, MOST_CHUNK_LINE)? else {
            return Ok(Next::More);
        };
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let after = &line[digits..];
        if !(1..=15).contains(&digits) || !(after.is_empty() || after[0] == b';') {
            return Err(UNCLEAR);
        }
        let text = std::str::from_utf8(&line[..digits]).map_err(|_| UNCLEAR)?;
        let size = u64::from_str_radix(text, 16).map_err(|_| UNCLEAR)?;
        self.place = if size == 0 {
            Place::Trailers
        } else {
            Place::ChunkEnd
        };
        Ok(Next::Pass(before + line.len() as u64 + 2 + size))
    }

    fn trailers(&mut self, bytes: &[u8]) -> Parsed<Next> {
        let Some((lines, length)) = block(bytes, MOST_REQUEST)? else {
            return Ok(Next::More);
        };
        for one in lines {
            let (name, _) = field(one)?;
            // Some servers add trailers to the headers.
            if NO_TRAILERS.iter().any(|no| name.eq_ignore_ascii_case(no)) {
                return Err(UNCLEAR);
            }
        }
        self.place = Place::Head;
        Ok(Next::Pass(length as u64))
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
