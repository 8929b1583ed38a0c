//! Heads of HTTP/1 messages, read strictly. Pure.
//!
//! What two parsers could read in two ways is an error: a bare line feed, a folded line, a space before a
//! colon, two lengths. What is sent on is written anew from what was read.

use std::io::Write;

pub const MOST: usize = 64 << 10;
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

type Parsed<T> = Result<T, &'static str>;

/// Return a head and its length; None if it is not complete.
fn parse(bytes: &[u8]) -> Parsed<Option<(Head, usize)>> {
    let end = match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(end) if end <= MOST => end,
        None if bytes.len() < MOST => {
            lines_are_sound(bytes)?;
            return Ok(None);
        }
        _ => return Err("the headers are too long"),
    };
    lines_are_sound(&bytes[..end + 4])?;
    let mut lines = bytes[..end].split(|&b| b == b'\n');
    let first = line_text(lines.next().unwrap_or(b""))?;
    let mut words = first.splitn(3, ' ');
    let mut word = || words.next().unwrap_or("").to_owned();
    let first = [word(), word(), word()];
    let mut headers = Vec::new();
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|&b| b == b':');
        let (name, value) = match colon {
            Some(at) => (&line[..at], trim(&line[at + 1..])),
            None => return Err("a header has no colon"),
        };
        if name.is_empty() || !name.iter().all(|&b| is_token(b)) {
            return Err("the name of a header is not valid");
        }
        if value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
            return Err("a header has a control character");
        }
        headers.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
        if headers.len() > MOST_HEADERS {
            return Err("there are too many headers");
        }
    }
    Ok(Some((Head { first, headers }, end + 4)))
}

/// Every line ends with CR and LF, and neither is found alone.
fn lines_are_sound(bytes: &[u8]) -> Parsed<()> {
    for (at, &b) in bytes.iter().enumerate() {
        let alone = match b {
            b'\n' => at == 0 || bytes[at - 1] != b'\r',
            b'\r' => bytes.get(at + 1).map_or(false, |&next| next != b'\n'),
            0 => true,
            _ => false,
        };
        if alone {
            return Err("a line does not end with CR LF");
        }
    }
    Ok(())
}

fn line_text(line: &[u8]) -> Parsed<&str> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match std::str::from_utf8(line) {
        Ok(text) if line.iter().all(|b| (b' '..0x7f).contains(b)) => Ok(text),
        _ => Err("the first line is not valid"),
    }
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

pub fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Read the head of a request.
pub fn request(bytes: &[u8]) -> Parsed<Option<(Head, usize)>> {
    let (head, length) = match parse(bytes)? {
        Some(found) => found,
        None => return Ok(None),
    };
    let [method, target, version] = &head.first;
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err("the method is not valid");
    }
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err("the version is not HTTP/1.1");
    }
    let options = method == "OPTIONS" && target == "*";
    if !(target.starts_with('/') || options) || target.contains(|c| " #\\\"<>".contains(c)) {
        return Err("the target is not a path");
    }
    Ok(Some((head, length)))
}

/// Read the head of an answer.
pub fn answer(bytes: &[u8]) -> Parsed<Option<(Head, usize)>> {
    let (head, length) = match parse(bytes)? {
        Some(found) => found,
        None => return Ok(None),
    };
    let [version, status, _] = &head.first;
    let known = version == "HTTP/1.1" || version == "HTTP/1.0";
    if !known || status.len() != 3 || !status.bytes().all(|b| b.is_ascii_digit()) {
        return Err("the status is not valid");
    }
    Ok(Some((head, length)))
}

impl Head {
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let same = |(one, _): &&(String, Vec<u8>)| one.eq_ignore_ascii_case(name);
        let found = self.headers.iter().filter(same);
        found.map(|(_, value)| value.as_slice()).collect()
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
        self.headers
            .retain(|(one, _)| !one.eq_ignore_ascii_case(name));
    }

    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_vec()));
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
            ([], [one]) if !one.is_empty() && one.iter().all(u8::is_ascii_digit) => {
                let text = String::from_utf8_lossy(one);
                let length = text
                    .parse()
                    .map_err(|_| "the Content-Length is too large")?;
                Ok(Framing::Length(length))
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
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        request(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn a_plain_request_is_read_and_written() {
        let text = "GET /a?b HTTP/1.1\r\nHost: x.test\r\nX-Y:  z \r\n\r\n";
        let found = head(text);
        assert_eq!(found.path(), "/a");
        assert_eq!(found.only("x-y"), Some(&b"z"[..]));
        assert_eq!(found.request_framing(), Ok(Framing::Empty));
        let written = "GET /a?b HTTP/1.1\r\nHost: x.test\r\nX-Y: z\r\n\r\n";
        assert_eq!(found.to_bytes(), written.as_bytes());
        for end in 0..text.len() - 1 {
            assert_eq!(request(&text.as_bytes()[..end]), Ok(None), "{}", end);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for text in [
            "GET / HTTP/1.1\nHost: x\n\n",
            "GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\rX: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\0\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
            "GET /#a HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            assert!(request(text.as_bytes()).is_err(), "{:?}", text);
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(MOST));
        assert!(request(long.as_bytes()).is_err());
    }

    #[test]
    fn a_body_with_two_lengths_is_refused() {
        for fields in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length: 5, 5",
            "Content-Length: +5",
            "Content-Length: 0x5",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{}\r\n\r\n", fields);
            assert!(head(&text).request_framing().is_err(), "{}", fields);
        }
        let old = "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(head(old).request_framing().is_err());
    }

    #[test]
    fn an_answer_without_a_body_is_known_by_its_status() {
        let text = |status: u16| format!("HTTP/1.1 {} X\r\nContent-Length: 5\r\n\r\n", status);
        let framing = |status, method| {
            let text = text(status);
            let head = answer(text.as_bytes()).unwrap().unwrap().0;
            head.answer_framing(method).unwrap()
        };
        assert_eq!(framing(200, "GET"), Framing::Length(5));
        assert_eq!(framing(200, "HEAD"), Framing::Empty);
        assert_eq!(framing(304, "GET"), Framing::Empty);
        assert_eq!(framing(100, "GET"), Framing::Empty);
    }
}
