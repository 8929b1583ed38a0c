//! The network of a container on an engine that we cannot enter: two containers beside it do the work.
//!
//! One shares the namespaces of the sandbox. It prepares the network, passes the sockets on and waits;
//! it ends with the sandbox, whose processes share its pid namespace. The other one is in the network of
//! the engine's machine. It receives the sockets and becomes the egress; the connection between the two
//! is the life of the sandbox.

use crate::failure::{failed, Failure, Outcome};
use crate::network;
use crate::plan::{self, Network};
use crate::sys;
use rustix::process::{set_dumpable_behavior, DumpableBehavior};
use rustix::thread::set_thread_groups;
use serde_json::{json, Value};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const STEP: &str = "container";
const PATIENCE: Duration = Duration::from_secs(15);

pub enum Side {
    /// In the namespaces of the sandbox: pass the sockets on to this path.
    Giving(String),
    /// In the network of the engine's machine: receive the sockets here, and listen for commands there.
    Taking {
        socket: String,
        control: String,
        network: Box<Network>,
    },
}

/// Return `None` if the plan describes something else.
pub fn parse(source: &Value) -> Outcome<Option<Side>> {
    if !source["give"].is_null() {
        return Ok(Some(Side::Giving(plan::string(source, "give")?)));
    }
    if source["take"].is_null() {
        return Ok(None);
    }
    let missing = || Failure::new("plan", "take: no network", 0);
    Ok(Some(Side::Taking {
        socket: plan::string(source, "take")?,
        control: plan::string(source, "control")?,
        network: Box::new(plan::network(&source["network"])?.ok_or_else(missing)?),
    }))
}

/// Does not return before the sandbox has ended, unless it fails.
pub fn carry_out(side: Side) -> Outcome<()> {
    match side {
        Side::Giving(socket) => give(&socket),
        Side::Taking {
            socket,
            control,
            network,
        } => take(&socket, &control, *network),
    }
}

fn give(path: &str) -> Outcome<()> {
    let sockets = network::prepared_here()?;
    let channel = UnixStream::connect(path).map_err(failed(STEP, "reach the egress"))?;
    let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    sys::send_descriptors(channel.as_raw_fd(), &raw)
        .map_err(failed(STEP, "pass the sockets on"))?;
    drop(sockets);
    give_up_privileges()?;
    // Until the egress ends; nothing is ever sent.
    let mut byte = [0u8; 1];
    let _ = std::io::Read::read(&mut &channel, &mut byte);
    Ok(())
}

/// Code in the sandbox sees this process, and must gain nothing by it.
fn give_up_privileges() -> Outcome<()> {
    const NOBODY: u32 = 65534;
    let _ = set_thread_groups(&[]);
    network::become_user(STEP, NOBODY)?;
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = sys::no_new_privileges();
    Ok(())
}

fn take(path: &str, control: &str, mut network: Network) -> Outcome<()> {
    let commands = bind(control)?;
    let given = bind(path)?;
    if !crate::spawn::readable_within(&given, PATIENCE) {
        let message = "the sandbox did not pass its sockets on";
        return Err(Failure::new(STEP, message, libc::ETIMEDOUT));
    }
    let (channel, _) = given.accept().map_err(failed(STEP, "accept"))?;
    let _ = std::fs::remove_file(path);
    let sockets = sys::receive_descriptors(channel.as_raw_fd(), 3)
        .map_err(failed(STEP, "receive the sockets"))?;
    add_name_servers(&network.config)?;
    network.control_fd = commands.as_raw_fd();
    // Without a report: the daemon reads the exit status of this container.
    network::become_egress(&network, sockets, OwnedFd::from(channel), None)
}

/// Without name servers of the operator, use those of the machine that this container is on.
fn add_name_servers(path: &str) -> Outcome<()> {
    let text = std::fs::read(path).map_err(failed(STEP, "read the configuration"))?;
    let mut config: Value = serde_json::from_slice(&text)
        .map_err(|e| Failure::new("plan", format!("not JSON: {}", e), 0))?;
    if config["servers"]
        .as_array()
        .is_none_or(|found| !found.is_empty())
    {
        return Ok(());
    }
    let known = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<String> = known
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok())
        .map(|address: IpAddr| SocketAddr::new(address, 53).to_string())
        .take(3)
        .collect();
    config["servers"] = json!(servers);
    std::fs::write(path, config.to_string()).map_err(failed(STEP, "write the configuration"))
}

fn bind(path: &str) -> Outcome<UnixListener> {
    let listener = UnixListener::bind(path).map_err(failed(STEP, "listen"))?;
    // Non-blocking, as the egress expects it of its control socket.
    listener
        .set_nonblocking(true)
        .map_err(failed(STEP, "listen"))?;
    Ok(listener)
}
