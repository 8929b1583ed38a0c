//! Frames: `u32be length · u8 kind · u32be stream · body`. Decoding a byte stream into them, and
//! encoding.
//!
//! DATA is returned in pieces as it arrives, so a large frame is never collected in memory; every other
//! kind is returned complete. A frame that exceeds a limit is `Malformed`, and the connection is
//! closed.

use crate::wire::protocol;

pub const HELLO: u8 = 1;
pub const OPEN: u8 = 2;
pub const DATA: u8 = 3;
pub const END: u8 = 4;
pub const CREDIT: u8 = 5;
pub const CANCEL: u8 = 6;
pub const EVENT: u8 = 7;
pub const CHUNK: u8 = 8;
pub const RESULT: u8 = 9;
pub const ERROR: u8 = 10;

const HEADER: usize = 9;

#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Part of a DATA frame's body; never empty.
    Data { stream: u32, bytes: &'a [u8] },
    Frame {
        kind: u8,
        stream: u32,
        body: &'a [u8],
    },
}

#[derive(Default)]
pub struct Decoder {
    partial: Vec<u8>,
    /// `partial` was returned and is to be emptied before the next byte.
    spent: bool,
    data_left: usize,
    data_stream: u32,
}

impl Decoder {
    /// Return the next piece of `input`, which shrinks by what was used; `None` when more bytes are
    /// needed.
    pub fn next<'d, 'i: 'd>(
        &'d mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Piece<'d>>, Malformed> {
        if self.spent {
            self.partial.clear();
            self.partial.shrink_to(4096);
            self.spent = false;
        }
        loop {
            if self.data_left > 0 {
                if input.is_empty() {
                    return Ok(None);
                }
                let bytes = take(input, self.data_left);
                self.data_left -= bytes.len();
                let stream = self.data_stream;
                return Ok(Some(Piece::Data { stream, bytes }));
            }
            if self.partial.len() < HEADER {
                if self.partial.is_empty() && input.len() >= HEADER {
                    let header = Header::read(input)?;
                    if header.kind == DATA {
                        take(input, HEADER);
                        self.begin_data(&header);
                        continue;
                    }
                    if input.len() >= HEADER + header.body {
                        take(input, HEADER);
                        let body = take(input, header.body);
                        return Ok(Some(header.whole(body)));
                    }
                }
                let missing = HEADER - self.partial.len();
                self.partial.extend_from_slice(take(input, missing));
                if self.partial.len() < HEADER {
                    return Ok(None);
                }
            }
            let header = Header::read(&self.partial)?;
            if header.kind == DATA {
                self.partial.clear();
                self.begin_data(&header);
                continue;
            }
            let missing = HEADER + header.body - self.partial.len();
            self.partial.extend_from_slice(take(input, missing));
            if self.partial.len() < HEADER + header.body {
                return Ok(None);
            }
            self.spent = true;
            return Ok(Some(header.whole(&self.partial[HEADER..])));
        }
    }

    fn begin_data(&mut self, header: &Header) {
        self.data_left = header.body;
        self.data_stream = header.stream;
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

struct Header {
    kind: u8,
    stream: u32,
    body: usize,
}

impl Header {
    /// `bytes` holds at least `HEADER` bytes.
    fn read(bytes: &[u8]) -> Result<Header, Malformed> {
        let length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let kind = bytes[4];
        let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        let body = length.checked_sub(HEADER - 4).ok_or(Malformed)?;
        let limit = match kind {
            OPEN => protocol::MAX_OPEN_BODY,
            DATA => protocol::MAX_DATA_BODY,
            END | CANCEL => 0,
            CREDIT => 4,
            // The other kinds are only sent from us to the client.
            _ => return Err(Malformed),
        };
        if body > limit {
            return Err(Malformed);
        }
        Ok(Header { kind, stream, body })
    }

    fn whole<'a>(&self, body: &'a [u8]) -> Piece<'a> {
        Piece::Frame {
            kind: self.kind,
            stream: self.stream,
            body,
        }
    }
}

/// Append the header of a frame; the caller appends exactly `body` bytes after it.
pub fn put_header(out: &mut Vec<u8>, kind: u8, stream: u32, body: usize) {
    out.extend_from_slice(&((body + HEADER - 4) as u32).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(&stream.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_header(&mut out, kind, stream, body.len());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn stream_in_pieces_of_any_size_gives_the_same_frames() {
        let mut wire = frame(OPEN, 7, b"{\"verb\":\"ping\"}");
        wire.extend(frame(DATA, 7, b"hello"));
        wire.extend(frame(DATA, 7, b""));
        wire.extend(frame(END, 7, b""));
        wire.extend(frame(CREDIT, 9, &[0, 0, 1, 0]));
        for size in 1..wire.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            let mut data = Vec::new();
            for block in wire.chunks(size) {
                let mut input = block;
                while let Some(piece) = decoder.next(&mut input).unwrap() {
                    match piece {
                        Piece::Data { stream, bytes } => {
                            assert_eq!(stream, 7);
                            data.extend_from_slice(bytes);
                        }
                        Piece::Frame { kind, stream, body } => {
                            seen.push((kind, stream, body.to_vec()))
                        }
                    }
                }
            }
            assert_eq!(data, b"hello");
            assert_eq!(
                seen,
                vec![
                    (OPEN, 7, b"{\"verb\":\"ping\"}".to_vec()),
                    (END, 7, vec![]),
                    (CREDIT, 9, vec![0, 0, 1, 0]),
                ]
            );
        }
    }

    #[test]
    fn frame_over_its_limit_is_refused_before_its_body_arrives() {
        for (kind, body) in [(OPEN, 8 << 20), (DATA, 1 << 20), (END, 0), (CREDIT, 4)] {
            let mut fits = Vec::new();
            put_header(&mut fits, kind, 1, body);
            assert!(Decoder::default().next(&mut &fits[..]).is_ok());
            let mut over = Vec::new();
            put_header(&mut over, kind, 1, body + 1);
            assert_eq!(Decoder::default().next(&mut &over[..]), Err(Malformed));
        }
    }

    #[test]
    fn short_lengths_and_server_kinds_are_refused() {
        assert_eq!(
            Decoder::default().next(&mut &[0, 0, 0, 4, 4, 0, 0, 0, 1][..]),
            Err(Malformed)
        );
        for kind in [0, HELLO, EVENT, CHUNK, RESULT, ERROR, 11, 255] {
            let wire = frame(kind, 1, b"");
            assert_eq!(Decoder::default().next(&mut &wire[..]), Err(Malformed));
        }
    }
}
