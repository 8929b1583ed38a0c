//! Answers of servers: read strictly, searched for secrets, and written anew.

use super::body::{Body, Part};
use super::{Inspection, Inspector, Stage, PIECE};
use crate::head::{self, Framing};

impl Inspection {
    pub(super) fn advance_answer(&mut self, inspector: &Inspector) -> Result<bool, String> {
        if !self.client.has_room() {
            return Ok(false);
        }
        match std::mem::replace(&mut self.answer, Stage::Idle) {
            Stage::Head => self.answer_head(inspector),
            Stage::Body(body) => self.answer_body(body),
            Stage::Opaque => {
                self.answer = Stage::Opaque;
                // Nothing is held back: a message may be complete, and its answer awaited.
                let mut data = std::mem::take(&mut self.server.input);
                let any = !data.is_empty();
                self.mask.whole(&mut data);
                self.client.output.append(&mut data);
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

    fn answer_head(&mut self, inspector: &Inspector) -> Result<bool, String> {
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
        let encoded = head
            .all("content-encoding")
            .iter()
            .any(|e| !e.eq_ignore_ascii_case(b"identity"));
        if encoded && framing != Framing::Empty && inspector.has_secret(&self.name, self.port) {
            let text = "The server encoded its answer, which cannot be searched for secrets.\n";
            self.end_with("502 Bad Gateway", text);
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
        let mut bytes = head.to_bytes();
        self.mask.whole(&mut bytes);
        self.client.output.extend_from_slice(&bytes);
        if opaque {
            self.request = Stage::Opaque;
            self.answer = Stage::Opaque;
        } else if status >= 200 {
            self.answer = Stage::Body(Body::new(framing));
        }
        Ok(true)
    }

    fn answer_body(&mut self, mut body: Body) -> Result<bool, String> {
        match body.take(&mut self.server.input, PIECE) {
            Ok(Part::Data(data)) => {
                let shown = self.mask.pass(data);
                body.put(&shown, &mut self.client.output);
                self.answer = Stage::Body(body);
                Ok(true)
            }
            Ok(Part::More) if self.server.ended && !body.until_close() => {
                Err("the server ended in the middle of an answer".to_owned())
            }
            Ok(Part::More) if !self.server.ended => {
                self.answer = Stage::Body(body);
                Ok(false)
            }
            Ok(_) => {
                let rest = self.mask.rest();
                body.put(&rest, &mut self.client.output);
                body.put_end(&mut self.client.output);
                if self.keep && matches!(self.request, Stage::Idle) {
                    self.request = Stage::Head;
                } else {
                    self.end();
                }
                Ok(true)
            }
            Err(why) => Err(why.to_owned()),
        }
    }
}
