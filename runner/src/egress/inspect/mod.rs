//! An inspected connection: every HTTP request on it is read, decided by rule, and written anew.
//!
//! The client has a TLS connection to us (with a certificate of this sandbox's authority) and we have one
//! to the server, whose certificate is checked; or both are plain HTTP. A client that offers HTTP/2 is
//! answered when the server has chosen, and gets what the server chose. Of HTTP/1.1, one request is under
//! way at a time: the next one is read when the answer to the one before has passed. Secrets go only into
//! requests over TLS to their hosts, and what comes back from these is searched for them.

mod answer;
mod body;
mod body_obstacles;
mod certificates;
mod escapes;
mod frames;
mod http2;
mod http2_streams;
mod http2_wire;
mod mask;
pub mod policy;
mod secrets;
mod server_chain;

pub use policy::Inspector;
pub use secrets::wipe_value;

use crate::head::{self, same_field, Framing, Head};
use crate::proxy::side::Side;
use crate::rules::Rules;
use body::Body;
use certificates::{Settings, HTTP1, HTTP2};
use frames::Frames;
use http2::Http2;
use mask::Mask;
use rustls::server::Accepted;
use std::os::unix::io::RawFd;
use std::time::{Duration, Instant};

/// Bodies up to this size are searched for placeholders.
const MOST_BODY: usize = 1 << 20;
const ROUNDS: usize = 64;
/// How long a server must send nothing before the end of an unfinished stream is shown. Longer than the
/// pause after a packet that was lost, which could divide a value.
const PAUSE: Duration = Duration::from_millis(500);

/// The part of a request or of an answer that is being moved.
enum Stage {
    Head,
    Body(Body),
    /// Held until it is complete: a secret may go into it. The head waits with it.
    Collecting(Body, Box<Head>, Vec<u8>),
    /// Complete. A request waits for its answer; an answer for the next request.
    Idle,
    /// Messages of a WebSocket whose server could repeat a value.
    Frames(Frames),
    /// Not HTTP any more.
    Opaque,
}

/// An event for the log.
pub struct Event {
    pub method: String,
    pub path: String,
    pub rule: String,
    /// False and not refused: only a dry run allowed it.
    pub allowed: bool,
    pub refused: bool,
}

/// What asks for a part of an answer, for another form of it, or for a sum of it. Ranges have more names.
const OTHER_FORMS: [&str; 9] = [
    "range",
    "accept-encoding",
    "grpc-accept-encoding",
    "accept-charset",
    "a-im",
    "want-digest",
    "want-content-digest",
    "want-repr-digest",
    "sec-websocket-extensions",
];

/// Ask for an answer that is whole, and readable here.
fn ask_for_whole_text(head: &mut Head) {
    head.retain(|name| {
        // Uploads state what their body is a part of.
        let range = same_field(&name[name.len().saturating_sub(6)..], "-range");
        let asks = range && !same_field(name, "content-range");
        !asks && !OTHER_FORMS.iter().any(|one| same_field(name, one))
    });
    head.set("Accept-Encoding", b"identity");
    let accepted = head.all("accept").join(&b","[..]);
    let accepted = String::from_utf8_lossy(&accepted).into_owned();
    if accepted.to_ascii_lowercase().contains("charset") {
        let plain = |part: &&str| !part.to_ascii_lowercase().contains("charset");
        let kept = accepted.split(',').map(|kind| {
            let parts: Vec<&str> = kind.split(';').filter(plain).collect();
            parts.join(";")
        });
        let kept: Vec<String> = kept.filter(|kind| !kind.trim().is_empty()).collect();
        head.set("Accept", kept.join(",").as_bytes());
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    Idle,
    Busy,
    Done,
}

/// How the first bytes of a connection go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// With a hello, of which every byte has arrived.
    Tls,
    Http1,
    /// Plain HTTP/2, which the client knows that the server speaks.
    Http2,
}

/// The answer to a request that does not get to the server: status and text.
type Refusal = (&'static str, String);

pub struct Inspection {
    name: String,
    port: u16,
    secure: bool,
    /// What answers the client, until it is answered: if it offers HTTP/2, the server chooses first.
    settings: Option<Settings>,
    hello: Option<Accepted>,
    http2: Option<Box<Http2>>,
    /// Whether the connection to the server has ended before that to the client.
    lost: bool,
    client: Side,
    server: Side,
    request: Stage,
    answer: Stage,
    method: String,
    upgrade: bool,
    keep: bool,
    ending: bool,
    /// Whether a part of an answer has passed in this turn. The work for one is bounded: its text is
    /// searched once. Other connections take their turn before the next one.
    answered: bool,
    /// Whether secrets are for this host, so that what it sends is searched for them.
    searched: bool,
    mask: Mask,
    /// What was received when the request was read, and what counts as received at least.
    asked: u64,
    charged: u64,
    /// When the server last sent something, or could not.
    heard: Instant,
    pub events: Vec<Event>,
    /// Why the server cannot be used, for the log.
    pub trouble: Option<String>,
}

impl Inspection {
    /// None: no certificate can be made for the name.
    pub fn new(
        inspector: &mut Inspector,
        name: &str,
        port: u16,
        begins: Begins,
    ) -> Option<Inspection> {
        let secure = begins == Begins::Tls;
        let settings = match secure {
            true => Some(inspector.settings(name)?),
            false => None,
        };
        let http2 = (begins == Begins::Http2).then(|| Box::new(Http2::new(inspector.share())));
        Some(Inspection {
            name: name.to_owned(),
            port,
            secure,
            settings,
            hello: None,
            http2,
            lost: false,
            client: Side::new(None),
            server: Side::new(None),
            request: Stage::Head,
            answer: Stage::Idle,
            method: String::new(),
            upgrade: false,
            keep: true,
            ending: false,
            answered: false,
            searched: false,
            mask: Mask::default(),
            asked: 0,
            charged: 0,
            heard: Instant::now(),
            events: Vec::new(),
            trouble: None,
        })
    }

    /// Read the hello of the client, and begin TLS with the server.
    fn begin(&mut self, inspector: &Inspector, inside: RawFd) -> Result<(), String> {
        let hello = Side::hello(inside)?;
        let offered = hello.client_hello().alpn().into_iter().flatten();
        let known = |name: &&[u8]| [HTTP1, HTTP2].contains(name);
        let mut offer: Vec<Vec<u8>> = offered.filter(known).map(<[u8]>::to_vec).collect();
        let waits = offer.iter().any(|name| name == HTTP2);
        if !waits {
            offer = vec![HTTP1.to_vec()];
        }
        let most = self.server.most;
        self.server = Side::new(Some(inspector.connection(&self.name, offer)?));
        self.server.most = most;
        self.hello = Some(hello);
        match waits {
            true => Ok(()),
            false => self.answer_client(inspector, inside),
        }
    }

    /// Answer the hello of the client: it gets the protocol that the server has chosen. Without a choice,
    /// it gets HTTP/1.1, or HTTP/2 if it offers only that and the server is lost.
    fn answer_client(&mut self, inspector: &Inspector, inside: RawFd) -> Result<(), String> {
        let (Some(hello), Some(settings)) = (self.hello.take(), self.settings.take()) else {
            return Ok(());
        };
        let offers = |wanted: &[u8]| {
            let mut offered = hello.client_hello().alpn().into_iter().flatten();
            offered.any(|name| name == wanted)
        };
        let http2 = match self.server.protocol() {
            Some(chosen) => chosen == HTTP2,
            None => self.lost && offers(HTTP2) && !offers(HTTP1),
        };
        let config = if http2 {
            settings.http2
        } else {
            settings.http1
        };
        self.client = Side::answering(hello, config, inside)?;
        if http2 {
            self.http2 = Some(Box::new(Http2::new(inspector.share())));
        }
        Ok(())
    }

    /// Whether we have ended it and nothing is left to send; the rest of the client's input is thrown
    /// away.
    pub fn has_ended(&self) -> bool {
        self.ending && self.client.finished()
    }

    /// Whether one of the two TLS connections is not made yet.
    pub fn handshaking(&self) -> bool {
        self.settings.is_some() || self.client.handshaking() || self.server.handshaking()
    }

    /// Set what may be received from the server and sent to it in the next step.
    pub fn permit(&mut self, received: u64, sent: u64) {
        self.server.most = (received, sent);
        self.server.held = (false, false);
    }

    /// Whether more would have been received, and sent.
    pub fn held(&self) -> (bool, bool) {
        self.server.held
    }

    /// Bytes to and from the server.
    pub fn bytes(&self) -> (u64, u64) {
        (self.server.sent, self.server.received.max(self.charged))
    }

    /// Bytes to the client.
    pub fn delivered(&self) -> u64 {
        self.client.sent
    }

    /// Return when something that is held back is shown if the server sends nothing until then.
    pub fn due(&self) -> Option<Instant> {
        if let Some(http2) = &self.http2 {
            return http2.due();
        }
        let unfinished = match &self.answer {
            Stage::Body(body) => !body.is_inside(),
            Stage::Frames(frames) => !frames.is_inside(),
            _ => false,
        };
        (unfinished && self.mask.holds()).then(|| self.heard + PAUSE)
    }

    /// Move what can be moved now.
    pub fn step(
        &mut self,
        rules: &Rules,
        inspector: &Inspector,
        (inside, outside): (RawFd, RawFd),
    ) -> Result<Moved, String> {
        if self.settings.is_some() && self.hello.is_none() {
            self.begin(inspector, inside)?;
        }
        self.client.begin_turn();
        self.server.begin_turn();
        self.answered = false;
        for _ in 0..ROUNDS {
            let mut any = self.settings.is_none() && self.client.receive(inside)?;
            if !self.ending && !self.lost {
                let before = self.server.received;
                match self.server.receive(outside) {
                    Ok(more) => any |= more,
                    Err(trouble) => self.server_trouble(&trouble, inspector, inside)?,
                }
                // A pause of the server, and not one that the client or a limit has made.
                let came = self.server.received > before || !self.server.input.is_empty();
                if came || self.server.held.0 {
                    self.heard = Instant::now();
                }
                if self.settings.is_some() && self.server.ended {
                    let trouble = "the server ended the handshake";
                    self.server_trouble(trouble, inspector, inside)?;
                }
                if self.settings.is_some() && !self.server.handshaking() {
                    self.answer_client(inspector, inside)?;
                    any = true;
                }
            }
            if !self.ending && self.settings.is_none() {
                any |= self.advance(rules, inspector)?;
            }
            any |= self.settings.is_none() && self.client.send(inside)?;
            if !self.ending && !self.lost {
                match self.server.send(outside) {
                    Ok(more) => any |= more,
                    Err(trouble) => self.server_trouble(&trouble, inspector, inside)?,
                }
            }
            if self.ending {
                self.client.input.clear();
                if self.client.finished() && self.client.ended {
                    return Ok(Moved::Done);
                }
            }
            if self.answered {
                return Ok(Moved::Busy);
            }
            if !any && !self.show_after_pause() {
                let busy = self.client.used_turn() || self.server.used_turn();
                return Ok(if busy { Moved::Busy } else { Moved::Idle });
            }
        }
        Ok(Moved::Busy)
    }

    /// The server cannot be used. If the client waits for an answer, it gets one.
    fn server_trouble(
        &mut self,
        trouble: &str,
        inspector: &Inspector,
        inside: RawFd,
    ) -> Result<(), String> {
        let text = format!("{} cannot be used over TLS: {}\n", self.name, trouble);
        self.lost = true;
        self.answer_client(inspector, inside)?;
        if let Some(http2) = &mut self.http2 {
            self.trouble = Some(trouble.to_owned());
            http2.lose(text);
            return Ok(());
        }
        let waits = matches!(self.answer, Stage::Head) || matches!(self.request, Stage::Head);
        if !waits
            || matches!(
                self.answer,
                Stage::Body(_) | Stage::Frames(_) | Stage::Opaque
            )
        {
            return Err(trouble.to_owned());
        }
        self.trouble = Some(trouble.to_owned());
        self.end_with("502 Bad Gateway", &text);
        Ok(())
    }

    /// Answer instead of the server, and end the connection.
    fn end_with(&mut self, status: &str, text: &str) {
        let answer = format!(
            "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\nX-Sandkasten-Network: refused\r\n\r\n{}",
            status,
            text.len(),
            text
        );
        self.client.output.extend_from_slice(answer.as_bytes());
        self.end();
    }

    fn end(&mut self) {
        self.client.closing = true;
        self.ending = true;
    }

    fn advance(&mut self, rules: &Rules, inspector: &Inspector) -> Result<bool, String> {
        let named = |host: &str| host.eq_ignore_ascii_case(&self.name);
        let known = self.secure && !self.client.handshaking();
        if known && !self.client.server_name().is_some_and(named) {
            return Err("the client names another host".to_owned());
        }
        if let Some(mut http2) = self.http2.take() {
            let any = http2.advance(self, rules, inspector);
            self.http2 = Some(http2);
            return any;
        }
        let mut any = false;
        while !self.ending
            && !self.answered
            && (self.advance_request(rules, inspector) || self.advance_answer()?)
        {
            any = true;
        }
        Ok(any)
    }

    fn advance_request(&mut self, rules: &Rules, inspector: &Inspector) -> bool {
        if !self.server.has_room() {
            return false;
        }
        match std::mem::replace(&mut self.request, Stage::Idle) {
            Stage::Head => self.request_head(rules, inspector),
            Stage::Body(mut body) => match body.take(&mut self.client.input) {
                Ok(part) => {
                    body.put(&part.data, &mut self.server.output);
                    if part.complete {
                        body.put_end(&mut self.server.output);
                    } else {
                        self.request = Stage::Body(body);
                    }
                    part.complete || self.more_came(!part.data.is_empty())
                }
                Err(why) => {
                    self.bad_request(why);
                    true
                }
            },
            Stage::Collecting(body, head, held) => self.collect(inspector, body, head, held),
            Stage::Opaque => {
                self.request = Stage::Opaque;
                if self.client.ended {
                    self.server.closing = true;
                }
                let any = !self.client.input.is_empty();
                self.server.output.append(&mut self.client.input);
                any
            }
            Stage::Frames(_) | Stage::Idle => false,
        }
    }

    fn bad_request(&mut self, why: &str) {
        let (status, text) = self.unclear(why);
        if matches!(self.answer, Stage::Body(_)) {
            return self.end();
        }
        self.end_with(status, &text);
    }

    fn refuse(&mut self, method: &str, path: &str, rule: &str) {
        self.note(method, path, rule, false, true);
    }

    fn note(&mut self, method: &str, path: &str, rule: &str, allowed: bool, refused: bool) {
        self.events.push(Event {
            allowed,
            method: method.chars().take(32).collect(),
            path: path.chars().take(256).collect(),
            rule: rule.to_owned(),
            refused,
        });
    }

    fn request_head(&mut self, rules: &Rules, inspector: &Inspector) -> bool {
        self.request = Stage::Head;
        let (mut head, framing) = match self.read_request() {
            Ok(Some(found)) => found,
            Ok(None) => {
                let silent = self.client.ended;
                if silent {
                    self.end();
                }
                return silent;
            }
            Err(why) => {
                self.bad_request(why);
                return true;
            }
        };
        if let Some((status, text)) = self.judge(rules, inspector, &head) {
            self.end_with(status, &text);
            return true;
        }
        self.upgrade = head.opens_websocket();
        self.keep = head.keeps(&head.first[2]);
        // What belongs only to this connection; it is stated anew.
        for name in [
            "proxy-connection",
            "keep-alive",
            "te",
            "trailer",
            "connection",
        ] {
            head.remove(name);
        }
        if !self.upgrade {
            head.remove("upgrade");
        }
        let connection: &[u8] = match (self.upgrade, self.keep) {
            (true, _) => b"Upgrade",
            (_, true) => b"keep-alive",
            (_, false) => b"close",
        };
        head.set("Connection", connection);
        self.method = head.first[0].clone();
        self.mask = inspector.mask(&self.name, self.port);
        self.answer = Stage::Head;
        self.asked = self
            .server
            .received
            .saturating_sub(self.server.input.len() as u64);
        self.searched = inspector.has_secret(&self.name, self.port);
        let fills = self.prepare(inspector, &mut head);
        let body = Body::new(framing);
        let collects = fills
            && match framing {
                Framing::Length(n) => n > 0 && n <= MOST_BODY as u64,
                framing => framing == Framing::Chunked,
            };
        if collects {
            if head.lists("expect", "100-continue") {
                head.remove("expect");
                let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                self.client.output.extend_from_slice(go_on);
            }
            self.request = Stage::Collecting(body, Box::new(head), Vec::new());
        } else {
            self.server.output.extend_from_slice(&head.to_bytes());
            self.request = Stage::Body(body);
        }
        true
    }

    /// Decide about a request, and note it. Return the answer to one that is refused.
    fn judge(&mut self, rules: &Rules, inspector: &Inspector, head: &Head) -> Option<Refusal> {
        let (method, path) = (&head.first[0][..], head.path());
        let verdict = policy::decide(rules, &self.name, self.port, head);
        let plain = (!self.secure).then(|| inspector.placeholder_in(head));
        if let Some(secret) = plain.flatten() {
            self.refuse(method, path, "secret without TLS");
            let text = format!(
                "Secret {} is sent only over TLS. Use https://{}.\n",
                secret, self.name
            );
            return Some(("403 Forbidden", text));
        }
        if !verdict.allowed && !rules.dry_run {
            self.refuse(method, path, &verdict.rule);
            let text = format!(
                "This sandbox may not send {} {}{} ({}).\n\
                 The creator of the sandbox can allow it (network.allow).\n",
                method, self.name, path, verdict.rule
            );
            return Some(("403 Forbidden", text));
        }
        self.note(method, path, &verdict.rule, verdict.allowed, false);
        None
    }

    /// Put the secrets of the host into a request, and ask for an answer that can be searched for them.
    /// Return whether a value may go into its body.
    fn prepare(&self, inspector: &Inspector, head: &mut Head) -> bool {
        if !inspector.has_secret(&self.name, self.port) {
            return false;
        }
        ask_for_whole_text(head);
        if self.secure {
            inspector.insert(&self.name, self.port, head);
        }
        self.secure && inspector.fills_bodies(&self.name, self.port)
    }

    /// Put the values of secrets into a complete body, or return the answer that refuses it.
    fn filled(
        &mut self,
        inspector: &Inspector,
        head: &Head,
        held: Vec<u8>,
    ) -> Result<Vec<u8>, Refusal> {
        if let Some((secret, why)) = inspector.obstacle(&self.name, self.port, head, &held) {
            let rule = format!("secret in a body: {}", why);
            self.refuse(&head.first[0], head.path(), &rule);
            let text = format!(
                "Secret {} is not put into the body of this request: {}.\n",
                secret, why
            );
            return Err(("403 Forbidden", text));
        }
        let kind = head.only("content-type").unwrap_or(b"").to_vec();
        let filled = inspector.fill(&self.name, self.port, &kind, held);
        filled.ok_or_else(|| self.unclear("its body has placeholders of secrets too often"))
    }

    /// Note a request that is not clear, and return the answer to it.
    fn unclear(&mut self, why: &str) -> Refusal {
        self.refuse("", "", why);
        let text = format!("The request is not clear: {}.\n", why);
        ("400 Bad Request", text)
    }

    fn read_request(&mut self) -> Result<Option<(Head, Framing)>, &'static str> {
        let (head, length) = match head::request(&self.client.input)? {
            Some(found) => found,
            None => return Ok(None),
        };
        let framing = head.request_framing()?;
        if !head.is_for(&self.name, self.port)? {
            return Err("its Host is not the name of the connection");
        }
        self.client.input.drain(..length);
        Ok(Some((head, framing)))
    }

    /// Hold a body until it is complete, or too long to be searched.
    fn collect(
        &mut self,
        inspector: &Inspector,
        mut body: Body,
        mut head: Box<Head>,
        mut held: Vec<u8>,
    ) -> bool {
        let before = held.len();
        match body.take(&mut self.client.input) {
            Ok(mut part) => {
                held.append(&mut part.data);
                if held.len() > MOST_BODY {
                    self.server.output.extend_from_slice(&head.to_bytes());
                    body.put(&held, &mut self.server.output);
                    self.request = Stage::Body(body);
                    return true;
                }
                if !part.complete {
                    let any = self.more_came(held.len() > before);
                    self.request = Stage::Collecting(body, head, held);
                    return any;
                }
                match self.filled(inspector, &head, held) {
                    Ok(filled) => {
                        head.remove("transfer-encoding");
                        head.set("Content-Length", filled.len().to_string().as_bytes());
                        self.server.output.extend_from_slice(&head.to_bytes());
                        self.server.output.extend_from_slice(&filled);
                    }
                    Err((status, text)) => self.end_with(status, &text),
                }
                true
            }
            Err(why) => {
                self.bad_request(why);
                true
            }
        }
    }

    /// Whether the request went on. If it cannot, because the client has ended, so does the connection.
    fn more_came(&mut self, any: bool) -> bool {
        if !any && self.client.ended {
            self.end();
        }
        any || self.ending
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
