//! sandkasten-launch: prepares namespaces, cgroups and mounts of a sandbox and starts its first
//! process.
//!
//! Runs on the host, once per sandbox, for some milliseconds. A second thread mounts the workspace.
//! Its work (joining cgroups before namespaces exist, mapping a user namespace, mounting in a private
//! mount namespace) cannot be done safely in a threaded Python process, and is slow in a forked one.
//!
//! It reads one plan (JSON) on stdin, or from the file that its argument names, and writes one JSON
//! object and a line feed to stdout: `{pid, start, shared}` of the sandbox's first process, or
//! `{error: {step, message, errno}}` with nothing left running. Other plans describe no sandbox, and
//! the pid is 0: `visible` mounts a volume where the caller sees it, `container` gives a network to a
//! container of an engine,
//! `give` and `take` do so from inside of containers, `pod` sets the rules of a Pod's network, and `try_network` finds out whether the kernel has
//! what a network needs. It decides nothing: every argument of bubblewrap
//! and of a runtime comes from the plan.

mod container;
mod devices;
mod failure;
mod hand_over;
mod host_directory;
mod inside;
mod loopdev;
mod mounts;
mod netlink;
mod network;
mod plan;
mod pod;
mod root;
mod runtime;
mod spawn;
mod tree;
mod userns;
mod visible;
mod volume;

use failure::{failed, write_file, Failure, Outcome};
use plan::{Plan, Program};
use sandkasten_runner::sys;
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::os::unix::io::AsFd;

/// The first process, and what should be private and is shared with the host.
struct Launched {
    born: spawn::Born,
    shared: Vec<String>,
}

fn launch() -> Outcome<Launched> {
    let mut text = String::new();
    match std::env::args_os().nth(1) {
        Some(path) => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
        None => std::io::stdin().read_to_string(&mut text),
    }
    .map_err(|e| Failure::new("plan", e.to_string(), e.raw_os_error().unwrap_or(0)))?;
    let source: Value = serde_json::from_str(&text)
        .map_err(|e| Failure::new("plan", format!("not JSON: {}", e), 0))?;
    let born = || spawn::Born { pid: 0, start: 0 };
    let nothing = || Launched {
        born: born(),
        shared: Vec::new(),
    };
    if let Some(place) = visible::parse(&source)? {
        return visible::make(&place).map(|()| nothing());
    }
    if let Some(found) = container::parse(&source)? {
        return container::open_network(&found).map(|()| nothing());
    }
    if let Some(side) = hand_over::parse(&source)? {
        return hand_over::carry_out(side).map(|()| nothing());
    }
    if let Some(pod) = pod::parse(&source)? {
        return pod.close().map(|()| nothing());
    }
    if let Some(device) = network::parse_trial(&source) {
        return network::try_out(device).map(|()| nothing());
    }
    let plan = Plan::parse(&source)?;
    let control_fd = plan.network.as_ref().map_or(0, |n| n.control_fd);
    sys::close_all_but(&[0, 1, 2, plan.listen_fd, control_fd])
        .map_err(failed("descriptors", "close_range"))?;
    let begin = || {
        let (directories, owner) = (mounts::WORKSPACE_DIRECTORIES, plan.workspace_owner);
        volume::begin(&plan.workspace, directories, plan.id_map?, owner)
    };
    // First, because it takes longest. With an egress it has to wait: a child that stays must not come
    // from a process with two threads.
    let early = plan.network.is_none().then(begin).flatten();
    // Joined before any namespace is made, so that this cgroup is the root of the cgroup namespace and
    // /proc/self/cgroup inside shows "/".
    for file in &plan.cgroup_tasks {
        write_file("cgroup", file, b"0")?;
    }
    let egress = match &plan.network {
        Some(network) => Some(network::start(network, plan.cgroup_v2.as_deref())?),
        None => None,
    };
    let workspace = early.or_else(begin);
    let mut own_network = None;
    let userns = match plan.id_map {
        Some(map) => {
            let fd = if plan.own_network {
                let (fd, network) = userns::mapped_with_network(map)?;
                own_network = Some(network);
                fd
            } else {
                userns::mapped(map)?
            };
            mounts::private_namespace(false)?;
            Some(fd)
        }
        None if plan.own_network => {
            return Err(Failure::new("plan", "own_network requires id_map", 0));
        }
        None => {
            userns::enter_own()?;
            mounts::private_namespace(true)?;
            None
        }
    };
    let ids = userns.as_ref().map(AsFd::as_fd);
    let mut shared = mounts::stage(&plan, ids, workspace)?;
    if let Program::Runtime(_) = &plan.program {
        runtime::prepare(&plan, ids)?;
    }
    if plan.own_devices && devices::cover(&plan.stage).is_err() {
        shared.push("dev".to_owned());
    }
    for &(resource, value) in &plan.limits {
        sys::lower_limit(resource as libc::__rlimit_resource_t, value)
            .map_err(failed("limits", "setrlimit"))?;
    }
    match (&egress, &plan.network) {
        (Some(egress), Some(network)) if network.device => {
            egress.prepare_device(&format!("{}/netns", plan.stage))?;
        }
        (Some(egress), _) => egress.prepare()?,
        (None, _) => {}
    }
    if let Some(network) = own_network {
        network.enter()?;
    }
    let born = match &plan.program {
        Program::Trial => born(),
        Program::Bubblewrap(bwrap) => spawn::bubblewrap(&plan, bwrap, ids)?,
        Program::Runtime(runtime) => runtime::run(&plan, runtime)?,
    };
    if let Some(egress) = egress {
        if let Err(failure) = network::watch(born.pid).and_then(|life| egress.release(&life)) {
            // A sandbox with a network that nothing serves is not what was asked for.
            let _ = sys::kill(born.pid, libc::SIGKILL);
            return Err(failure);
        }
    }
    Ok(Launched { born, shared })
}

fn main() {
    let (answer, code) = match launch() {
        Ok(made) => (
            json!({"pid": made.born.pid, "start": made.born.start, "shared": made.shared}),
            0,
        ),
        Err(t) => (
            json!({"error": {"step": t.step, "message": t.message, "errno": t.errno}}),
            1,
        ),
    };
    // If the reader has gone, that is the caller's concern; the ledger already lists this sandbox.
    let _ = std::io::stdout().write_all(format!("{}\n", answer).as_bytes());
    std::process::exit(code);
}
