//! Text without its escapes, in the one form that all ways to write the same characters share. Pure.
//!
//! URLs, JSON, string literals, shells, CSV and HTML write a character in different ways, and one inside
//! another. A text in any of them, read here, is the same as the plain text read here: escapes become
//! their character, and backslashes, quotes and zero bytes, which the others add, are left out. What is
//! done depends only on the text.

use std::ops::Range;

/// How often one kind of escape may be in itself, as `%25` in `%252F`.
const NESTED: usize = 3;
/// The most bytes that a form has for one of the value, for example `\\u0026#x27;`.
pub const LONGEST_ESCAPE: usize = 12;
/// The most bytes of an escape before the digits that it ends with.
const LONGEST_OPENER: usize = 16;
/// The longest name or number between `&` and `;`.
const LONGEST_NAME: usize = 8;

/// The names of HTML for characters of ASCII that are neither letters nor digits.
const NAMES: [(&[u8], u8); 42] = [
    (b"amp", b'&'),
    (b"lt", b'<'),
    (b"gt", b'>'),
    (b"quot", b'"'),
    (b"apos", b'\''),
    (b"AMP", b'&'),
    (b"LT", b'<'),
    (b"GT", b'>'),
    (b"QUOT", b'"'),
    (b"sol", b'/'),
    (b"equals", b'='),
    (b"plus", b'+'),
    (b"excl", b'!'),
    (b"num", b'#'),
    (b"dollar", b'$'),
    (b"percnt", b'%'),
    (b"lpar", b'('),
    (b"rpar", b')'),
    (b"ast", b'*'),
    (b"midast", b'*'),
    (b"comma", b','),
    (b"period", b'.'),
    (b"colon", b':'),
    (b"semi", b';'),
    (b"quest", b'?'),
    (b"commat", b'@'),
    (b"lsqb", b'['),
    (b"lbrack", b'['),
    (b"rsqb", b']'),
    (b"rbrack", b']'),
    (b"bsol", b'\\'),
    (b"Hat", b'^'),
    (b"lowbar", b'_'),
    (b"UnderBar", b'_'),
    (b"grave", b'`'),
    (b"lcub", b'{'),
    (b"lbrace", b'{'),
    (b"rcub", b'}'),
    (b"rbrace", b'}'),
    (b"verbar", b'|'),
    (b"vert", b'|'),
    (b"Tab", b'\t'),
];

/// A text without escapes, and where its bytes are in the text with them.
#[derive(Default)]
pub struct Plain {
    pub bytes: Vec<u8>,
    /// Where each run of bytes that are the same in both begins, here and in the text.
    runs: Vec<(usize, usize)>,
    /// The letters of `\r` and `\n`.
    line_ends: Vec<usize>,
}

impl Plain {
    pub fn of(text: &[u8]) -> Plain {
        Plain::read(text, |_| true)
    }

    /// Read only the escapes that encoders use in base64. Others, which may begin before it, would take in
    /// its first digits; these take in one at most, because no ASCII text begins with a digit in base64.
    pub fn of_base64(text: &[u8]) -> Plain {
        Plain::read(text, |byte| {
            is_left_out(byte) || b"+/=\r\nrn".contains(&byte)
        })
    }

    fn read(text: &[u8], may_be_escaped: fn(u8) -> bool) -> Plain {
        let mut plain = Plain {
            bytes: Vec::with_capacity(text.len()),
            ..Plain::default()
        };
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let end = rest.iter().position(|&byte| SPECIAL[usize::from(byte)]);
            let run = &rest[..end.unwrap_or(rest.len())];
            if !run.is_empty() {
                plain.runs.push((plain.bytes.len(), at));
                plain.bytes.extend_from_slice(run);
                at += run.len();
            } else {
                let (byte, end) = match entity(text, at) {
                    (byte, end) if may_be_escaped(byte) => (byte, end),
                    _ => (text[at], at + 1),
                };
                if !is_left_out(byte) {
                    if end > at + 1 && matches!(byte, b'r' | b'n') {
                        plain.line_ends.push(plain.bytes.len());
                    }
                    plain.runs.push((plain.bytes.len(), at));
                    plain.bytes.push(byte);
                }
                at = end;
            }
        }
        plain
    }

    /// Return where the byte with this number begins in the text.
    pub fn start(&self, at: usize) -> usize {
        let after = self.runs.partition_point(|run| run.0 <= at);
        let (here, there) = self.runs[after - 1];
        there + at - here
    }

    /// Return where the byte with this number ends in the text.
    pub fn end(&self, at: usize, text: &[u8]) -> usize {
        entity(text, self.start(at)).1
    }

    /// Return the bytes of a part that do not stand for the end of a line, with their numbers.
    pub fn without_line_ends(&self, part: Range<usize>) -> impl Iterator<Item = (usize, u8)> + '_ {
        let first = self.line_ends.partition_point(|&at| at < part.start);
        let mut ends = self.line_ends[first..].iter().copied().peekable();
        let bytes = part.clone().zip(&self.bytes[part]);
        bytes.filter_map(move |(at, &byte)| {
            let escaped = ends.next_if_eq(&at).is_some();
            (!escaped && !b"\r\n".contains(&byte)).then_some((at, byte))
        })
    }
}

/// The bytes that may be an escape, or are left out.
const SPECIAL: [bool; 256] = {
    let mut special = [false; 256];
    special[b'%' as usize] = true;
    special[b'&' as usize] = true;
    special[b'\\' as usize] = true;
    special[b'"' as usize] = true;
    special[b'\'' as usize] = true;
    special[0] = true;
    special
};

pub fn is_left_out(byte: u8) -> bool {
    matches!(byte, b'\\' | b'"' | b'\'' | 0)
}

/// Return where a character begins that is left out and ends here.
pub fn left_out_before(text: &[u8], end: usize) -> Option<usize> {
    let mut starts = end.saturating_sub(LONGEST_ESCAPE)..end;
    starts.find(|&at| {
        let (byte, after) = entity(text, at);
        is_left_out(byte) && after == end
    })
}

/// Return where a character ends that is left out and begins here.
pub fn left_out_after(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at).map(|_| entity(text, at)) {
        Some((byte, end)) if is_left_out(byte) => Some(end),
        Some(_) if is_left_out(text[at]) => Some(at + 1),
        _ => None,
    }
}

/// Whether a text is these bytes without escapes.
pub fn reads(text: &[u8], bytes: &[u8], same: fn(u8, u8) -> bool) -> bool {
    let (mut at, mut wanted) = (0, bytes.iter());
    while at < text.len() {
        let (byte, end) = entity(text, at);
        at = end;
        if !is_left_out(byte) && !wanted.next().is_some_and(|&one| same(one, byte)) {
            return false;
        }
    }
    wanted.next().is_none()
}

/// Whether an escape that begins in a text could go on in digits after it. It may begin anywhere, because
/// what is before it can be an escape itself.
pub fn goes_on(text: &[u8]) -> bool {
    let end = text.len().min(LONGEST_OPENER);
    let digits = [&text[text.len() - end..], b"0000;"].concat();
    (0..end).any(|at| entity(&digits, at).1 > end)
}

/// Read one character and return it with its end: `%2F`, `%252F`, or what is there.
fn percent(text: &[u8], at: usize) -> (u8, usize) {
    if text[at] != b'%' {
        return (text[at], at + 1);
    }
    let mut digits = at + 1;
    for _ in 0..NESTED {
        if text[digits..].starts_with(b"25") && number(text, digits + 2, 2).is_some() {
            digits += 2;
        }
    }
    match number(text, digits, 2) {
        Some(byte) => (byte as u8, digits + 2),
        None => (b'%', at + 1),
    }
}

/// Read one character and what a backslash before it makes of it: `\/`, `\\"`, `\u002f`, `\x2f`.
fn backslashed(text: &[u8], at: usize) -> (u8, usize) {
    let (mut byte, mut end) = percent(text, at);
    if byte != b'\\' {
        return (byte, end);
    }
    // However many: code inside may have added some.
    while byte == b'\\' && end < text.len() {
        let next = percent(text, end);
        byte = next.0;
        end = next.1;
    }
    let digits = match byte {
        b'u' => 4,
        b'x' => 2,
        _ => return (byte, end),
    };
    match number(text, end, digits) {
        Some(value) if value <= 0xff => (value as u8, end + digits),
        _ => (byte, end),
    }
}

/// Read one character, also if it is an entity of HTML: `&lt;`, `&#60;`, `&#x3c;`, `&amp;lt;`.
fn entity(text: &[u8], at: usize) -> (u8, usize) {
    let (mut byte, mut end) = backslashed(text, at);
    for _ in 0..NESTED {
        if byte != b'&' {
            break;
        }
        match named(text, end) {
            Some(found) => {
                byte = found.0;
                end = found.1;
            }
            None => break,
        }
    }
    (byte, end)
}

/// Read what follows an `&` up to the `;`.
fn named(text: &[u8], mut at: usize) -> Option<(u8, usize)> {
    let (mut name, mut length) = ([0; LONGEST_NAME], 0);
    loop {
        if at >= text.len() {
            return None;
        }
        let (byte, end) = backslashed(text, at);
        at = end;
        if byte == b';' {
            break;
        }
        if length == LONGEST_NAME || !(byte.is_ascii_alphanumeric() || byte == b'#') {
            return None;
        }
        name[length] = byte;
        length += 1;
    }
    let value = match &name[..length] {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 0, digits.len())?,
        [b'#', digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok()?,
        name => u32::from(NAMES.iter().find(|(one, _)| *one == name)?.1),
    };
    (value <= 0xff).then_some((value as u8, at))
}

/// Read as many hexadecimal digits.
fn number(text: &[u8], at: usize, digits: usize) -> Option<u32> {
    let digits = text.get(at..at + digits)?;
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |sum, &digit| {
        Some(sum << 4 | char::from(digit).to_digit(16)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        String::from_utf8_lossy(&Plain::of(text.as_bytes()).bytes).into_owned()
    }

    #[test]
    fn escapes_become_their_character() {
        for text in [
            "a/<b",
            "a%2F%3cb",
            "a%252f%25253Cb",
            "a\\/\\u003Cb",
            "a\\x2f\\\\u003cb",
            "a&sol;&lt;b",
            "a&#47;&#060;b",
            "a&#x2F;&amp;lt;b",
            "a/\\u0026lt;b",
            "a%5C%2F%5cu003cb",
            "a\\&#x2f;&#x3c;b",
            "'a'\"'\"'/<'\\''b'",
            "a\0/\0<\0b\0",
        ] {
            assert_eq!(read(text), "a/<b", "{}", text);
        }
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in [
            "100%",
            "%4",
            "%zz",
            "a&b;c",
            "&#;",
            "&#x;",
            "&;",
            "&longer than a name;",
            "&#999;",
        ] {
            assert_eq!(read(text), text);
        }
        assert_eq!(read("\\u00"), "u00");
        assert_eq!(read("\\ud83d"), "ud83d");
        assert_eq!(read("\\"), "");
    }

    #[test]
    fn places_are_in_order_and_within_the_text() {
        let pieces = [
            "%", "25", "2F", "\\", "u003c", "&", "amp;", "#x2f;", "\"", "a", ";", "\\n",
        ];
        let mut seed = 7_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
            }
            let plain = Plain::of(text.as_bytes());
            let mut last = 0;
            for at in 0..plain.bytes.len() {
                let end = plain.end(at, text.as_bytes());
                assert!(last <= plain.start(at) && plain.start(at) < end);
                last = end;
            }
            assert!(last <= text.len());
        }
    }
}
