//! The policy of inspected connections: rules for requests, secrets, and the TLS settings of both sides.

use super::body_obstacles;
use super::certificates::{Authority, Settings};
use super::mask::Mask;
use super::secrets::{find, percent_decoded, wipe, Secret};
use super::server_chain::BoundedVerifier;
use crate::base64;
use crate::head::{same_field, Head};
use crate::rules::{Destination, Request, Rule, Rules, Verdict};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ALL_VERSIONS};
use serde_json::Value;
use std::rc::Rc;
use std::sync::Arc;

/// The rule of a path that servers may read in more than one way.
const UNCLEAR_PATH: &str = "a path that is not in its plain form";

/// The rule of a header by which some servers take another method, path or host than that of the request.
const OVERRIDDEN: &str = "a header that names another method, path or host";
const OVERRIDES: [&str; 12] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-forwarded-host",
    "x-original-host",
    "x-host",
    "x-http-host-override",
    "x-forwarded-server",
    "forwarded",
    // Where WebDAV copies and moves to.
    "destination",
];

/// Characters that some servers turn into dots, slashes and backslashes.
const LIKE_DOTS_AND_SLASHES: [char; 7] = ['․', '‥', '﹒', '．', '／', '﹨', '＼'];

pub struct Inspector {
    authority: Authority,
    client: Arc<ClientConfig>,
    /// Whether every host is inspected, and not only those of secrets.
    all: bool,
    except: Vec<Rule>,
    secrets: Vec<Secret>,
    /// How often the secrets were replaced.
    pub changes: u64,
    /// What every HTTP/2 connection has a copy of.
    connections: Rc<()>,
}

impl Inspector {
    pub fn parse(v: &Value) -> Option<Inspector> {
        let der = |key: &str| base64::decode(v[key].as_str()?.as_bytes());
        let mut roots = RootCertStore::empty();
        let bundle = v["roots"].as_str()?.as_bytes();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).flatten());
        let versions: &[_] = match v["tls13"].as_bool() {
            Some(true) => &[&TLS13],
            _ => ALL_VERSIONS,
        };
        let client = ClientConfig::builder_with_protocol_versions(versions)
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(BoundedVerifier::new(roots)))
            .with_no_client_auth();
        let mut inspector = Inspector {
            authority: Authority::new(der("certificate")?, &der("key")?)?,
            client: Arc::new(client),
            all: false,
            except: Vec::new(),
            secrets: Vec::new(),
            changes: 0,
            connections: Rc::new(()),
        };
        inspector.change(v)?;
        Some(inspector)
    }

    /// Use other secrets and hosts; the authority stays.
    pub fn change(&mut self, v: &Value) -> Option<()> {
        let secrets = v["secrets"].as_array()?.iter().map(Secret::parse);
        let except = v["except"].as_array()?.iter().map(Rule::parse);
        let (secrets, except) = (
            secrets.collect::<Option<_>>()?,
            except.collect::<Option<_>>()?,
        );
        self.all = v["all"].as_bool()?;
        self.secrets = secrets;
        self.changes += 1;
        self.except = except;
        Some(())
    }

    /// Whether connections to this host are inspected.
    pub fn wants(&self, name: &str, port: u16) -> bool {
        let to = Destination::Name(name);
        let except = self.except.iter().any(|rule| rule.matches(to, port));
        self.has_secret(name, port) || (self.all && !except)
    }

    /// Return what answers a client as the server with this name.
    pub fn settings(&mut self, name: &str) -> Option<Settings> {
        self.authority.server(name)
    }

    /// Begin TLS with a server, and offer these protocols.
    pub fn connection(&self, name: &str, offer: Vec<Vec<u8>>) -> Result<Connection, String> {
        let to = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
        let made = ClientConnection::new_with_alpn(self.client.clone(), to, offer);
        made.map(Connection::from)
            .map_err(|error| error.to_string())
    }

    /// Return what an HTTP/2 connection keeps as long as it is open, so that they can be counted.
    pub fn share(&self) -> Rc<()> {
        self.connections.clone()
    }

    fn secrets_for<'a>(&'a self, name: &'a str, port: u16) -> impl Iterator<Item = &'a Secret> {
        self.secrets.iter().filter(move |s| s.is_for(name, port))
    }

    pub fn has_secret(&self, name: &str, port: u16) -> bool {
        self.secrets_for(name, port).next().is_some()
    }

    /// Whether a host has a secret, on whichever port.
    pub fn has_secret_on_any_port(&self, name: &str) -> bool {
        self.secrets.iter().any(|secret| secret.is_at(name))
    }

    pub fn insert(&self, name: &str, port: u16, head: &mut Head) {
        self.secrets_for(name, port).for_each(|s| s.insert(head));
    }

    pub fn fills_bodies(&self, name: &str, port: u16) -> bool {
        self.secrets_for(name, port).any(Secret::in_body)
    }

    /// Return the first secret that may not go into a body that has its placeholder, and why.
    pub fn obstacle(
        &self,
        name: &str,
        port: u16,
        head: &Head,
        body: &[u8],
    ) -> Option<(String, &'static str)> {
        let wanted = |s: &&Secret| s.in_body() && find(body, s.placeholder.as_bytes()).is_some();
        let mut wanted = self.secrets_for(name, port).filter(wanted);
        wanted.find_map(|s| {
            let why = body_obstacles::obstacle(head, body, s.placeholder.as_bytes())?;
            Some((s.name.clone(), why))
        })
    }

    /// Put values into a body; None if it would be too long.
    pub fn fill(&self, name: &str, port: u16, kind: &[u8], body: Vec<u8>) -> Option<Vec<u8>> {
        self.secrets_for(name, port)
            .filter(|s| s.in_body())
            .try_fold(body, |body, s| s.insert_into_body(kind, &body))
    }

    /// Return the secret whose placeholder is in a head.
    pub fn placeholder_in(&self, head: &Head) -> Option<String> {
        let mut bytes = head.to_bytes();
        for value in head.all("authorization") {
            let basic = value
                .get(..6)
                .is_some_and(|b| b.eq_ignore_ascii_case(b"basic "));
            bytes.extend(
                basic
                    .then(|| base64::decode(&value[6..]))
                    .flatten()
                    .unwrap_or_default(),
            );
        }
        let found = |s: &&Secret| find(&bytes, s.placeholder.as_bytes()).is_some();
        self.secrets.iter().find(found).map(|s| s.name.clone())
    }

    /// Return what hides the values of the secrets of a host. It gets no others, so it cannot repeat
    /// them; to hide them there would only confirm guesses.
    pub fn mask(&self, name: &str, port: u16) -> Mask {
        let mut sent: Vec<String> = self
            .secrets_for(name, port)
            .flat_map(Secret::sent)
            .collect();
        let mask = Mask::new(&sent);
        sent.iter_mut().for_each(|text| wipe(text));
        mask
    }
}

/// Decide about one request.
pub fn decide(rules: &Rules, name: &str, port: u16, head: &Head) -> Verdict {
    let to = Destination::Name(name);
    if rules.looks_at_requests(to, port) && head.names().any(overrides) {
        return Verdict {
            allowed: false,
            rule: OVERRIDDEN.to_owned(),
        };
    }
    let (method, path) = (&head.first[0][..], head.path());
    let decoded = String::from_utf8_lossy(&percent_decoded(path)).into_owned();
    if rules.looks_at_paths(to, port) && !is_plain(path, &decoded) {
        return Verdict {
            allowed: false,
            rule: UNCLEAR_PATH.to_owned(),
        };
    }
    let request = Request {
        method,
        path: &decoded,
    };
    rules.decide_request(to, port, &request)
}

/// Whether some servers read a header as another method, path or host.
fn overrides(name: &str) -> bool {
    OVERRIDES.iter().any(|one| same_field(name, one))
}

/// Whether servers agree about what a path means.
fn is_plain(path: &str, decoded: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let hidden = ["%2e", "%2f", "%3b", "%5c", "%25", "%00", "//", ";"];
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let unclear = |c: char| c.is_control() || c == '\u{fffd}' || LIKE_DOTS_AND_SLASHES.contains(&c);
    !hidden.iter().any(|one| lower.contains(one))
        && lower.split('%').skip(1).all(is_escape)
        && !decoded
            .split('/')
            .any(|part| [".", ".."].contains(&part.trim()))
        && !decoded.contains(unclear)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;
    use serde_json::json;

    #[test]
    fn a_rule_with_a_path_decides_about_requests() {
        let rule = |method: &str, path: &str| json!({"host": "a.test", "port": null, "method": method, "path": path, "text": path});
        let rules = Rules::parse(&json!({
            "allow": [rule("GET", "/repos/*"), rule("POST", "/graphql")],
            "deny": [rule("GET", "/repos/private*")],
        }))
        .unwrap();
        let decided = |text: String| {
            let head = head::request(text.as_bytes()).unwrap().unwrap().0;
            decide(&rules, "a.test", 443, &head).allowed
        };
        let allowed = |method, path| decided(format!("{} {} HTTP/1.1\r\n\r\n", method, path));
        assert!(allowed("GET", "/repos/x") && allowed("POST", "/graphql"));
        assert!(allowed("GET", "/repos/a%20b"));
        for (method, path) in [
            ("POST", "/repos/x"),
            ("GET", "/graphql"),
            ("POST", "/graphql/x"),
            ("GET", "/repos/private"),
            ("GET", "/repos/%70rivate"),
            ("GET", "/repos/../user"),
            ("GET", "/repos/%2e%2e/user"),
            ("GET", "/repos//user"),
            ("GET", "/repos/%252e"),
            ("GET", "/repos/%u002e%u002e/user"),
            ("GET", "/repos/%"),
            ("GET", "/repos/%2"),
            ("GET", "/repos/..%3b/user"),
            ("GET", "/repos/..%20/user"),
            ("GET", "/repos/%20../user"),
            ("GET", "/repos/%ef%bc%8e%ef%bc%8e/user"),
            ("GET", "/repos/%e2%80%a5/user"),
            ("GET", "/repos/..%ef%bc%8fuser"),
            ("GET", "/"),
        ] {
            assert!(!allowed(method, path), "{} {}", method, path);
        }
        assert!(allowed("GET", "/repos/%e6%96%87%20x.y..z%ef%bc%9f/..."));
        for name in OVERRIDES
            .iter()
            .chain(&["X_HTTP_Method_Override", "X.Original.URL"])
        {
            let text = format!("GET /repos/x HTTP/1.1\r\n{}: x\r\n\r\n", name);
            assert!(!decided(text), "{}", name);
        }
        assert!(decided(
            "GET /repos/x HTTP/1.1\r\nX-Forwarded-For: x\r\n\r\n".into()
        ));
        let to = Destination::Name("a.test");
        assert!(rules.decide(to, 443).allowed && !rules.decide_opaque(to, 443).allowed);
    }
}
