//! What programs in a sandbox send to the egress process: DNS messages, the first bytes of connections,
//! requests; and the rules that decide about them.

mod targets;

use crate::dns_messages::{self, A, NO_ERROR};
use crate::head::{self, Head};
use crate::hello::{self, First};
use crate::http::{Next, Requests, ANOTHER};
use crate::inspect::policy;
use crate::rules::{Destination, Rules};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use targets::targets;

targets!(dns, hello, http, rules);

const NAME: &str = "good.test";
const PORT: u16 = 80;

/// A question is answered with what it asked, and a query is a question.
fn dns(data: &[u8]) {
    let address = Ipv4Addr::new(198, 18, 0, 4);
    if let Some(question) = dns_messages::question(data) {
        let (id, name) = (question.id, &question.name[..]);
        let answer = dns_messages::answer(&question, NO_ERROR, Some(address));
        let reply = dns_messages::reply(&answer, id, name, question.kind).unwrap();
        assert_eq!(reply.addresses, [IpAddr::V4(address)]);
        match dns_messages::query(id, name, question.kind) {
            Some(query) => {
                let again = dns_messages::question(&query).unwrap();
                assert_eq!(
                    (again.id, &again.name[..], again.kind),
                    (id, name, question.kind)
                );
            }
            None => assert!(name.is_empty()),
        }
    }
    // As a server would send it: whatever the id, so that more than the first two bytes is read.
    if let [a, b, ..] = *data {
        let _ = dns_messages::reply(data, u16::from_be_bytes([a, b]), "a.example", A);
    }
}

/// What a connection begins with does not change when more bytes arrive, except another protocol: its
/// first bytes pass at once, because its server may answer them.
fn hello(data: &[u8]) {
    let whole = hello::look(data);
    assert_ne!(whole, First::Nothing);
    for end in [data.len() / 3, data.len() / 2, data.len().saturating_sub(1)] {
        let start = hello::look(&data[..end]);
        let open = [First::More, First::Other].contains(&start);
        assert!(open || start == whole, "{end}: {start:?} {whole:?}");
    }
}

/// A head is read in one way: by the reader of relayed and of inspected connections, in pieces, and again
/// when it was written anew. No head passes that names another host.
fn http(data: &[u8]) {
    let _ = head::answer(data);
    if data.is_empty() {
        return;
    }
    let read = head::request(data);
    if let Ok(Some((found, length))) = &read {
        let written = found.to_bytes();
        let again = head::request(&written).unwrap().unwrap();
        assert_eq!((&again.0, again.1), (found, written.len()));
        for end in [length / 3, length / 2, length - 1] {
            assert_eq!(head::request(&data[..end]), Ok(None));
        }
    }
    let next = Requests::new().look(data, NAME, PORT);
    let decided = |head: &Head| Ok((head.is_for(NAME, PORT)?, head.request_framing()?));
    match read.and_then(|found| found.map(|(head, _)| decided(&head)).transpose()) {
        Ok(Some((true, _))) => assert!(matches!(next, Next::Pass(_))),
        Ok(Some((false, _))) => assert_eq!(next, Next::Refused(ANOTHER)),
        Ok(None) => assert_eq!(next, Next::More),
        Err(_) => assert!(matches!(next, Next::Refused(_))),
    }
    let (mut requests, mut at) = (Requests::new(), 0);
    while at < data.len() {
        match requests.look(&data[at..], NAME, PORT) {
            Next::Pass(count) => {
                assert!(count > 0);
                at = at.saturating_add(count as usize);
            }
            _ => break,
        }
    }
}

/// No request reaches a path that no rule allows or that one denies, however the path is written; a deny
/// rule never allows more, and an allow rule never less.
fn rules(data: &[u8]) {
    let rule = |host: &str, port: Option<u16>, method: Option<&str>, path: Option<&str>| json!({"host": host, "port": port, "method": method, "path": path, "text": "x"});
    let parsed = |allow, deny| Rules::parse(&json!({"allow": allow, "deny": deny})).unwrap();
    let open = rule("*.test", Some(443), None, None);
    let closed = rule("evil.test", None, None, None);
    let below = rule("good.test", None, Some("GET"), Some("/open/*"));
    let secret = rule("good.test", None, None, Some("/open/secret*"));
    let all = parsed(vec![&open, &below], vec![&closed, &secret]);
    let paths = parsed(vec![&below], vec![&secret]);

    let (name, request) = match data.iter().position(|&byte| byte == b'\n') {
        Some(end) => (String::from_utf8_lossy(&data[..end]), &data[end + 1..]),
        None => return,
    };
    // A host of the rules, or the fuzzed name.
    let name = match &name[..] {
        "0" => "good.test",
        "1" => "evil.test",
        "2" => "www.good.test",
        other => other,
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        let own = json!([{"network": name, "port": null, "text": "x"}]);
        let network = Rules::parse(&json!({"deny": own, "full": true})).unwrap();
        assert!(network
            .denied(Destination::Address(address), PORT)
            .is_some());
        assert!(!all.decide(Destination::Address(address), 443).allowed);
    }
    let to = Destination::Name(name);
    let decided = all.decide(to, 443).allowed;
    assert_eq!(
        decided,
        name.len() > ".test".len() && name.ends_with(".test") && name != "evil.test"
    );
    assert!(decided || !all.decide_opaque(to, 443).allowed);
    let Ok(Some((head, _))) = head::request(request) else {
        return;
    };
    assert!(!policy::decide(&all, "evil.test", 443, &head).allowed);
    if policy::decide(&paths, "good.test", 443, &head).allowed {
        assert_eq!(head.first[0], "GET");
        let path = resolved(head.path());
        assert!(
            path.starts_with("/open/") && !path.starts_with("/open/secret"),
            "{path}"
        );
        assert!(policy::decide(&all, "good.test", 443, &head).allowed);
    }
}

/// Return a path as the most lenient server reads it.
fn resolved(path: &str) -> String {
    let mut path = path.as_bytes().to_vec();
    loop {
        let decoded = decoded(&path);
        if decoded == path {
            break;
        }
        path = decoded;
    }
    let path = String::from_utf8_lossy(&path).replace('\\', "/");
    let mut parts: Vec<&str> = Vec::new();
    for part in path
        .split('/')
        .map(|part| part.split(';').next().unwrap_or(""))
    {
        match part.trim() {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    // A directory stays one.
    let directory = path.trim_end().ends_with('/');
    format!("/{}{}", parts.join("/"), if directory { "/" } else { "" })
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| (byte as char).to_digit(16));
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match (text[at], digit(text.get(at + 1)), digit(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}
