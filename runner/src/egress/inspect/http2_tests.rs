use super::super::answer::tests::{inspector, pair, VALUE};
use super::super::{Begins, Moved};
use super::*;
use h2::client::ResponseFuture;
use h2::SendStream;
use http::{HeaderMap, Response};
use serde_json::{json, Value};
use std::io::{self, Read, Write};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::UnixStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket as the library wants it. What is not there yet is there after a turn of the egress.
struct Socket(UnixStream);

fn ready<T>(done: io::Result<T>) -> Poll<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.0.read(buffer.initialize_unfilled());
        ready(read.map(|count| buffer.advance(count)))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready(self.0.write(data))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn now<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// An inspected connection between sockets.
struct Middle {
    inspection: Inspection,
    inspector: Inspector,
    rules: Rules,
    sockets: (UnixStream, UnixStream),
    /// Why it ended.
    trouble: Option<String>,
    ended: bool,
}

impl Middle {
    fn new(rules: Value) -> (Middle, UnixStream, UnixStream) {
        let ((inside, client), (outside, server)) = (pair(), pair());
        let mut inspector = inspector();
        let inspection = Inspection::new(&mut inspector, "a.test", 80, Begins::Http2).unwrap();
        let middle = Middle {
            inspection,
            inspector,
            rules: Rules::parse(&rules).unwrap(),
            sockets: (inside, outside),
            trouble: None,
            ended: false,
        };
        (middle, client, server)
    }

    fn run(&mut self) {
        let sockets = (self.sockets.0.as_raw_fd(), self.sockets.1.as_raw_fd());
        while !self.ended {
            match self
                .inspection
                .step(&self.rules, &self.inspector, sockets)
                .unwrap()
            {
                Moved::Busy => {}
                Moved::Idle => break,
                Moved::Done => self.ended = true,
            }
        }
        self.trouble = self.inspection.trouble.clone();
        self.ended |= self.inspection.ending;
    }
}

type Asked = (Request<RecvStream>, SendResponse<Bytes>);

/// A client and a server of the library, with the egress between them.
struct Rig {
    middle: Middle,
    requests: SendRequest<Bytes>,
    client: client::Connection<Socket, Bytes>,
    server: server::Connection<Socket, Bytes>,
    asked: Vec<Asked>,
}

impl Rig {
    fn new(rules: Value) -> Rig {
        Rig::with(rules, |_| ())
    }

    fn with(rules: Value, change: fn(&mut server::Builder)) -> Rig {
        let (mut middle, near, far) = Middle::new(rules);
        let begun = pin!(client::Builder::new()
            .initial_window_size(64 << 10)
            .handshake(Socket(near)))
        .poll(&mut context());
        let (requests, mut client) = now(begun).unwrap().unwrap();
        let mut builder = server::Builder::new();
        change(&mut builder);
        let mut greeting = pin!(builder.handshake(Socket(far)));
        let server = loop {
            let _ = Pin::new(&mut client).poll(&mut context());
            middle.run();
            if let Some(server) = now(greeting.as_mut().poll(&mut context())) {
                break server.unwrap();
            }
        };
        let mut rig = Rig {
            middle,
            requests,
            client,
            server,
            asked: Vec::new(),
        };
        rig.run();
        rig
    }

    /// Run both ends and the egress until nothing changes.
    fn run(&mut self) {
        for _ in 0..20 {
            let _ = Pin::new(&mut self.client).poll(&mut context());
            self.middle.run();
            while let Some(Some(Ok(asked))) = now(self.server.poll_accept(&mut context())) {
                self.asked.push(asked);
            }
        }
    }

    fn ask(&mut self, path: &str, ends: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.ask_at("a.test", path, ends)
    }

    fn ask_at(
        &mut self,
        host: &str,
        path: &str,
        ends: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://{}{}", host, path))
            .body(());
        assert!(self.requests.poll_ready(&mut context()).is_ready());
        let sent = self.requests.send_request(request.unwrap(), ends).unwrap();
        self.run();
        sent
    }
}

fn all() -> Value {
    json!({"full": true})
}

/// Return what has arrived of a body.
fn arrived(body: &mut RecvStream) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(Some(Ok(data))) = now(body.poll_data(&mut context())) {
        let _ = body.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    text
}

fn head(answer: &mut ResponseFuture) -> Response<RecvStream> {
    now(Pin::new(answer).poll(&mut context())).unwrap().unwrap()
}

fn fields(name: &'static str, value: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(name, value.parse().unwrap());
    fields
}

fn rule(path: &str) -> Value {
    json!({"allow": [{"host": "a.test", "port": null, "path": path, "text": path}]})
}

#[test]
fn a_request_and_its_answer_pass_and_a_value_does_not_come_back() {
    let mut rig = Rig::new(all());
    let (mut answer, mut upload) = rig.ask("/echo", false);
    upload.send_data("up".into(), false).unwrap();
    rig.run();
    let (request, mut respond) = rig.asked.pop().unwrap();
    assert_eq!(
        (request.method().as_str(), request.uri().path()),
        ("POST", "/echo")
    );
    assert_eq!(request.uri().authority().unwrap(), "a.test");
    assert_eq!(request.headers()["accept-encoding"], "identity");
    let mut body = request.into_body();
    assert_eq!(arrived(&mut body), b"up");
    // The answer begins before the request has ended.
    let mut head_of = Response::new(());
    *head_of.headers_mut() = fields("x-echo", VALUE);
    let mut out = respond.send_response(head_of, false).unwrap();
    let (first, second) = VALUE.split_at(5);
    for part in ["-", first, second, "-"] {
        out.send_data(part.to_owned().into(), false).unwrap();
        rig.run();
    }
    let answer = head(&mut answer);
    assert_eq!(answer.headers()["x-echo"], "*".repeat(VALUE.len()));
    let mut download = answer.into_body();
    assert_eq!(arrived(&mut download), b"");
    upload.send_data("".into(), true).unwrap();
    let mut last = fields("x-end", VALUE);
    last.extend(fields("content-length", VALUE));
    out.send_trailers(last).unwrap();
    rig.run();
    assert_eq!(arrived(&mut body), b"");
    assert!(body.is_end_stream());
    let shown = format!("-{}-", "*".repeat(VALUE.len()));
    assert_eq!(arrived(&mut download), shown.as_bytes());
    let trailers = now(download.poll_trailers(&mut context()));
    let trailers = trailers.unwrap().unwrap().unwrap();
    assert_eq!(trailers["x-end"], "*".repeat(VALUE.len()));
    assert!(!trailers.contains_key("content-length"));
    let event = rig.middle.inspection.events.pop().unwrap();
    assert_eq!((&event.method[..], &event.path[..]), ("POST", "/echo"));
    assert!(event.allowed && !event.refused);
}

#[test]
fn a_refused_stream_is_answered_and_the_others_go_on() {
    let mut rig = Rig::new(rule("/yes"));
    let (mut good, _) = rig.ask("/yes", true);
    for (host, path, status, note) in [
        ("a.test", "/no", 403, ("POST", "/no", "default")),
        ("a.test:80", "/no", 403, ("POST", "/no", "default")),
        (
            "b.test",
            "/yes",
            400,
            ("", "", "its Host is not the name of the connection"),
        ),
        (
            "me@a.test",
            "/yes",
            400,
            ("", "", "its Host is not the name of the connection"),
        ),
        (
            "a.test:81",
            "/yes",
            400,
            ("", "", "its Host is not the name of the connection"),
        ),
    ] {
        let (mut bad, _upload) = rig.ask_at(host, path, false);
        let answer = head(&mut bad);
        assert_eq!(answer.status().as_u16(), status, "{host} {path}");
        assert_eq!(answer.headers()["x-sandkasten-network"], "refused");
        assert!(!arrived(&mut answer.into_body()).is_empty());
        let event = rig.middle.inspection.events.pop().unwrap();
        assert!(event.refused);
        assert_eq!((&event.method[..], &event.path[..], &event.rule[..]), note);
    }
    let (_, mut respond) = rig.asked.pop().unwrap();
    assert!(rig.asked.is_empty());
    respond.send_response(Response::new(()), true).unwrap();
    rig.run();
    assert_eq!(head(&mut good).status(), 200);
    assert_eq!(rig.middle.trouble, None);
}

#[test]
fn an_upload_may_go_on_when_its_answer_is_complete() {
    for path in ["/yes", "/no"] {
        let mut rig = Rig::new(rule("/yes"));
        let (mut answer, mut upload) = rig.ask(path, false);
        let mut body = rig.asked.pop().map(|(request, mut respond)| {
            respond.send_response(Response::new(()), true).unwrap();
            request.into_body()
        });
        rig.run();
        let status = head(&mut answer).status();
        assert_eq!(status, if path == "/yes" { 200 } else { 403 });
        upload.send_data("late".into(), true).unwrap();
        rig.run();
        assert!(upload.poll_reset(&mut context()).is_pending(), "{path}");
        if let Some(body) = &mut body {
            assert_eq!(arrived(body), b"late");
        }
        assert_eq!(rig.middle.trouble, None);
    }
}

#[test]
fn only_what_the_client_takes_is_asked_of_the_server() {
    let mut rig = Rig::new(all());
    let (mut answer, _) = rig.ask("/large", true);
    let (_, mut respond) = rig.asked.pop().unwrap();
    let mut out = respond.send_response(Response::new(()), false).unwrap();
    let (mut sent, mut idle) = (0, 0);
    while idle < 5 {
        out.reserve_capacity(1 << 20);
        let room = out.capacity();
        idle = if room == 0 { idle + 1 } else { 0 };
        if room > 0 {
            out.send_data(vec![b'x'; room].into(), false).unwrap();
        }
        sent += room;
        rig.run();
    }
    // What waits here twice, what the client has room for, and what the library has.
    assert!(sent > 64 << 10 && sent < 3 << 20, "{sent}");
    let mut body = head(&mut answer).into_body();
    let mut got = 0;
    for _ in 0..500 {
        got += arrived(&mut body).len();
        rig.run();
    }
    assert_eq!(rig.middle.trouble, None);
    assert!(got + 256 > sent, "{got} of {sent}");
    out.send_data("".into(), true).unwrap();
    rig.run();
    got += arrived(&mut body).len();
    assert_eq!(got, sent);
}

#[test]
fn an_upload_waits_for_the_server() {
    let mut rig = Rig::new(all());
    let (_answer, mut out) = rig.ask("/up", false);
    let (mut sent, mut idle) = (0, 0);
    while idle < 5 {
        out.reserve_capacity(1 << 20);
        let room = out.capacity();
        idle = if room == 0 { idle + 1 } else { 0 };
        if room > 0 {
            out.send_data(vec![b'x'; room].into(), false).unwrap();
        }
        sent += room;
        rig.run();
    }
    assert!(sent < 3 << 20, "{sent}");
    let (request, _respond) = rig.asked.pop().unwrap();
    let (mut body, mut got) = (request.into_body(), 0);
    for _ in 0..500 {
        got += arrived(&mut body).len();
        rig.run();
    }
    assert_eq!(got, sent);
}

#[test]
fn a_pause_shows_what_is_held_back_only_of_a_stream_without_an_end() {
    for (name, value, part, due) in [
        ("x", "y", &b"0123"[..], true),
        ("content-length", "16", b"0123", false),
        (
            "content-type",
            "application/grpc",
            b"\0\0\0\0\x080123",
            false,
        ),
        (
            "content-type",
            "application/grpc",
            b"\0\0\0\0\x040123",
            false,
        ),
    ] {
        let mut rig = Rig::new(all());
        let (mut answer, _) = rig.ask("/", true);
        let (_, mut respond) = rig.asked.pop().unwrap();
        let mut answered = Response::new(());
        *answered.headers_mut() = fields(name, value);
        let mut out = respond.send_response(answered, false).unwrap();
        out.send_data(part.to_vec().into(), false).unwrap();
        rig.run();
        assert_eq!(
            rig.middle.inspection.due().is_some(),
            due,
            "{name} {part:?}"
        );
        let whole = part.starts_with(b"\0\0\0\0\x04");
        let shown = arrived(&mut head(&mut answer).into_body());
        assert_eq!(shown == part, whole, "{name} {part:?} {shown:?}");
    }
}

#[test]
fn a_value_is_hidden_in_messages_of_grpc_and_their_heads_stay() {
    let mut rig = Rig::new(all());
    let (mut answer, _) = rig.ask("/", true);
    let (_, mut respond) = rig.asked.pop().unwrap();
    let mut answered = Response::new(());
    *answered.headers_mut() = fields("content-type", "application/grpc");
    let mut out = respond.send_response(answered, false).unwrap();
    let message = [b"\0\0\0\0\x12-", VALUE.as_bytes(), b"-"].concat();
    for piece in [&message.repeat(2)[..], b"\0\0\0\0\0"].concat().chunks(7) {
        out.send_data(piece.to_vec().into(), false).unwrap();
    }
    rig.run();
    let hidden = [b"\0\0\0\0\x12-", "*".repeat(16).as_bytes(), b"-"].concat();
    let shown = arrived(&mut head(&mut answer).into_body());
    assert_eq!(shown, [&hidden.repeat(2)[..], b"\0\0\0\0\0"].concat());
    // One that is compressed cannot be searched.
    out.send_data(b"\x01\0\0\0\x01x".to_vec().into(), false)
        .unwrap();
    rig.run();
    assert!(rig.middle.trouble.is_some());
}

#[test]
fn an_answer_that_cannot_be_searched_is_refused_and_charged_alike() {
    let mut charges = Vec::new();
    for length in [0, 100, 20_000] {
        let mut rig = Rig::new(all());
        let (mut answer, _) = rig.ask("/", true);
        let (_, mut respond) = rig.asked.pop().unwrap();
        let mut answered = Response::new(());
        *answered.headers_mut() = fields("content-encoding", "gzip");
        let mut out = respond.send_response(answered, false).unwrap();
        out.send_data(vec![b'x'; length].into(), false).unwrap();
        rig.run();
        assert_eq!(head(&mut answer).status(), 502);
        // Heads of frames: a few bytes for each 16 KiB.
        charges.push(rig.middle.inspection.bytes().1 / 1024);
    }
    assert!(
        charges.windows(2).all(|two| two[0] == two[1]),
        "{charges:?}"
    );
}

#[test]
fn a_reset_passes_in_both_directions_and_ends_one_stream() {
    let mut rig = Rig::new(all());
    let (mut first, _) = rig.ask("/first", true);
    let (mut second, _) = rig.ask("/second", true);
    let (third, _) = rig.ask("/third", true);
    rig.asked[0].1.send_reset(Reason::INADEQUATE_SECURITY);
    drop(third);
    rig.run();
    let error = now(Pin::new(&mut first).poll(&mut context()))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::INADEQUATE_SECURITY));
    let gone = now(rig.asked[2].1.poll_reset(&mut context()));
    assert_eq!(gone.unwrap().unwrap(), Reason::CANCEL);
    rig.asked[1]
        .1
        .send_response(Response::new(()), true)
        .unwrap();
    rig.run();
    assert_eq!(head(&mut second).status(), 200);
}

#[test]
fn requests_wait_for_a_server_that_takes_few() {
    let mut rig = Rig::with(all(), |builder| {
        builder.max_concurrent_streams(1);
    });
    let mut answers: Vec<_> = (0..5).map(|_| rig.ask("/", true).0).collect();
    for answer in &mut answers {
        assert_eq!(rig.asked.len(), 1);
        let (_, mut respond) = rig.asked.pop().unwrap();
        respond.send_response(Response::new(()), true).unwrap();
        drop(respond);
        rig.run();
        assert_eq!(head(answer).status(), 200);
    }
}

#[test]
fn a_server_that_leaves_is_an_answer() {
    let mut rig = Rig::new(all());
    let (mut answer, _) = rig.ask("/", true);
    rig.asked.clear();
    let Rig {
        mut middle,
        mut client,
        server,
        requests,
        ..
    } = rig;
    drop(server);
    for _ in 0..20 {
        middle.run();
        let _ = Pin::new(&mut client).poll(&mut context());
    }
    drop(requests);
    assert_eq!(head(&mut answer).status(), 502);
}

/// A frame: its type, its flags, its stream and its payload.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let setting = [0, 4, 0, 1, 0, 0];
    vec![
        ("pings", frame(6, 0, 0, b"12345678")),
        ("settings", frame(4, 0, 0, &setting)),
        ("empty settings", frame(4, 0, 0, b"")),
        ("priorities", frame(2, 0, 1, b"\0\0\0\0\x10")),
        ("windows", frame(8, 0, 0, b"\0\0\0\x01")),
        ("unknown frames", frame(99, 0, 0, b"")),
    ]
}

/// Send frames again and again until the egress ends the connection. Returns how many bytes it took.
fn flood(middle: &mut Middle, peer: &mut UnixStream, frames: &[u8]) -> u64 {
    let (many, mut taken) = (frames.repeat(64 * 1024 / frames.len()), 0);
    let mut buffer = [0u8; 64 << 10];
    while !middle.ended && middle.trouble.is_none() {
        match peer.write(&many[(taken as usize) % frames.len()..]) {
            Ok(written) => taken += written as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        middle.run();
        while peer.read(&mut buffer).is_ok_and(|read| read > 0) {}
        assert!(taken < 64 << 20, "it goes on");
    }
    taken
}

#[test]
fn a_client_that_sends_frames_without_a_use_is_ended() {
    for (name, frames) in floods() {
        let (mut middle, mut client, _server) = Middle::new(all());
        client
            .write_all(&[PREFACE, &frame(4, 0, 0, b"")].concat())
            .unwrap();
        let taken = flood(&mut middle, &mut client, &frames);
        assert!(middle.trouble.is_some(), "{name}");
        assert!(taken < 2 << 20, "{name} {taken}");
    }
}

#[test]
fn a_server_that_sends_frames_without_a_use_is_lost() {
    for (name, frames) in floods() {
        let (mut middle, mut client, mut server) = Middle::new(all());
        client
            .write_all(&[PREFACE, &frame(4, 0, 0, b"")].concat())
            .unwrap();
        middle.run();
        server.write_all(&frame(4, 0, 0, b"")).unwrap();
        let taken = flood(&mut middle, &mut server, &frames);
        assert!(middle.trouble.is_some(), "{name}");
        assert!(taken < 2 << 20, "{name} {taken}");
    }
}

#[test]
fn a_client_that_resets_what_it_asks_is_ended() {
    let mut rig = Rig::new(all());
    for n in 0.. {
        assert!(n < 1000);
        if rig.middle.trouble.is_some() {
            break;
        }
        let request = Request::builder().uri("http://a.test/").body(()).unwrap();
        assert!(rig.requests.poll_ready(&mut context()).is_ready());
        match rig.requests.send_request(request, true) {
            Ok(asked) => drop(asked),
            Err(_) => break,
        }
        rig.asked.clear();
        let (_, mut upload) = match rig.requests.poll_ready(&mut context()) {
            Poll::Ready(Ok(())) => {
                let request = Request::builder().uri("http://a.test/").body(()).unwrap();
                rig.requests.send_request(request, false).unwrap()
            }
            _ => break,
        };
        rig.run();
        upload.send_reset(Reason::CANCEL);
        rig.run();
    }
    assert_eq!(
        rig.middle.trouble.as_deref(),
        Some("the client resets too many streams")
    );
}

#[test]
fn a_head_that_does_not_end_costs_no_more_than_a_head() {
    let first = frame(
        1,
        0,
        1,
        &[
            0x82, 0x86, 0x84, 0x41, 0x06, b'a', b'.', b't', b'e', b's', b't',
        ],
    );
    // A header that is not indexed, in a frame of its own.
    let more = frame(
        9,
        0,
        1,
        &[b"\0\x01a\x7f\x81\x7e", &[b'x'; 255][..]].concat(),
    );
    let (mut middle, mut client, mut server) = Middle::new(all());
    client
        .write_all(&[PREFACE, &frame(4, 0, 0, b""), &first].concat())
        .unwrap();
    assert!(flood(&mut middle, &mut client, &more) < 2 << 20);
    assert!(middle.trouble.is_some());
    // Nothing of it reached the server.
    let mut text = Vec::new();
    let _would_block = server.read_to_end(&mut text);
    assert!(!text.windows(6).any(|part| part == b"a.test"));
}
