//! Server-sent events from a stream of bytes. Pure.

/// The last event holds all kept output, in base64 if it is not UTF-8.
const MAX_EVENT_BYTES: usize = if cfg!(test) { 1 << 10 } else { 512 << 20 };

/// What a line of an event takes beside its bytes.
const LINE_BYTES: usize = std::mem::size_of::<String>();

#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub data: String,
}

/// An event is larger than any that a daemon sends.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Parses bytes into events; comments and unused fields are dropped.
#[derive(Default)]
pub struct Parser {
    /// The beginning of a line, of which the first bytes are known to contain no end.
    rest: Vec<u8>,
    searched: usize,
    name: String,
    data: Vec<String>,
    size: usize,
}

impl Parser {
    /// Return the events that these bytes complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLarge> {
        self.rest.extend_from_slice(bytes);
        if self.rest.len() + self.size > MAX_EVENT_BYTES {
            return Err(TooLarge);
        }
        let rest = std::mem::take(&mut self.rest);
        let (mut events, mut start, mut from) = (Vec::new(), 0, self.searched);
        while let Some(length) = rest[from..].iter().position(|&byte| byte == b'\n') {
            let line = &rest[start..from + length];
            events.extend(self.line(line.strip_suffix(b"\r").unwrap_or(line)));
            start = from + length + 1;
            from = start;
        }
        self.rest = if start == 0 {
            rest
        } else {
            rest[start..].to_vec()
        };
        self.searched = self.rest.len();
        Ok(events)
    }

    fn line(&mut self, line: &[u8]) -> Option<Event> {
        if line.is_empty() {
            let (name, data) = (
                std::mem::take(&mut self.name),
                std::mem::take(&mut self.data),
            );
            self.size = 0;
            let name = if name.is_empty() {
                "message".into()
            } else {
                name
            };
            return (!data.is_empty()).then(|| Event {
                name,
                data: data.join("\n"),
            });
        }
        let colon = line.iter().position(|&byte| byte == b':');
        let (field, value) = colon.map_or((line, &line[..0]), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                self.data.push(String::from_utf8_lossy(value).into_owned());
                // An empty line takes memory too.
                self.size += value.len() + LINE_BYTES;
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> Event {
        Event {
            name: name.into(),
            data: data.into(),
        }
    }

    #[test]
    fn events_come_however_the_bytes_are_cut() {
        let bytes = b": note\n\nid: 1\nevent: chunk\ndata: {\"a\":\r\ndata:1}\n\ndata: x\n\nevent: none\n\n";
        for size in 1..bytes.len() {
            let mut parser = Parser::default();
            let events: Vec<Event> = bytes
                .chunks(size)
                .flat_map(|b| parser.feed(b).unwrap())
                .collect();
            assert_eq!(
                events,
                [event("chunk", "{\"a\":\n1}"), event("message", "x")],
                "{}",
                size
            );
        }
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let mut parser = Parser::default();
        let piece = [b'x'; MAX_EVENT_BYTES / 8 + 1];
        let refused = (0..8).map(|_| parser.feed(&piece)).find(Result::is_err);
        assert_eq!(refused, Some(Err(TooLarge)));
        let mut parser = Parser::default();
        let refused = (0..MAX_EVENT_BYTES)
            .map(|_| parser.feed(b"data:\n"))
            .find(Result::is_err);
        assert_eq!(refused, Some(Err(TooLarge)));
    }
}
