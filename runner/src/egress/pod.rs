//! `--pod`: the egress process of a sandbox that is a Pod, in a container beside the sandbox's own.
//!
//! Rules of the Pod's network lead the connections and lookups of the sandbox's user to this process, which
//! has another user id and reaches the outside (`runner/src/launch/pod.rs`). It shares a directory with the
//! gate and with nothing else: there it listens for commands, and a connection to the gate is the life of
//! the sandbox. It makes this connection when everything is ready, and the gate does not let the runner
//! start before.

use crate::proxy::reachability::{self, STAYED_OPEN};
use crate::proxy::{self, CONTROL, LIFE};
use crate::sys::{self, Errno};
use crate::{config, record, server};
use serde_json::{json, Value};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const RECORDS: [&str; 2] = ["egress.0", "egress.1"];
const CLOSING: Duration = Duration::from_secs(20);
/// For the gate to start.
const START: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
const GATE_MS: i32 = 1000;

pub struct Pod {
    config: PathBuf,
    directory: PathBuf,
    port: u16,
    /// What must be out of reach before the sandbox starts.
    closed_to: Vec<SocketAddr>,
}

/// Return what a command line asks for; None if it asks for something else.
pub fn wanted(arguments: &[OsString]) -> Option<Result<Pod, String>> {
    match arguments {
        [mode, config, directory, port, closed_to @ ..] if mode == "--pod" => {
            let port = port.to_str().and_then(|port| port.parse().ok());
            Some(
                port.ok_or_else(|| "the port must be a number".to_owned())
                    .and_then(|port| {
                        Ok(Pod {
                            config: config.into(),
                            directory: directory.into(),
                            port,
                            closed_to: reachability::parse(closed_to)?,
                        })
                    }),
            )
        }
        [mode, ..] if mode == "--pod" => Some(Err(
            "usage: sandkasten-egress --pod CONFIG DIRECTORY PORT [ADDRESS...]".to_owned(),
        )),
        _ => None,
    }
}

impl Pod {
    /// Serve until the gate ends, or until we are asked to.
    pub fn serve(self) -> Result<(), String> {
        proxy::leave_on_request();
        if let Err(what) = reachability::wait_until_closed(&self.closed_to, CLOSING) {
            eprintln!(
                "sandkasten-egress: the network of this Pod stays open: {}",
                what
            );
            std::process::exit(STAYED_OPEN);
        }
        let text = std::fs::read(&self.config).map_err(|e| format!("configuration: {}", e))?;
        let text = with_name_servers(&text).ok_or("the configuration is not JSON")?;
        let config = config::Config::parse(&text).ok_or("the configuration is not valid")?;
        let at = (Ipv4Addr::LOCALHOST, self.port);
        let listener = TcpListener::bind(at).map_err(|e| format!("cannot listen: {}", e))?;
        let names = UdpSocket::bind(at).map_err(|e| format!("cannot listen for DNS: {}", e))?;
        let unset = |e: std::io::Error| format!("cannot listen: {}", e);
        listener.set_nonblocking(true).map_err(unset)?;
        names.set_nonblocking(true).map_err(unset)?;
        let control = proxy::listen(&self.directory.join(CONTROL))?;
        let [first, second] = RECORDS.map(|name| self.records(name));
        let records = record::Records::new(first?, second?);
        let sockets = server::Sockets {
            tcp4: OwnedFd::from(listener),
            tcp6: None,
            dns: OwnedFd::from(names),
            control,
            life: self.life()?,
        };
        crate::run(config, sockets, records)
    }

    fn records(&self, name: &str) -> Result<OwnedFd, String> {
        std::fs::OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(self.directory.join(name))
            .map(OwnedFd::from)
            .map_err(|e| format!("records: {}", e))
    }

    /// Connect to the gate, as soon as it listens.
    fn life(&self) -> Result<OwnedFd, String> {
        let (path, until) = (self.directory.join(LIFE), Instant::now() + START);
        loop {
            match sys::connect_unix(path.as_os_str().as_bytes(), GATE_MS) {
                Ok(life) => return Ok(life),
                Err(errno) if Instant::now() > until => return Err(message("the gate", errno)),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

fn message(what: &str, errno: Errno) -> String {
    format!("{}: {}", what, std::io::Error::from_raw_os_error(errno))
}

/// Without name servers of the operator, use those of the Pod.
fn with_name_servers(text: &[u8]) -> Option<Vec<u8>> {
    let mut config: Value = serde_json::from_slice(text).ok()?;
    if config["servers"].as_array()?.is_empty() {
        let known = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let servers: Vec<String> = known
            .lines()
            .filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok())
            .map(|address: IpAddr| SocketAddr::new(address, 53).to_string())
            .take(3)
            .collect();
        config["servers"] = json!(servers);
    }
    Some(config.to_string().into_bytes())
}
