//! sandkasten-gate: the way into a sandbox on another machine.
//!
//! `--pod` is the gate of a Pod, in its own container; see `server`. `--machine` is that of a machine
//! of a provider, and the parent of the runner there; see `machine`. `--reach` prints which addresses can
//! be reached from here.

mod enclosure;
mod machine;
mod newcomers;
mod server;
mod socket_filter;
mod websocket;

use sandkasten_runner::{base64, proxy, seccomp, sys};

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let done = match arguments.split_first() {
        Some((mode, rest)) if mode == "--pod" => {
            server::Gate::parse(rest).and_then(server::Gate::serve)
        }
        Some((mode, rest)) if mode == "--machine" => {
            machine::Machine::parse(rest).and_then(machine::Machine::serve)
        }
        Some((mode, addresses)) if mode == "--reach" => proxy::reachability::report(addresses),
        _ => Err("usage: sandkasten-gate --pod | --machine | --reach".to_owned()),
    };
    let code = match done {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("sandkasten-gate: {}", message);
            1
        }
    };
    std::process::exit(code);
}
