//! The first bytes of a connection: the host that a TLS or HTTP client names. Pure.

use crate::head::is_token;

/// More than any client sends before the server answers.
pub const MOST: usize = 32 << 10;

/// The longest record without encryption.
const MOST_RECORD: usize = 1 << 14;
const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;

#[derive(Debug, PartialEq, Eq)]
pub enum First {
    /// It could still become TLS or HTTP.
    More,
    /// TLS with the server name, if it has one.
    Tls(Option<String>),
    /// HTTP with the host of its first request, if it has one.
    Http(Option<String>),
    /// HTTP/2 without TLS. Its hosts are compressed.
    Http2,
    /// TLS or HTTP whose host cannot be read for certain.
    Unclear,
    Other,
    /// The client ended its side without sending a byte. `look` does not return it.
    Nothing,
}

pub fn look(bytes: &[u8]) -> First {
    let found = match bytes {
        [] => First::More,
        [first] if is_tls_record(*first) => First::More,
        [first, 3, ..] if is_tls_record(*first) => tls(bytes),
        _ => http(bytes),
    };
    match found {
        First::More if bytes.len() >= MOST => First::Unclear,
        found => found,
    }
}

/// Whether a record of TLS may begin with this byte. HTTP does not.
pub fn is_tls_record(first: u8) -> bool {
    (0x14..=0x17).contains(&first)
}

/// Records of a handshake whose first message is the hello, which may be split over several of them.
/// A server may skip other records before the hello, so nothing else is accepted.
fn tls(bytes: &[u8]) -> First {
    let mut hello = Vec::new();
    let mut rest = bytes;
    loop {
        let (length, body) = match rest {
            [HANDSHAKE, 3, _, high, low, body @ ..] => {
                (usize::from(u16::from_be_bytes([*high, *low])), body)
            }
            [] | [HANDSHAKE] | [HANDSHAKE, 3] | [HANDSHAKE, 3, _] | [HANDSHAKE, 3, _, _] => {
                return First::More
            }
            _ => return First::Unclear,
        };
        if length == 0 || length > MOST_RECORD {
            return First::Unclear;
        }
        hello.extend_from_slice(&body[..length.min(body.len())]);
        match hello[..] {
            [] | [CLIENT_HELLO] | [CLIENT_HELLO, _] | [CLIENT_HELLO, _, _] => {}
            [CLIENT_HELLO, a, b, c, ref message @ ..] => {
                let whole = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                // Another message in the same record is not expected here, whether it has arrived or not.
                let missing = length.saturating_sub(body.len());
                if whole > MOST || message.len() + missing > whole {
                    return First::Unclear;
                }
                if message.len() == whole {
                    return server_name(message).map_or(First::Unclear, First::Tls);
                }
            }
            _ => return First::Unclear,
        }
        rest = &body[length.min(body.len())..];
    }
}

/// Return the server name of a hello, if it has one. None: the hello cannot be read for certain.
fn server_name(hello: &[u8]) -> Option<Option<String>> {
    let mut rest = Bytes(hello);
    rest.take(34)?;
    let session = usize::from(rest.take(1)?[0]);
    rest.take(session)?;
    let ciphers = rest.length()?;
    rest.take(ciphers)?;
    let compressions = usize::from(rest.take(1)?[0]);
    rest.take(compressions)?;
    if rest.0.is_empty() {
        return Some(None);
    }
    let mut list = Bytes(rest.rest_of_length()?);
    let mut found = None;
    while !list.0.is_empty() {
        let kind = list.length()?;
        let length = list.length()?;
        let body = list.take(length)?;
        if kind == 0 && found.replace(only_name(body)?).is_some() {
            return None;
        }
    }
    Some(found)
}

/// Return the name in a list that must have one entry, a host.
fn only_name(extension: &[u8]) -> Option<String> {
    let mut list = Bytes(Bytes(extension).rest_of_length()?);
    if list.take(1)? != [0] {
        return None;
    }
    let name = list.rest_of_length().filter(|name| !name.is_empty())?;
    let name = std::str::from_utf8(name).ok()?;
    Some(name.trim_end_matches('.').to_ascii_lowercase())
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        if n > self.0.len() {
            return None;
        }
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        Some(taken)
    }

    fn length(&mut self) -> Option<usize> {
        let two = self.take(2)?;
        Some(usize::from(u16::from_be_bytes([two[0], two[1]])))
    }

    /// All that is left, if it has the length that it begins with.
    fn rest_of_length(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        (length == self.0.len()).then_some(self.0)
    }
}

const SPACES: &[u8] = b" \t\x0b\x0c";

/// Lenient servers accept more than the standard: empty lines and spaces before the request, any method,
/// other spaces, lines that end with only a line feed. What could be read in two ways is unclear.
fn http(bytes: &[u8]) -> First {
    let before = |b: &u8| SPACES.contains(b) || b"\r\n".contains(b);
    let Some(start) = bytes.iter().position(|b| !before(b)) else {
        return First::More;
    };
    let bytes = &bytes[start..];
    let end_of_line = bytes.iter().position(|&b| b == b'\n');
    let line = &bytes[..end_of_line.unwrap_or(bytes.len())];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let method = line
        .iter()
        .position(|&b| !is_token(b))
        .unwrap_or(line.len());
    let odd = |b: &u8| *b < b' ' && !b"\t\r".contains(b) || *b == 0x7f;
    if method == 0 || line.get(method).is_some_and(|b| !SPACES.contains(b)) {
        return other(line);
    }
    if line.iter().any(odd) {
        // The git protocol has zeros here, and a length before its first word.
        let word = |b: &u8| b.is_ascii_alphabetic() || *b == b'-';
        return if line[..method].iter().all(word) {
            First::Unclear
        } else {
            other(line)
        };
    }
    if end_of_line.is_none() {
        return First::More;
    }
    let line = String::from_utf8_lossy(line).to_ascii_lowercase();
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if !line.contains("http/") {
        // Some servers read the headers of a request without a version.
        let request = target.starts_with('/') || target.contains("://");
        return if request {
            First::Unclear
        } else {
            First::Other
        };
    }
    if method == "pri" {
        return First::Http2;
    }
    let Some(end) = end_of_headers(bytes) else {
        return First::More;
    };
    let mut hosts: Vec<String> = Vec::new();
    if let Some((_, rest)) = target.split_once("://") {
        let authority = rest.split(|c| "/?#\\".contains(c)).next().unwrap_or("");
        hosts.push(host_of(authority.rsplit('@').next().unwrap_or("")));
    } else if method == "connect" {
        hosts.push(host_of(target));
    }
    let lines = bytes[..end].split(|b| b"\r\n".contains(b));
    for line in lines.skip(1).filter(|line| !line.is_empty()) {
        let folded = b" \t".contains(&line[0]);
        if folded || line.iter().any(odd) {
            return First::Unclear;
        }
        let text = String::from_utf8_lossy(line);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        if name.trim().eq_ignore_ascii_case("host") {
            hosts.push(host_of(&value.trim().to_ascii_lowercase()));
        }
    }
    if hosts.windows(2).any(|two| two[0] != two[1]) {
        return First::Unclear;
    }
    First::Http(hosts.pop())
}

/// Another protocol; but some servers ignore what stands before or in the method of a request.
fn other(line: &[u8]) -> First {
    let version = |w: &[u8]| w[..5].eq_ignore_ascii_case(b"http/") && w[5].is_ascii_digit();
    if line.windows(6).any(version) {
        First::Unclear
    } else {
        First::Other
    }
}

/// Where the first empty line begins.
fn end_of_headers(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find(|&at| {
        let rest = &bytes[at..];
        rest.starts_with(b"\n\n") || rest.starts_with(b"\n\r\n")
    })
}

/// A host without its port and without the dot that may end it.
fn host_of(authority: &str) -> String {
    authority
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(authority, |(name, _)| name)
        .trim_end_matches('.')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_request_is_found() {
        let text = b"GET / HTTP/1.1\r\nhOst: Example.com:8080\r\n\r\n";
        assert_eq!(look(text), First::Http(Some("example.com".to_owned())));
        assert_eq!(look(b"GE"), First::More);
        assert_eq!(look(b"SSH-2.0-x\r\n"), First::Other);
        assert_eq!(look(b"GET / HTTP/1.0\r\n\r\n"), First::Http(None));
        assert_eq!(look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), First::Http2);
        for text in [
            &b"\r\n\r\nGET / HTTP/1.1\r\nHost: example.com\r\n\r\n"[..],
            b"GET / HTTP/1.1\nHost: example.com\n\n",
            b"propfind / HTTP/1.1\r\nHost : example.com.\r\n\r\n",
            b"GET http://user@example.com:80/x HTTP/1.1\r\n\r\n",
            b"CONNECT example.com:443 HTTP/1.1\r\n\r\n",
            b" \tGET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
            b"GET\t/\thttp/1.1\r\nX: y\r\nHOST:example.com\r\nhost: example.com\r\n\r\n",
        ] {
            let name = String::from_utf8_lossy(text);
            assert_eq!(
                look(text),
                First::Http(Some("example.com".to_owned())),
                "{}",
                name
            );
            for end in 0..text.len() - 1 {
                assert_eq!(look(&text[..end]), First::More, "{}", &name[..end]);
            }
        }
    }

    #[test]
    fn a_request_that_can_be_read_in_two_ways_is_unclear() {
        let long = [b"GET / HTTP/1.1\r\nX: ", &[b'x'; MOST][..]].concat();
        for text in [
            &b"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"[..],
            b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost:\r\n b.test\r\n\r\n",
            b"GET / HTTP/1.1\r\n\x0bHost: b.test\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: y\rHost: b.test\r\nHost: a.test\r\n\r\n",
            b"GET /\x01 HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"GET\x0b/\x0bHTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"GET /\x83HTTP\xcf1.1\r\nHost: b.test\r\n\r\n",
            b"GET /\r\nHost: b.test\r\n\r\n",
            b"GET http://b.test/\r\n\r\n",
            b"\x16\x03\x01\x00\x05GET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"\x16GET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"\xff\x00GET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b": GET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
            &long,
        ] {
            assert_eq!(
                look(text),
                First::Unclear,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }

    #[test]
    fn other_protocols_are_recognised_at_once() {
        for text in [
            &b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..],
            b"EHLO here\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"0032git-upload-pack /project.git\0host=x\0",
            b"AMQP\0\0\x09\x01",
            b"*1\r\n$4\r\nPING\r\n",
        ] {
            assert_eq!(
                look(text),
                First::Other,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }

    /// The extension with names, each of which has a type.
    fn names(list: &[(u8, &[u8])]) -> Vec<u8> {
        let mut entries = Vec::new();
        for (kind, name) in list {
            entries.extend_from_slice(&[*kind, 0, name.len() as u8]);
            entries.extend_from_slice(name);
        }
        let n = entries.len() as u8;
        [&[0, 0, 0, n + 2, 0, n][..], &entries].concat()
    }

    fn hello(name: &[u8]) -> Vec<u8> {
        hello_with(&names(&[(0, name)]))
    }

    fn hello_with(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[0; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
        body.extend_from_slice(extensions);
        let mut out = vec![0x16, 3, 1];
        out.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
        out.extend_from_slice(&[1, 0, 0, body.len() as u8]);
        out.extend_from_slice(&body);
        out
    }

    #[test]
    fn the_server_name_of_a_hello_is_found() {
        let whole = hello(b"Api.Example.com");
        assert_eq!(look(&whole), First::Tls(Some("api.example.com".to_owned())));
        for end in 1..whole.len() {
            assert_eq!(look(&whole[..end]), First::More, "{}", end);
        }
    }

    #[test]
    fn a_hello_in_two_records_is_put_together() {
        let whole = hello(b"a.example");
        let (head, tail) = whole[5..].split_at(20);
        let mut split = vec![0x16, 3, 1, 0, 20];
        split.extend_from_slice(head);
        split.extend_from_slice(&[0x16, 3, 1, 0, tail.len() as u8]);
        split.extend_from_slice(tail);
        assert_eq!(look(&split), First::Tls(Some("a.example".to_owned())));
    }

    #[test]
    fn a_hello_without_a_name_is_tls() {
        assert_eq!(look(&hello_with(&[])), First::Tls(None));
        assert_eq!(look(&hello_with(&[0, 23, 0, 0])), First::Tls(None));
    }

    #[test]
    fn names_that_are_not_understood_are_unclear() {
        let good = names(&[(0, b"good.test")]);
        let mut longer = good.clone();
        longer[5] += 1;
        let mut shorter = good.clone();
        shorter[5] -= 1;
        for (what, extensions) in [
            ("another type first", names(&[(1, b"x"), (0, b"evil.test")])),
            ("another type", names(&[(1, b"evil.test")])),
            ("two names", names(&[(0, b"good.test"), (0, b"evil.test")])),
            ("no name", names(&[])),
            ("an empty name", names(&[(0, b"")])),
            ("not UTF-8", names(&[(0, b"\xff")])),
            ("twice", [&good[..], &good].concat()),
            ("too long a list", longer),
            ("too short a list", shorter),
            ("half an extension", [&good[..], &[0, 23]].concat()),
            ("a length past the end", vec![0, 23, 0, 9]),
        ] {
            assert_eq!(look(&hello_with(&extensions)), First::Unclear, "{}", what);
        }
    }

    #[test]
    fn only_a_hello_may_begin_tls() {
        let evil = hello(b"evil.test");
        let alert = [0x15, 3, 1, 0, 2, 1, 0x70];
        let (head, tail) = evil[5..].split_at(20);
        let tail = [&[0x16, 3, 1, 0, tail.len() as u8][..], tail].concat();
        let begun = [&[0x16, 3, 1, 0, 20][..], head].concat();
        for (what, text) in [
            ("an alert", alert.to_vec()),
            ("an alert first", [&alert[..], &evil].concat()),
            (
                "a change of ciphers first",
                [&[0x14, 3, 3, 0, 1, 1], &evil[..]].concat(),
            ),
            ("data first", [&[0x17, 3, 3, 0, 1, 1], &evil[..]].concat()),
            (
                "an empty record first",
                [&[0x16, 3, 1, 0, 0], &evil[..]].concat(),
            ),
            ("another message first", vec![0x16, 3, 1, 0, 4, 0, 0, 0, 0]),
            ("an alert between", [&begun[..], &alert, &tail].concat()),
            ("a record that goes on after the hello", {
                let mut longer = evil.clone();
                longer[4] += 1;
                longer
            }),
            (
                "an empty record between",
                [&begun[..], &[0x16, 3, 1, 0, 0], &tail].concat(),
            ),
            ("a record that is too large", vec![0x16, 3, 1, 0xff, 0xff]),
            ("not TLS between", [&begun[..], b"GET / "].concat()),
        ] {
            assert_eq!(look(&text), First::Unclear, "{}", what);
        }
        // What follows a hello is not looked at.
        let good = [&hello(b"good.test")[..], &[0x14, 3, 3, 0, 1, 1]].concat();
        assert_eq!(look(&good), First::Tls(Some("good.test".to_owned())));
        assert_eq!(look(b"\x16\x04\x01\x00\x00"), First::Other);
    }
}
