//! The network of a sandbox: a namespace in which every connection leads to one listener, and the process
//! outside that owns this listener.
//!
//! The egress process is forked before anything else, so that it keeps the host's network and, for an
//! ordinary user, its plain identity. It waits until we have made the sockets in the sandbox's namespace
//! and know the sandbox's first process; both are passed to it, and then it becomes its program. If the
//! launch fails, it sees that we are gone and ends.
//!
//! gVisor has its own network stack, which takes over a device: it gets one end of a pair, and the
//! listener is in a second namespace with the other end.

use crate::failure::{c_string, failed, open, Failure, Outcome};
use crate::plan::Network;
use crate::{container, mounts, netlink, spawn, sys, userns};
use rustix::mount::MountFlags;
use rustix::process::{geteuid, pidfd_open, Gid, Pid, PidfdFlags, Uid};
use rustix::thread::{self, LinkNameSpaceType, UnshareFlags};
use serde_json::Value;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::unix::io::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

const STEP: &str = "network";
/// Where redirected connections arrive. No program inside can use this port itself.
const PORT: u16 = 65053;
/// Programs inside find it in /etc/resolv.conf. It and the next one stand for no name.
const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const DEVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const OUTSIDE: &CStr = c"outside";
const INSIDE: &CStr = c"eth0";
const OPEN_FILES: u64 = 8192;
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The waiting egress process.
pub struct Waiting {
    pid: Pid,
    channel: OwnedFd,
}

/// Fork the process that will become the egress.
pub fn start(network: &Network, cgroup: Option<&str>) -> Outcome<Waiting> {
    let (ours, theirs) = sys::socket_pair().map_err(failed(STEP, "socketpair"))?;
    let Some(pid) = spawn::born_in(cgroup)? else {
        drop(ours);
        let errno = match wait_and_become(network, &theirs) {
            Ok(()) => 0,
            Err(failure) => failure.errno.max(1),
        };
        let _ = sys::write_all(theirs.as_raw_fd(), &errno.to_ne_bytes());
        spawn::exit(spawn::NOT_EXECUTED);
    };
    if let Some(path) = &network.pid_file {
        // So that the daemon can end it when it does not answer.
        spawn::write_pid_file(path, pid.as_raw_pid(), "the egress ended at once")?;
    }
    Ok(Waiting { pid, channel: ours })
}

impl Waiting {
    /// Enter a new network namespace and pass on its sockets. Everything started from now on is in it.
    pub fn prepare(&self) -> Outcome<()> {
        new_namespace()?;
        self.prepare_here()
    }

    /// Enter a network namespace that an engine has made, and pass on its sockets.
    pub fn prepare_in(&self, namespace: &OwnedFd) -> Outcome<()> {
        container::enter(namespace)?;
        self.prepare_here()
    }

    fn prepare_here(&self) -> Outcome<()> {
        self.pass_on(&prepared_here()?)
    }

    /// Enter a new network namespace with a device. `name` becomes a path of the namespace.
    pub fn prepare_device(&self, name: &str) -> Outcome<()> {
        new_namespace()?;
        let inside = open(STEP, "/proc/self/ns/net", libc::O_RDONLY, 0)?;
        new_namespace()?;
        self.pass_on(&outer_sockets(&inside)?)?;
        let kind = Some(LinkNameSpaceType::Network);
        thread::move_into_link_name_space(inside.as_fd(), kind)
            .map_err(failed(STEP, "enter the namespace of the sandbox"))?;
        netlink::address(INSIDE, DEVICE_ADDRESS)
            .and_then(|device| netlink::default_route(device, RESOLVER))
            .map_err(failed(STEP, "make the device inside"))?;
        std::fs::write(name, b"").map_err(failed(STEP, &format!("make {}", name)))?;
        mounts::bind("the network namespace", "/proc/self/ns/net", name)?;
        // gVisor takes a namespace that has these files for the one of the host; newer kernels show them
        // in every namespace.
        let (target, read_only) = ("/proc/sys/net/core", MountFlags::RDONLY);
        mounts::mount("settings", "none", target, "tmpfs", read_only, "")
    }

    fn pass_on(&self, sockets: &[OwnedFd]) -> Outcome<()> {
        let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        sys::send_descriptors(self.channel.as_raw_fd(), &raw)
            .map_err(failed(STEP, "pass the sockets on"))
    }

    /// Let the egress go: the sandbox, whose first process `life` holds, has started. Returns when it
    /// runs its program.
    pub fn release(self, life: &OwnedFd) -> Outcome<()> {
        sys::send_descriptors(self.channel.as_raw_fd(), &[life.as_raw_fd()])
            .map_err(failed(STEP, "pass the sandbox on"))?;
        let mut errno = [0u8; 4];
        match spawn::read_within(&self.channel, &mut errno, START_PATIENCE) {
            Some(0) => Ok(()),
            Some(4) => {
                let errno = i32::from_ne_bytes(errno);
                Err(Failure::new(STEP, "start the egress", errno))
            }
            _ => {
                spawn::kill_and_reap(self.pid);
                Err(Failure::new(STEP, "start the egress", libc::ETIMEDOUT))
            }
        }
    }
}

/// Return whether the plan only tries the network, and then whether with a device; `None` if it describes
/// something else.
pub fn parse_trial(plan: &Value) -> Option<bool> {
    plan["try_network"]["device"].as_bool()
}

/// Make what a network needs in namespaces of this process, which end with it.
pub fn try_out(device: bool) -> Outcome<()> {
    if !geteuid().is_root() {
        userns::enter_own()?;
    }
    new_namespace()?;
    if !device {
        return prepared_here().map(|_| ());
    }
    let inside = open(STEP, "/proc/self/ns/net", libc::O_RDONLY, 0)?;
    new_namespace()?;
    outer_sockets(&inside).map(|_| ())
}

/// Make a pair of devices, of which one is in the namespace of the sandbox, and the sockets behind it.
fn outer_sockets(inside: &OwnedFd) -> Outcome<[OwnedFd; 2]> {
    netlink::veth(OUTSIDE, INSIDE, inside)
        .and_then(|()| netlink::address(OUTSIDE, RESOLVER))
        .map_err(failed(STEP, "make the device outside"))?;
    let listener = listen(IpAddr::V4(RESOLVER), netlink::Hook::Prerouting)?;
    Ok([listener, listen_for_names()?])
}

/// Prepare the network namespace that this process is in. Returns its sockets: TCP over IPv4, DNS, and
/// TCP over IPv6 where there is any.
pub fn prepared_here() -> Outcome<Vec<OwnedFd>> {
    netlink::loopback_up().map_err(failed(STEP, "set the loopback device up"))?;
    let mut sockets = vec![
        listen(IpAddr::V4(Ipv4Addr::LOCALHOST), netlink::Hook::Output)?,
        listen_for_names()?,
    ];
    // A kernel without IPv6 has nothing to redirect there.
    sockets.extend(listen(
        IpAddr::V6(Ipv6Addr::LOCALHOST),
        netlink::Hook::Output,
    ));
    Ok(sockets)
}

fn listen_for_names() -> Outcome<OwnedFd> {
    UdpSocket::bind((RESOLVER, 53))
        .map(OwnedFd::from)
        .map_err(failed(STEP, "listen for DNS"))
}

/// Hold a process: the descriptor never means another one.
pub fn watch(pid: i32) -> Outcome<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(libc::EINVAL);
    pid.and_then(|pid| sys::plain(pidfd_open(pid, PidfdFlags::empty())))
        .map_err(failed(STEP, "watch the sandbox"))
}

/// Enter a new network namespace, with a loopback device that is up.
pub fn new_namespace() -> Outcome<()> {
    spawn::unshare(STEP, "make a network namespace", UnshareFlags::NEWNET)?;
    netlink::loopback_up().map_err(failed(STEP, "set the loopback device up"))
}

fn listen(address: IpAddr, hook: netlink::Hook) -> Outcome<OwnedFd> {
    let what = |text: &str| format!("{} ({})", text, address);
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    netlink::everything_is_local(family).map_err(failed(STEP, what("add a route")))?;
    netlink::redirect_tcp(family, PORT, hook)
        .map_err(failed(STEP, what("redirect connections")))?;
    match netlink::track_only_tcp(family) {
        // A kernel without this kind of rule: it tracks datagrams too.
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => return Err(Failure::new(STEP, what("track TCP alone"), errno)),
    }
    let listener = TcpListener::bind((address, PORT)).map_err(failed(STEP, "listen"))?;
    listener
        .set_nonblocking(true)
        .map_err(failed(STEP, "listen"))?;
    Ok(OwnedFd::from(listener))
}

/// In the child. Returns only if it could not become the program.
fn wait_and_become(network: &Network, channel: &OwnedFd) -> Outcome<()> {
    let gone = || Failure::new(STEP, "the launch failed", libc::ECANCELED);
    let sockets = sys::receive_descriptors(channel.as_raw_fd(), 3).map_err(|_| gone())?;
    let mut life = sys::receive_descriptors(channel.as_raw_fd(), 1).map_err(|_| gone())?;
    let life = life.pop().ok_or_else(gone)?;
    become_egress(network, sockets, life, Some(channel.as_raw_fd()))
}

/// Returns only if this process could not become the program. `sockets` are those of `prepared_here`;
/// `life` becomes readable when the sandbox ends. If the program cannot be run, its error number is written
/// to `report`.
pub fn become_egress(
    network: &Network,
    mut sockets: Vec<OwnedFd>,
    life: OwnedFd,
    report: Option<RawFd>,
) -> Outcome<()> {
    if sockets.len() < 2 {
        return Err(Failure::new(STEP, "sockets are missing", libc::EINVAL));
    }
    let (tcp4, dns) = (sockets.remove(0), sockets.remove(0));
    let null = open(STEP, "/dev/null", libc::O_RDWR, 0)?;
    let tcp6 = sockets.pop();
    let append = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    let records = [
        open(STEP, &network.records[0], append, 0o600)?,
        open(STEP, &network.records[1], append, 0o600)?,
    ];
    let config = open(STEP, &network.config, libc::O_RDONLY, 0)?;
    let moves = vec![
        (tcp4.as_raw_fd(), 3),
        (tcp6.as_ref().unwrap_or(&null).as_raw_fd(), 4),
        (dns.as_raw_fd(), 5),
        (network.control_fd, 6),
        (life.as_raw_fd(), 7),
        (records[0].as_raw_fd(), 8),
        (records[1].as_raw_fd(), 9),
        (config.as_raw_fd(), 10),
    ];
    // Its user may not be allowed to search the folders above it, such as /root.
    let program = open(STEP, &network.program, libc::O_PATH, 0)?;
    let argv = vec![c_string(STEP, "sandkasten-egress")?];
    let _ = sys::lower_limit(libc::RLIMIT_NOFILE, OPEN_FILES);
    let _ = sys::lower_limit(libc::RLIMIT_CORE, 0);
    if let Some(id) = network.id {
        thread::set_thread_groups(&[]).map_err(failed(STEP, "setgroups"))?;
        become_user(STEP, id)?;
    }
    let program = spawn::Program::Opened {
        file: program.as_raw_fd(),
        report,
    };
    spawn::become_program(program, &argv, &moves, -1, null.as_raw_fd())
}

/// Take an id for good, in a process with one thread. Changing all three user ids from root clears the
/// capabilities, unless they are kept.
pub fn become_user(step: &'static str, id: u32) -> Outcome<()> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    thread::set_thread_res_gid(gid, gid, gid).map_err(failed(step, "setresgid"))?;
    thread::set_thread_res_uid(uid, uid, uid).map_err(failed(step, "setresuid"))
}
