//! Bodies of HTTP/1 messages: payload out of its framing, and back into it. Pure.

use crate::head::Framing;

const MOST_LINE: usize = 256;
const MOST_TRAILERS: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Size,
    Data(u64),
    AfterData,
    Trailers(usize),
    End,
}

#[derive(Debug)]
pub struct Body {
    framing: Framing,
    stage: Stage,
}

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Data(Vec<u8>),
    /// More input is needed.
    More,
    End,
}

impl Body {
    pub fn new(framing: Framing) -> Body {
        let stage = match framing {
            Framing::Empty | Framing::Length(0) => Stage::End,
            Framing::Length(n) => Stage::Data(n),
            Framing::Chunked => Stage::Size,
            Framing::UntilClose => Stage::Data(u64::MAX),
        };
        Body { framing, stage }
    }

    /// Whether the head said how long it is.
    pub fn has_length(&self) -> bool {
        matches!(self.framing, Framing::Length(_) | Framing::Empty)
    }

    pub fn until_close(&self) -> bool {
        self.framing == Framing::UntilClose
    }

    /// Take the next part out of the input.
    pub fn take(&mut self, input: &mut Vec<u8>, most: usize) -> Result<Part, &'static str> {
        loop {
            match self.stage {
                Stage::End => return Ok(Part::End),
                Stage::Data(left) => {
                    let n = input
                        .len()
                        .min(most)
                        .min(usize::try_from(left).unwrap_or(most));
                    if n == 0 {
                        return Ok(Part::More);
                    }
                    let data = input.drain(..n).collect();
                    let left = match self.framing {
                        Framing::UntilClose => left,
                        _ => left - n as u64,
                    };
                    self.stage = match (left, self.framing) {
                        (0, Framing::Chunked) => Stage::AfterData,
                        (0, _) => Stage::End,
                        _ => Stage::Data(left),
                    };
                    return Ok(Part::Data(data));
                }
                Stage::Size => {
                    let line = match line(input, MOST_LINE)? {
                        Some(line) => line,
                        None => return Ok(Part::More),
                    };
                    let digits = line.split(|&b| b == b';').next().unwrap_or(b"");
                    let text = std::str::from_utf8(digits).unwrap_or("").trim_end();
                    let hex = text.bytes().all(|b| b.is_ascii_hexdigit());
                    if text.is_empty() || text.len() > 15 || !hex {
                        return Err("the size of a chunk is not valid");
                    }
                    self.stage = match u64::from_str_radix(text, 16) {
                        Ok(0) => Stage::Trailers(0),
                        Ok(n) => Stage::Data(n),
                        Err(_) => return Err("the size of a chunk is not valid"),
                    };
                }
                Stage::AfterData => match line(input, 0)? {
                    Some(_) => self.stage = Stage::Size,
                    None => return Ok(Part::More),
                },
                Stage::Trailers(seen) => match line(input, MOST_TRAILERS)? {
                    // They are not passed on.
                    Some(line) if line.is_empty() => self.stage = Stage::End,
                    Some(line) if seen + line.len() <= MOST_TRAILERS => {
                        self.stage = Stage::Trailers(seen + line.len() + 1);
                    }
                    Some(_) => return Err("the trailers are too long"),
                    None => return Ok(Part::More),
                },
            }
        }
    }

    /// Write payload as this framing wants it.
    pub fn put(&self, data: &[u8], out: &mut Vec<u8>) {
        if data.is_empty() {
            return;
        }
        if self.framing == Framing::Chunked {
            out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(data);
        }
    }

    pub fn put_end(&self, out: &mut Vec<u8>) {
        if self.framing == Framing::Chunked {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

/// Take a line that ends with CR LF; its content has at most `most` bytes.
fn line(input: &mut Vec<u8>, most: usize) -> Result<Option<Vec<u8>>, &'static str> {
    let wrong = "a line of a chunked body is not valid";
    match input.iter().position(|&b| b == b'\n') {
        Some(at) if at > 0 && input[at - 1] == b'\r' && at - 1 <= most => {
            let mut line: Vec<u8> = input.drain(..=at).collect();
            line.truncate(at - 1);
            if line.contains(&b'\r') {
                return Err(wrong);
            }
            Ok(Some(line))
        }
        None if input.len() <= most + 1 => Ok(None),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(framing: Framing, text: &str, step: usize) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
        let mut body = Body::new(framing);
        let (mut input, mut payload) = (Vec::new(), Vec::new());
        for piece in text.as_bytes().chunks(step) {
            input.extend_from_slice(piece);
            while let Part::Data(data) = body.take(&mut input, 7)? {
                payload.extend(data);
            }
        }
        assert_eq!(body.take(&mut input, 7)?, Part::End);
        Ok((payload, input))
    }

    #[test]
    fn chunks_are_joined_however_they_arrive() {
        let text = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: x\r\n\r\nGET";
        for step in 1..text.len() {
            let (payload, rest) = read(Framing::Chunked, text, step).unwrap();
            assert_eq!(
                (&payload[..], &rest[..]),
                (&b"hello world"[..], &b"GET"[..])
            );
        }
        let (payload, rest) = read(Framing::Length(3), "abcdef", 2).unwrap();
        assert_eq!((&payload[..], &rest[..]), (&b"abc"[..], &b"def"[..]));
    }

    #[test]
    fn odd_chunks_are_refused() {
        for text in [
            "5\nhello\r\n0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            "\r\nhello",
            "5\r\nhello\r\n0\r\nX\n\r\n",
            "ffffffffffffffffff\r\n",
            "-1\r\n",
        ] {
            assert!(read(Framing::Chunked, text, 100).is_err(), "{:?}", text);
        }
    }

    #[test]
    fn payload_is_framed_again() {
        let body = Body::new(Framing::Chunked);
        let mut out = Vec::new();
        body.put(b"hello world!!!!!", &mut out);
        body.put(b"", &mut out);
        body.put_end(&mut out);
        assert_eq!(out, b"10\r\nhello world!!!!!\r\n0\r\n\r\n");
    }
}
