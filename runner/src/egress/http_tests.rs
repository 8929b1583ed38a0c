use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n";
const EVIL: &[u8] = b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";

const NAME: &str = "good.test";
const PORT: u16 = 80;

/// Feed a stream in pieces of one size; return what passed, and the rule that stopped it.
fn feed(stream: &[u8], piece: usize) -> (usize, Option<&'static str>) {
    let mut requests = Requests::new();
    let (mut at, mut seen) = (0, piece.min(stream.len()));
    while at < stream.len() {
        match requests.look(&stream[at..seen.max(at + 1)], NAME, PORT) {
            Next::Pass(n) => at = at.saturating_add(n as usize),
            Next::More if seen < stream.len() => seen = (seen + piece).min(stream.len()),
            Next::Refused(rule) => return (at, Some(rule)),
            _ => break,
        }
        seen = seen.max(at).min(stream.len());
    }
    (at, None)
}

#[test]
fn requests_pass_one_after_another_however_they_arrive() {
    let post: &[u8] = b"POST /x HTTP/1.1\r\nHost: good.test:80\r\nContent-Length: 5\r\n\r\nhello";
    let chunks: &[u8] = b"PUT / HTTP/1.1\r\nHost: Good.Test.\r\n\
        Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\na;x=y\r\n0123456789\r\n0\r\n\r\n";
    let trailers: &[u8] =
        b"PUT / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n\
        1\r\nx\r\n0\r\nDigest: y\r\n\r\n";
    let old: &[u8] = b"HEAD / HTTP/1.0\r\nHost: good.test\r\n\r\n";
    let stream = [GET, post, GET, chunks, GET, trailers, old, GET].concat();
    for piece in [1, 2, 3, 7, 64, 4096] {
        assert_eq!(feed(&stream, piece), (stream.len(), None), "{}", piece);
        let bad = [&stream[..], EVIL].concat();
        assert_eq!(feed(&bad, piece), (stream.len(), Some(ANOTHER)));
    }
}

#[test]
fn a_request_in_a_body_is_a_body() {
    let post = format!(
        "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: {}\r\n\r\n",
        EVIL.len()
    );
    let stream = [post.as_bytes(), EVIL, GET].concat();
    assert_eq!(feed(&stream, 10), (stream.len(), None));
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let with = |lines: &str| format!("POST / HTTP/1.1\r\nHost: good.test\r\n{}\r\n", lines);
    for text in [
        with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        with("Content-Length: 5\r\nContent-Length: 6\r\n"),
        with("Content-Length: 5\r\nContent-Length: 5\r\n"),
        with("Content-Length: 5, 5\r\n"),
        with("Content-Length: +5\r\n"),
        with("Content-Length: 0x5\r\n"),
        with("Content-Length: 99999999999999999999\r\n"),
        with("Content-Length:\r\n"),
        with("Content-Length : 5\r\n"),
        with("Transfer-Encoding: xchunked\r\n"),
        with("Transfer-Encoding: chunked, identity\r\n"),
        with("Transfer-Encoding: gzip, chunked\r\n"),
        with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        with("Transfer-Encoding:\r\n chunked\r\n"),
        with("Transfer\u{b}-Encoding: chunked\r\n"),
        with("X: y\nTransfer-Encoding: chunked\r\n"),
        with("X: y\rTransfer-Encoding: chunked\r\n"),
        with("Host: good.test\r\n"),
        with("Transfer-Encoding: \u{a0}chunked\r\n"),
        with("Content-Length: \u{85}5\r\n"),
        with("Upgrade: h2c\r\nUpgrade: websocket\r\n"),
        with("no colon\r\n"),
        with(": empty\r\n"),
        "GET / HTTP/1.1\nHost: good.test\n\n".to_owned(),
        "GET  / HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1 \r\nHost: good.test\r\n\r\n".to_owned(),
        "GET / HTTP/2.0\r\nHost: good.test\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET good.test HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "GET /\r\n\r\n".to_owned(),
        "POST / HTTP/1.0\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "\r\nGET / HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "GET * HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "GET /\u{e4} HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "TRACE / HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        "connect good.test:22 HTTP/1.1\r\nHost: good.test\r\n\r\n".to_owned(),
        with(&"X: y\r\n".repeat(200)),
    ] {
        assert_eq!(
            feed(text.as_bytes(), 4096),
            (0, Some(UNCLEAR)),
            "{:?}",
            text
        );
    }
    for target in [
        "http://good.test/",
        "http://evil.test/",
        "http://good.test@evil.test/",
        "http://evil.test\\good.test/",
        "http://good.test\\@evil.test/",
        "http://good.test#@evil.test/",
        "http://good.test?@evil.test/",
        "//evil.test\\x",
        "/#@evil.test",
    ] {
        let text = format!("GET {} HTTP/1.1\r\nHost: good.test\r\n\r\n", target);
        assert_eq!(feed(text.as_bytes(), 9), (0, Some(UNCLEAR)), "{}", target);
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(MOST_REQUEST));
    assert_eq!(feed(long.as_bytes(), 4096), (0, Some(UNCLEAR)));
}

#[test]
fn another_host_is_refused_wherever_it_is_named() {
    for text in [
        "GET / HTTP/1.1\r\nHost: \u{a0}good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nhOST:evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test.evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:80@evil.test:80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:81\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:+80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test..\r\n\r\n",
    ] {
        assert_eq!(
            feed(text.as_bytes(), 4096),
            (0, Some(ANOTHER)),
            "{:?}",
            text
        );
    }
}

#[test]
fn broken_chunks_are_refused() {
    let head = "PUT / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "5\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffffff\r\nhello",
    ] {
        let text = [head, chunks].concat();
        assert_eq!(
            feed(text.as_bytes(), 4096),
            (head.len(), Some(UNCLEAR)),
            "{:?}",
            text
        );
    }
    let late = [head, "5\r\nhelloX\r\n0\r\n\r\n"].concat();
    assert_eq!(feed(late.as_bytes(), 4096), (head.len() + 8, Some(UNCLEAR)));
    for trailer in ["hOST: evil.test", "Content-Length: 5"] {
        let text = format!("{}0\r\nX: y\r\n{}\r\n\r\n", head, trailer);
        assert_eq!(feed(text.as_bytes(), 4096), (head.len() + 3, Some(UNCLEAR)));
    }
}

#[test]
fn a_web_socket_opens_when_the_server_agrees() {
    let text =
        b"GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n";
    let begun = || {
        let mut requests = Requests::new();
        assert_eq!(
            requests.look(text, NAME, PORT),
            Next::Pass(text.len() as u64)
        );
        assert!(requests.waits_for_answer());
        assert_eq!(requests.look(EVIL, NAME, PORT), Next::Answer);
        requests
    };
    let mut agreed = begun();
    assert_eq!(agreed.answered(b"HTTP/1.1 1"), None);
    assert_eq!(agreed.answered(b"HTTP/1.1 101 Switching"), Some(()));
    assert_eq!(agreed.look(EVIL, NAME, PORT), Next::Open);
    for answer in [&b"HTTP/1.1 200 OK"[..], b"HTTP/1.1 100 Continue", b"", b"X"] {
        let mut refused = begun();
        assert_eq!(refused.answered(answer), Some(()));
        assert_eq!(refused.look(EVIL, NAME, PORT), Next::Refused(ANOTHER));
    }
    let alone: &[u8] = b"GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: websocket\r\n\r\n";
    let mut requests = Requests::new();
    assert_eq!(
        requests.look(alone, NAME, PORT),
        Next::Pass(alone.len() as u64)
    );
    assert!(!requests.waits_for_answer());
    // Only at the start of a connection, where the next answer is certainly the one to this request.
    let mut later = Requests::new();
    later.look(GET, NAME, PORT);
    later.look(text, NAME, PORT);
    assert!(!later.waits_for_answer());
}

#[test]
fn an_upgrade_to_another_protocol_stays_http() {
    let text = b"GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n";
    let stream = [&text[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat();
    assert_eq!(feed(&stream, 4096), (text.len(), Some(UNCLEAR)));
}
