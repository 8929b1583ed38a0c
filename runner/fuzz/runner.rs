//! What a client sends to the runner: frames.

#[cfg(test)]
pub mod archives;
pub mod targets;

use crate::wire::frame::{put_header, Decoder, Piece, DATA};
use crate::wire::protocol::MAX_OPEN_BODY;
use targets::targets;

targets!(frames);

/// Decode a stream in pieces; return what was decoded as a stream of frames, and whether it was valid.
fn decoded(stream: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut decoder = Decoder::default();
    let mut out = Vec::new();
    for mut input in stream.chunks(piece) {
        loop {
            match decoder.next(&mut input) {
                Ok(Some(Piece::Data { stream, bytes })) => {
                    assert!(!bytes.is_empty());
                    // One frame for each byte: a frame of DATA is returned in pieces of any size.
                    for &byte in bytes {
                        put_header(&mut out, DATA, stream, 1);
                        out.push(byte);
                    }
                }
                Ok(Some(Piece::Frame { kind, stream, body })) => {
                    assert!(body.len() <= MAX_OPEN_BODY);
                    put_header(&mut out, kind, stream, body.len());
                    out.extend_from_slice(body);
                }
                Ok(None) => break,
                Err(_) => return (out, false),
            }
        }
        assert!(input.is_empty(), "bytes that were not used");
    }
    (out, true)
}

/// However a stream is divided, the same frames come out, and encoded again they are the same.
fn frames(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else {
        return;
    };
    let (whole, valid) = decoded(stream, stream.len().max(1));
    assert_eq!(
        decoded(stream, 1 + usize::from(piece)),
        (whole.clone(), valid)
    );
    assert_eq!(decoded(&whole, 7), (whole, true));
}
