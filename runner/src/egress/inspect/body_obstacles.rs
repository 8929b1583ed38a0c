//! Whether a value may go into a body that code inside has chosen. Pure.
//!
//! The body says how the host reads it. Read in another alphabet, or as the end of an escape that begins
//! before it, a value would become a text that nothing recognises when it comes back. So only bodies pass
//! whose kind is known, and in which the value stays what it is. This does not depend on the value.

use super::escapes;
use super::secrets::{find, percent_decoded};
use crate::head::{same_field, Head};
use serde_json::{Deserializer, Value};

enum Kind {
    Json,
    Form,
    Multipart,
    Text,
}

/// Return why no value may go in place of a placeholder that is in this body.
pub fn obstacle(head: &Head, body: &[u8], placeholder: &[u8]) -> Option<&'static str> {
    let encoded = |name: &str| {
        same_field(name, "content-encoding") || same_field(name, "content-transfer-encoding")
    };
    if head.names().any(encoded) {
        return Some("it is encoded");
    }
    let kinds = head.names().filter(|name| same_field(name, "content-type"));
    let kind = match (kinds.count(), head.only("content-type").map(kind_of)) {
        (1, Some(Ok(kind))) => kind,
        (1, Some(Err(why))) => return Some(why),
        _ => return Some("it needs one Content-Type"),
    };
    let text = match std::str::from_utf8(body) {
        Ok(text) if !text.contains(['\0', '\u{feff}']) => text,
        _ => return Some("it is not plain UTF-8"),
    };
    let stated = match kind {
        Kind::Json => {
            let mut values = Deserializer::from_str(text).into_iter::<Value>();
            // The placeholder is then in a string, and no escape ends in it.
            let valid = values.all(|value| value.is_ok());
            return (!valid)
                .then_some("it is not JSON")
                .or_else(|| reached(body, placeholder));
        }
        Kind::Form => String::from_utf8_lossy(&percent_decoded(text)).into_owned(),
        Kind::Multipart => text.to_owned(),
        Kind::Text => String::new(),
    };
    if !is_plain_within(&stated.to_ascii_lowercase()) {
        return Some("a part of it is in another encoding");
    }
    reached(body, placeholder)
}

fn kind_of(text: &[u8]) -> Result<Kind, &'static str> {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = match parts.next().unwrap_or("") {
        "application/x-www-form-urlencoded" => Kind::Form,
        "multipart/form-data" => Kind::Multipart,
        "text/plain" => Kind::Text,
        "application/json" | "text/json" | "application/x-ndjson" | "application/jsonl" => {
            Kind::Json
        }
        other if other.starts_with("application/") && other.ends_with("+json") => Kind::Json,
        _ => return Err("its Content-Type is not JSON, a form or plain text"),
    };
    let plain = |part: &str| {
        let utf8 = ["charset=utf-8", "charset=\"utf-8\""].contains(&part);
        utf8 || !part.contains("charset") && !part.contains(',')
    };
    match parts.all(plain) {
        true => Ok(kind),
        false => Err("its charset is not UTF-8"),
    }
}

/// Whether no part of a form says that it is in another encoding, in lower case.
fn is_plain_within(text: &str) -> bool {
    let encodings = ["content-transfer-encoding", "content-encoding"];
    let mut charsets = text.split("charset").skip(1);
    !encodings.iter().any(|one| text.contains(one))
        && charsets.all(|rest| rest.starts_with("=utf-8") || rest.starts_with("=\"utf-8\""))
}

/// Return whether an escape that begins before a placeholder could take in the first characters of a value.
fn reached(body: &[u8], placeholder: &[u8]) -> Option<&'static str> {
    let mut at = 0;
    while let Some(next) = find(&body[at..], placeholder) {
        if escapes::goes_on(&body[..at + next]) {
            return Some("an escape goes on in the placeholder");
        }
        at += next + placeholder.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;

    const PLACEHOLDER: &str = "sandkasten_T_00";

    fn of(fields: &str, body: &[u8]) -> Option<&'static str> {
        let text = format!("POST / HTTP/1.1\r\n{}\r\n", fields);
        let head = head::request(text.as_bytes()).unwrap().unwrap().0;
        obstacle(&head, body, PLACEHOLDER.as_bytes())
    }

    fn with(kind: &str, before: &str, after: &str) -> Option<&'static str> {
        let body = [before, PLACEHOLDER, after].concat();
        of(&format!("Content-Type: {}\r\n", kind), body.as_bytes())
    }

    #[test]
    fn usual_bodies_are_filled() {
        let form = "application/x-www-form-urlencoded";
        for (kind, before, after) in [
            ("application/json", "{\"t\": \"", "\"}"),
            ("application/json; charset=utf-8", "[\"a\\n\\u00e4", "\"]"),
            ("Application/JSON;charset=\"UTF-8\"", "\"ä ", "\""),
            ("application/vnd.api+json", "{\"", "\": 1}"),
            ("application/x-ndjson", "{}\n{\"a\": \"", "\"}\n"),
            (form, "a=1&t=", "&b=%20"),
            (form, "t=a%20", ""),
            ("text/plain", "100% of &amp;\n", "\n"),
            (
                "multipart/form-data; boundary=x",
                "--x\r\nContent-Disposition: form-data; name=t\r\nContent-Type: text/plain; charset=UTF-8\r\n\r\n",
                "\r\n--x--",
            ),
        ] {
            assert_eq!(with(kind, before, after), None, "{} {}", kind, before);
        }
    }

    #[test]
    fn a_body_that_the_host_may_read_differently_is_not_filled() {
        let form = "application/x-www-form-urlencoded";
        let part = "multipart/form-data; boundary=x";
        for (kind, before, after) in [
            ("", "", ""),
            ("x/y", "", ""),
            ("text/xml", "<a>", "</a>"),
            ("application/json, text/plain", "\"", "\""),
            ("application/json; charset=utf-16", "\"", "\""),
            (
                "application/json; charset=utf-8; charset=ibm037",
                "\"",
                "\"",
            ),
            ("text/plain; charset=utf-7", "", ""),
            ("text/plain; charset*=utf-8''utf-7", "", ""),
            ("application/json", "{\"t\": ", "}"),
            ("application/json", "{\"t\": \"\\", "\"}"),
            ("application/json", "{\"t\": \"\\u00", "\"}"),
            ("application/json", "{\"t\": \"\\\\u00", "\"}"),
            ("application/json", "{\"t\": \"%", "\"}"),
            ("application/json", "\u{feff}{\"t\": \"", "\"}"),
            ("application/json", "{\"t\": \"", "\"}\0"),
            (form, "t=%", ""),
            (form, "t=%4", ""),
            (form, "t=%25", ""),
            (form, "t=%5Cu00", ""),
            (form, "_charset_=ibm037&t=", ""),
            (form, "%5Fchars%65t_=ibm037&t=", ""),
            ("text/plain", "\\x", ""),
            ("text/plain", "&#x", ""),
            (part, "--x\r\nContent-Transfer-Encoding: base64\r\n\r\n", ""),
            (
                part,
                "--x\r\ncontent-TRANSFER-encoding:quoted-printable\r\n\r\n",
                "",
            ),
            (
                part,
                "--x\r\nContent-Type: a/b;\r\n charset=ibm037\r\n\r\n",
                "",
            ),
        ] {
            assert!(with(kind, before, after).is_some(), "{} {}", kind, before);
        }
        let body = [b"\xff", PLACEHOLDER.as_bytes()].concat();
        assert!(of("Content-Type: text/plain\r\n", &body).is_some());
        for fields in [
            "",
            "Content-Type: text/plain\r\nContent-Type: text/plain\r\n",
            "Content-Type: text/plain\r\nContent_Type: text/html\r\n",
            "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n",
            "Content-Type: text/plain\r\nContent_Transfer-Encoding: base64\r\n",
        ] {
            assert!(of(fields, PLACEHOLDER.as_bytes()).is_some(), "{}", fields);
        }
    }
}
