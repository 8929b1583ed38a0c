//! Whether the network of this Pod is closed.
//!
//! A cluster enforces a NetworkPolicy some time after the Pod has started, so the gate tries to reach
//! addresses that answer until then. Code of the sandbox starts only when none of them can be reached.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The exit status of a gate whose network stayed open.
pub const STAYED_OPEN: i32 = 77;
/// An address in the same cluster answers within a few milliseconds: the kernel of its machine does. But
/// a node may be so busy that this process is not scheduled for a while.
const ROUND: Duration = Duration::from_millis(500);
/// One packet may be lost.
const ROUNDS: usize = 2;
const REPORT: Duration = Duration::from_secs(2);
/// The time between two tries grows, because each costs the other side a connection.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Print which of the given addresses can be reached from here, and whether the API server of the
/// cluster can: the self-test of a network that must be closed.
pub fn report(given: &[OsString]) -> Result<(), String> {
    let addresses = parse(given)?;
    let open = open(&addresses, REPORT);
    for address in addresses {
        let verdict = if open.contains(&address) {
            "open"
        } else {
            "closed"
        };
        println!("{} {}", verdict, address);
    }
    Ok(())
}

/// Return the given addresses, and that of the API server as the kubelet sets it. None is returned
/// if none is given.
pub fn parse(given: &[OsString]) -> Result<Vec<SocketAddr>, String> {
    let mut found = Vec::new();
    for one in given {
        let address = one.to_str().and_then(|text| text.parse().ok());
        found.push(address.ok_or_else(|| format!("{:?} is not an address", one))?);
    }
    let variable = |name: &str| std::env::var(name).ok();
    let server = variable("KUBERNETES_SERVICE_HOST").zip(variable("KUBERNETES_SERVICE_PORT"));
    if let (false, Some((host, port))) = (found.is_empty(), server) {
        if let (Ok(host), Ok(port)) = (host.parse(), port.parse()) {
            found.push(SocketAddr::new(host, port));
        }
    }
    Ok(found)
}

/// Return when none of the addresses can be reached. The error names those that still can.
pub fn wait_until_closed(addresses: &[SocketAddr], longest: Duration) -> Result<(), String> {
    let until = Instant::now() + longest;
    let (mut closed, mut pause) = (0, FIRST_PAUSE);
    while closed < ROUNDS {
        let open = open(addresses, ROUND);
        if open.is_empty() {
            closed += 1;
            continue;
        }
        closed = 0;
        if Instant::now() > until {
            let names: Vec<String> = open.iter().map(SocketAddr::to_string).collect();
            return Err(format!("it reaches {}", names.join(", ")));
        }
        std::thread::sleep(pause);
        pause = LAST_PAUSE.min(pause * 2);
    }
    Ok(())
}

/// Return the addresses that could not be seen to be closed; all are tried at once.
// Without the first list, each would be waited for before the next one is tried.
#[allow(clippy::needless_collect)]
fn open(addresses: &[SocketAddr], time: Duration) -> Vec<SocketAddr> {
    let tries: Vec<_> = addresses
        .iter()
        .map(|&address| {
            let tried = std::thread::spawn(move || is_closed(&address, time));
            (address, tried)
        })
        .collect();
    tries
        .into_iter()
        .filter_map(|(address, tried)| (!tried.join().unwrap_or(false)).then_some(address))
        .collect()
}

fn is_closed(address: &SocketAddr, time: Duration) -> bool {
    match TcpStream::connect_timeout(address, time) {
        // A connection that was rejected by ICMP while it was being made can look like one that exists,
        // but it has no peer.
        Ok(stream) => stream.peer_addr().is_err(),
        Err(error) if error.kind() == ErrorKind::TimedOut => true,
        // Any other failure, such as too many open files, shows nothing about the network.
        Err(error) => error.raw_os_error().is_some_and(|errno| {
            [
                libc::ECONNREFUSED,
                libc::ECONNRESET,
                libc::EHOSTUNREACH,
                libc::ENETUNREACH,
                libc::EADDRNOTAVAIL,
                libc::ETIMEDOUT,
                libc::EACCES,
                libc::EPERM,
            ]
            .contains(&errno)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_address_is_open_until_nothing_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(open(&[address], ROUND), [address]);
        let waiter = std::thread::spawn(move || wait_until_closed(&[address], LONG));
        // Each try arrives here while the address is open.
        drop(listener.accept().unwrap());
        assert!(!waiter.is_finished());
        drop(listener);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }

    #[test]
    fn an_address_that_stays_open_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = wait_until_closed(&[address], Duration::ZERO).unwrap_err();
        assert!(error.contains(&address.to_string()), "{}", error);
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        assert!(parse(&["example.org:443".into()]).is_err());
        assert!(parse(&[]).unwrap().is_empty());
        assert_eq!(
            parse(&["[::1]:443".into()]).unwrap()[0].to_string(),
            "[::1]:443"
        );
    }
}
