//! The configuration of the egress: read at its start, changed later over the control socket.

use crate::addresses::{is_public, Network};
use crate::inspect::Inspector;
use crate::limits::{Allowance, Limits};
use crate::routes::is_own;
use crate::rules::Rules;
use serde_json::Value;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

pub struct Config {
    pub rules: Rules,
    /// Set over the control socket and never from the file, because it contains secrets.
    pub inspector: Option<Inspector>,
    /// Networks that the operator opened although they are not public.
    pub reachable: Vec<Network>,
    pub servers: Vec<SocketAddr>,
    /// Names with fixed addresses, as in /etc/hosts.
    pub hosts: HashMap<String, Vec<IpAddr>>,
    pub limits: Limits,
    pub allowance: Allowance,
}

impl Config {
    pub fn parse(text: &[u8]) -> Option<Config> {
        let v: Value = serde_json::from_slice(text).ok()?;
        let strings = |key: &str| -> Option<Vec<String>> {
            v[key]
                .as_array()?
                .iter()
                .map(|one| one.as_str().map(str::to_owned))
                .collect()
        };
        let mut hosts = HashMap::new();
        for (name, addresses) in v["hosts"].as_object()? {
            let list: Option<Vec<IpAddr>> = addresses
                .as_array()?
                .iter()
                .map(|one| one.as_str()?.parse().ok())
                .collect();
            hosts.insert(name.to_ascii_lowercase(), list?);
        }
        Some(Config {
            rules: Rules::parse(&v["rules"])?,
            inspector: None,
            reachable: networks(&v["reachable"])?,
            servers: strings("servers")?
                .iter()
                .map(|text| text.parse().ok())
                .collect::<Option<_>>()?,
            hosts,
            limits: Limits::parse(&v["limits"])?,
            allowance: match &v["allowance"] {
                Value::Null => Allowance::default(),
                given => Allowance::parse(given)?,
            },
        })
    }

    /// Whether an address may be dialled at all, whatever the rules say.
    pub fn may_dial(&self, address: IpAddr) -> bool {
        self.reachable.iter().any(|n| n.contains(address))
            || (is_public(address) && !is_own(address))
    }
}

/// Networks as a list of strings.
pub fn networks(v: &Value) -> Option<Vec<Network>> {
    v.as_array()?
        .iter()
        .map(|one| Network::parse(one.as_str()?))
        .collect()
}
