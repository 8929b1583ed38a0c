//! The first bytes of a connection: the host that a TLS or HTTP client says it speaks to. Pure.

/// More than any client sends before the server answers.
pub const MOST: usize = 32 << 10;

#[derive(Debug, PartialEq, Eq)]
pub enum First {
    /// It could still become TLS or HTTP.
    More,
    /// TLS with the server name, if it has one.
    Tls(Option<String>),
    /// HTTP with the host of its first request, if it has one.
    Http(Option<String>),
    /// TLS or HTTP whose host cannot be told for certain.
    Unclear,
    Other,
}

pub fn look(bytes: &[u8]) -> First {
    let found = match bytes {
        [] => First::More,
        [0x16, ..] => tls(bytes),
        _ => http(bytes),
    };
    match found {
        First::More if bytes.len() >= MOST => First::Unclear,
        found => found,
    }
}

fn tls(bytes: &[u8]) -> First {
    if bytes.len() < 5 {
        return First::More;
    }
    if bytes[1] != 3 {
        return other(bytes.split(|&b| b == b'\n').next().unwrap_or(bytes));
    }
    // A hello may be split over several records.
    let mut hello = Vec::new();
    let mut rest = bytes;
    while rest.len() >= 5 && rest[0] == 0x16 {
        let length = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        let end = (5 + length).min(rest.len());
        hello.extend_from_slice(&rest[5..end]);
        rest = &rest[end..];
    }
    if hello.len() < 4 {
        return First::More;
    }
    if hello[0] != 1 {
        return First::Unclear;
    }
    let length = usize::from(hello[1]) << 16 | usize::from(hello[2]) << 8 | usize::from(hello[3]);
    if length > MOST {
        return First::Unclear;
    }
    if hello.len() < 4 + length {
        return First::More;
    }
    First::Tls(server_name(&hello[4..4 + length]))
}

fn server_name(hello: &[u8]) -> Option<String> {
    let mut rest = Bytes(hello);
    rest.take(34)?;
    let session = usize::from(rest.take(1)?[0]);
    rest.take(session)?;
    let ciphers = rest.length()?;
    rest.take(ciphers)?;
    let compressions = usize::from(rest.take(1)?[0]);
    rest.take(compressions)?;
    let extensions = rest.length()?;
    let mut list = Bytes(rest.take(extensions)?);
    while let Some(kind) = list.length() {
        let length = list.length()?;
        let mut body = Bytes(list.take(length)?);
        if kind == 0 {
            body.length()?;
            if body.take(1)? != [0] {
                return None;
            }
            let length = body.length()?;
            let name = std::str::from_utf8(body.take(length)?).ok()?;
            return Some(name.trim_end_matches('.').to_ascii_lowercase());
        }
    }
    None
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
}

const SPACES: &[u8] = b" \t\x0b\x0c";

/// Lenient servers accept more than the standard: empty lines and spaces before the request, any method,
/// other spaces, lines that end with a line feed alone. What could be read in two ways is unclear.
fn http(bytes: &[u8]) -> First {
    let before = |b: &u8| SPACES.contains(b) || b"\r\n".contains(b);
    let start = match bytes.iter().position(|b| !before(b)) {
        Some(start) => start,
        None => return First::More,
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
    if method == 0 || line.get(method).map_or(false, |b| !SPACES.contains(b)) {
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
    // HTTP/2 without TLS: its host is compressed.
    if method == "pri" {
        return First::Unclear;
    }
    let end = match end_of_headers(bytes) {
        Some(end) => end,
        None => return First::More,
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

pub fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Where the first empty line begins.
fn end_of_headers(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find(|&at| {
        let rest = &bytes[at..];
        rest.starts_with(b"\n\n") || rest.starts_with(b"\n\r\n")
    })
}

/// A host without its port and without the dot that may end it.
pub fn host_of(authority: &str) -> String {
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
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
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

    fn hello(name: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[0; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        let n = name.len() as u8;
        let mut extension = vec![0, 0, 0, n + 5, 0, n + 3, 0, 0, n];
        extension.extend_from_slice(name);
        body.extend_from_slice(&(extension.len() as u16).to_be_bytes());
        body.extend_from_slice(&extension);
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
}
