//! Answers of servers: read strictly, searched for secrets, and written anew.

use super::body::Body;
use super::frames::Frames;
use super::{Inspection, Stage};
use crate::head::{self, Framing, Head};
use std::time::Instant;

/// What an answer that cannot be searched is charged as: more than may have arrived of it with its head.
pub(super) const REFUSED: u64 = 256 << 10;

impl Inspection {
    pub(super) fn advance_answer(&mut self) -> Result<bool, String> {
        if !self.client.has_room() {
            return Ok(false);
        }
        match std::mem::replace(&mut self.answer, Stage::Idle) {
            Stage::Head => self.answer_head(),
            Stage::Body(body) => self.answer_body(body),
            Stage::Frames(frames) => self.answer_frames(frames),
            Stage::Opaque => {
                self.answer = Stage::Opaque;
                let any = !self.server.input.is_empty();
                self.client.output.append(&mut self.server.input);
                if self.server.ended {
                    self.end();
                }
                Ok(any)
            }
            _ => {
                // The server may close a connection that waits for the next request.
                if self.server.ended && matches!(self.request, Stage::Head) {
                    self.end();
                }
                Ok(false)
            }
        }
    }

    fn answer_head(&mut self) -> Result<bool, String> {
        self.answer = Stage::Head;
        let found = head::answer(&self.server.input).and_then(|found| match found {
            Some((head, length)) => {
                let framing = head.answer_framing(&self.method)?;
                Ok(Some((head, framing, length)))
            }
            None => Ok(None),
        });
        let (mut head, framing, length) = match found {
            Ok(Some(found)) => found,
            Ok(None) if self.server.ended => {
                self.end_with("502 Bad Gateway", "The server ended the connection.\n");
                return Ok(true);
            }
            Ok(None) => return Ok(false),
            Err(why) => {
                let text = format!("The answer of the server is not clear: {}.\n", why);
                self.end_with("502 Bad Gateway", &text);
                return Ok(true);
            }
        };
        self.server.input.drain(..length);
        let status = head.status();
        // Even the length of an encoded answer reveals something about what is in it.
        if let Some(why) = self.searched.then(|| unreadable(&head)).flatten() {
            let text = format!("The answer cannot be searched for secrets: {}.\n", why);
            self.trouble = Some(text.trim_end().to_owned());
            // What has arrived depends on what is in it, so as much is charged for each.
            self.charged = self.asked + REFUSED;
            self.end_with("502 Bad Gateway", &text);
            return Ok(true);
        }
        let opaque = status == 101;
        if opaque && !self.upgrade {
            self.end_with("502 Bad Gateway", "The server changed the protocol.\n");
            return Ok(true);
        }
        if status >= 200 {
            self.keep &= head.keeps(&head.first[0]) && framing != Framing::UntilClose;
            head.remove("keep-alive");
            head.remove("trailer");
            let connection: &[u8] = if self.keep { b"keep-alive" } else { b"close" };
            head.set("Connection", connection);
        }
        let bytes = head.to_bytes();
        let mut shown = bytes.clone();
        self.mask.whole(&mut shown);
        keep_framing(&bytes, &mut shown);
        self.client.output.extend_from_slice(&shown);
        if opaque {
            self.request = Stage::Opaque;
            self.answer = match self.searched {
                true => Stage::Frames(Frames::default()),
                false => Stage::Opaque,
            };
        } else if status >= 200 {
            self.answer = Stage::Body(Body::new(framing));
        } else {
            self.answered = true;
        }
        Ok(true)
    }

    fn answer_body(&mut self, mut body: Body) -> Result<bool, String> {
        let part = body.take(&mut self.server.input)?;
        let cut_off = self.server.ended && !part.complete;
        if cut_off && !body.until_close() {
            return Err("the server ended in the middle of an answer".to_owned());
        }
        let complete = part.complete || cut_off;
        let any = complete || !part.data.is_empty();
        self.answered |= any;
        let mut shown = self.mask.pass(&part.data);
        if complete {
            shown.append(&mut self.mask.rest());
        }
        body.put(&shown, &mut self.client.output);
        if !complete {
            self.answer = Stage::Body(body);
            return Ok(any);
        }
        body.put_end(&mut self.client.output);
        if self.keep && matches!(self.request, Stage::Idle) {
            self.request = Stage::Head;
        } else {
            self.end();
        }
        Ok(true)
    }

    fn answer_frames(&mut self, mut frames: Frames) -> Result<bool, String> {
        let before = self.server.input.len();
        frames.take(
            &mut self.server.input,
            &mut self.mask,
            &mut self.client.output,
        )?;
        let any = self.server.input.len() < before;
        self.answered |= any;
        // Without progress, what is left is the beginning of a frame. It is not shown, nor is the rest of a
        // message without its end: no program could use it.
        if self.server.ended && !any {
            self.end();
        }
        self.answer = Stage::Frames(frames);
        Ok(any)
    }

    /// Show what is held back of a stream if the server has paused. Returns whether something was.
    pub(super) fn show_after_pause(&mut self) -> bool {
        let due = self.due().is_some_and(|due| due <= Instant::now());
        if !due || !self.client.has_room() {
            return false;
        }
        let rest = self.mask.rest();
        match &mut self.answer {
            Stage::Body(body) => body.put(&rest, &mut self.client.output),
            Stage::Frames(frames) => frames.release(&rest, &mut self.client.output),
            _ => {}
        }
        true
    }
}

/// They define where an answer ends.
pub(super) const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "connection"];

/// Show the fields that define where an answer ends, also where they happen to be a value of few
/// digits.
pub(super) fn keep_framing(bytes: &[u8], shown: &mut [u8]) {
    let mut at = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let name = line.split(|&byte| byte == b':').next().unwrap_or(line);
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if FRAMING.contains(&&name[..]) {
            shown[at..at + line.len()].copy_from_slice(line);
        }
        at += line.len();
    }
}

/// Return why a value could be in an answer without being found.
pub(super) fn unreadable(head: &Head) -> Option<&'static str> {
    let mut encodings = head.all("content-encoding").into_iter();
    let mut encodings = encodings.by_ref().chain(head.all("grpc-encoding"));
    if encodings.any(|one| !one.eq_ignore_ascii_case(b"identity"))
        || !head.all("sec-websocket-extensions").is_empty()
    {
        return Some("the server encoded it");
    }
    let kinds = head.all("content-type").into_iter();
    let mut kinds = kinds.map(|kind| String::from_utf8_lossy(kind).to_ascii_lowercase());
    let part = [206, 226].contains(&head.status()) || !head.all("content-range").is_empty();
    if part
        || kinds
            .clone()
            .any(|kind| kind.contains("multipart/byteranges"))
    {
        return Some("the server sent a part of it");
    }
    let unknown = |kind: String| kind.split("charset").skip(1).any(|rest| !is_known(rest));
    kinds.any(unknown).then_some("its charset is not known")
}

/// Whether a charset, named after an equals sign, writes ASCII as ASCII, with zero bytes at most.
fn is_known(rest: &str) -> bool {
    let name = rest.trim_start_matches(|c: char| "= \t\"'".contains(c));
    let name = name.split(|c: char| ";, \t\"'".contains(c)).next();
    let name = name.unwrap_or("").replace('_', "-");
    CHARSETS.contains(&&name[..]) || FAMILIES.iter().any(|one| name.starts_with(one))
}

const CHARSETS: [&str; 20] = [
    "",
    "utf-8",
    "utf8",
    "us-ascii",
    "ascii",
    "latin1",
    "utf-16",
    "utf-16le",
    "utf-16be",
    "utf-32",
    "utf-32le",
    "utf-32be",
    "gb2312",
    "gbk",
    "gb18030",
    "big5",
    "shift-jis",
    "euc-jp",
    "euc-kr",
    "binary",
];
const FAMILIES: [&str; 3] = ["iso-8859-", "windows-125", "koi8-"];

#[cfg(test)]
#[path = "answer_tests.rs"]
pub mod tests;
