//! The answer of a shell after a command: `export -p`, then `times` as the end mark.
//!
//! It comes from a process that user code may have manipulated. It is either exactly of a known form
//! (bash, dash, busybox: each quotes in its own way) or `Invalid`; values are only unquoted, never
//! expanded.

/// The variable that holds the exit status between the command and its answer; unset before user code
/// runs.
pub const STATUS: &[u8] = b"__sandkasten_rc";

#[derive(Debug, PartialEq, Eq, Default)]
pub struct Answer {
    pub exit_code: i32,
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    pub pwd: Option<Vec<u8>>,
    /// User and system time of the shell and its children so far.
    pub cpu_ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not all of it has arrived.
    Partial,
    /// It can never become a valid answer.
    Invalid,
    Complete(Answer),
}

pub fn parse(text: &[u8]) -> Parsed {
    // The end mark ends with a line feed; without one the answer is not complete.
    if text.last() != Some(&b'\n') {
        return Parsed::Partial;
    }
    let mut answer = Answer::default();
    let mut status = None;
    let mut rest = text;
    while let Some(&first) = rest.first() {
        if first.is_ascii_digit() {
            return finish(rest, answer, status);
        }
        let (name, value, after) = match statement(rest) {
            Ok(Some(parts)) => parts,
            Ok(None) => return Parsed::Partial,
            Err(()) => return Parsed::Invalid,
        };
        rest = after;
        let Some(value) = value else {
            continue;
        };
        if name == STATUS {
            let text = std::str::from_utf8(&value).ok();
            status = text.and_then(|t| t.parse::<u8>().ok());
        } else if name == b"PWD" {
            answer.pwd = Some(value);
        } else if !matches!(name, b"OLDPWD" | b"SHLVL" | b"_" | b"POSIXLY_CORRECT") {
            answer.env.push((name.to_vec(), value));
        }
    }
    Parsed::Partial
}

fn finish(rest: &[u8], mut answer: Answer, status: Option<u8>) -> Parsed {
    let mut lines = rest.split(|&c| c == b'\n');
    let (own, children, end) = (lines.next(), lines.next(), lines.next());
    match (own, children, end, lines.next()) {
        (Some(own), Some(children), Some(b""), None) => match (times(own), times(children), status)
        {
            (Some(own), Some(children), Some(status)) => {
                answer.cpu_ms = own + children;
                answer.exit_code = i32::from(status);
                Parsed::Complete(answer)
            }
            _ => Parsed::Invalid,
        },
        (Some(own), Some(b""), None, None) if times(own).is_some() => Parsed::Partial,
        _ => Parsed::Invalid,
    }
}

/// Parse `1m2.345s 0m0.1s` into milliseconds; the decimal mark depends on the locale.
fn times(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let mut total = 0u64;
    let mut count = 0;
    for word in line.split(' ') {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        let seconds = seconds.replace(',', ".").parse::<f64>().ok()?;
        let minutes = minutes.parse::<u32>().ok()?;
        if !(0.0..=1e6).contains(&seconds) {
            return None;
        }
        total += u64::from(minutes) * 60_000 + (seconds * 1000.0) as u64;
        count += 1;
    }
    (count == 2).then_some(total)
}

type Statement<'a> = (&'a [u8], Option<Vec<u8>>, &'a [u8]);

/// Parse `export NAME`, `export NAME=word` or bash's `declare -x NAME=word`, including its line feed.
fn statement(text: &[u8]) -> Result<Option<Statement<'_>>, ()> {
    let body = if let Some(body) = text.strip_prefix(b"export ") {
        body
    } else if let Some(body) = text.strip_prefix(b"declare -") {
        match body.iter().position(|&c| c == b' ') {
            Some(at) if at <= 8 => &body[at + 1..],
            _ => return Err(()),
        }
    } else if b"export ".starts_with(text) || b"declare -".starts_with(text) {
        return Ok(None);
    } else {
        return Err(());
    };
    let end = match body
        .iter()
        .position(|&c| !c.is_ascii_alphanumeric() && c != b'_')
    {
        Some(end) if end > 0 => end,
        _ => return Err(()),
    };
    let name = &body[..end];
    match body[end] {
        b'\n' => Ok(Some((name, None, &body[end + 1..]))),
        b'=' => match word(&body[end + 1..])? {
            Some((value, rest)) => Ok(Some((name, Some(value), rest))),
            None => Ok(None),
        },
        _ => Err(()),
    }
}

/// Parse one quoted word up to its unquoted line feed; `None` when the input ends inside it.
#[allow(clippy::type_complexity)]
fn word(text: &[u8]) -> Result<Option<(Vec<u8>, &[u8])>, ()> {
    let mut value = Vec::new();
    let mut at = 0;
    while let Some(&c) = text.get(at) {
        at += 1;
        match c {
            b'\n' => return Ok(Some((value, &text[at..]))),
            b'\'' => match text[at..].iter().position(|&c| c == b'\'') {
                Some(length) => {
                    value.extend_from_slice(&text[at..at + length]);
                    at += length + 1;
                }
                None => return Ok(None),
            },
            b'"' => match double_quoted(&text[at..], &mut value) {
                Some(length) => at += length,
                None => return Ok(None),
            },
            b'$' if text.get(at) == Some(&b'\'') => {
                match dollar_quoted(&text[at + 1..], &mut value) {
                    Some(length) => at += 1 + length,
                    None => return Ok(None),
                }
            }
            b'\\' => match text.get(at) {
                Some(&c) => {
                    value.push(c);
                    at += 1;
                }
                None => return Ok(None),
            },
            // A shell quotes everything in its own listing that it would expand.
            b'$' | b'`' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' | b' ' => return Err(()),
            c => value.push(c),
        }
    }
    Ok(None)
}

/// Return how many bytes were used, including the closing quote.
fn double_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        let c = *text.get(at)?;
        at += 1;
        match c {
            b'"' => return Some(at),
            b'\\' => {
                let next = *text.get(at)?;
                at += 1;
                match next {
                    b'$' | b'`' | b'"' | b'\\' => value.push(next),
                    b'\n' => {}
                    _ => value.extend_from_slice(&[b'\\', next]),
                }
            }
            c => value.push(c),
        }
    }
}

/// Parse the inside of `$'…'`. Return how many bytes were used, including the closing quote.
fn dollar_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        let c = *text.get(at)?;
        at += 1;
        match c {
            b'\'' => return Some(at),
            b'\\' => {
                let escape = *text.get(at)?;
                at += 1;
                match escape {
                    b'a' => value.push(7),
                    b'b' => value.push(8),
                    b'e' | b'E' => value.push(27),
                    b'f' => value.push(12),
                    b'n' => value.push(b'\n'),
                    b'r' => value.push(b'\r'),
                    b't' => value.push(b'\t'),
                    b'v' => value.push(11),
                    b'0'..=b'7' => {
                        at -= 1;
                        value.push(digits(text, &mut at, 8, 3) as u8);
                    }
                    b'x' => value.push(digits(text, &mut at, 16, 2) as u8),
                    b'u' => push_char(digits(text, &mut at, 16, 4), value),
                    b'U' => push_char(digits(text, &mut at, 16, 8), value),
                    b'c' => {
                        let c = *text.get(at)?;
                        at += 1;
                        value.push(c & 0x1f);
                    }
                    other => value.push(other),
                }
            }
            c => value.push(c),
        }
    }
}

fn digits(text: &[u8], at: &mut usize, base: u32, most: usize) -> u32 {
    let mut number = 0u32;
    for _ in 0..most {
        match text.get(*at).and_then(|&c| char::from(c).to_digit(base)) {
            Some(digit) => number = number.wrapping_mul(base).wrapping_add(digit),
            None => break,
        }
        *at += 1;
    }
    number
}

fn push_char(code: u32, value: &mut Vec<u8>) {
    let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    let mut buffer = [0u8; 4];
    value.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
}

/// Quote `bytes` as one single-quoted word for any POSIX shell.
pub fn quote(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len() + 2);
    word.push(b'\'');
    for &c in bytes {
        if c == b'\'' {
            word.extend_from_slice(b"'\\''");
        } else {
            word.push(c);
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &[u8]) -> Answer {
        match parse(text) {
            Parsed::Complete(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    const END: &[u8] = b"0m0.001s 0m0.002s\n0m1.500s 1m0.000s\n";

    fn with_end(text: &[u8]) -> Vec<u8> {
        [text, END].concat()
    }

    #[test]
    fn bash_5_2_answers_are_parsed() {
        let text = with_end(
            b"export A=\"a\\\"b\\$c\\`d\\\\e\"\nexport N=$'x\\ny\\'z\\377\\001'\nexport M\nexport PWD=\"/tmp\"\nexport __sandkasten_rc=\"3\"\n",
        );
        let answer = whole(&text);
        assert_eq!(answer.exit_code, 3);
        assert_eq!(answer.pwd, Some(b"/tmp".to_vec()));
        assert_eq!(answer.cpu_ms, 61_503);
        assert_eq!(
            answer.env,
            vec![
                (b"A".to_vec(), b"a\"b$c`d\\e".to_vec()),
                (b"N".to_vec(), b"x\ny'z\xff\x01".to_vec()),
            ]
        );
    }

    #[test]
    fn dash_0_5_12_answers_are_parsed() {
        let text = with_end(
            b"export A='x'\"'\"'y\nexport FAKE='z'\nexport PWD='/a b'\nexport __sandkasten_rc='0'\n",
        );
        assert_eq!(parse(&text), Parsed::Invalid);
        let text = with_end(
            b"export A='x'\"'\"'y\nexport z'\nexport PWD='/a b'\nexport __sandkasten_rc='0'\n",
        );
        let answer = whole(&text);
        assert_eq!(answer.env, vec![(b"A".to_vec(), b"x'y\nexport z".to_vec())]);
        assert_eq!(answer.pwd, Some(b"/a b".to_vec()));
    }

    #[test]
    fn every_prefix_is_partial() {
        let text = with_end(
            b"export A=$'x\\n0m0.0s'\nexport B='0m0.1s 0m0.1s\n'\nexport __sandkasten_rc=\"0\"\n",
        );
        for length in 0..text.len() {
            assert_eq!(parse(&text[..length]), Parsed::Partial, "{length}");
        }
        whole(&text);
    }

    #[test]
    fn anything_else_is_invalid() {
        for text in [
            &b"hello\n"[..],
            b"export A=\"1\"\n0m0.0s 0m0.0s\n0m0.0s 0m0.0s\n",
            b"export __sandkasten_rc=\"300\"\n0m0.0s 0m0.0s\n0m0.0s 0m0.0s\n",
            b"export __sandkasten_rc=\"0\"\n0m0.0s 0m0.0s\n0m0.0s 0m0.0s\nx\n",
            b"export __sandkasten_rc=$(id)\n",
            b"export A-B=1\n",
            b"0\n",
        ] {
            assert_eq!(
                parse(text),
                Parsed::Invalid,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }

    #[test]
    fn quoted_word_parses_to_the_original() {
        let mut text = quote(b"a'b\n$c\xff");
        text.push(b'\n');
        assert_eq!(word(&text), Ok(Some((b"a'b\n$c\xff".to_vec(), &b""[..]))));
    }
}
