//! *Bytes* in JSON: a string when valid UTF-8, otherwise `{"b64": "…"}`.
//!
//! Paths, arguments, names and environment values are byte strings on Linux; JSON has only Unicode
//! strings. Decoding returns `None` for anything else, and the caller names the field.

use serde_json::{Map, Value};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => {
            let mut map = Map::new();
            map.insert("b64".to_owned(), Value::String(encode(bytes)));
            Value::Object(map)
        }
    }
}

/// Return the bytes; `None` when `value` is neither a string nor exactly `{"b64": "<canonical
/// base64>"}`.
pub fn from_json(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Object(map) if map.len() == 1 => decode(map.get("b64")?.as_str()?),
        _ => None,
    }
}

pub fn no_nul(bytes: &[u8]) -> bool {
    !bytes.contains(&0)
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity((bytes.len() + 2) / 3 * 4);
    for group in bytes.chunks(3) {
        let word = u32::from(group[0]) << 16
            | u32::from(*group.get(1).unwrap_or(&0)) << 8
            | u32::from(*group.get(2).unwrap_or(&0));
        for place in 0..4 {
            if place <= group.len() {
                let index = (word >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if text.len() % 4 != 0 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let groups = text.len() / 4;
    for (at, group) in text.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|&&c| c == b'=').count();
        if padding > 2 || (padding > 0 && at + 1 != groups) {
            return None;
        }
        let mut word = 0u32;
        for &c in &group[..4 - padding] {
            word = word << 6 | u32::from(sextet(c)?);
        }
        word <<= 6 * padding;
        // Bits that padding drops must be zero, or two strings would mean the same bytes.
        if word & ((1 << (8 * padding)) - 1) != 0 {
            return None;
        }
        let raw = word.to_be_bytes();
        bytes.extend_from_slice(&raw[1..4 - padding]);
    }
    Some(bytes)
}

fn sextet(c: u8) -> Option<u8> {
    match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_byte_string_survives_a_round_trip() {
        for length in 0..70usize {
            let bytes: Vec<u8> = (0..length)
                .map(|i| (i * 37 + length * 11 + 128) as u8)
                .collect();
            assert_eq!(from_json(&to_json(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn utf8_stays_a_string_and_other_bytes_become_base64() {
        assert_eq!(to_json("ü\n".as_bytes()), json!("ü\n"));
        assert_eq!(to_json(b"\xff\xfe"), json!({"b64": "//4="}));
        assert_eq!(to_json(b"\xff"), json!({"b64": "/w=="}));
    }

    #[test]
    fn other_values_are_rejected() {
        for bad in [
            json!(1),
            json!(null),
            json!(["a"]),
            json!({}),
            json!({"b64": 1}),
            json!({"b64": "AAA"}),
            json!({"b64": "AA==AAAA"}),
            json!({"b64": "A==="}),
            json!({"b64": "AB=="}),
            json!({"b64": "A-A="}),
            json!({"b64": "AAAA", "x": 1}),
        ] {
            assert_eq!(from_json(&bad), None, "{}", bad);
        }
    }
}
