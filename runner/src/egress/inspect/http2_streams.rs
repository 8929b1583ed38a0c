//! One stream of HTTP/2: a request on its way to the server, and the answer on its way to the client.

use super::answer::{keep_framing, unreadable, FRAMING, REFUSED};
use super::frames::Frames;
use super::http2_wire::End;
use super::mask::Mask;
use super::{Inspection, Inspector, Refusal, MOST_BODY, PAUSE};
use crate::head::{self, Framing, Head, Parsed};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Error, Reason, RecvStream, SendStream};
use http::{request, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// What a stream uses of its connection.
pub struct Surroundings<'a> {
    pub context: &'a mut Context<'static>,
    pub client: &'a mut End,
    pub server: &'a mut End,
    pub requests: Option<&'a mut SendRequest<Bytes>>,
    /// Why there are none.
    pub lost: &'a str,
    pub on: &'a mut Inspection,
    pub inspector: &'a Inspector,
    /// Whether the server may have paused because the client or a limit holds it up.
    pub blocked: bool,
    pub moved: bool,
}

pub enum Outcome {
    Goes,
    Ended,
    /// By the client.
    Reset,
    /// The server takes no more requests.
    Closing,
}

/// A body on its way.
struct Flow {
    from: RecvStream,
    /// What has arrived. The peer may send as much again when it goes on.
    taken: Vec<u8>,
    /// What may be sent.
    out: Bytes,
    /// How much of what has arrived the peer may not send again yet.
    owed: usize,
    /// The body is complete, with these trailers.
    end: Option<Option<HeaderMap>>,
}

enum Upload {
    /// Held until it is complete: a secret may go into it.
    Collecting(Head),
    /// The server does not take the request yet.
    Waiting(Head),
    Sending(SendStream<Bytes>),
    /// Refused. So much of it is thrown away: some clients lose an answer that is followed by a reset.
    Discarding(usize),
    Ended,
}

enum Answer {
    None,
    Awaited(ResponseFuture),
    Passing {
        to: SendStream<Bytes>,
        body: Box<Flow>,
        /// The messages of gRPC, if they are searched.
        frames: Option<Frames>,
        /// Whether its end is known, so that the server pauses only inside.
        stated: bool,
    },
    Ended,
}

pub struct Stream {
    respond: SendResponse<Bytes>,
    body: Option<Flow>,
    upload: Upload,
    answer: Answer,
    /// None: the answer is not searched.
    mask: Option<Mask>,
    /// When the server last sent something, or could not.
    heard: Instant,
}

impl Flow {
    fn new(from: RecvStream) -> Flow {
        Flow {
            from,
            taken: Vec::new(),
            out: Bytes::new(),
            owed: 0,
            end: None,
        }
    }

    /// Take what has arrived.
    fn take(&mut self, context: &mut Context) -> Result<usize, Error> {
        let before = self.taken.len();
        while self.end.is_none() {
            match self.from.poll_data(context) {
                Poll::Pending => break,
                Poll::Ready(Some(data)) => self.taken.extend_from_slice(&data?),
                Poll::Ready(None) => match self.from.poll_trailers(context) {
                    Poll::Pending => break,
                    Poll::Ready(trailers) => self.end = Some(trailers?),
                },
            }
        }
        self.owed += self.taken.len() - before;
        Ok(self.taken.len() - before)
    }

    /// Let the peer send as much again as has gone on.
    fn release(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        if owed > 0 {
            let _ended = self.from.flow_control().release_capacity(owed);
        }
    }

    /// Send what the peer takes. Returns how much, and whether that was all.
    fn put(&mut self, to: &mut SendStream<Bytes>) -> Result<(usize, bool), Error> {
        let mut sent = 0;
        if !self.out.is_empty() {
            to.reserve_capacity(self.out.len());
            sent = to.capacity().min(self.out.len());
            if sent > 0 {
                to.send_data(self.out.split_to(sent), false)?;
            }
        }
        if !self.out.is_empty() || !self.taken.is_empty() || self.end.is_none() {
            return Ok((sent, false));
        }
        match self.end.take().flatten() {
            Some(trailers) => to.send_trailers(trailers)?,
            None => to.send_data(Bytes::new(), true)?,
        }
        Ok((sent, true))
    }
}

impl Stream {
    pub fn new(
        head: Head,
        body: RecvStream,
        mut respond: SendResponse<Bytes>,
        mask: Option<Mask>,
        collects: bool,
    ) -> Stream {
        let mut head = head;
        if collects && head.lists("expect", "100-continue") {
            head.remove("expect");
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            let _reset = respond.send_informational(go_on);
        }
        Stream {
            respond,
            body: Some(Flow::new(body)),
            upload: match collects {
                true => Upload::Collecting(head),
                false => Upload::Waiting(head),
            },
            answer: Answer::None,
            mask,
            heard: Instant::now(),
        }
    }

    /// One whose request was answered already.
    pub fn refused(body: RecvStream, respond: SendResponse<Bytes>) -> Stream {
        Stream {
            respond,
            body: Some(Flow::new(body)),
            upload: Upload::Discarding(MOST_BODY),
            answer: Answer::Ended,
            mask: None,
            heard: Instant::now(),
        }
    }

    pub fn collects(&self) -> bool {
        matches!(self.upload, Upload::Collecting(_))
    }

    /// Whether the client does not take what there is for it.
    pub fn is_blocked(&self) -> bool {
        matches!(&self.answer, Answer::Passing { body, .. } if !body.out.is_empty())
    }

    pub fn due(&self) -> Option<Instant> {
        match &self.answer {
            Answer::Passing {
                frames: None,
                stated: false,
                ..
            } if self.mask.as_ref().is_some_and(Mask::holds) => Some(self.heard + PAUSE),
            _ => None,
        }
    }

    pub fn step(&mut self, at: &mut Surroundings) -> Outcome {
        let gone = match &mut self.answer {
            Answer::Passing { to, .. } => to.poll_reset(at.context).is_ready(),
            Answer::Ended => false,
            _ => self.respond.poll_reset(at.context).is_ready(),
        };
        if gone {
            return Outcome::Reset;
        }
        if at.blocked {
            self.heard = Instant::now();
        }
        if let Some(outcome) = self.upload(at) {
            return outcome;
        }
        self.answer(at)
    }

    /// Answer instead of the server.
    fn refuse(&mut self, status: &'static str, text: String) -> Outcome {
        refuse(&mut self.respond, (status, text));
        if self.body.is_some() {
            self.upload = Upload::Discarding(MOST_BODY);
        }
        self.finish()
    }

    /// The answer is complete; the request may go on.
    fn finish(&mut self) -> Outcome {
        self.answer = Answer::Ended;
        match self.upload {
            Upload::Ended => Outcome::Ended,
            _ => Outcome::Goes,
        }
    }

    fn upload(&mut self, at: &mut Surroundings) -> Option<Outcome> {
        let body = self.body.as_mut()?;
        match body.take(at.context) {
            Ok(taken) => {
                at.client.useful(taken);
                at.moved |= taken > 0;
            }
            Err(_) if matches!(self.answer, Answer::Ended) => return Some(Outcome::Ended),
            Err(_) => return Some(Outcome::Reset),
        }
        if let Upload::Discarding(left) = &mut self.upload {
            *left = left.saturating_sub(std::mem::take(&mut body.taken).len());
            body.release();
            if body.end.is_some() || *left == 0 {
                self.upload = Upload::Ended;
            }
        }
        if let Upload::Collecting(head) = &mut self.upload {
            body.release();
            if body.end.is_some() {
                let held = std::mem::take(&mut body.taken);
                match at.on.filled(at.inspector, head, held) {
                    Ok(filled) => {
                        head.set("Content-Length", filled.len().to_string().as_bytes());
                        body.out = filled.into();
                    }
                    Err((status, text)) => return Some(self.refuse(status, text)),
                }
            } else if body.taken.len() <= MOST_BODY {
                return None;
            }
        }
        if let Upload::Collecting(head) | Upload::Waiting(head) = &self.upload {
            let requests = match &mut at.requests {
                Some(requests) => requests,
                None => return Some(self.refuse("502 Bad Gateway", at.lost.to_owned())),
            };
            match requests.poll_ready(at.context) {
                Poll::Pending => return None,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Some(self.hand_back()),
            }
            let request = match request(head, at.on.secure) {
                Some(request) => request,
                None => {
                    let (status, text) = at.on.unclear("it cannot be written anew");
                    return Some(self.refuse(status, text));
                }
            };
            let whole = body.end.is_some() && body.taken.is_empty() && body.out.is_empty();
            let (answer, to) = match requests.send_request(request, whole) {
                Ok(begun) => begun,
                Err(_) => return Some(self.hand_back()),
            };
            at.moved = true;
            self.answer = Answer::Awaited(answer);
            self.upload = match whole {
                true => Upload::Ended,
                false => Upload::Sending(to),
            };
        }
        if let Upload::Sending(to) = &mut self.upload {
            // A server that has answered may not want the rest.
            let unwanted = to.poll_reset(at.context).is_ready();
            if body.out.is_empty() && !body.taken.is_empty() {
                body.out = std::mem::take(&mut body.taken).into();
                body.release();
            }
            // Trailers of requests are not passed on.
            if let Some(trailers) = &mut body.end {
                *trailers = None;
            }
            if at.server.has_room() && !unwanted {
                match body.put(to) {
                    Ok((sent, ended)) => {
                        at.server.useful(sent);
                        at.moved |= sent > 0 || ended;
                        if ended {
                            self.upload = Upload::Ended;
                        }
                    }
                    Err(_) => self.upload = Upload::Ended,
                }
            } else if unwanted {
                self.upload = Upload::Ended;
            }
        }
        if matches!(self.upload, Upload::Ended) {
            self.body = None;
        }
        None
    }

    /// Let the client send the request again on another connection.
    fn hand_back(&mut self) -> Outcome {
        self.respond.send_reset(Reason::REFUSED_STREAM);
        Outcome::Closing
    }

    fn answer(&mut self, at: &mut Surroundings) -> Outcome {
        let answer = match &mut self.answer {
            Answer::Awaited(answer) => answer,
            Answer::Ended => return self.finish(),
            _ => return self.pass(at),
        };
        while let Poll::Ready(Some(Ok(early))) = answer.poll_informational(at.context) {
            at.moved = true;
            if early.status() == StatusCode::SWITCHING_PROTOCOLS {
                continue;
            }
            if let Some(headers) = shown(early.status(), early.headers(), self.mask.as_ref()) {
                let mut shown = Response::new(());
                *shown.status_mut() = early.status();
                *shown.headers_mut() = headers;
                let _reset = self.respond.send_informational(shown);
            }
        }
        match Pin::new(answer).poll(at.context) {
            Poll::Pending => Outcome::Goes,
            Poll::Ready(Ok(answer)) => self.answer_head(answer, at),
            Poll::Ready(Err(error)) if at.requests.is_none() && !at.lost.is_empty() => {
                drop(error);
                self.refuse("502 Bad Gateway", at.lost.to_owned())
            }
            Poll::Ready(Err(error)) if error.is_go_away() => self.hand_back(),
            Poll::Ready(Err(error)) => {
                let reason = error.reason().unwrap_or(Reason::INTERNAL_ERROR);
                self.respond.send_reset(reason);
                Outcome::Ended
            }
        }
    }

    fn answer_head(&mut self, answer: Response<RecvStream>, at: &mut Surroundings) -> Outcome {
        at.moved = true;
        self.heard = Instant::now();
        let (parts, mut from) = answer.into_parts();
        let text = text("HTTP/1.1", parts.status.as_str(), "", &parts.headers);
        let head = match head::answer(&text) {
            Ok(Some((head, _))) => head,
            Ok(None) => return self.refuse("502 Bad Gateway", String::new()),
            Err(why) => {
                let text = format!("The answer of the server is not clear: {}.\n", why);
                return self.refuse("502 Bad Gateway", text);
            }
        };
        at.client.useful(text.len());
        at.server.useful(text.len());
        // Even the length of an encoded answer reveals something about what is in it.
        if let Some(why) = self.mask.as_ref().and_then(|_| unreadable(&head)) {
            let text = format!("The answer cannot be searched for secrets: {}.\n", why);
            at.on.trouble = Some(text.trim_end().to_owned());
            // What has arrived depends on what is in it, so as much is charged for each.
            let arrived = at.server.unread() + from.flow_control().used_capacity();
            at.on.charged = at.on.server.received - arrived as u64 + REFUSED;
            self.refuse("502 Bad Gateway", text);
            at.on.lost = true;
            return Outcome::Closing;
        }
        let headers = match shown(parts.status, &parts.headers, self.mask.as_ref()) {
            Some(headers) => headers,
            None => return self.refuse("502 Bad Gateway", String::new()),
        };
        let grpc = head.only("content-type").unwrap_or(b"");
        let grpc = [&b"application/grpc"[..], b"application/grpc+proto"].contains(&grpc);
        let mut answer = Response::new(());
        *answer.status_mut() = parts.status;
        *answer.headers_mut() = headers;
        let ended = from.is_end_stream();
        match self.respond.send_response(answer, ended) {
            Ok(_) if ended => self.finish(),
            Ok(to) => {
                self.answer = Answer::Passing {
                    to,
                    body: Box::new(Flow::new(from)),
                    frames: (grpc && self.mask.is_some()).then(Frames::of_grpc),
                    stated: matches!(head.request_framing(), Ok(Framing::Length(_))),
                };
                self.pass(at)
            }
            Err(_) => Outcome::Reset,
        }
    }

    /// Pass on the body of the answer.
    fn pass(&mut self, at: &mut Surroundings) -> Outcome {
        let due = self.due();
        let Answer::Passing {
            to, body, frames, ..
        } = &mut self.answer
        else {
            return Outcome::Goes;
        };
        match body.take(at.context) {
            Ok(0) => {}
            Ok(taken) => {
                at.server.useful(taken);
                self.heard = Instant::now();
                at.moved = true;
            }
            Err(error) => {
                to.send_reset(error.reason().unwrap_or(Reason::INTERNAL_ERROR));
                return Outcome::Ended;
            }
        }
        if body.out.is_empty() {
            let arrived = !body.taken.is_empty();
            at.on.answered |= arrived;
            let ended = body.end.is_some();
            body.out = match (&mut self.mask, frames) {
                (None, _) => std::mem::take(&mut body.taken).into(),
                (Some(mask), None) => {
                    let mut shown = mask.pass(&std::mem::take(&mut body.taken));
                    let paused = !arrived && due.is_some_and(|due| due <= Instant::now());
                    if ended || paused {
                        shown.append(&mut mask.rest());
                    }
                    shown.into()
                }
                (Some(mask), Some(frames)) => {
                    let mut shown = Vec::new();
                    let before = body.taken.len();
                    if frames.take(&mut body.taken, mask, &mut shown).is_err() {
                        at.on.trouble = Some(ENCODED.to_owned());
                        to.send_reset(Reason::INTERNAL_ERROR);
                        return Outcome::Ended;
                    }
                    // The beginning of a message without its end: no program could use it.
                    if ended && body.taken.len() == before {
                        body.taken.clear();
                    }
                    shown.into()
                }
            };
            body.release();
            if let (Some(mask), Some(Some(trailers))) = (&self.mask, &mut body.end) {
                // At the end of a body they define nothing, and `shown` would not hide a value in them.
                for name in FRAMING {
                    trailers.remove(name);
                }
                let hidden = shown(StatusCode::OK, trailers, Some(mask));
                *trailers = hidden.unwrap_or_default();
            }
        }
        if !at.client.has_room() {
            return Outcome::Goes;
        }
        match body.put(to) {
            Ok((sent, ended)) => {
                at.client.useful(sent);
                at.moved |= sent > 0;
                match ended {
                    true => self.finish(),
                    false => Outcome::Goes,
                }
            }
            Err(_) => Outcome::Reset,
        }
    }
}

const ENCODED: &str = "The answer cannot be searched for secrets: a message is compressed.";

/// Send an answer that is not the server's.
pub fn refuse(respond: &mut SendResponse<Bytes>, (status, text): Refusal) {
    let answer = Response::builder()
        .status(status.split(' ').next().unwrap_or("502"))
        .header("content-type", "text/plain; charset=utf-8")
        .header("content-length", text.len())
        .header("x-sandkasten-network", "refused")
        .body(());
    // If the client has reset the stream, it wants no answer.
    if let Some(Ok(mut body)) = answer.ok().map(|one| respond.send_response(one, false)) {
        let _reset = body.send_data(text.into(), true);
    }
}

/// Return a head as HTTP/1.1 has it, so that it is read by the same rules.
fn text(a: &str, b: &str, c: &str, headers: &HeaderMap) -> Vec<u8> {
    let mut text = format!("{} {} {}\r\n", a, b, c).into_bytes();
    for (name, value) in headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// Read a request as if it were one of HTTP/1.1.
pub fn requested(parts: &request::Parts, on: &Inspection) -> Parsed<(Head, Framing)> {
    let mut headers = parts.headers.clone();
    if let Some(authority) = parts.uri.authority() {
        let authority = authority.as_str().as_bytes();
        let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority);
        if !headers.get_all("host").iter().all(same) {
            return Err("its Host is not its :authority");
        }
        let host = HeaderValue::from_bytes(authority);
        headers.insert("host", host.map_err(|_| "its :authority is not valid")?);
    }
    let target = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let text = text(parts.method.as_str(), target, "HTTP/1.1", &headers);
    let (head, _) = head::request(&text)?.ok_or("its head is not complete")?;
    let scheme = if on.secure { "https" } else { "http" };
    if parts.uri.scheme_str() != Some(scheme) {
        return Err("its :scheme is not that of the connection");
    }
    let framing = head.request_framing()?;
    if !head.is_for(&on.name, on.port)? {
        return Err("its Host is not the name of the connection");
    }
    Ok((head, framing))
}

/// Return a request of HTTP/2.
fn request(head: &Head, secure: bool) -> Option<Request<()>> {
    let uri = Uri::builder()
        .scheme(if secure { "https" } else { "http" })
        .authority(head.only("host")?)
        .path_and_query(&head.first[1][..])
        .build();
    let mut request = Request::new(());
    *request.method_mut() = head.first[0].parse().ok()?;
    *request.uri_mut() = uri.ok()?;
    *request.headers_mut() = headers(head)?;
    request.headers_mut().remove("host");
    Some(request)
}

fn headers(head: &Head) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in head.fields() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}

/// Return headers with values hidden.
fn shown(status: StatusCode, fields: &HeaderMap, mask: Option<&Mask>) -> Option<HeaderMap> {
    let Some(mask) = mask else {
        return Some(fields.clone());
    };
    let bytes = text("HTTP/1.1", status.as_str(), "", fields);
    let mut shown = bytes.clone();
    mask.whole(&mut shown);
    keep_framing(&bytes, &mut shown);
    // The first line is not part of it.
    let line = bytes.iter().position(|&byte| byte == b'\n')?;
    shown[..line].copy_from_slice(&bytes[..line]);
    headers(&head::answer(&shown).ok()??.0)
}
