//! Commands as fresh processes: arguments, environment, input, terminal, signals, results, idempotency.

use crate::client::*;
use serde_json::{json, Value};

#[test]
fn result_is_complete() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client
        .exec(json!({"exec_id": "one", "argv": ["sh", "-c", "echo out; echo err >&2; exit 3"]}));
    let mut exec = outcome.exec().clone();
    let pid = exec["pid"].as_i64().unwrap();
    assert_eq!(
        outcome.events,
        vec![json!({"event": "started", "exec_id": "one", "pid": pid})]
    );
    assert!(exec["started_ms"].as_u64().unwrap() > 1_600_000_000_000);
    assert!(exec["peak_rss_bytes"].as_u64().unwrap() > 100_000);
    for measured in [
        "pid",
        "started_ms",
        "duration_ms",
        "cpu_ms",
        "peak_rss_bytes",
        "io_read_bytes",
        "io_write_bytes",
    ] {
        assert!(exec
            .as_object_mut()
            .unwrap()
            .remove(measured)
            .unwrap()
            .is_u64());
    }
    assert_eq!(
        exec,
        json!({"exec_id": "one", "kind": "argv", "state": "exited", "exit_code": 3, "signal": null,
               "timed_out": false, "killed": false, "shell_reset": false, "cwd": null,
               "stdout_bytes": 4, "stderr_bytes": 4, "truncated": false, "last_seq": 2,
               "oom_suspect": false, "sigsys": false})
    );
    assert_eq!(
        (outcome.stdout(), outcome.stderr()),
        ("out\n".into(), "err\n".into())
    );
}

#[test]
fn arguments_environment_and_directory_are_byte_strings() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let odd = json!({"b64": "YSf/CmI="});
    let outcome = client.exec(json!({
        "argv": ["sh", "-c", "printf %s \"$1$X$BASE\"; pwd", "sh", odd],
        "env": {"X": {"b64": "/w=="}, "BASE": "over"}, "cwd": "/usr"}));
    assert_eq!(outcome.bytes(1), b"a'\xff\nb\xffover/usr\n");
    let outcome = client.argv(&["sh", "-c", "echo $BASE; pwd"]);
    assert_eq!(
        outcome.stdout(),
        format!("base\n{}\n", runner.workspace().display())
    );
}

#[test]
fn program_that_cannot_start_is_an_error_and_leaves_no_record() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let plain = runner.workspace().join("plain");
    std::fs::write(&plain, "x").unwrap();
    let plain = plain.to_str().unwrap();
    for (fields, code) in [
        (json!({"argv": ["no-such-program"]}), "command_not_found"),
        (json!({"argv": ["/no/such/program"]}), "command_not_found"),
        (json!({"argv": [""]}), "command_not_found"),
        (json!({ "argv": [plain] }), "not_executable"),
        (json!({"argv": ["/usr"]}), "not_executable"),
        (json!({"argv": ["true"], "cwd": "/no/such"}), "not_found"),
        (json!({"argv": ["true"], "cwd": plain}), "not_directory"),
        (json!({"argv": ["true", "x".repeat(200_000)]}), "too_large"),
        (json!({"argv": []}), "invalid"),
        (json!({"argv": ["a\u{0}b"]}), "invalid"),
        (json!({"argv": ["true"], "shell": "a/b"}), "invalid"),
        (json!({"argv": ["true"], "env": {"A=B": "x"}}), "invalid"),
        (json!({"argv": ["true"], "env": {"A": 1}}), "invalid"),
        (json!({"argv": ["true"], "stdin": "file"}), "invalid"),
        (
            json!({"argv": ["true"], "pty": {"rows": 0, "cols": 1}}),
            "invalid",
        ),
        (json!({"argv": ["true"], "stdout_cap": -1}), "invalid"),
        (json!({"argv": ["true"], "deadline_ms": "1"}), "invalid"),
        (json!({"argv": ["true"], "exec_id": "a/b"}), "invalid"),
        (
            json!({"argv": ["true"], "exec_id": "x".repeat(65)}),
            "invalid",
        ),
    ] {
        assert_eq!(client.exec(fields.clone()).code(), code, "{fields}");
    }
    assert_eq!(
        client.call("exec.list", json!({})),
        Ok(json!({"execs": []}))
    );
}

#[test]
fn input_is_streamed_with_back_pressure_and_closed() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let stream = client.start(json!({"argv": ["cat"], "stdin": "stream", "stdout_cap": 8_000_000}));
    client.started(stream);
    let (mut sent, mut window, mut got) = (0usize, 1usize << 20, Vec::new());
    let mut ended = false;
    let exec = loop {
        while sent < big.len() && window > 0 {
            let size = window.min(big.len() - sent).min(100_000);
            client.send(DATA, stream, &big[sent..sent + size]);
            sent += size;
            window -= size;
        }
        if sent == big.len() && !ended {
            ended = true;
            client.send(END, stream, b"");
        }
        let frame = client.next(stream);
        match frame.kind {
            CREDIT => window += u32::from_be_bytes(frame.body[..4].try_into().unwrap()) as usize,
            CHUNK => {
                got.extend(chunk(&frame.body).bytes);
                client.grant(stream, frame.body.len());
            }
            RESULT => break serde_json::from_slice::<Value>(&frame.body).unwrap(),
            kind => panic!("kind {kind}"),
        }
    };
    assert!(got == big);
    assert_eq!(
        (&exec["exit_code"], &exec["stdout_bytes"]),
        (&json!(0), &json!(3_000_000))
    );
}

#[test]
fn exec_stdin_feeds_a_running_command_from_another_connection() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"exec_id": "cat", "argv": ["cat"], "stdin": "stream"}));
    client.started(stream);
    let mut other = runner.connect();
    for (text, close) in [("one ", false), ("two", true)] {
        let feed = other.open("exec.stdin", json!({"exec_id": "cat", "close": close}));
        other.send(DATA, feed, text.as_bytes());
        other.send(END, feed, b"");
        assert_eq!(other.finish(feed).end, Ok(json!({"bytes": text.len()})));
    }
    assert_eq!(client.finish(stream).stdout(), "one two");
    assert_eq!(
        other.refused("exec.stdin", json!({"exec_id": "cat"})),
        "closed"
    );
    assert_eq!(
        other.refused("exec.stdin", json!({"exec_id": "missing"})),
        "unknown_exec"
    );
}

#[test]
fn command_without_input_reads_an_empty_one() {
    let runner = Runner::start();
    let mut client = runner.connect();
    assert_eq!(client.argv(&["cat"]).exec()["exit_code"], 0);
    let outcome = client.exec(json!({"argv": ["cat"], "pty": {"rows": 2, "cols": 2}}));
    assert_eq!(outcome.exec()["exit_code"], 0);
}

#[test]
fn terminal_has_one_stream_and_a_size_that_can_change() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"exec_id": "tty", "stdin": "stream", "pty": {"rows": 7, "cols": 33},
        "argv": ["sh", "-c", "stty -echo; stty size; read x; stty size; echo $x >&2; tty; exit 4"]}));
    client.started(stream);
    let first = client.next(stream);
    assert_eq!(chunk(&first.body).bytes, b"7 33\r\n");
    assert_eq!(
        client.call(
            "exec.resize",
            json!({"exec_id": "tty", "rows": 9, "cols": 11})
        ),
        Ok(json!({}))
    );
    client.send(DATA, stream, b"typed\n");
    let outcome = client.finish(stream);
    let text = String::from_utf8(outcome.bytes(0)).unwrap();
    assert!(text.starts_with("9 11\r\ntyped\r\n/dev/pts/"), "{text:?}");
    assert_eq!(outcome.exec()["exit_code"], 4);
    assert_eq!(
        client.refused(
            "exec.resize",
            json!({"exec_id": "tty", "rows": 9, "cols": 11})
        ),
        "closed"
    );
}

#[test]
fn terminal_is_the_controlling_one_and_hangs_up() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"exec_id": "int", "stdin": "stream", "pty": {"rows": 7, "cols": 33},
        "argv": ["sh", "-c", "trap 'echo caught; exit 9' INT; echo go; while :; do sleep 0.05; done"]}));
    client.started(stream);
    client.next(stream);
    client.send(DATA, stream, b"\x03");
    let outcome = client.finish(stream);
    assert!(String::from_utf8_lossy(&outcome.bytes(0)).contains("caught"));
    assert_eq!(outcome.exec()["exit_code"], 9);
}

#[test]
fn signal_reaches_the_whole_tree_or_the_first_process_alone() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client
        .start(json!({"exec_id": "t", "argv": ["sh", "-c", "sleep 100 & wait $!; echo child $?"]}));
    client.started(stream);
    eventually(|| {
        let list = client.call("proc.list", json!({})).unwrap();
        let text = list.to_string();
        if text.contains("\"sleep\",\"100\"") {
            Ok(())
        } else {
            Err(text)
        }
    });
    client
        .call(
            "exec.signal",
            json!({"exec_id": "t", "signal": 15, "tree": false}),
        )
        .unwrap();
    let outcome = client.finish(stream);
    let exec = outcome.exec();
    assert_eq!(
        (
            &exec["state"],
            &exec["signal"],
            &exec["exit_code"],
            &exec["killed"],
            &exec["oom_suspect"]
        ),
        (
            &json!("signaled"),
            &json!(15),
            &json!(null),
            &json!(true),
            &json!(false)
        )
    );
    assert_eq!(
        client.refused("exec.signal", json!({"exec_id": "t", "signal": 65})),
        "invalid"
    );
    assert_eq!(
        client.refused("exec.signal", json!({"exec_id": "u", "signal": 9})),
        "unknown_exec"
    );
}

#[test]
fn kill_that_was_not_ours_is_reported_as_oom_suspect() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let exec = client.script("kill -9 $$").exec().clone();
    assert_eq!(
        (
            &exec["state"],
            &exec["signal"],
            &exec["exit_code"],
            &exec["oom_suspect"],
            &exec["killed"]
        ),
        (
            &json!("signaled"),
            &json!(9),
            &json!(null),
            &json!(true),
            &json!(false)
        )
    );
    let exec = client.script("kill -SYS $$").exec().clone();
    assert_eq!(
        (&exec["sigsys"], &exec["oom_suspect"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn one_exec_id_or_key_runs_once_for_any_client() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let file = runner.workspace().join("runs");
    let script = format!("echo run >> {}; echo said", file.display());
    for (id, key) in [("a", "k"), ("a", "other"), ("b", "k"), ("c", "k")] {
        let outcome = client.exec(json!({"exec_id": id, "key": key, "argv": ["sh", "-c", script]}));
        assert_eq!(outcome.exec()["exec_id"], "a");
        assert_eq!(outcome.stdout(), "said\n");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "run\n");
}

#[test]
fn disconnect_stops_nothing_and_the_result_is_found_by_id() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let script = format!("echo a; {UNTIL_GO}; echo b; exit 5");
    let stream = client.start(json!({"exec_id": "stay", "argv": ["sh", "-c", script]}));
    client.started(stream);
    drop(client);
    let mut later = runner.connect();
    let running = later
        .call("exec.wait", json!({"exec_id": "stay", "timeout_ms": 0}))
        .unwrap();
    assert_eq!(
        (&running["state"], &running["exit_code"]),
        (&json!("running"), &json!(null))
    );
    runner.go();
    let done = later.call("exec.wait", json!({"exec_id": "stay"})).unwrap();
    assert_eq!(done["exit_code"], 5);
    let stream = later.open("exec.output", json!({"exec_id": "stay"}));
    assert_eq!(later.finish(stream).stdout(), "a\nb\n");
    assert_eq!(
        later.refused("exec.wait", json!({"exec_id": "gone"})),
        "unknown_exec"
    );
}

#[test]
fn cancel_stops_the_stream_and_not_the_command() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(json!({"exec_id": "c", "argv": ["sh", "-c", UNTIL_GO]}));
    client.started(stream);
    client.send(CANCEL, stream, b"");
    assert_eq!(client.finish(stream).code(), "cancelled");
    runner.go();
    assert_eq!(
        client.call("exec.wait", json!({"exec_id": "c"})).unwrap()["exit_code"],
        0
    );
}

#[test]
fn without_follow_the_answer_comes_at_the_start() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client.exec(json!({"exec_id": "bg", "argv": ["sleep", "60"], "follow": false}));
    assert_eq!(
        (&outcome.exec()["state"], outcome.chunks.len()),
        (&json!("running"), 0)
    );
    assert_eq!(
        client
            .exec(json!({"argv": ["nope"], "follow": false}))
            .code(),
        "command_not_found"
    );
}

#[test]
fn newest_256_results_are_kept() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for i in 0..260 {
        client.exec(json!({"exec_id": format!("n{i}"), "argv": ["true"]}));
    }
    let list = client.call("exec.list", json!({})).unwrap();
    let ids: Vec<String> = list["execs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["exec_id"].as_str().unwrap().to_owned())
        .collect();
    let want: Vec<String> = (4..260).map(|i| format!("n{i}")).collect();
    assert_eq!(ids, want);
    assert_eq!(
        client.refused("exec.wait", json!({"exec_id": "n3"})),
        "unknown_exec"
    );
}
