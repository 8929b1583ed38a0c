//! The requests of a plain HTTP/1 connection: each one must name the host that was dialled. Pure.
//!
//! Only what decides is read: heads, and the sizes of chunks. Bodies are not looked at. What two parsers
//! could read in two ways (a bare line feed, a folded line, two lengths, a length and chunks) is unclear
//! and refused, so that no request hides in the body of another one.

use crate::hello::{host_of, is_token, MOST};

/// The longest line with the size of a chunk.
const MOST_CHUNK_LINE: usize = 256;

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
    pub fn look(&mut self, bytes: &[u8], name: &str) -> Next {
        self.decide(bytes, name).unwrap_or_else(Next::Refused)
    }

    fn decide(&mut self, bytes: &[u8], name: &str) -> Result<Next, &'static str> {
        match self.place {
            Place::Head => self.head(bytes, name),
            Place::ChunkSize => self.chunk(bytes, 0),
            Place::ChunkEnd => match bytes {
                [b'\r'] => Ok(Next::More),
                [b'\r', b'\n', rest @ ..] => self.chunk(rest, 2),
                _ => Err(UNCLEAR),
            },
            Place::Trailers => self.trailers(bytes),
            Place::Answer => Ok(Next::Answer),
            Place::Open => Ok(Next::Open),
        }
    }

    fn head(&mut self, bytes: &[u8], name: &str) -> Result<Next, &'static str> {
        match bytes {
            // A client may send an empty line after a body.
            [b'\r'] => return Ok(Next::More),
            [b'\r', b'\n', ..] => return Ok(Next::Pass(2)),
            _ => {}
        }
        let (lines, length) = match block(bytes)? {
            Some(found) => found,
            None => return Ok(Next::More),
        };
        let head = Head::parse(&lines, name)?;
        let first = std::mem::replace(&mut self.first, false);
        let body = match head.body {
            Body::None => 0,
            Body::Length(n) => n,
            Body::Chunks => {
                self.place = Place::ChunkSize;
                0
            }
        };
        if head.upgrade && first && head.body == Body::None {
            self.place = Place::Answer;
        }
        (length as u64)
            .checked_add(body)
            .map(Next::Pass)
            .ok_or(UNCLEAR)
    }

    fn chunk(&mut self, bytes: &[u8], before: u64) -> Result<Next, &'static str> {
        let line = match line(bytes, MOST_CHUNK_LINE)? {
            Some(line) => line,
            None => return Ok(Next::More),
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

    fn trailers(&mut self, bytes: &[u8]) -> Result<Next, &'static str> {
        let length = match bytes {
            [b'\r'] => return Ok(Next::More),
            [b'\r', b'\n', ..] => 2,
            _ => match block(bytes)? {
                Some((lines, length)) => {
                    for one in lines {
                        field(one)?;
                    }
                    length
                }
                None => return Ok(Next::More),
            },
        };
        self.place = Place::Head;
        Ok(Next::Pass(length as u64))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Body {
    None,
    Length(u64),
    Chunks,
}

struct Head {
    body: Body,
    upgrade: bool,
}

impl Head {
    fn parse(lines: &[&[u8]], name: &str) -> Result<Head, &'static str> {
        let (request, fields) = lines.split_first().ok_or(UNCLEAR)?;
        let newer = request_line(request, name)?;
        let (mut hosts, mut lengths, mut codings) = (0, Vec::new(), Vec::new());
        let mut upgrades = Vec::new();
        for one in fields {
            let (key, value) = field(one)?;
            match key.as_str() {
                "host" => {
                    hosts += 1;
                    if host_of(&value) != name {
                        return Err(ANOTHER);
                    }
                }
                "content-length" => lengths.push(value),
                "transfer-encoding" => codings.push(value),
                "upgrade" => upgrades.push(value),
                _ => {}
            }
        }
        if hosts > 1 || upgrades.len() > 1 || lengths.len() + codings.len() > 1 {
            return Err(UNCLEAR);
        }
        let body = match (lengths.pop(), codings.pop()) {
            (Some(text), _) => Body::Length(decimal(&text)?),
            (_, Some(coding)) if newer && coding == "chunked" => Body::Chunks,
            (_, Some(_)) => return Err(UNCLEAR),
            _ => Body::None,
        };
        let upgrade = upgrades.pop().map_or(false, |one| one == "websocket");
        Ok(Head { body, upgrade })
    }
}

/// Check the request line; return whether it is HTTP/1.1.
fn request_line(line: &[u8], name: &str) -> Result<bool, &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| UNCLEAR)?;
    let words: Vec<&str> = text.split(' ').collect();
    let (method, target, newer) = match words[..] {
        [method, target, "HTTP/1.1"] => (method, target, true),
        [method, target, "HTTP/1.0"] => (method, target, false),
        _ => return Err(UNCLEAR),
    };
    if method.is_empty() || !method.bytes().all(is_token) || target.contains('\t') {
        return Err(UNCLEAR);
    }
    // A tunnel through the server would lead to anywhere.
    if method.eq_ignore_ascii_case("connect") {
        return Err(ANOTHER);
    }
    if target.starts_with('/') || target == "*" {
        return Ok(newer);
    }
    let lower = target.to_ascii_lowercase();
    let rest = lower.strip_prefix("http://").ok_or(UNCLEAR)?;
    // Servers differ about where a host ends: it must be all that comes before the path.
    let authority = rest.split('/').next().unwrap_or("");
    if host_of(authority) == name {
        Ok(newer)
    } else {
        Err(ANOTHER)
    }
}

/// Return the name and the value of a header field, both in small letters.
fn field(line: &[u8]) -> Result<(String, String), &'static str> {
    let colon = line.iter().position(|&b| b == b':').ok_or(UNCLEAR)?;
    let (key, value) = (&line[..colon], &line[colon + 1..]);
    if key.is_empty() || !key.iter().all(|&b| is_token(b)) {
        return Err(UNCLEAR);
    }
    let lower = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
    // Other spaces are part of the value.
    let value = lower(value).trim_matches(|c| " \t".contains(c)).to_owned();
    Ok((lower(key), value))
}

fn decimal(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() || text.len() > 18 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(UNCLEAR);
    }
    text.parse().map_err(|_| UNCLEAR)
}

/// Lines before an empty line, and the length of all that.
type Block<'a> = (Vec<&'a [u8]>, usize);

/// Return what comes before the first empty line; None if it is not complete.
fn block(bytes: &[u8]) -> Result<Option<Block<'_>>, &'static str> {
    let (mut lines, mut at) = (Vec::new(), 0);
    loop {
        let found = match line(&bytes[at..], MOST - at.min(MOST))? {
            Some(found) => found,
            None => return Ok(None),
        };
        at += found.len() + 2;
        if found.is_empty() {
            return Ok(Some((lines, at)));
        }
        lines.push(found);
    }
}

/// Return the line that bytes begin with; None if it is not complete.
fn line(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, &'static str> {
    let end = bytes.iter().position(|&b| b == b'\n');
    let line = match end {
        Some(end) => bytes[..end].strip_suffix(b"\r").ok_or(UNCLEAR)?,
        None => bytes.strip_suffix(b"\r").unwrap_or(bytes),
    };
    // Among them a carriage return alone.
    if line.iter().any(|&b| b < b' ' && b != b'\t' || b == 0x7f) || line.len() >= most {
        return Err(UNCLEAR);
    }
    Ok(end.map(|_| line))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
