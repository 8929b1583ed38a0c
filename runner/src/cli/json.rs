//! JSON from a daemon. Unlike the values of serde_json, objects keep the order of their names.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    String(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Return the value; None if it is not JSON, or has numbers or strings that we cannot hold.
    pub fn parse(bytes: &[u8]) -> Option<Json> {
        serde_json::from_slice(bytes).ok()
    }

    /// Return a value of an object; null without one.
    pub fn get(&self, name: &str) -> &Json {
        match self {
            Json::Object(pairs) => pairs
                .iter()
                .rev()
                .find(|(key, _)| key == name)
                .map_or(&Json::Null, |(_, value)| value),
            _ => &Json::Null,
        }
    }

    pub fn string(&self) -> Option<&str> {
        match self {
            Json::String(string) => Some(string),
            _ => None,
        }
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Json::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Return a number, whole or not.
    pub fn number(&self) -> Option<f64> {
        match self {
            Json::Int(number) => Some(*number as f64),
            Json::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Return whether there is nothing in it: null, false, zero, or an empty string, list or object.
    pub fn is_empty(&self) -> bool {
        match self {
            Json::Null => true,
            Json::Bool(value) => !value,
            Json::Int(number) => *number == 0,
            Json::Float(number) => *number == 0.0,
            Json::String(string) => string.is_empty(),
            Json::List(values) => values.is_empty(),
            Json::Object(pairs) => pairs.is_empty(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        i64::try_from(value).map(Json::Int).map_err(E::custom)
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = items.next_entry()? {
            pairs.push(pair);
        }
        Ok(Json::Object(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order_and_kind() {
        let value = Json::parse(br#"{"b": [1, 1.0, "x"], "a": {"z": null, "y": true}}"#).unwrap();
        let b = vec![Json::Int(1), Json::Float(1.0), Json::String("x".into())];
        let a = vec![("z".into(), Json::Null), ("y".into(), Json::Bool(true))];
        let pairs = vec![("b".into(), Json::List(b)), ("a".into(), Json::Object(a))];
        assert_eq!(value, Json::Object(pairs));
        assert_eq!(value.get("a").get("none"), &Json::Null);
    }

    #[test]
    fn what_cannot_be_held_is_nothing() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "18446744073709551615", r#""\ud800""#, "NaN", &deep] {
            assert_eq!(Json::parse(text.as_bytes()), None);
        }
    }

    #[test]
    fn empty_values_are_those_of_python() {
        for (text, empty) in [
            ("null", true),
            ("0", true),
            ("0.0", true),
            ("\"\"", true),
            ("[]", true),
            ("{}", true),
            ("false", true),
            ("1", false),
            ("\"0\"", false),
            ("[null]", false),
            ("{\"a\":null}", false),
            ("true", false),
        ] {
            assert_eq!(
                Json::parse(text.as_bytes()).unwrap().is_empty(),
                empty,
                "{}",
                text
            );
        }
    }
}
