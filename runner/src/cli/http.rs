//! HTTP/1.1 to a daemon over its Unix socket: one request for each connection.
//!
//! What a daemon sends is bounded: the head here, the body by those who read it.

use crate::daemon::Daemon;
use crate::signals::{Signals, Wait};
use sandkasten_runner::sys::{self, Errno};
use std::os::raw::c_int;
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const CONNECT_MS: i32 = 10_000;
const PIECE: usize = 1 << 16;
const MAX_HEAD: usize = 1 << 16;
const MAX_LINE: usize = 1 << 10;

/// Why a response ends before it is complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Lost {
    Signal(c_int),
    /// The daemon has sent nothing for too long.
    Silent,
    /// The daemon closed the connection, or what it sent is not HTTP.
    Incomplete,
    Failed(Errno),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Lost {
        Lost::Failed(errno)
    }
}

pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub accept: &'a str,
    pub body: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    pub fn get(path: &'a str) -> Request<'a> {
        Request {
            method: "GET",
            path,
            accept: "*/*",
            body: None,
        }
    }

    pub fn post(path: &'a str, body: &'a [u8]) -> Request<'a> {
        Request {
            method: "POST",
            path,
            accept: "*/*",
            body: Some(body),
        }
    }

    fn bytes(&self, daemon: &Daemon) -> Vec<u8> {
        let line = |name: &str, value: &Option<String>| match value {
            Some(value) => format!("{}: {}\r\n", name, value),
            None => String::new(),
        };
        let bearer = daemon.api_key.as_ref().map(|key| format!("Bearer {}", key));
        let length = self.body.map(|body| body.len().to_string());
        let kind = self.body.map(|_| "application/json".to_owned());
        let head = [
            format!("{} {} HTTP/1.1\r\n", self.method, self.path),
            "Connection: close\r\nHost: localhost\r\nUser-Agent: sandkasten\r\n".into(),
            format!("Accept: {}\r\nAccept-Encoding: identity\r\n", self.accept),
            line("Authorization", &bearer),
            line("X-Sandkasten-Tenant", &daemon.tenant),
            line("Content-Type", &kind),
            line("Content-Length", &length),
            "\r\n".into(),
        ];
        [head.concat().as_bytes(), self.body.unwrap_or(b"")].concat()
    }
}

/// A connection to a daemon that has not been asked yet.
pub struct Connection<'s> {
    fd: OwnedFd,
    signals: &'s Signals,
}

impl<'s> Connection<'s> {
    pub fn open(daemon: &Daemon, signals: &'s Signals) -> Result<Connection<'s>, Lost> {
        let fd = sys::connect_unix(daemon.path.as_bytes(), CONNECT_MS)?;
        sys::set_nonblocking(fd.as_raw_fd())?;
        Ok(Connection { fd, signals })
    }

    /// Send the request and return the response when its head is there. `limit` is for all of the
    /// response, its body included, unless `silence` is set then.
    pub fn ask(
        self,
        daemon: &Daemon,
        request: &Request,
        limit: Option<Duration>,
    ) -> Result<Response<'s>, Lost> {
        let end = limit.map(|limit| Instant::now() + limit);
        let bytes = request.bytes(daemon);
        let mut left = &bytes[..];
        while !left.is_empty() {
            wait(self.signals, &self.fd, libc::POLLOUT, limit)?;
            left = &left[again(sys::write(self.fd.as_raw_fd(), left))?..];
        }
        let mut response = Response {
            status: 0,
            has_next_page: false,
            connection: self,
            end,
            silence: None,
            rest: Vec::new(),
            left: Left::UntilClosed,
        };
        let head = response.until(b"\r\n\r\n", MAX_HEAD)?;
        response.read_head(&head).ok_or(Lost::Incomplete)?;
        Ok(response)
    }
}

/// How much of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Bytes(u64),
    /// Bytes left of this chunk; `None` before the first one.
    Chunk(Option<u64>),
    UntilClosed,
    Nothing,
}

/// A response whose head has arrived.
pub struct Response<'s> {
    pub status: u16,
    /// Whether a list goes on in another response.
    pub has_next_page: bool,
    /// How long the daemon may send nothing, for a body that may take any time.
    pub silence: Option<Duration>,
    end: Option<Instant>,
    connection: Connection<'s>,
    rest: Vec<u8>,
    left: Left,
}

impl Response<'_> {
    fn read_head(&mut self, head: &[u8]) -> Option<()> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        first
            .next()
            .filter(|version| version.starts_with("HTTP/1."))?;
        self.status = first.next()?.parse().ok()?;
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            match name.as_str() {
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                    self.left = Left::Chunk(None);
                }
                "transfer-encoding" => return None,
                "content-length" if self.left == Left::UntilClosed => {
                    self.left = Left::Bytes(number(value, 10)?);
                }
                "x-next-cursor" => self.has_next_page = true,
                _ => {}
            }
        }
        Some(())
    }

    /// Return the whole body as JSON; None if it is not, or longer than `most`.
    pub fn json(self, most: usize) -> Result<Option<crate::json::Json>, Lost> {
        let body = self.body(most)?;
        Ok(body.and_then(|body| crate::json::Json::parse(&body)))
    }

    /// Return the whole body; None if it is longer than `most`.
    pub fn body(mut self, most: usize) -> Result<Option<Vec<u8>>, Lost> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece()? {
            if body.len() + piece.len() > most {
                return Ok(None);
            }
            body.extend_from_slice(&piece);
        }
        Ok(Some(body))
    }

    /// Return the next part of the body as it arrives; None at its end.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, Lost> {
        if let Left::Chunk(None | Some(0)) = self.left {
            self.next_chunk()?;
        }
        let left = match self.left {
            Left::Nothing | Left::Bytes(0) => return Ok(None),
            Left::Bytes(left) | Left::Chunk(Some(left)) => left,
            Left::Chunk(None) | Left::UntilClosed => u64::MAX,
        };
        if self.rest.is_empty() {
            match self.fill() {
                Err(Lost::Incomplete) if self.left == Left::UntilClosed => return Ok(None),
                result => result?,
            }
        }
        let size = left.min(self.rest.len() as u64) as usize;
        let after = self.rest.split_off(size);
        let piece = std::mem::replace(&mut self.rest, after);
        match &mut self.left {
            Left::Bytes(left) | Left::Chunk(Some(left)) => *left -= size as u64,
            _ => {}
        }
        Ok(Some(piece))
    }

    fn next_chunk(&mut self) -> Result<(), Lost> {
        if self.left == Left::Chunk(Some(0)) {
            if !self.until(b"\r\n", 2)?.is_empty() {
                return Err(Lost::Incomplete);
            }
            // A signal may end the wait for the next line, and not for this one.
            self.left = Left::Chunk(None);
        }
        let line = self.until(b"\r\n", MAX_LINE)?;
        let line = std::str::from_utf8(&line).map_err(|_| Lost::Incomplete)?;
        let size = line
            .split(';')
            .next()
            .and_then(|size| number(size.trim(), 16));
        self.left = match size.ok_or(Lost::Incomplete)? {
            0 => Left::Nothing,
            size => Left::Chunk(Some(size)),
        };
        Ok(())
    }

    /// Return what comes before `end`, which is at most `most` bytes.
    fn until(&mut self, end: &[u8], most: usize) -> Result<Vec<u8>, Lost> {
        loop {
            let place = self
                .rest
                .windows(end.len())
                .position(|window| window == end);
            if let Some(place) = place.filter(|&place| place <= most) {
                let after = self.rest.split_off(place + end.len());
                let mut before = std::mem::replace(&mut self.rest, after);
                before.truncate(place);
                return Ok(before);
            }
            if place.is_some() || self.rest.len() > most {
                return Err(Lost::Incomplete);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), Lost> {
        let mut piece = [0; PIECE];
        loop {
            let left = |end: Instant| end.saturating_duration_since(Instant::now());
            let limit = self.silence.or_else(|| self.end.map(left));
            wait(
                self.connection.signals,
                &self.connection.fd,
                libc::POLLIN,
                limit,
            )?;
            match sys::read(self.connection.fd.as_raw_fd(), &mut piece) {
                Ok(0) => return Err(Lost::Incomplete),
                Err(libc::EAGAIN) => {}
                count => {
                    self.rest.extend_from_slice(&piece[..count?]);
                    return Ok(());
                }
            }
        }
    }
}

/// Wait for a socket; a signal or the limit ends it.
fn wait(signals: &Signals, fd: &OwnedFd, events: i16, limit: Option<Duration>) -> Result<(), Lost> {
    match signals.wait(fd.as_raw_fd(), events, limit)? {
        Wait::Ready => Ok(()),
        Wait::Signal(number) => Err(Lost::Signal(number)),
        Wait::Timeout => Err(Lost::Silent),
    }
}

/// Return how much was written: nothing if the socket was not ready after all.
fn again(result: sys::Result<usize>) -> sys::Result<usize> {
    match result {
        Err(libc::EAGAIN) => Ok(0),
        result => result,
    }
}

/// Return a number that is written only with digits.
fn number(text: &str, radix: u32) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits
        .then(|| u64::from_str_radix(text, radix).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Ask a daemon that sends these bytes, in pieces, and closes the connection.
    fn asked(answer: &[u8], size: usize, most: usize) -> Result<(u16, Option<Vec<u8>>), Lost> {
        asked_slowly(answer, size, most, None)
    }

    /// With a limit, the daemon waits for 5 ms after each piece.
    fn asked_slowly(
        answer: &[u8],
        size: usize,
        most: usize,
        limit: Option<Duration>,
    ) -> Result<(u16, Option<Vec<u8>>), Lost> {
        let (here, mut there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let answer = answer.to_vec();
        let thread = std::thread::spawn(move || {
            let mut request = [0; 4096];
            let count = there.read(&mut request).unwrap();
            for piece in answer.chunks(size) {
                if there.write_all(piece).is_err() {
                    break;
                }
                if limit.is_some() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            request[..count].to_vec()
        });
        let signals = Signals::catch().unwrap();
        let connection = Connection {
            fd: here.into(),
            signals: &signals,
        };
        let daemon = Daemon {
            path: "/x".into(),
            api_key: Some("k".into()),
            tenant: None,
        };
        let asked = connection.ask(&daemon, &Request::post("/p", b"{}"), limit);
        let result = asked.and_then(|response| Ok((response.status, response.body(most)?)));
        let request = String::from_utf8(thread.join().unwrap()).unwrap();
        assert!(request.starts_with("POST /p HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{}"));
        assert!(request.contains("\r\nAuthorization: Bearer k\r\n"));
        result
    }

    #[test]
    fn a_body_comes_however_it_is_sent() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        ] {
            for size in [1, 7, 4096] {
                let expected = Ok((200, Some(b"hello".to_vec())));
                assert_eq!(asked(answer.as_bytes(), size, 5), expected, "{}", answer);
            }
        }
    }

    #[test]
    fn what_breaks_off_or_is_not_http_is_incomplete() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!!\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        ] {
            assert_eq!(
                asked(answer.as_bytes(), 4096, 99),
                Err(Lost::Incomplete),
                "{}",
                answer
            );
        }
    }

    #[test]
    fn the_limit_is_for_all_of_a_response() {
        let limit = Some(Duration::from_millis(100));
        let head = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; 60_000]].concat();
        assert_eq!(asked_slowly(&head, 1, 99, limit), Err(Lost::Silent));
        let body = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'x'; 190_000]].concat();
        assert_eq!(asked_slowly(&body, 19, 1 << 20, limit), Err(Lost::Silent));
        let limit = Some(Duration::from_secs(600));
        let expected = Ok((200, Some(vec![b'x'; 20])));
        assert_eq!(asked_slowly(&body[..39], 19, 99, limit), expected);
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let head = [b"HTTP/1.1 200 OK\r\n".as_slice(), &vec![b'x'; 1 << 20]].concat();
        assert_eq!(asked(&head, PIECE, 99), Err(Lost::Incomplete));
        let body = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b'x'; 1 << 20]].concat();
        assert_eq!(asked(&body, PIECE, 99), Ok((200, None)));
    }
}
