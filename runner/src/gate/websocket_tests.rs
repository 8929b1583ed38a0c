//! Tests of the WebSocket: requests, frames, and a client over a socket pair.

use super::*;
use crate::proxy::websocket_frame::MOST_CONTROL;
use std::io::{Read, Write};

pub const REQUEST: &str =
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const MASK: [u8; 4] = [7, 0, 255, 33];

pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    frame(first & 0x0f, payload, &mut made);
    made[0] = first;
    let head = made.len() - payload.len();
    made[1] |= 0x80;
    let tail: Vec<u8> = made.drain(head..).collect();
    made.extend_from_slice(&MASK);
    made.extend(tail.iter().zip(MASK.iter().cycle()).map(|(a, b)| a ^ b));
    made
}

fn decoded(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, bool), String> {
    let (mut decoder, mut out, mut answers) = (Decoder::default(), Vec::new(), Vec::new());
    let mut input = Vec::new();
    for piece in bytes.chunks(step) {
        input.extend_from_slice(piece);
        decoder.take(&mut input, &mut out, &mut answers)?;
        assert!(input.len() <= 14 + MOST_CONTROL as usize || decoder.closed);
    }
    Ok((out, answers, decoder.closed))
}

#[test]
fn the_answer_is_that_of_the_standard() {
    let key = key_in(REQUEST.as_bytes()).unwrap();
    let answer = String::from_utf8(switching(&key)).unwrap();
    assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
}

#[test]
fn another_request_is_not_a_websocket() {
    for (from, to) in [
        ("GET", "POST"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("WebSocket", "h2c"),
        ("Version: 13", "Version: 8"),
        ("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="),
        ("Sec-WebSocket-Key", "X-Key"),
    ] {
        assert!(key_in(REQUEST.replace(from, to).as_bytes()).is_none());
    }
}

#[test]
fn bytes_pass_however_they_are_cut() {
    let large: Vec<u8> = (0..70_000u32).map(|n| n as u8).collect();
    let mut sent = masked(0x02, b"first ");
    sent.extend(masked(0x89, b"ping"));
    sent.extend(masked(0x80, b"second"));
    sent.extend(masked(0x82, &large));
    sent.extend(masked(0x82, b""));
    sent.extend(masked(0x88, &1000u16.to_be_bytes()));
    for step in [1, 2, 7, 1 << 20] {
        let (out, answers, closed) = decoded(&sent, step).unwrap();
        assert_eq!(&out[..12], b"first second");
        assert_eq!(out[12..], large[..]);
        assert!(closed);
        let mut expected = Vec::new();
        frame(PONG, b"ping", &mut expected);
        frame(CLOSE, &1000u16.to_be_bytes(), &mut expected);
        assert_eq!(answers, expected);
    }
}

// promise: P115
#[test]
fn frames_that_no_client_may_send_end_the_connection() {
    let mut plain = Vec::new();
    frame(BINARY, b"not masked", &mut plain);
    let mut endless = masked(0x82, b"x");
    endless.splice(1..2, [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0]);
    let long_ping = masked(0x89, &[0; 126]);
    for bytes in [
        plain,
        masked(0x81, b"text"),
        masked(0x83, b"reserved"),
        masked(0xc2, b"compressed"),
        masked(0x09, b"a ping in parts"),
        long_ping,
        endless,
    ] {
        assert!(decoded(&bytes, 3).is_err());
    }
}

// promise: P115
#[test]
fn random_bytes_neither_panic_nor_are_kept() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..64)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let _ = decoded(&bytes, 5);
        let _ = key_in(&bytes);
    }
}

fn client() -> (UnixStream, OwnedFd) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far.into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn a_client_talks_through_its_messages() {
    let (mut near, far) = client();
    near.write_all(REQUEST.as_bytes()).unwrap();
    near.write_all(&masked(0x82, b"question")).unwrap();
    assert!(is_http(&far, soon()).unwrap());
    let wrapped = unwrapped(&far, soon()).unwrap();
    drop(far);
    let mut stream = UnixStream::from(wrapped.stream);
    let mut asked = [0u8; 8];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"question");
    stream.write_all(b"answer").unwrap();
    drop(stream);
    let mut heard = Vec::new();
    near.read_to_end(&mut heard).unwrap();
    assert!(heard.starts_with(b"HTTP/1.1 101 "));
    let mut expected = Vec::new();
    frame(BINARY, b"answer", &mut expected);
    frame(CLOSE, &1000u16.to_be_bytes(), &mut expected);
    assert!(heard.ends_with(&expected));
}

#[test]
fn a_plain_request_is_told_to_upgrade() {
    let (mut near, far) = client();
    near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert!(unwrapped(&far, soon()).is_err());
    drop(far);
    let mut heard = String::new();
    near.read_to_string(&mut heard).unwrap();
    assert!(heard.starts_with("HTTP/1.1 426 "));
}

// promise: P115
#[test]
fn a_request_without_an_end_is_not_kept() {
    let (mut near, far) = client();
    let sender = std::thread::spawn(move || {
        let _refused = near.write_all(&[b'G'; 4 * MOST_HEAD]);
        near
    });
    assert!(unwrapped(&far, soon()).is_err());
    drop(far);
    drop(sender.join().unwrap());
}
