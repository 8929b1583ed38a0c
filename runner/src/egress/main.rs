//! sandkasten-egress: the network of one sandbox, outside of it.
//!
//! The launcher made sockets in the sandbox's network namespace and passed them to this process, which is
//! in the host's namespace. Every connection that a program inside makes arrives here, and this process decides by rule,
//! dials, counts and records. It depends on no daemon and ends with its sandbox. It runs without
//! privileges, and reads nothing but the descriptors it was given.
//!
//! With `--pod` it makes its sockets itself; see `pod`. The way into a sandbox is another program,
//! `sandkasten-gate`.
//!
//! Descriptors: 3 TCP over IPv4, 4 the same over IPv6 (or /dev/null), 5 DNS, 6 control, 7 the life of the
//! sandbox, 8 and 9 records, 10 the configuration.

#![cfg_attr(fuzzing, no_main, allow(dead_code))]

mod addresses;
mod config;
mod dns_messages;
mod filter;
#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/egress.rs"]
mod fuzz;
mod head;
mod hello;
mod http;
mod inspect;
mod limits;
mod names;
mod pod;
mod record;
mod relay;
mod resolver;
mod routes;
mod rules;
mod server;
mod sockets;

use rustix::process::{set_dumpable_behavior, DumpableBehavior};
use rustix::thread::{set_name, set_no_new_privs};
use sandkasten_runner::{base64, proxy, seccomp, sys};
use std::io::Read;

const MAX_CONFIG: u64 = 4 << 20;

fn main() {
    // A program that is run by its descriptor has the number of it for a name.
    let _optional = set_name(c"sandkasten-egress");
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let done = match pod::wanted(&arguments) {
        Some(pod) => pod.and_then(|pod| pod.serve()),
        None if arguments.is_empty() => serve(),
        None => Err("usage: sandkasten-egress --pod CONFIG DIRECTORY PORT [ADDRESS...]".to_owned()),
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
    // The launcher gave us these numbers, and each is taken once.
    let mut text = Vec::new();
    let file = std::fs::File::from(sys::own(10));
    file.take(MAX_CONFIG)
        .read_to_end(&mut text)
        .map_err(|e| e.to_string())?;
    let config = config::Config::parse(&text).ok_or("the configuration is not valid")?;
    let tcp6 = sys::own(4);
    let is_socket = sys::stat_fd(sys::as_fd(&tcp6)).is_ok_and(|s| sys::kind(&s) == libc::S_IFSOCK);
    let sockets = server::Sockets {
        tcp4: sys::own(3),
        tcp6: is_socket.then_some(tcp6),
        dns: sys::own(5),
        control: sys::own(6),
        life: sys::own(7),
    };
    let records = record::Records::new(sys::own(8), sys::own(9));
    run(config, sockets, records)
}

/// Serve until the sandbox ends.
fn run(
    config: config::Config,
    sockets: server::Sockets,
    records: record::Records,
) -> Result<(), String> {
    // No other process may read our memory. The filter is refused if the second call fails.
    let _done = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _done = set_no_new_privs(true);
    server::Egress::new(config, sockets, records)
        .and_then(|egress| filter::install().and_then(|()| egress.run()))
        .map_err(|errno| std::io::Error::from_raw_os_error(errno).to_string())
}
