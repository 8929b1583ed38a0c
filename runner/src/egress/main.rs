//! sandkasten-egress: the network of one sandbox, outside of it.
//!
//! The launcher made sockets in the sandbox's network namespace and passed them to this process, which is
//! in the host's namespace. Every connection that a program inside makes arrives here, and this process decides by rule,
//! dials, counts and records. It depends on no daemon and ends with its sandbox. It runs without
//! privileges, and reads nothing but the descriptors it was given.
//!
//! With `--gate` it is instead the way into a sandbox on another machine; see `gate`, and `machine` for a
//! machine of a provider. With `--pod` it makes its sockets itself; see `pod`.
//!
//! Descriptors: 3 TCP over IPv4, 4 the same over IPv6 (or /dev/null), 5 DNS, 6 control, 7 the life of the
//! sandbox, 8 and 9 records, 10 the configuration.

#![allow(unknown_lints)]
#![allow(clippy::incompatible_msrv)]

mod addresses;
mod base64;
mod config;
mod dns;
mod enclosure;
mod filter;
mod gate;
mod head;
mod hello;
mod http;
mod inspect;
mod limits;
mod machine;
mod names;
mod newcomers;
mod pod;
mod reachability;
mod record;
mod relay;
mod resolver;
mod routes;
mod rules;
mod server;
mod socket_filter;
mod sockets;
mod websocket;

use sandkasten_runner::sys;
use std::io::Read;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd};

const MAX_CONFIG: u64 = 4 << 20;

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let done = match arguments.split_first() {
        Some((mode, addresses)) if mode == "--reach" => reachability::report(addresses),
        _ => {
            if let Some(gate) = gate::wanted(&arguments) {
                gate.and_then(|gate| gate.serve())
            } else if let Some(machine) = machine::wanted(&arguments) {
                machine.and_then(|machine| machine.serve())
            } else if let Some(pod) = pod::wanted(&arguments) {
                pod.and_then(|pod| pod.serve())
            } else {
                serve()
            }
        }
    };
    let code = match done {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("sandkasten-egress: {}", message);
            1
        }
    };
    std::process::exit(code);
}

fn serve() -> Result<(), String> {
    let mut text = Vec::new();
    let file = std::fs::File::from(descriptor(10));
    file.take(MAX_CONFIG)
        .read_to_end(&mut text)
        .map_err(|e| e.to_string())?;
    let config = config::Config::parse(&text).ok_or("the configuration is not valid")?;
    let tcp6 = descriptor(4);
    let sockets = server::Sockets {
        tcp4: descriptor(3),
        tcp6: is_socket(&tcp6).then_some(tcp6),
        dns: descriptor(5),
        control: descriptor(6),
        life: descriptor(7),
    };
    let records = record::Records::new(descriptor(8), descriptor(9));
    run(config, sockets, records)
}

/// Serve until the sandbox ends.
fn run(
    config: config::Config,
    sockets: server::Sockets,
    records: record::Records,
) -> Result<(), String> {
    // SAFETY: plain system calls. A peer that is gone is an error of the write, not the end of us; and
    // no other process may read our memory.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    server::Egress::new(config, sockets, records)
        .and_then(|egress| filter::install().and_then(|()| egress.run()))
        .map_err(|errno| std::io::Error::from_raw_os_error(errno).to_string())
}

/// The kubelet ends the Pod. If all containers ended well, it would report that the Pod succeeded, and
/// leave out that it was evicted, and why.
extern "C" fn leave(signal: libc::c_int) {
    // SAFETY: allowed in a signal handler.
    unsafe { libc::_exit(128 + signal) }
}

/// End when we are asked to. The first process of a container gets no signal without a handler.
fn leave_on_request() {
    let handler = leave as extern "C" fn(libc::c_int);
    // SAFETY: plain system call.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

fn descriptor(number: i32) -> OwnedFd {
    // SAFETY: the launcher gave us these numbers, and each is taken once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn is_socket(fd: &OwnedFd) -> bool {
    // SAFETY: an all-zero stat is a valid value to be filled in.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        sys::check(libc::fstat(fd.as_raw_fd(), &mut stat)).is_ok()
            && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}
