//! The first bytes of a connection: the host that a TLS or HTTP client says it speaks to. Pure.

/// More than any client sends before the server answers.
pub const MOST: usize = 16 << 10;

#[derive(Debug, PartialEq, Eq)]
pub enum First {
    /// It could still become TLS or HTTP.
    More,
    /// TLS with the server name, if it has one.
    Tls(Option<String>),
    /// HTTP with the host of its first request, if it has one.
    Http(Option<String>),
    Other,
}

pub fn look(bytes: &[u8]) -> First {
    match bytes {
        [] => First::More,
        [0x16, ..] => tls(bytes),
        _ => http(bytes),
    }
}

fn tls(bytes: &[u8]) -> First {
    if bytes.len() < 5 {
        return First::More;
    }
    if bytes[1] != 3 {
        return First::Other;
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
        return First::Other;
    }
    let length = usize::from(hello[1]) << 16 | usize::from(hello[2]) << 8 | usize::from(hello[3]);
    if length > MOST {
        return First::Other;
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

fn http(bytes: &[u8]) -> First {
    const METHODS: [&[u8]; 9] = [
        b"GET ",
        b"POST ",
        b"PUT ",
        b"HEAD ",
        b"PATCH ",
        b"DELETE ",
        b"OPTIONS ",
        b"TRACE ",
        b"PRI ",
    ];
    let starts = |method: &&[u8]| {
        let n = method.len().min(bytes.len());
        bytes[..n] == method[..n]
    };
    if !METHODS.iter().any(starts) {
        return First::Other;
    }
    let end = match bytes.windows(4).position(|w| w == b"\r\n\r\n") {
        Some(end) => end,
        None if bytes.len() >= MOST => return First::Other,
        None => return First::More,
    };
    let mut host = None;
    for line in bytes[..end].split(|&b| b == b'\n').skip(1) {
        let text = String::from_utf8_lossy(line);
        let (name, value) = match text.split_once(':') {
            Some(found) => found,
            None => continue,
        };
        if name.trim().eq_ignore_ascii_case("host") {
            let value = value.trim().to_ascii_lowercase();
            let name = value
                .rsplit_once(':')
                .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
                .map_or(value.as_str(), |(name, _)| name);
            host = Some(name.trim_end_matches('.').to_owned());
        }
    }
    First::Http(host)
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
