//! Secrets, and how they are inserted into requests to their hosts. Pure.

use crate::base64;
use crate::head::Head;
use crate::rules::{Destination, Rule};
use serde_json::Value;

/// A body may become as long as this by the values in it.
const MOST_FILLED: usize = 4 << 20;

/// Where a value goes.
enum Place {
    /// A header that is always set; the value is between the two strings.
    Header(String, String, String),
    /// `Authorization: Basic` with this user.
    Basic(String),
    /// A query parameter that is always set.
    Query(String),
    /// Wherever a body has the placeholder.
    Body,
}

pub struct Secret {
    pub name: String,
    pub placeholder: String,
    hosts: Vec<Rule>,
    value: String,
    place: Place,
}

impl Secret {
    pub fn parse(v: &Value) -> Option<Secret> {
        let text = |key: &str| v[key].as_str().map(str::to_owned);
        let place = if let Some(template) = v["header"].as_str() {
            let (name, template) = template.split_once(':')?;
            let (before, after) = template.trim().split_once("{value}")?;
            Place::Header(name.to_owned(), before.to_owned(), after.to_owned())
        } else if let Some(user) = text("basic") {
            Place::Basic(user)
        } else if let Some(parameter) = text("query") {
            Place::Query(parameter)
        } else {
            Place::Body
        };
        let hosts = v["hosts"].as_array()?.iter().map(Rule::parse);
        Some(Secret {
            name: text("name")?,
            placeholder: text("placeholder")?,
            hosts: hosts.collect::<Option<_>>()?,
            value: text("value").filter(|value| !value.is_empty())?,
            place,
        })
    }

    pub fn is_for(&self, name: &str, port: u16) -> bool {
        let to = Destination::Name(name);
        self.hosts.iter().any(|rule| rule.matches(to, port))
    }

    /// Whether it is for a host, on whichever port.
    pub fn is_at(&self, name: &str) -> bool {
        self.hosts
            .iter()
            .any(|rule| rule.is_at(Destination::Name(name)))
    }

    pub fn in_body(&self) -> bool {
        matches!(self.place, Place::Body)
    }

    /// Put the value into the head of a request to one of its hosts.
    pub fn insert(&self, head: &mut Head) {
        match &self.place {
            Place::Header(name, before, after) => {
                head.set(name, [before, &self.value[..], after].concat().as_bytes());
            }
            Place::Basic(user) => {
                let text = format!("Basic {}", self.credentials(user));
                head.set("Authorization", text.as_bytes());
            }
            Place::Query(name) => head.first[1] = self.with_parameter(&head.first[1], name),
            Place::Body => {}
        }
    }

    fn credentials(&self, user: &str) -> String {
        base64::encode(format!("{}:{}", user, self.value).as_bytes())
    }

    fn with_parameter(&self, target: &str, name: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let same = |pair: &&str| {
            let key = pair.split('=').next().unwrap_or("");
            percent_decoded(&key.replace('+', " ")) == name.as_bytes()
        };
        let mut pairs: Vec<String> = query
            .split('&')
            .filter(|pair| !pair.is_empty() && !same(pair))
            .map(str::to_owned)
            .collect();
        pairs.push(format!("{}={}", percent(name), percent(&self.value)));
        format!("{}?{}", path, pairs.join("&"))
    }

    /// Put the value in place of the placeholder in a whole body, in the form of its type. None if the
    /// body would be too long.
    pub fn insert_into_body(&self, kind: &[u8], body: &[u8]) -> Option<Vec<u8>> {
        let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
        let value = if kind.contains("x-www-form-urlencoded") {
            percent(&self.value)
        } else if kind.contains("json") {
            json_escaped(&self.value)
        } else {
            self.value.clone()
        };
        replaced(body, self.placeholder.as_bytes(), value.as_bytes())
    }

    /// What must not come back: the value, and what it becomes on its way.
    pub fn sent(&self) -> Vec<String> {
        let mut sent = vec![self.value.clone()];
        if let Place::Basic(user) = &self.place {
            // Without padding, which a host may leave out where it repeats it.
            sent.push(self.credentials(user).trim_end_matches('=').to_owned());
        }
        sent
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wipe(&mut self.value);
    }
}

/// Overwrite a string, so that it is not left in freed memory.
pub fn wipe(text: &mut str) {
    // SAFETY: zeros are valid UTF-8.
    wipe_bytes(unsafe { text.as_bytes_mut() });
}

pub fn wipe_bytes(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: our byte; volatile writes are not optimised away.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
}

/// Overwrite every string of a value.
pub fn wipe_value(value: &mut Value) {
    match value {
        Value::String(text) => wipe(text),
        Value::Array(list) => list.iter_mut().for_each(wipe_value),
        Value::Object(map) => map.values_mut().for_each(wipe_value),
        _ => {}
    }
}

fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .map(|b| match plain(b) {
            true => char::from(b).to_string(),
            false => format!("%{:02X}", b),
        })
        .collect()
}

/// Return bytes with `%xx` decoded; what is not valid stays as it is.
pub fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let pair = bytes
            .get(at + 1..at + 3)
            .and_then(|p| std::str::from_utf8(p).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(value) if bytes[at] == b'%' && bytes[at + 1] != b'+' => {
                out.push(value);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

fn json_escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn replaced(text: &[u8], what: &[u8], with: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = find(rest, what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(with);
        rest = &rest[at + what.len()..];
        if out.len() > MOST_FILLED {
            return None;
        }
    }
    out.extend_from_slice(rest);
    Some(out)
}

pub fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;
    use serde_json::json;

    fn secret(place: Value) -> Secret {
        let mut v = json!({
            "name": "T", "placeholder": "sandkasten_T_00", "value": "s3cr=t\"value",
            "hosts": [{"host": "a.test", "port": null, "text": "a.test"}],
        });
        for (key, value) in place.as_object().unwrap() {
            v[key] = value.clone();
        }
        Secret::parse(&v).unwrap()
    }

    fn sent(place: Value, text: &str) -> String {
        let mut found = head::request(text.as_bytes()).unwrap().unwrap().0;
        secret(place).insert(&mut found);
        String::from_utf8(found.to_bytes()).unwrap()
    }

    #[test]
    fn the_value_goes_to_its_place_and_replaces_what_was_there() {
        let text = "GET /x?key=old&a=b HTTP/1.1\r\nauthorization: sandkasten_T_00\r\n\r\n";
        let header = sent(json!({"header": "Authorization: Bearer {value}"}), text);
        assert!(header.ends_with("\r\nAuthorization: Bearer s3cr=t\"value\r\n\r\n"));
        assert!(!header.contains("sandkasten_T"));
        let basic = sent(json!({"basic": "me"}), text);
        assert!(basic.contains("Authorization: Basic bWU6czNjcj10InZhbHVl\r\n"));
        let query = sent(json!({"query": "key"}), text);
        assert!(query.starts_with("GET /x?a=b&key=s3cr%3Dt%22value HTTP/1.1\r\n"));
    }

    #[test]
    fn a_body_gets_the_value_in_the_form_of_its_type() {
        let one = secret(json!({}));
        let body = b"<sandkasten_T_00>";
        let made = |kind: &str| one.insert_into_body(kind.as_bytes(), body).unwrap();
        assert_eq!(made("application/json"), b"<s3cr=t\\\"value>");
        assert_eq!(
            made("application/x-www-form-urlencoded"),
            b"<s3cr%3Dt%22value>"
        );
        assert_eq!(made("text/plain"), b"<s3cr=t\"value>");
    }

    #[test]
    fn a_body_does_not_grow_without_bound() {
        let long = secret(json!({"value": "v".repeat(8192)}));
        let filled = |times| long.insert_into_body(b"", "sandkasten_T_00".repeat(times).as_bytes());
        assert_eq!(filled(100).map(|body| body.len()), Some(100 * 8192));
        assert_eq!(filled(10_000), None);
    }

    #[test]
    fn a_secret_is_for_its_hosts_alone() {
        let one = secret(json!({}));
        assert!(one.is_for("a.test", 443) && !one.is_for("b.test", 443));
        assert!(!one.is_for("x.a.test", 443));
    }
}
