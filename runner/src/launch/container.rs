//! The network of a container that an engine beside us has started: its namespace is prepared like the
//! one of our sandboxes. Nothing but our runner runs in the container yet.
//!
//! The engine reports a pid. A process that ends may be followed by another one with the same pid,
//! so the process is held first, and then looked at.

use crate::failure::{failed, open, write_file, Failure, Outcome};
use crate::network;
use crate::plan::{self, Network};
use crate::sys;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

const STEP: &str = "container";
const ID_LENGTH: usize = 64;

pub struct Container {
    pid: i32,
    /// As the engine names it; part of the path of its cgroup.
    id: String,
    network: Network,
    cgroup_tasks: Vec<String>,
    cgroup_v2: Option<String>,
}

/// Return `None` if the plan describes something else.
pub fn parse(source: &Value) -> Outcome<Option<Container>> {
    let v = &source["container"];
    if v.is_null() {
        return Ok(None);
    }
    let bad = |what: &str| Failure::new("plan", format!("container: {}", what), 0);
    let id = plan::string(v, "id")?;
    if id.len() != ID_LENGTH || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad("not an id"));
    }
    let network = plan::network(&source["network"])?.ok_or_else(|| bad("no network"))?;
    let pid = plan::number(v, "pid")? as i32;
    if pid <= 1 || network.id.is_none() || network.device {
        return Err(bad("not a container of an engine"));
    }
    let cgroup_tasks = plan::strings(v, "cgroup_tasks")?;
    let cgroup_v2 = v["cgroup_v2"].as_str().map(str::to_owned);
    if !cgroup_tasks
        .iter()
        .chain(&cgroup_v2)
        .all(|path| path.contains(&id))
    {
        return Err(bad("not its cgroup"));
    }
    Ok(Some(Container {
        pid,
        id,
        network,
        cgroup_tasks,
        cgroup_v2,
    }))
}

/// Open the network; the egress runs when this returns.
pub fn open_network(container: &Container) -> Outcome<()> {
    sys::close_all_but(&[0, 1, 2, container.network.control_fd])
        .map_err(failed("descriptors", "close_range"))?;
    let life = network::watch(container.pid)?;
    let namespace = namespace_of(container, &life)?;
    // The limits of the container hold for its egress too.
    for file in &container.cgroup_tasks {
        write_file("cgroup", file, b"0")?;
    }
    // Before the namespace is entered: the egress keeps the host's network.
    let egress = network::start(&container.network, container.cgroup_v2.as_deref())?;
    egress.prepare_in(&namespace)?;
    egress.release(&life)
}

/// Return the namespace of the process, which is the one that `life` holds.
fn namespace_of(container: &Container, life: &OwnedFd) -> Outcome<OwnedFd> {
    let other = || {
        let message = format!(
            "process {} is not in container {}",
            container.pid, container.id
        );
        Failure::new(STEP, message, 0)
    };
    let of = |name: &str| format!("/proc/{}/{}", container.pid, name);
    let groups = std::fs::read_to_string(of("cgroup")).map_err(failed(STEP, "read its cgroup"))?;
    if !groups.lines().any(|line| line.contains(&container.id)) {
        return Err(other());
    }
    let namespace = open(STEP, &of("ns/net"), libc::O_RDONLY, 0)?;
    let number = |path: &str| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let theirs = number(&format!("/proc/self/fd/{}", namespace.as_raw_fd()));
    let ours = number("/proc/self/ns/net");
    // A rule that redirects everything must never be made in the network of the host.
    if ours.is_err() || theirs.is_err() || ours.ok() == theirs.ok() {
        return Err(Failure::new(STEP, "it shares the network of the host", 0));
    }
    // If it has ended, what was read may be of another process.
    if crate::spawn::readable_within(life, Duration::from_millis(0)) {
        return Err(other());
    }
    Ok(namespace)
}

/// Enter a namespace that exists.
pub fn enter(namespace: &OwnedFd) -> Outcome<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(failed(STEP, "enter its network namespace"))?;
    // Engines turn IPv6 off where it has no address. Where this cannot be changed, it stays closed.
    for name in ["all", "lo"] {
        let _ = std::fs::write(
            format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", name),
            b"0",
        );
    }
    Ok(())
}
