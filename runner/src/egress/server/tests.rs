//! The egress without a sandbox: connections of this process, and servers on loopback.

use super::*;
use serde_json::Value;
use std::net::{TcpListener, TcpStream, UdpSocket};

fn egress(rules: Value, servers: &[SocketAddr]) -> Egress {
    let config = json!({
        "rules": rules,
        "reachable": ["127.0.0.0/8"],
        "servers": servers.iter().map(|one| one.to_string()).collect::<Vec<_>>(),
        "hosts": {"a.test": ["127.0.0.1"]},
        "limits": {"connections": 512, "names_per_minute": 1000, "idle_seconds": 60},
    });
    let socket = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    let file = || OwnedFd::from(std::fs::File::create("/dev/null").unwrap());
    let sockets = Sockets {
        tcp4: OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()),
        tcp6: None,
        dns: socket(),
        control: socket(),
        life: socket(),
    };
    let config = Config::parse(config.to_string().as_bytes()).unwrap();
    Egress::new(config, sockets, Records::new(file(), file())).unwrap()
}

/// Begin a connection to a name. Returns the end of the client, and that of the egress is inside.
fn begin(egress: &mut Egress, name: &str, port: u16) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (inside, _) = listener.accept().unwrap();
    inside.set_nonblocking(true).unwrap();
    let address = egress.names.stand_in(name, Instant::now());
    egress.begin(OwnedFd::from(inside), (address, port).into());
    client
}

fn change(egress: &mut Egress, rules: Value) {
    egress.command(json!({ "rules": rules }).to_string().as_bytes());
}

#[test]
fn a_connection_that_was_never_checked_does_not_outlive_a_change_to_rules() {
    let allow = json!([{"host": "a.test", "port": null, "text": "a.test"}]);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut open = egress(json!({"full": true}), &[]);
    let _client = begin(&mut open, "a.test", port);
    assert_eq!(open.open(), 1);
    change(&mut open, json!({"full": true}));
    change(&mut open, json!({"allow": allow, "dry_run": true}));
    assert_eq!(open.open(), 1);
    change(&mut open, json!({ "allow": allow }));
    assert_eq!(open.open(), 0);
    // One that was checked from its beginning goes on.
    let _checked = begin(&mut open, "a.test", port);
    change(&mut open, json!({ "allow": allow }));
    assert_eq!(open.open(), 1);
}

#[test]
fn a_connection_that_only_a_dry_run_let_pass_ends_with_it() {
    use std::io::Write;
    let allow = json!([{"host": "a.test", "port": null, "text": "a.test"}]);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut dry = egress(json!({"allow": allow, "dry_run": true}), &[]);
    let mut client = begin(&mut dry, "a.test", port);
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        .unwrap();
    for id in dry.items.keys().copied().collect::<Vec<_>>() {
        dry.event(id);
    }
    assert_eq!((dry.open(), dry.would_refuse), (1, 1));
    change(&mut dry, json!({ "allow": allow }));
    assert_eq!(dry.open(), 0);
}

#[test]
fn a_connection_whose_requests_are_not_read_ends_when_rules_for_requests_come() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let whole = json!([{"host": "a.test", "port": null, "text": "a.test"}]);
    let some = json!([{"host": "a.test", "port": null, "path": "/x", "text": "a.test/x"}]);
    let mut egress = egress(json!({ "allow": whole }), &[]);
    let mut client = begin(&mut egress, "a.test", port);
    std::io::Write::write_all(&mut client, b"SSH-2.0-x\r\n").unwrap();
    for id in egress.items.keys().copied().collect::<Vec<_>>() {
        egress.event(id);
    }
    assert_eq!(egress.open(), 1);
    change(&mut egress, json!({ "allow": some }));
    assert_eq!(egress.open(), 0);
}

#[test]
fn connections_that_are_more_than_a_new_limit_end() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut egress = egress(json!({"full": true}), &[]);
    let clients: Vec<TcpStream> = (0..3).map(|_| begin(&mut egress, "a.test", port)).collect();
    let limits =
        |n: u32| json!({"limits": {"connections": n, "names_per_minute": 9, "idle_seconds": 60}});
    egress.command(limits(3).to_string().as_bytes());
    assert_eq!((egress.open(), egress.refused), (3, 0));
    egress.command(limits(1).to_string().as_bytes());
    assert_eq!((egress.open(), egress.refused), (1, 2));
    assert!(egress.items.contains_key(&FIRST_ID));
    drop(clients);
}

#[test]
fn a_connection_that_cannot_wait_for_its_name_ends() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut egress = egress(json!({"full": true}), &[silent.local_addr().unwrap()]);
    let clients: Vec<TcpStream> = (0..257)
        .map(|_| begin(&mut egress, "slow.test", 1))
        .collect();
    assert_eq!((egress.open(), egress.failed), (256, 1));
    drop(clients);
}

#[test]
fn events_come_between_the_turns_of_busy_connections() {
    let mut egress = egress(json!({"full": true}), &[]);
    for id in [8, 9, 10, 9] {
        egress.go_on(id);
    }
    egress.take_turns(Instant::now());
    assert_eq!(egress.busy, [9, 10]);
    egress.go_on(8);
    egress.take_turns(Instant::now() + Duration::from_secs(3600));
    assert!(egress.busy.is_empty());
}

#[test]
fn small_pieces_pass_at_once_in_both_directions() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut egress = egress(json!({"full": true}), &[]);
    let _client = begin(&mut egress, "a.test", port);
    let outside = egress.items.drain().find_map(|(_, item)| match item {
        Item::Connection(c) => c.server,
        _ => None,
    });
    let outside = TcpStream::from(outside.unwrap());
    assert!(outside.nodelay().unwrap());
    let listener = TcpListener::from(egress.sockets.tcp4);
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(listener.accept().unwrap().0.nodelay().unwrap());
}
