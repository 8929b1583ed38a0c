//! Heads of HTTP/1 messages, read strictly. Pure.
//!
//! Both ways of checking requests use this reader: connections that are relayed (`http`) and connections
//! that are inspected. What two parsers could read in two ways is an error: a bare line feed, a folded
//! line, a space before a colon, two lengths, two hosts, a target that is not a path. What an inspected
//! connection sends on is written anew from what was read.

use std::io::Write;

/// The longest head of a request: as long as the first bytes of a connection may be.
pub const MOST_REQUEST: usize = crate::hello::MOST;
const MOST_ANSWER: usize = 64 << 10;
const MOST_HEADERS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Method, target and version; or version, status and reason.
    pub first: [String; 3],
    headers: Vec<(String, Vec<u8>)>,
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Empty,
    Length(u64),
    Chunked,
    UntilClose,
}

pub type Parsed<T> = Result<T, &'static str>;

/// Lines before an empty line, and the length of all that.
type Block<'a> = (Vec<&'a [u8]>, usize);

/// Return the lines before the first empty line; None if it has not arrived. All that has at most `most`
/// bytes.
pub fn block(bytes: &[u8], most: usize) -> Parsed<Option<Block<'_>>> {
    let (mut lines, mut at) = (Vec::new(), 0);
    loop {
        let Some(found) = line(&bytes[at..], most - at)? else {
            return Ok(None);
        };
        at += found.len() + 2;
        if found.is_empty() {
            return Ok(Some((lines, at)));
        }
        if lines.len() > MOST_HEADERS {
            return Err("there are too many headers");
        }
        lines.push(found);
    }
}

/// Return the line that bytes begin with; None if it is not complete. With its end it has at most `most`
/// bytes.
pub fn line(bytes: &[u8], most: usize) -> Parsed<Option<&[u8]>> {
    let end = bytes.iter().position(|&b| b == b'\n');
    if end.unwrap_or(bytes.len()) >= most {
        return Err("a line or the headers are too long");
    }
    let line = match end {
        Some(end) => bytes[..end].strip_suffix(b"\r"),
        None => Some(bytes.strip_suffix(b"\r").unwrap_or(bytes)),
    };
    let line = line.ok_or("a line does not end with CR LF")?;
    // Among them a carriage return alone.
    if line.iter().any(|&b| b < b' ' && b != b'\t' || b == 0x7f) {
        return Err("a line has a control character");
    }
    Ok(end.map(|_| line))
}

/// Return the name and the value of a header.
pub fn field(line: &[u8]) -> Parsed<(&str, &[u8])> {
    let colon = line.iter().position(|&b| b == b':');
    let (name, value) = line.split_at(colon.ok_or("a header has no colon")?);
    match std::str::from_utf8(name) {
        Ok(text) if !name.is_empty() && name.iter().all(|&b| is_token(b)) => {
            Ok((text, trim(&value[1..])))
        }
        _ => Err("the name of a header is not valid"),
    }
}

fn parse(bytes: &[u8], most: usize) -> Parsed<Option<(Head, usize)>> {
    let Some((lines, length)) = block(bytes, most)? else {
        return Ok(None);
    };
    let wrong = "the first line is not valid";
    let (first, fields) = lines.split_first().ok_or(wrong)?;
    if !first.iter().all(|b| (b' '..0x7f).contains(b)) {
        return Err(wrong);
    }
    let first = std::str::from_utf8(first).map_err(|_| wrong)?;
    let mut words = first.splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let first = [word(), word(), word()];
    let mut headers = Vec::with_capacity(fields.len());
    for one in fields {
        let (name, value) = field(one)?;
        headers.push((name.to_owned(), value.to_vec()));
    }
    Ok(Some((Head { first, headers }, length)))
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether a name is that of a field for some servers: many of them treat `_` as `-`, and some
/// write every other character in the same way.
pub fn same_field(name: &str, field: &str) -> bool {
    let alike = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_lowercase(),
        false => b'-',
    };
    name.bytes().map(alike).eq(field.bytes().map(alike))
}

pub fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Read the head of a request; return it and its length, None if it is not complete.
pub fn request(bytes: &[u8]) -> Parsed<Option<(Head, usize)>> {
    let Some((head, length)) = parse(bytes, MOST_REQUEST)? else {
        return Ok(None);
    };
    let [method, target, version] = &head.first;
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err("the method is not valid");
    }
    // A tunnel through the server would lead to anywhere, and TRACE would show what we insert.
    if ["connect", "trace"].contains(&&method.to_ascii_lowercase()[..]) {
        return Err("this method is not allowed");
    }
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err("the version is not HTTP/1.1");
    }
    let options = method == "OPTIONS" && target == "*";
    if !(target.starts_with('/') || options) || target.contains(|c| " #\\\"<>".contains(c)) {
        return Err("the target is not a path");
    }
    if head.all("upgrade").len() > 1 {
        return Err("it has two Upgrade headers");
    }
    Ok(Some((head, length)))
}

/// Read the head of an answer.
pub fn answer(bytes: &[u8]) -> Parsed<Option<(Head, usize)>> {
    let Some((head, length)) = parse(bytes, MOST_ANSWER)? else {
        return Ok(None);
    };
    let [version, status, _] = &head.first;
    let known = version == "HTTP/1.1" || version == "HTTP/1.0";
    if !known || status.len() != 3 || !status.bytes().all(|b| b.is_ascii_digit()) {
        return Err("the status is not valid");
    }
    Ok(Some((head, length)))
}

/// Whether a Host header names the host of the connection.
fn same_host(host: &[u8], name: &str, port: u16) -> bool {
    let text = String::from_utf8_lossy(host).to_ascii_lowercase();
    let (host, stated) = match text.split_once(':') {
        Some((host, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            (host, digits.parse().ok())
        }
        Some(_) => return false,
        // Without a port it is the usual one of http and https; which one does not matter here.
        None => (&text[..], Some(port)),
    };
    host.strip_suffix('.').unwrap_or(host) == name && stated == Some(port)
}

impl Head {
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let same = |(one, _): &&(String, Vec<u8>)| one.eq_ignore_ascii_case(name);
        let found = self.headers.iter().filter(same);
        found.map(|(_, value)| value.as_slice()).collect()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|(name, _)| &name[..])
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let pairs = self.headers.iter();
        pairs.map(|(name, value)| (&name[..], &value[..]))
    }

    /// Return the only header with a name; None if there is none or more than one.
    pub fn only(&self, name: &str) -> Option<&[u8]> {
        match self.all(name)[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Whether a header lists a word.
    pub fn lists(&self, name: &str, word: &str) -> bool {
        self.all(name).iter().any(|value| {
            let words = value.split(|&b| b == b',');
            words
                .map(trim)
                .any(|one| one.eq_ignore_ascii_case(word.as_bytes()))
        })
    }

    pub fn remove(&mut self, name: &str) {
        self.retain(|one| !one.eq_ignore_ascii_case(name));
    }

    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.headers.retain(|(one, _)| wanted(one));
    }

    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_vec()));
    }

    /// Whether the one Host of a request is the host of the connection.
    pub fn is_for(&self, name: &str, port: u16) -> Parsed<bool> {
        let host = self.only("host").ok_or("it needs one Host")?;
        Ok(same_host(host, name, port))
    }

    /// Whether a request asks to go on as a WebSocket. One with a body does not.
    pub fn opens_websocket(&self) -> bool {
        let websocket = |value: &[u8]| value.eq_ignore_ascii_case(b"websocket");
        self.first[2] == "HTTP/1.1"
            && self.request_framing() == Ok(Framing::Empty)
            && self.lists("connection", "upgrade")
            && self.only("upgrade").is_some_and(websocket)
    }

    pub fn path(&self) -> &str {
        self.first[1].split('?').next().unwrap_or("")
    }

    pub fn status(&self) -> u16 {
        self.first[1].parse().unwrap_or(0)
    }

    /// Whether the connection stays open after this message.
    pub fn keeps(&self, version: &str) -> bool {
        let old = version == "HTTP/1.0";
        !self.lists("connection", "close") && (!old || self.lists("connection", "keep-alive"))
    }

    /// Return the framing that a request states.
    pub fn request_framing(&self) -> Parsed<Framing> {
        match self.framing()? {
            Framing::Chunked if self.first[2] != "HTTP/1.1" => {
                Err("Transfer-Encoding needs HTTP/1.1")
            }
            Framing::UntilClose => Ok(Framing::Empty),
            found => Ok(found),
        }
    }

    /// Return the framing of an answer to a request with this method.
    pub fn answer_framing(&self, method: &str) -> Parsed<Framing> {
        let found = self.framing()?;
        let status = self.status();
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Ok(Framing::Empty);
        }
        Ok(found)
    }

    fn framing(&self) -> Parsed<Framing> {
        let (encodings, lengths) = (self.all("transfer-encoding"), self.all("content-length"));
        match (&encodings[..], &lengths[..]) {
            ([], []) => Ok(Framing::UntilClose),
            ([one], []) if one.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            // Up to 18 digits are a number that can be added to without overflow.
            ([], [one]) if one.len() <= 18 && one.iter().all(u8::is_ascii_digit) => {
                let length = String::from_utf8_lossy(one).parse();
                length
                    .map(Framing::Length)
                    .map_err(|_| "the Content-Length is not a number")
            }
            _ => Err("Content-Length and Transfer-Encoding are not clear"),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let [a, b, c] = &self.first;
        let _ = write!(out, "{} {} {}\r\n", a, b, c);
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
