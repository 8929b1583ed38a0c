//! Extended headers of tar: what they say about the member that follows.
//!
//! A malformed record is `invalid`. Unknown keys are ignored, except those of sparse files: unpacked
//! without their map they would have another content.

use crate::fs::tar::reader::{invalid, unsupported};
use crate::wire::handler::Failure;

/// Values from extended headers that override those of the next header.
#[derive(Default)]
pub struct Overrides {
    pub name: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub mtime: Option<i64>,
    /// How many extended headers there were.
    pub count: usize,
}

/// Parse records `"<length> <key>=<value>
/// "`, where the length counts the whole record.
pub fn read_pax(mut data: &[u8], into: &mut Overrides) -> Result<(), Failure> {
    let wrong = || invalid("a malformed pax header");
    while !data.is_empty() && data[0] != 0 {
        let space = data
            .iter()
            .take(20)
            .position(|&c| c == b' ')
            .ok_or_else(wrong)?;
        let length = decimal(&data[..space]).ok_or_else(wrong)? as usize;
        if length <= space + 1 || length > data.len() || data[length - 1] != b'\n' {
            return Err(wrong());
        }
        let record = &data[space + 1..length - 1];
        data = &data[length..];
        let equals = record.iter().position(|&c| c == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => into.name = Some(pax_name(value)?),
            b"linkpath" => into.target = Some(pax_name(value)?),
            b"size" => into.size = Some(decimal(value).ok_or_else(wrong)?),
            b"mtime" => into.mtime = Some(seconds(value).ok_or_else(wrong)?),
            _ if key.starts_with(b"GNU.sparse.") => return Err(unsupported("a sparse member")),
            _ => {}
        }
    }
    Ok(())
}

fn pax_name(value: &[u8]) -> Result<Vec<u8>, Failure> {
    if value.is_empty() || value.contains(&0) {
        return Err(invalid("a pax name is empty or contains a NUL byte"));
    }
    Ok(value.to_vec())
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&value| value <= i64::MAX as u64)
}

/// Return the whole seconds of a decimal fraction, rounded down.
fn seconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let negative = whole.starts_with('-');
    let magnitude = decimal(whole.strip_prefix('-').unwrap_or(whole).as_bytes())? as i64;
    if !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let rest = i64::from(negative && fraction.bytes().any(|c| c != b'0'));
    Some(if negative {
        -magnitude - rest
    } else {
        magnitude
    })
}
