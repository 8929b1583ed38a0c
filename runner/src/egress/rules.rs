//! Which destinations a sandbox may reach. Pure.
//!
//! A destination is a name and a port, or an address and a port. Deny rules win over allow rules. What
//! no rule mentions is refused, unless the mode is `full`. A rule may be only for some requests: then it
//! lets connections to its host pass, and each request on them is decided (`inspect`).

use crate::addresses::Network;
use serde_json::Value;
use std::net::IpAddr;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Name(String),
    /// The name itself is not included.
    Below(String),
    Network(Network),
}

#[derive(Debug, Clone)]
pub struct Rule {
    target: Target,
    port: Option<u16>,
    method: Option<String>,
    /// A path; all that begin with it if it ends with an asterisk.
    path: Option<String>,
    /// As the user wrote it.
    pub text: String,
}

#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub full: bool,
    pub dry_run: bool,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

#[derive(Debug, Clone, Copy)]
pub enum Destination<'a> {
    Name(&'a str),
    Address(IpAddr),
}

/// One request of an inspected connection.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// The rule that decided; `default` where none did.
    pub rule: String,
}

impl Rules {
    pub fn parse(v: &Value) -> Option<Rules> {
        let list = |key: &str| -> Option<Vec<Rule>> {
            match &v[key] {
                Value::Null => Some(Vec::new()),
                found => found.as_array()?.iter().map(Rule::parse).collect(),
            }
        };
        Some(Rules {
            full: v["full"].as_bool().unwrap_or(false),
            dry_run: v["dry_run"].as_bool().unwrap_or(false),
            allow: list("allow")?,
            deny: list("deny")?,
        })
    }

    pub fn decide(&self, to: Destination<'_>, port: u16) -> Verdict {
        if let Some(rule) = self.denied(to, port) {
            return verdict(false, &rule);
        }
        if let Some(rule) = self.allow.iter().find(|r| r.matches(to, port)) {
            return verdict(true, &format!("allow {}", rule.text));
        }
        verdict(self.full, if self.full { "full" } else { "default" })
    }

    /// Return the rule that denies a destination.
    pub fn denied(&self, to: Destination<'_>, port: u16) -> Option<String> {
        let whole = |r: &&Rule| !r.is_partial() && r.matches(to, port);
        let rule = self.deny.iter().find(whole);
        rule.map(|rule| format!("deny {}", rule.text))
    }

    /// Decide about a request on a connection that was allowed.
    pub fn decide_request(&self, to: Destination<'_>, port: u16, request: &Request) -> Verdict {
        self.choose(|rule| rule.matches(to, port) && rule.includes(request))
    }

    /// Decide about a connection whose requests cannot be read.
    pub fn decide_opaque(&self, to: Destination<'_>, port: u16) -> Verdict {
        let denied = self.deny.iter().find(|r| r.matches(to, port));
        if let Some(rule) = denied {
            return verdict(false, &format!("deny {}", rule.text));
        }
        self.choose(|rule| !rule.is_partial() && rule.matches(to, port))
    }

    fn choose(&self, applies: impl Fn(&Rule) -> bool) -> Verdict {
        if let Some(rule) = self.deny.iter().find(|rule| applies(rule)) {
            return verdict(false, &format!("deny {}", rule.text));
        }
        if let Some(rule) = self.allow.iter().find(|rule| applies(rule)) {
            return verdict(true, &format!("allow {}", rule.text));
        }
        verdict(self.full, if self.full { "full" } else { "default" })
    }

    /// Whether paths decide something at this destination.
    pub fn looks_at_paths(&self, to: Destination<'_>, port: u16) -> bool {
        let mut all = self.allow.iter().chain(&self.deny);
        all.any(|rule| rule.path.is_some() && rule.matches(to, port))
    }

    /// Whether methods or paths decide something at this destination.
    pub fn looks_at_requests(&self, to: Destination<'_>, port: u16) -> bool {
        let mut all = self.allow.iter().chain(&self.deny);
        all.any(|rule| rule.is_partial() && rule.matches(to, port))
    }

    /// Whether a rule allows this port of a destination by its number.
    pub fn names_port(&self, to: Destination<'_>, port: u16) -> bool {
        let named = |rule: &Rule| rule.port.is_some() && !rule.is_partial();
        self.allow
            .iter()
            .any(|rule| named(rule) && rule.matches(to, port))
    }

    /// Whether a name may be looked up outside: some port of it is allowed.
    pub fn may_resolve(&self, name: &str) -> bool {
        let to = Destination::Name(name);
        let denied = self
            .deny
            .iter()
            .any(|r| r.port.is_none() && !r.is_partial() && r.matches(to, 0));
        let allowed = self.full || self.allow.iter().any(|r| r.target.matches(to));
        self.dry_run || (allowed && !denied)
    }
}

pub fn verdict(allowed: bool, rule: &str) -> Verdict {
    Verdict {
        allowed,
        rule: rule.to_owned(),
    }
}

impl Rule {
    pub fn parse(v: &Value) -> Option<Rule> {
        let port = match &v["port"] {
            Value::Null => None,
            found => Some(u16::try_from(found.as_u64()?).ok()?),
        };
        let target = if let Some(text) = v["network"].as_str() {
            Target::Network(Network::parse(text)?)
        } else {
            let name = v["host"].as_str()?.to_ascii_lowercase();
            match name.strip_prefix("*.") {
                Some(parent) => Target::Below(parent.to_owned()),
                None => Target::Name(name),
            }
        };
        Some(Rule {
            target,
            port,
            method: v["method"].as_str().map(str::to_owned),
            path: v["path"].as_str().map(str::to_owned),
            text: v["text"].as_str()?.to_owned(),
        })
    }

    pub fn matches(&self, to: Destination<'_>, port: u16) -> bool {
        self.port.is_none_or(|p| p == port) && self.target.matches(to)
    }

    /// Whether it is for a destination, on whichever port.
    pub fn is_at(&self, to: Destination<'_>) -> bool {
        self.target.matches(to)
    }

    /// Whether it is only for some requests.
    fn is_partial(&self) -> bool {
        self.method.is_some() || self.path.is_some()
    }

    fn includes(&self, request: &Request) -> bool {
        let method = self.method.as_ref().is_none_or(|m| m == request.method);
        let path = self
            .path
            .as_ref()
            .is_none_or(|p| match p.strip_suffix('*') {
                Some(start) => request.path.starts_with(start),
                None => request.path == p,
            });
        method && path
    }
}

impl Target {
    fn matches(&self, to: Destination<'_>) -> bool {
        match (self, to) {
            (Target::Name(name), Destination::Name(asked)) => name == asked,
            (Target::Below(parent), Destination::Name(asked)) => asked
                .strip_suffix(parent.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            (Target::Network(network), Destination::Address(address)) => network.contains(address),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(v: Value) -> Rules {
        Rules::parse(&v).unwrap()
    }

    fn host(name: &str) -> Value {
        json!({"host": name, "port": null, "text": name})
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let none = rules(json!({}));
        assert!(!none.decide(Destination::Name("example.com"), 443).allowed);
        assert!(!none.may_resolve("example.com"));
    }

    #[test]
    fn a_wildcard_includes_names_below_and_not_the_name_itself() {
        let some = rules(json!({"allow": [host("*.example.com")]}));
        let allowed = |name| some.decide(Destination::Name(name), 443).allowed;
        assert!(allowed("a.example.com") && allowed("a.b.example.com"));
        assert!(!allowed("example.com") && !allowed("badexample.com") && !allowed(".example.com"));
    }

    #[test]
    fn deny_wins_and_a_port_restricts() {
        let some = rules(json!({
            "allow": [host("*.example.com"), {"host": "one.test", "port": 443, "text": "one.test:443"}],
            "deny": [host("evil.example.com")],
        }));
        assert!(
            !some
                .decide(Destination::Name("evil.example.com"), 443)
                .allowed
        );
        assert!(some.decide(Destination::Name("one.test"), 443).allowed);
        assert!(!some.decide(Destination::Name("one.test"), 80).allowed);
        assert_eq!(
            some.decide(Destination::Name("one.test"), 443).rule,
            "allow one.test:443"
        );
    }

    #[test]
    fn a_network_matches_addresses_alone() {
        let some =
            rules(json!({"allow": [{"network": "192.0.2.0/24", "port": null, "text": "n"}]}));
        assert!(
            some.decide(Destination::Address("192.0.2.7".parse().unwrap()), 1)
                .allowed
        );
        assert!(
            !some
                .decide(Destination::Address("192.0.3.7".parse().unwrap()), 1)
                .allowed
        );
        assert!(!some.decide(Destination::Name("192.0.2.7"), 1).allowed);
    }
}
