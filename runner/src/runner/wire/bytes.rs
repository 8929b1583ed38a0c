//! *Bytes* in JSON: a string when valid UTF-8, otherwise `{"b64": "…"}`.
//!
//! Paths, arguments, names and environment values are byte strings on Linux; JSON has only Unicode
//! strings. Decoding returns `None` for anything else, and the caller names the field.

use base64::engine::general_purpose::STANDARD;
use base64::engine::Engine;
use serde_json::{Map, Value};

pub fn to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => {
            let mut map = Map::new();
            map.insert("b64".to_owned(), Value::String(STANDARD.encode(bytes)));
            Value::Object(map)
        }
    }
}

/// Return the bytes; `None` when `value` is neither a string nor exactly `{"b64": "<canonical
/// base64>"}`.
pub fn from_json(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Object(map) if map.len() == 1 => STANDARD.decode(map.get("b64")?.as_str()?).ok(),
        _ => None,
    }
}

pub fn no_nul(bytes: &[u8]) -> bool {
    !bytes.contains(&0)
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
