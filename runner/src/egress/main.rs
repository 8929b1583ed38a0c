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

mod addresses;
mod config;
mod dns_messages;
mod filter;
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

use sandkasten_runner::{base64, proxy, seccomp, sys};
use std::io::Read;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd};

const MAX_CONFIG: u64 = 4 << 20;

fn main() {
    // A program that is run by its descriptor has the number of it for a name.
    // SAFETY: plain system call on a string that ends with a null.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sandkasten-egress".as_ptr()) };
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
