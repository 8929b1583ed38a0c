//! HTTP/2 on an inspected connection: each stream is a request, decided like one of HTTP/1.1.
//!
//! The library reads and writes the buffers of the two sides and is polled until nothing changes; it needs
//! no runtime. It bounds what a peer can make it keep: the heads that continue in more frames, the size of
//! a head and of its table, empty and small frames of bodies, streams that are reset before they were
//! accepted. Answers to settings and pings are sent before it reads on.

use super::http2_streams::{refuse, requested, Outcome, Stream, Surroundings};
use super::http2_wire::{End, Wire};
use super::mask::Mask;
use super::{Inspection, Inspector, Refusal};
use crate::head::{Framing, Head};
use crate::rules::Rules;
use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::{request, Request};
use std::future::Future;
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// How many streams a client may have at a time: the least that the standard recommends.
const MOST_STREAMS: u32 = 100;
/// A head may be as long as with HTTP/1.1.
const MOST_REQUEST_HEAD: u32 = 32 << 10;
const MOST_ANSWER_HEAD: u32 = 64 << 10;
/// What a peer may send of one body, and on a connection twice as much, before the other side has taken it:
/// 20 MB/s for a round trip of 50 ms. It waits here at most twice.
const WINDOW: u32 = 1 << 20;
/// A window of connections beyond the first ones, so that many of them cannot fill the memory.
const SMALL_WINDOW: u32 = 64 << 10;
const WIDE_CONNECTIONS: usize = 16;
/// What the library may keep of a body that a peer does not read.
const MOST_SENDING: usize = 64 << 10;
/// How many streams a client may reset besides as many as it lets end. Each is work for the server too.
const FREE_RESETS: u64 = 200;
/// How many bodies may wait until they are complete, because a secret may go into them.
const MOST_COLLECTING: usize = 8;

const ENDED: &str = "The server ended the connection.\n";

enum Inside {
    Greeting(Pin<Box<server::Handshake<Wire, Bytes>>>),
    Open(Box<server::Connection<Wire, Bytes>>),
}

type Outside = (SendRequest<Bytes>, Box<client::Connection<Wire, Bytes>>);

pub struct Http2 {
    inside: Inside,
    /// None: the server cannot be used any more, and `lost` says why.
    outside: Option<Outside>,
    lost: String,
    client: End,
    server: End,
    streams: Vec<Stream>,
    /// What streams get, and when the secrets were changed that it has.
    mask: (u64, Mask),
    resets: u64,
    ended: u64,
    _share: Rc<()>,
}

impl Http2 {
    /// The other connections and the inspector have the other copies of `share`.
    pub fn new(share: Rc<()>) -> Http2 {
        let (client, server) = (End::new(), End::new());
        let window = match Rc::strong_count(&share) - 1 <= WIDE_CONNECTIONS {
            true => WINDOW,
            false => SMALL_WINDOW,
        };
        let greeting = server::Builder::new()
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(MOST_REQUEST_HEAD)
            .initial_window_size(window)
            .initial_connection_window_size(2 * window)
            .max_send_buffer_size(MOST_SENDING)
            .handshake(client.wire());
        let mut builder = client::Builder::new();
        builder
            .enable_push(false)
            .max_header_list_size(MOST_ANSWER_HEAD)
            .initial_window_size(window)
            .initial_connection_window_size(2 * window)
            .max_send_buffer_size(MOST_SENDING);
        // It only writes, and there is room.
        let begun = pin!(builder.handshake(server.wire())).poll(&mut context());
        Http2 {
            inside: Inside::Greeting(Box::pin(greeting)),
            outside: match begun {
                Poll::Ready(Ok((requests, connection))) => Some((requests, Box::new(connection))),
                _ => None,
            },
            lost: String::new(),
            client,
            server,
            streams: Vec::new(),
            mask: (0, Mask::default()),
            resets: 0,
            ended: 0,
            _share: share,
        }
    }

    /// Return when something that is held back is shown if the server sends nothing until then.
    pub fn due(&self) -> Option<Instant> {
        self.streams.iter().filter_map(Stream::due).min()
    }

    /// Answer the requests that wait, and those that follow, with a text.
    pub fn lose(&mut self, text: String) {
        self.outside = None;
        self.lost = text;
        if let Inside::Open(connection) = &mut self.inside {
            connection.graceful_shutdown();
        }
    }

    /// Move what can be moved now.
    pub fn advance(
        &mut self,
        on: &mut Inspection,
        rules: &Rules,
        inspector: &Inspector,
    ) -> Result<bool, String> {
        let before = (on.client.output.len(), on.server.output.len());
        self.client.lend(&mut on.client);
        self.server.lend(&mut on.server);
        let moved = self.turn(on, rules, inspector);
        let inside = self.client.give_back(&mut on.client, before.0);
        let outside = self.server.give_back(&mut on.server, before.1);
        Ok(moved | inside | outside)
    }

    fn turn(&mut self, on: &mut Inspection, rules: &Rules, inspector: &Inspector) -> bool {
        self.drive_server(on);
        self.accept(on, rules, inspector);
        let blocked = on.server.held.0
            || !self.client.has_room()
            || self.streams.iter().any(Stream::is_blocked);
        let mut around = Surroundings {
            context: &mut context(),
            client: &mut self.client,
            server: &mut self.server,
            requests: self.outside.as_mut().map(|(requests, _)| requests),
            lost: &self.lost,
            on,
            inspector,
            blocked,
            moved: false,
        };
        let (mut resets, mut ended, mut goes) = (0, 0, true);
        self.streams.retain_mut(|stream| {
            match stream.step(&mut around) {
                Outcome::Goes => return true,
                Outcome::Ended => ended += 1,
                Outcome::Reset => resets += 1,
                Outcome::Closing => goes = false,
            }
            around.moved = true;
            false
        });
        let moved = around.moved;
        self.resets += resets;
        self.ended += ended;
        if !goes && on.lost {
            self.lose(ENDED.to_owned());
        } else if let (false, Inside::Open(connection)) = (goes, &mut self.inside) {
            connection.graceful_shutdown();
        }
        self.check(on);
        // What the streams have sent is written.
        self.drive_server(on);
        self.accept(on, rules, inspector);
        moved
    }

    /// End the connection of a peer that causes work for nothing.
    fn check(&mut self, on: &mut Inspection) {
        let trouble = match self.resets > FREE_RESETS + self.ended {
            true => Some("the client resets too many streams"),
            false if self.client.is_flooded() => {
                Some("the client sends too many frames that carry nothing")
            }
            false => None,
        };
        if let (Some(trouble), Inside::Open(connection)) = (trouble, &mut self.inside) {
            on.trouble = Some(trouble.to_owned());
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
        if self.outside.is_some() && self.server.is_flooded() {
            self.lose_to(on, "it sends too many frames that carry nothing");
        }
    }

    fn lose_to(&mut self, on: &mut Inspection, why: &str) {
        on.trouble = Some(format!("the server cannot be used over HTTP/2: {}", why));
        on.lost = true;
        self.lose(format!("{} cannot be used over HTTP/2: {}\n", on.name, why));
    }

    fn drive_server(&mut self, on: &mut Inspection) {
        let Some((_, connection)) = &mut self.outside else {
            return;
        };
        match Pin::new(connection).poll(&mut context()) {
            Poll::Pending => {}
            Poll::Ready(Err(error))
                if !error.is_io()
                    && (!error.is_go_away() || error.reason() != Some(Reason::NO_ERROR)) =>
            {
                self.lose_to(on, &reason(&error));
            }
            Poll::Ready(_) => {
                on.lost = true;
                self.lose(ENDED.to_owned());
            }
        }
    }

    /// Accept requests, and write what waits for the client. Other connections take their turn before
    /// more than some are decided.
    fn accept(&mut self, on: &mut Inspection, rules: &Rules, inspector: &Inspector) {
        let mut begun = 0;
        while begun < MOST_STREAMS {
            let trouble = match &mut self.inside {
                Inside::Greeting(greeting) => match greeting.as_mut().poll(&mut context()) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(connection)) => {
                        self.inside = Inside::Open(Box::new(connection));
                        continue;
                    }
                    Poll::Ready(Err(error)) => error,
                },
                Inside::Open(connection) => match connection.poll_accept(&mut context()) {
                    Poll::Pending => return,
                    Poll::Ready(None) => return on.end(),
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        self.begin(request, respond, on, rules, inspector);
                        on.answered = true;
                        begun += 1;
                        continue;
                    }
                    Poll::Ready(Some(Err(error))) => error,
                },
            };
            if !trouble.is_io() && on.trouble.is_none() {
                on.trouble = Some(format!(
                    "the client does not keep to HTTP/2: {}",
                    reason(&trouble)
                ));
            }
            return on.end();
        }
    }

    fn begin(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        on: &mut Inspection,
        rules: &Rules,
        inspector: &Inspector,
    ) {
        let (parts, body) = request.into_parts();
        let stream = match self.accepted(&parts, &body, on, rules, inspector) {
            Ok((head, mask, fills)) => Stream::new(head, body, respond, mask, fills),
            Err(refusal) => {
                refuse(&mut respond, refusal);
                Stream::refused(body, respond)
            }
        };
        self.streams.push(stream);
        if self.outside.is_none() {
            let lost = std::mem::take(&mut self.lost);
            self.lose(lost);
        }
    }

    /// Return the head of a request that may go to the server, what hides values in the answer, and
    /// whether a value may go into its body; or the answer that refuses it.
    fn accepted(
        &mut self,
        parts: &request::Parts,
        body: &RecvStream,
        on: &mut Inspection,
        rules: &Rules,
        inspector: &Inspector,
    ) -> Result<(Head, Option<Mask>, bool), Refusal> {
        let (mut head, framing) = requested(parts, on).map_err(|why| on.unclear(why))?;
        let length = head.to_bytes().len();
        self.client.useful(length);
        self.server.useful(length);
        if let Some(refusal) = on.judge(rules, inspector, &head) {
            return Err(refusal);
        }
        if self.outside.is_none() {
            return Err(("502 Bad Gateway", self.lost.clone()));
        }
        let kind = head.only("content-type").unwrap_or(b"");
        let fillable = match framing {
            Framing::Length(n) => n <= super::MOST_BODY as u64,
            // Its messages are no text in which a placeholder could be.
            _ => !kind.starts_with(b"application/grpc"),
        };
        let fills = on.prepare(inspector, &mut head) && fillable && !body.is_end_stream();
        if fills && self.streams.iter().filter(|one| one.collects()).count() >= MOST_COLLECTING {
            on.refuse(&head.first[0], head.path(), "too many bodies for secrets");
            let text = "Too many bodies wait for secrets. Send fewer at a time.\n";
            return Err(("503 Service Unavailable", text.to_owned()));
        }
        if self.mask.0 != inspector.changes {
            self.mask = (inspector.changes, inspector.mask(&on.name, on.port));
        }
        let searched = inspector.has_secret(&on.name, on.port);
        Ok((head, searched.then(|| self.mask.1.again()), fills))
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Return why a connection ended, without what its peer sent with that: it may contain a value.
fn reason(error: &h2::Error) -> String {
    error
        .reason()
        .map_or_else(|| error.to_string(), |reason| reason.to_string())
}

#[cfg(test)]
#[path = "http2_tests.rs"]
mod tests;
