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
        "trace / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: a\r\nUpgrade: b\r\n\r\n",
        // Refused before the head is complete.
        "GET / HTTP/1.1\r\nX: \u{1}",
    ] {
        assert!(request(text.as_bytes()).is_err(), "{:?}", text);
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(MOST_REQUEST));
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
        "Content-Length: 0000000000000000005",
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

#[test]
fn a_host_header_names_the_host_and_port_of_the_connection() {
    assert!(same_host(b"A.test", "a.test", 8443) && same_host(b"a.test:8443", "a.test", 8443));
    assert!(same_host(b"a.test.", "a.test", 443));
    for other in [
        "b.test",
        "a.test:80",
        "a.test:",
        "a.test:+443",
        "a.test..",
        "a.test:443:443",
        "a.test@b.test",
        "",
    ] {
        assert!(!same_host(other.as_bytes(), "a.test", 443), "{}", other);
    }
}

#[test]
fn only_a_request_without_a_body_opens_a_websocket() {
    let asks = |fields: &str| {
        let text = format!("GET / HTTP/1.1\r\nUpgrade: WebSocket\r\n{}\r\n", fields);
        head(&text).opens_websocket()
    };
    assert!(asks("Connection: keep-alive, Upgrade\r\n"));
    assert!(!asks(""));
    assert!(!asks("Connection: Upgrade\r\nContent-Length: 1\r\n"));
    let old = "GET / HTTP/1.0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    assert!(!head(old).opens_websocket());
}
