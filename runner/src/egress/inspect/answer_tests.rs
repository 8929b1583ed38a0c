use super::super::{certificates, Begins, Inspection, Inspector, Moved};
use crate::rules::Rules;
use ring::rand::SystemRandom;
use ring::signature::{EcdsaKeyPair, ECDSA_P256_SHA256_ASN1_SIGNING};
use serde_json::json;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::io::AsRawFd;
use std::os::unix::net::UnixStream;

pub const VALUE: &str = "0123456789abcdef";
const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const WEBSOCKET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\n\r\n";

/// What one turn did: how often the mask read its text, which requests were read, and what was shown.
struct Turn {
    passes: usize,
    requests: usize,
    shown: String,
    /// What counts as received from the server.
    received: u64,
    /// Whether the end of what was sent is shown if the server pauses.
    due: bool,
}

pub fn inspector() -> Inspector {
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
    let base64 = crate::base64::encode;
    Inspector::parse(&json!({
        "certificate": base64(&certificates::named("x", 1, 64)),
        "key": base64(key.unwrap().as_ref()),
        "roots": "",
        "all": true,
        "except": [],
        "secrets": [{
            "name": "T", "placeholder": "sandkasten_T_00", "value": VALUE,
            "hosts": [{"host": "a.test", "port": null, "text": "a.test"}],
        }],
    }))
    .unwrap()
}

/// Return the end of the egress, and that of its peer.
pub fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn read(peer: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let _would_block = peer.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Return the turns in which the answers to requests pass that a client has sent at once.
fn turns(requests: &str, answers: &[u8]) -> Vec<Turn> {
    turns_before(requests, answers, |_| ())
}

/// Return the same turns, and let the server do something after its answers.
fn turns_before(requests: &str, answers: &[u8], then: fn(&UnixStream)) -> Vec<Turn> {
    let (inside, mut client) = pair();
    let (outside, mut server) = pair();
    let (mut inspector, mut turns) = (inspector(), Vec::new());
    let rules = Rules::parse(&json!({"full": true})).unwrap();
    let mut inspection = Inspection::new(&mut inspector, "a.test", 80, Begins::Http1).unwrap();
    client.write_all(requests.as_bytes()).unwrap();
    server.write_all(answers).unwrap();
    then(&server);
    let sockets = (inside.as_raw_fd(), outside.as_raw_fd());
    let mut moved = Moved::Busy;
    while moved == Moved::Busy {
        let before = inspection.mask.passes;
        moved = inspection.step(&rules, &inspector, sockets).unwrap();
        turns.push(Turn {
            // A request has a new mask.
            passes: inspection.mask.passes.saturating_sub(before),
            requests: inspection.events.drain(..).count(),
            shown: read(&mut client),
            received: inspection.bytes().1,
            due: inspection.due().is_some(),
        });
        read(&mut server);
    }
    turns
}

fn shown(turns: &[Turn]) -> String {
    turns.iter().map(|turn| &turn.shown[..]).collect()
}

#[test]
fn small_chunks_are_searched_together() {
    let chunks = "1\r\nx\r\n".repeat(10_000);
    let value: String = VALUE.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
    let turns = turns(
        GET,
        [CHUNKED, &chunks, &value, "0\r\n\r\n"].concat().as_bytes(),
    );
    assert!(turns.iter().all(|turn| turn.passes <= 1));
    assert!(turns.len() < 10, "{}", turns.len());
    let shown = shown(&turns);
    assert_eq!(shown.matches('x').count(), 10_000);
    assert_eq!(shown.matches('*').count(), VALUE.len());
    assert!(shown.ends_with("\r\n0\r\n\r\n"));
}

#[test]
fn small_frames_are_searched_together() {
    // Parts of a message, whole messages, and with a control frame after each.
    for frame in [
        &b"\x00\x01x"[..],
        b"\x82\x01x",
        b"\x00\x01x\x89\x00",
        b"\x89\x00",
    ] {
        let frames = [SWITCHED.as_bytes(), &frame.repeat(10_000)].concat();
        let turns = turns(WEBSOCKET, &frames);
        assert!(turns.iter().all(|turn| turn.passes <= 1), "{:?}", frame);
        assert!(turns.len() < 50, "{:?} {}", frame, turns.len());
    }
}

#[test]
fn what_waits_of_frames_is_released_with_their_message() {
    let value: String = VALUE.chars().map(|c| format!("\0\u{1}{}", c)).collect();
    // The end of a message after its last byte, and the beginning of another one.
    let frames = [SWITCHED, &value[..], "\0\u{1}-"].concat().into_bytes();
    let frames = [&frames[..], b"\x80\x00", b"\x01\x0201"].concat();
    let shown = shown(&turns(WEBSOCKET, &frames));
    assert_eq!(shown.matches('*').count(), VALUE.len());
    assert!(shown.ends_with("-\u{fffd}\0\u{1}\u{2}"), "{:?}", shown);
}

#[test]
fn an_unfinished_message_is_not_shown_when_its_server_ends() {
    let end = |server: &UnixStream| server.shutdown(Shutdown::Write).unwrap();
    for (frames, expected) in [
        (&b"\x81\x1001234567"[..], "\u{fffd}\u{10}"),
        (b"\x01\x0801234567", "\u{1}\u{8}"),
        (b"\x81\x02ok\x01\x0801234567", "\u{fffd}\u{2}ok\u{1}\u{8}"),
        (b"\x81\x02ok", "\u{fffd}\u{2}ok"),
    ] {
        let answers = [SWITCHED.as_bytes(), frames].concat();
        let shown = shown(&turns_before(WEBSOCKET, &answers, end));
        let (_, messages) = shown.split_once("\r\n\r\n").unwrap();
        assert_eq!(messages, expected, "{:?}", frames);
    }
}

#[test]
fn a_pause_counts_only_where_the_server_has_finished_a_part() {
    let until_close = "HTTP/1.1 200 OK\r\n\r\n";
    let with_length = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n";
    for (request, head, part, due) in [
        (GET, CHUNKED, "8\r\n0123", false),
        (GET, CHUNKED, "4\r\n0123", false),
        (GET, CHUNKED, "4\r\n0123\r\n", true),
        (GET, CHUNKED, "4\r\n0123\r\n8", true),
        (GET, with_length, "0123", false),
        (GET, until_close, "0123", true),
        (WEBSOCKET, SWITCHED, "\u{1}\u{8}0123", false),
        (WEBSOCKET, SWITCHED, "\u{1}\u{4}0123", true),
    ] {
        let turns = turns(request, [head, part].concat().as_bytes());
        assert_eq!(turns.last().unwrap().due, due, "{:?} {:?}", head, part);
    }
}

#[test]
fn small_answers_pass_one_in_a_turn() {
    let requests = GET.repeat(100);
    for answer in [
        "HTTP/1.1 204 \r\n\r\n",
        "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 100 \r\n\r\n",
    ] {
        let turns = turns(&requests, answer.repeat(100).as_bytes());
        let heads = |turn: &Turn| turn.shown.matches("HTTP/1.1").count();
        assert!(turns.iter().all(|turn| turn.passes <= 1), "{answer:?}");
        assert!(turns.iter().all(|turn| turn.requests <= 1), "{answer:?}");
        assert!(turns.iter().all(|turn| heads(turn) <= 1), "{answer:?}");
        assert_eq!(turns.iter().map(heads).sum::<usize>(), 100, "{answer:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_searched_is_refused() {
    let answer = |status: &str, field: &str| {
        let text = format!(
            "HTTP/1.1 {}\r\nContent-Length: 2\r\n{}\r\n\r\nok",
            status, field
        );
        shown(&turns(GET, text.as_bytes()))
    };
    for (status, field) in [
        ("206 Partial Content", "X: y"),
        ("226 IM Used", "X: y"),
        ("200 OK", "Content-Range: bytes 0-1/9"),
        ("200 OK", "Content-Type: multipart/byteranges; boundary=x"),
        ("200 OK", "Content-Type: text/plain; charset=ibm037"),
        ("200 OK", "Content-Type: text/plain; Charset=\"UTF-7\""),
        ("200 OK", "Content-Type: a/b; charset=utf-8; charset=cp500"),
        ("200 OK", "Content-Type: a/b; charset*=us-ascii''x"),
        ("200 OK", "Content-Encoding: gzip"),
    ] {
        let shown = answer(status, field);
        assert!(
            shown.starts_with("HTTP/1.1 502 "),
            "{} {}: {}",
            status,
            field,
            shown
        );
    }
    for field in [
        "Content-Type: application/json",
        "Content-Type: text/html; charset=UTF-8",
        "Content-Type: text/html;charset=\"iso-8859-15\"",
        "Content-Type: text/event-stream; charset = utf8",
        "Content-Encoding: identity",
    ] {
        assert!(answer("200 OK", field).ends_with("\r\n\r\nok"), "{}", field);
    }
}

#[test]
fn a_refused_answer_counts_the_same_whatever_is_in_it() {
    let counted = |length: usize| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
            length
        );
        let turns = turns(GET, (head + &"x".repeat(length)).as_bytes());
        turns.last().unwrap().received
    };
    assert_eq!(counted(100), counted(101));
    assert_eq!(counted(100), counted(60_000));
}

#[test]
fn the_fields_of_the_framing_are_never_hidden() {
    let head = b"HTTP/1.1 200 OK\r\nX: 12345678\r\nContent-Length: 12345678\r\n\r\n";
    let mut shown = head.to_vec();
    super::super::mask::Mask::new(&["12345678".to_owned()]).whole(&mut shown);
    super::keep_framing(head, &mut shown);
    assert_eq!(
        String::from_utf8(shown).unwrap(),
        "HTTP/1.1 200 OK\r\nX: ********\r\nContent-Length: 12345678\r\n\r\n"
    );
}
