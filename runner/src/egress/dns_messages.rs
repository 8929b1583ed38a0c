//! DNS messages, as far as a sandbox needs them: one question, addresses as answers. Pure.
//!
//! Everything here comes from a sandbox or from the network; a message that is not understood is None.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const A: u16 = 1;
pub const AAAA: u16 = 28;
pub const NO_ERROR: u8 = 0;
pub const SERVER_FAILURE: u8 = 2;
pub const NO_SUCH_NAME: u8 = 3;
const IN: u16 = 1;
const HEADER: usize = 12;
const MAX_NAME: usize = 253;
/// How long programs inside may keep the address of a name, in seconds.
const TTL: u32 = 60;

#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u16,
    /// Lower case, without the last dot.
    pub name: String,
    pub kind: u16,
    /// The question as it was sent, to be repeated in the answer.
    raw: Vec<u8>,
    recursion: u8,
}

pub fn question(message: &[u8]) -> Option<Question> {
    let flags = *message.get(2)?;
    let (questions, answers) = (word(message, 4)?, word(message, 6)?);
    if flags & 0xf8 != 0 || questions != 1 || answers != 0 {
        return None;
    }
    let (name, end) = name_at(message, HEADER)?;
    if word(message, end + 2)? != IN {
        return None;
    }
    Some(Question {
        id: word(message, 0)?,
        name,
        kind: word(message, end)?,
        raw: message[HEADER..end + 4].to_vec(),
        recursion: flags & 1,
    })
}

/// Return the answer to a question; without an address there is none of that kind.
pub fn answer(to: &Question, code: u8, address: Option<Ipv4Addr>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&to.id.to_be_bytes());
    out.extend_from_slice(&[0x80 | to.recursion, 0x80 | code]);
    for count in [1u16, u16::from(address.is_some()), 0, 0] {
        out.extend_from_slice(&count.to_be_bytes());
    }
    out.extend_from_slice(&to.raw);
    if let Some(v4) = address {
        out.extend_from_slice(&[0xc0, HEADER as u8]);
        for part in [A, IN] {
            out.extend_from_slice(&part.to_be_bytes());
        }
        out.extend_from_slice(&TTL.to_be_bytes());
        out.extend_from_slice(&4u16.to_be_bytes());
        out.extend_from_slice(&v4.octets());
    }
    out
}

/// Return a query to a server outside.
pub fn query(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return None;
        }
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&IN.to_be_bytes());
    Some(out)
}

#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub code: u8,
    pub addresses: Vec<IpAddr>,
}

/// Return the reply of a server to our query; None if it does not belong to it.
pub fn reply(message: &[u8], id: u16, name: &str, kind: u16) -> Option<Reply> {
    if word(message, 0)? != id || message.get(2)? & 0x80 == 0 || word(message, 4)? != 1 {
        return None;
    }
    let (asked, end) = name_at(message, HEADER)?;
    if asked != name || word(message, end)? != kind {
        return None;
    }
    let code = message.get(3)? & 0x0f;
    let mut addresses = Vec::new();
    let mut at = end + 4;
    for _ in 0..word(message, 6)?.min(64) {
        let (_, after) = name_at(message, at)?;
        let found = word(message, after)?;
        let length = usize::from(word(message, after + 8)?);
        let data = message.get(after + 10..after + 10 + length)?;
        match (found, data.len()) {
            (A, 4) => addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            (AAAA, 16) => {
                let bytes = <[u8; 16]>::try_from(data).ok()?;
                addresses.push(IpAddr::V6(Ipv6Addr::from(bytes)));
            }
            _ => {}
        }
        at = after + 10 + length;
    }
    Some(Reply { code, addresses })
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([
        *message.get(at)?,
        *message.get(at + 1)?,
    ]))
}

/// Return the name at a position, and the position after it. Compressed names are followed backwards
/// only, so that no message causes an endless loop.
fn name_at(message: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut at, mut end, mut limit) = (start, None, start);
    loop {
        let length = usize::from(*message.get(at)?);
        if length & 0xc0 == 0xc0 {
            end.get_or_insert(at + 2);
            at = usize::from(word(message, at)? & 0x3fff);
            // The header contains no name, and an answer has another one.
            if at >= limit || at < HEADER {
                return None;
            }
            limit = at;
            continue;
        }
        if length == 0 {
            return Some((name, end.unwrap_or(at + 1)));
        }
        let label = message.get(at + 1..at + 1 + length)?;
        if length > 63
            || !label
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b))
        {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|b| b.to_ascii_lowercase() as char));
        if name.len() > MAX_NAME {
            return None;
        }
        at += 1 + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_with_an_address() {
        let asked = query(7, "Files.Example.com", A).unwrap();
        let parsed = question(&asked).unwrap();
        assert_eq!(
            (parsed.name.as_str(), parsed.kind),
            ("files.example.com", A)
        );
        let sent = answer(&parsed, NO_ERROR, Some(Ipv4Addr::new(198, 18, 0, 1)));
        let got = reply(&sent, 7, "files.example.com", A).unwrap();
        assert_eq!(got.addresses, [IpAddr::from([198, 18, 0, 1])]);
        assert_eq!(reply(&sent, 8, "files.example.com", A), None);
        assert_eq!(reply(&sent, 7, "other.example.com", A), None);
    }

    #[test]
    fn damaged_messages_are_none() {
        let whole = query(7, "a.example", A).unwrap();
        for end in 0..whole.len() {
            assert_eq!(question(&whole[..end]), None);
        }
        let mut looped = whole[..HEADER].to_vec();
        looped.extend_from_slice(&[0xc0, HEADER as u8, 0, 1, 0, 1]);
        assert_eq!(question(&looped), None);
        // A name that goes on in the header would be another one in the answer.
        let mut inside = whole[..whole.len() - 5].to_vec();
        inside[2] = 0;
        inside.extend_from_slice(&[0xc0, 2, 0, 1, 0, 1]);
        assert_eq!(question(&inside), None);
        assert_eq!(query(1, "a..b", A), None);
    }
}
