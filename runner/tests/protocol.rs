//! Frames, streams, credit, connections, and the verbs that answer at once.

use crate::client::*;
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

#[test]
fn tables_of_the_binary_equal_the_frozen_generation() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../spec/runner/generation-4.json"
    );
    let frozen: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let output = Command::new(program()).arg("--describe").output().unwrap();
    let live: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(live, frozen);
}

#[test]
fn hello_names_generation_users_and_shell() {
    let runner = Runner::start();
    let hello = runner.connect().hello;
    // SAFETY: getuid only reads.
    let uid = unsafe { libc::getuid() };
    assert_eq!(
        hello,
        json!({"generation": 4, "version": env!("CARGO_PKG_VERSION"), "uid": uid, "user_uid": uid,
               "shell": "/bin/bash", "features": ["shell_state", "file_user", "held_exec", "descriptors", "lease_env", "observe",
                                                  "kept_shells"]})
    );
}

#[test]
fn every_verb_of_the_table_is_known_and_no_other() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let output = Command::new(program()).arg("--describe").output().unwrap();
    let tables: Value = serde_json::from_slice(&output.stdout).unwrap();
    let harmless = ["quiesce"];
    for verb in tables["verbs"].as_object().unwrap().keys() {
        if harmless.contains(&verb.as_str()) {
            continue;
        }
        let stream = client.open(verb, json!({}));
        client.send(CANCEL, stream, b"");
        if let Err(refused) = client.finish(stream).end {
            assert!(
                !["unsupported", "internal"].contains(&refused.code()),
                "{verb}: {refused:?}"
            );
        }
    }
    assert_eq!(client.refused("exec.stop", json!({})), "unsupported");
    assert_eq!(client.refused("", json!({})), "unsupported");
}

#[test]
fn malformed_request_is_invalid_and_the_connection_lives() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for (stream, body) in [
        (1u32, "[]"),
        (2, "3"),
        (3, "{}"),
        (4, "{\"verb\":7}"),
        (5, "null"),
    ] {
        client.send(OPEN, stream, body.as_bytes());
        let frame = client.next(stream);
        let error: Value = serde_json::from_slice(&frame.body).unwrap();
        assert_eq!(
            (frame.kind, &error["code"]),
            (ERROR, &json!("invalid")),
            "{body}"
        );
    }
}

#[test]
fn broken_framing_ends_the_connection_and_nothing_else() {
    let mut runner = Runner::start();
    let bad: Vec<Vec<u8>> = vec![
        vec![0, 0, 0, 4, 4, 0, 0, 0, 1],
        vec![0xff; 9],
        vec![0, 0, 0, 5, 99, 0, 0, 0, 1],
        vec![0, 0, 0, 5, 7, 0, 0, 0, 1],
        vec![0, 0, 0, 6, 5, 0, 0, 0, 1, 0],
        [&[0, 0, 0, 7, 2, 0, 0, 0, 1][..], b"{,"].concat(),
        [&[0, 0, 0, 7, 2, 0, 0, 0, 0][..], b"{}"].concat(),
        [&[0, 0, 0x9c, 0x45, 2, 0, 0, 0, 1][..], &vec![b'['; 40_000]].concat(),
    ];
    for bytes in bad {
        let mut client = runner.connect();
        client.socket.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        let _reset = client.socket.read_to_end(&mut rest);
        assert_eq!(rest, b"", "{bytes:?}");
    }
    runner.assert_alive();
}

#[test]
fn stream_id_in_use_ends_the_connection() {
    let mut runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"argv": ["sleep", "60"]}));
    client.started(stream);
    client.send(OPEN, stream, b"{\"verb\":\"ping\"}");
    assert!(client.read_frame().is_err());
    runner.assert_alive();
}

#[test]
fn data_beyond_the_granted_credit_ends_the_connection() {
    let mut runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"argv": ["sleep", "60"], "stdin": "stream"}));
    client.started(stream);
    let block = vec![0u8; 1 << 20];
    // The pipe takes 64 KiB and that much is granted again; two more megabytes are not.
    let mut failed = false;
    for _ in 0..3 {
        failed |= client.try_send(DATA, stream, &block).is_err();
    }
    while !failed {
        failed = client.read_frame().is_err();
    }
    runner.assert_alive();
}

#[test]
fn frames_for_an_ended_stream_are_ignored() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.open("ping", json!({}));
    assert_eq!(client.finish(stream).end, Ok(json!({})));
    client.send(DATA, stream, b"late");
    client.send(END, stream, b"");
    client.send(CREDIT, stream, &[0, 0, 0, 1]);
    client.send(CANCEL, stream, b"");
    assert_eq!(client.call("ping", json!({})), Ok(json!({})));
}

#[test]
fn more_than_256_streams_are_busy_and_the_others_go_on() {
    let runner = Runner::start();
    let mut client = runner.connect();
    client.exec(json!({"exec_id": "long", "argv": ["sleep", "60"], "follow": false}));
    let waits: Vec<u32> = (0..256)
        .map(|_| client.open("exec.wait", json!({"exec_id": "long"})))
        .collect();
    assert_eq!(client.refused("ping", json!({})), "busy");
    for stream in waits {
        client.send(CANCEL, stream, b"");
        assert_eq!(client.finish(stream).code(), "cancelled");
    }
    assert_eq!(client.call("ping", json!({})), Ok(json!({})));
}

#[test]
fn connection_65_is_closed_and_a_freed_slot_is_usable() {
    let runner = Runner::start();
    let mut clients: Vec<Client> = (0..64).map(|_| runner.connect()).collect();
    let path = runner.root.join("socket");
    let mut extra = std::os::unix::net::UnixStream::connect(&path).unwrap();
    extra.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(extra.read(&mut [0u8; 1]).unwrap(), 0);
    clients.truncate(10);
    eventually(|| {
        let mut socket = std::os::unix::net::UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        match socket.read(&mut [0u8; 1]) {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn client_that_reads_nothing_delays_no_other_and_is_dropped() {
    let mut runner = Runner::start();
    let mut lazy = runner.connect();
    // The longer an answer, the sooner the unread ones are too many.
    for number in 0..20 {
        lazy.exec(json!({"exec_id": format!("known-{number}"), "argv": ["true"]}));
    }
    let mut mark = 1_000u32;
    // Control frames do not count against credit, so only the overflow limit stops them.
    while mark < 2_000_000 {
        mark += 1;
        let body = b"{\"verb\":\"exec.list\",\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}";
        lazy.socket
            .set_write_timeout(Some(std::time::Duration::from_millis(300)))
            .unwrap();
        if lazy.try_send(OPEN, mark, body).is_err() {
            break;
        }
        if mark % 5000 == 0 {
            runner.assert_alive();
        }
    }
    assert!(mark < 2_000_000, "the lazy client was never dropped");
    runner.assert_alive();
}

#[test]
fn stdio_serves_one_client_and_ends_with_it() {
    let mut child = Command::new(program())
        .args(["--stdio", "--workspace", "/tmp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input
        .write_all(b"\0\0\0\x14\x02\0\0\0\x01{\"verb\":\"ping\"}")
        .unwrap();
    drop(input);
    let mut output = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut output)
        .unwrap();
    assert!(
        output.ends_with(b"\0\0\0\x07\x09\0\0\0\x01{}"),
        "{output:?}"
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn wrong_command_line_is_refused_with_status_2() {
    for arguments in [
        &[][..],
        &["--stdio", "--listen", "/x"],
        &["--user", "me"],
        &["--nosuch", "1"],
    ] {
        let output = Command::new(program()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            output.stderr.starts_with(b"sandkasten-runner: "),
            "{arguments:?}"
        );
    }
}

#[test]
fn it_binds_a_socket_with_mode_0600_and_reports_when_ready() {
    use std::os::unix::fs::PermissionsExt;
    let root = std::env::temp_dir().join(format!("sk-bind-{}", std::process::id()));
    std::fs::create_dir(&root).unwrap();
    let socket = root.join("socket");
    let mut child = Command::new(program())
        .args(["--listen", socket.to_str().unwrap(), "--ready-fd", "1"])
        .args(["--state-dir", root.join("state").to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut ready)
        .unwrap();
    assert_eq!(ready.len(), 1);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o600);
    let mut client = Client::connect(&socket);
    assert_eq!(client.call("quiesce", json!({"ms": 50})), Ok(json!({})));
    assert!(client.read_frame().is_err());
    assert!(!socket.exists());
    // The name exists a moment before the socket listens.
    eventually(|| {
        std::os::unix::net::UnixStream::connect(&socket).map_err(|_| "not listening yet")
    });
    let mut client = Client::connect(&socket);
    assert_eq!(client.call("ping", json!({})), Ok(json!({})));
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn lease_ends_the_runner_when_it_is_idle_or_its_lifetime_is_over() {
    let mut runner = Runner::without_network();
    let mut client = runner.connect();
    client.exec(json!({"argv": ["sh", "-c", UNTIL_GO], "follow": false}));
    client.call("lease", json!({"idle_ms": 100})).unwrap();
    let mut uptime = || {
        let stats = client.call("stats", json!({"observe": true})).unwrap();
        stats["uptime_ms"].as_u64().unwrap()
    };
    let begun = uptime();
    eventually(|| match uptime() - begun {
        passed if passed > 250 => Ok(()),
        passed => Err(passed),
    });
    runner.assert_alive();
    runner.go();
    let status = eventually(|| runner.child.try_wait().unwrap().ok_or("still alive"));
    assert!(status.success());
    let mut runner = Runner::without_network();
    let mut client = runner.connect();
    client
        .call("lease", json!({"lifetime_ms": 60_000}))
        .unwrap();
    client
        .call("lease", json!({"lifetime_ms": 60_000, "idle_ms": null}))
        .unwrap();
    client.call("lease", json!({})).unwrap();
    client.exec(json!({"argv": ["sleep", "60"], "follow": false}));
    client.call("lease", json!({"lifetime_ms": 100})).unwrap();
    eventually(|| runner.child.try_wait().unwrap().ok_or("still alive"));
}

// promise: P30
#[test]
fn client_that_only_looks_does_not_extend_the_lease() {
    let mut runner = Runner::without_network();
    let mut viewer = runner.connect();
    let shell = json!({"exec_id": "seen", "argv": ["sh"], "stdin": "stream",
        "pty": {"rows": 24, "cols": 80}, "follow": false, "observe": true});
    viewer.exec(shell);
    viewer.call("lease", json!({"idle_ms": 300})).unwrap();
    viewer.open(
        "exec.output",
        json!({"exec_id": "seen", "follow": true, "observe": true}),
    );
    let ping = json!({"verb": "ping", "observe": true}).to_string();
    let mut stream = 1000;
    let status = eventually(|| {
        stream += 1;
        let _ended = viewer.try_send(OPEN, stream, ping.as_bytes());
        runner.child.try_wait().unwrap().ok_or("still alive")
    });
    assert!(status.success());
}

#[test]
fn terminal_is_activity_from_its_first_input_on() {
    let mut runner = Runner::without_network();
    let mut client = runner.connect();
    let shell = client.start(
        json!({"exec_id": "typed", "argv": ["sh"], "stdin": "stream",
        "pty": {"rows": 24, "cols": 80}, "observe": true}),
    );
    client.send(DATA, shell, b"#\n");
    client.call("lease", json!({"idle_ms": 100})).unwrap();
    let mut uptime = || {
        let stats = client.call("stats", json!({"observe": true})).unwrap();
        stats["uptime_ms"].as_u64().unwrap()
    };
    let begun = uptime();
    eventually(|| match uptime() - begun {
        passed if passed > 250 => Ok(()),
        passed => Err(passed),
    });
    runner.assert_alive();
}

#[test]
fn stats_and_lists_report_what_exists() {
    let runner = Runner::start();
    let mut client = runner.connect();
    client.exec(json!({"exec_id": "nap", "argv": ["sleep", "60"], "follow": false}));
    client.shell("true");
    let stats = client.call("stats", json!({})).unwrap();
    assert_eq!(
        (&stats["running"], &stats["shells"], &stats["connections"]),
        (&json!(1), &json!(1), &json!(1))
    );
    let workspace = runner.workspace();
    let disk = &stats["disk"][workspace.to_str().unwrap()];
    assert!(disk["total"].as_u64().unwrap() > 0, "{stats}");
    let list = client.call("proc.list", json!({})).unwrap();
    let rows = list["processes"].as_array().unwrap();
    let nap = rows.iter().find(|row| row["exec_id"] == "nap").unwrap();
    assert_eq!(nap["cmdline"], json!(["sleep", "60"]));
    assert_eq!(nap["name"], "sleep");
    let shells = client.call("shell.list", json!({})).unwrap();
    assert_eq!(shells["shells"][0]["name"], "main");
    assert_eq!(
        shells["shells"][0]["cwd"],
        json!(workspace.to_str().unwrap())
    );
}

#[test]
fn port_carries_bytes_both_ways_and_half_closes() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all).unwrap();
    });
    let stream = client.open("port.connect", json!({ "port": port }));
    let message: Vec<u8> = (0..700_000u32).map(|i| (i % 253) as u8).collect();
    client.send(DATA, stream, &message);
    client.send(END, stream, b"");
    let outcome = client.finish(stream);
    server.join().unwrap();
    assert_eq!(outcome.events, vec![json!({"event": "connected"})]);
    assert!(outcome.data == message);
    assert_eq!(
        outcome.end,
        Ok(json!({"sent": 700_000, "received": 700_000}))
    );
    assert_eq!(
        client.refused("port.connect", json!({ "port": port })),
        "connection_refused"
    );
    assert_eq!(
        client.refused("port.connect", json!({"port": 0})),
        "invalid"
    );
    assert_eq!(
        client.refused("port.connect", json!({"port": 80, "host": "a.example"})),
        "invalid"
    );
}

#[test]
fn lease_with_an_environment_is_taken_once_and_holds_for_all_later_commands() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let env = json!({"KEPT": "mine", "PATH": "/usr/bin:/bin"});
    let lease = json!({"idle_ms": 60_000, "lifetime_ms": 60_000, "env": env});
    client.call("lease", lease).unwrap();
    let shown = client.script("echo $KEPT $PATH");
    // A machine without `python` has a directory of the runner at the end.
    assert!(shown.stdout().starts_with("mine /usr/bin:/bin"));
    let again = json!({"idle_ms": 60_000, "lifetime_ms": 60_000, "env": {"KEPT": "other"}});
    assert_eq!(client.refused("lease", again), "invalid");
    let renewed = json!({"idle_ms": 60_000, "lifetime_ms": 60_000});
    client.call("lease", renewed).unwrap();
    assert_eq!(client.script("echo $KEPT").stdout(), "mine\n");
}
