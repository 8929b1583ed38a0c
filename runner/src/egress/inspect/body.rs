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

/// What was taken out of the input: payload, and whether the body is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub data: Vec<u8>,
    pub complete: bool,
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

    /// Whether the rest of something whose length is known has not arrived yet, of a chunk or of all of it.
    /// It comes soon, or never.
    pub fn is_inside(&self) -> bool {
        match self.framing {
            Framing::Chunked => matches!(self.stage, Stage::Data(_) | Stage::AfterData),
            Framing::Length(_) | Framing::Empty => true,
            Framing::UntilClose => false,
        }
    }

    pub fn until_close(&self) -> bool {
        self.framing == Framing::UntilClose
    }

    /// Take all of the body that has arrived out of the input.
    pub fn take(&mut self, input: &mut Vec<u8>) -> Result<Part, &'static str> {
        let (mut used, mut data) = (0, Vec::new());
        while self.stage != Stage::End {
            let rest = &input[used..];
            if let Stage::Data(left) = self.stage {
                let n = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if n == 0 {
                    break;
                }
                data.extend_from_slice(&rest[..n]);
                used += n;
                let left = match self.framing {
                    Framing::UntilClose => left,
                    _ => left - n as u64,
                };
                self.stage = match (left, self.framing) {
                    (0, Framing::Chunked) => Stage::AfterData,
                    (0, _) => Stage::End,
                    _ => Stage::Data(left),
                };
                continue;
            }
            let most = match self.stage {
                Stage::AfterData => 0,
                Stage::Trailers(_) => MOST_TRAILERS,
                _ => MOST_LINE,
            };
            let line = match line(rest, most)? {
                Some(line) => line,
                None => break,
            };
            used += line.len() + 2;
            self.stage = match self.stage {
                Stage::AfterData => Stage::Size,
                // They are not passed on.
                Stage::Trailers(_) if line.is_empty() => Stage::End,
                Stage::Trailers(seen) if seen + line.len() <= MOST_TRAILERS => {
                    Stage::Trailers(seen + line.len() + 1)
                }
                Stage::Trailers(_) => return Err("the trailers are too long"),
                _ => match size_in(line)? {
                    0 => Stage::Trailers(0),
                    n => Stage::Data(n),
                },
            };
        }
        input.drain(..used);
        Ok(Part {
            data,
            complete: self.stage == Stage::End,
        })
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

/// Return the size of a chunk that its first line states.
fn size_in(line: &[u8]) -> Result<u64, &'static str> {
    let wrong = "the size of a chunk is not valid";
    let digits = line.split(|&b| b == b';').next().unwrap_or(b"");
    let text = std::str::from_utf8(digits).unwrap_or("").trim_end();
    let hex = text.bytes().all(|b| b.is_ascii_hexdigit());
    if text.is_empty() || text.len() > 15 || !hex {
        return Err(wrong);
    }
    u64::from_str_radix(text, 16).map_err(|_| wrong)
}

/// Return the line that bytes begin with, without its CR LF; None if it is not complete. It has at most
/// `most` bytes.
fn line(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, &'static str> {
    let wrong = "a line of a chunked body is not valid";
    let end = bytes.iter().take(most + 2).position(|&b| b == b'\n');
    let line = match end {
        Some(end) => bytes[..end].strip_suffix(b"\r").ok_or(wrong)?,
        None if bytes.len() <= most + 1 => return Ok(None),
        None => return Err(wrong),
    };
    match line.contains(&b'\r') {
        true => Err(wrong),
        false => Ok(Some(line)),
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
            payload.extend(body.take(&mut input)?.data);
        }
        let rest = body.take(&mut input)?;
        assert_eq!((rest.data.len(), rest.complete), (0, true));
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
