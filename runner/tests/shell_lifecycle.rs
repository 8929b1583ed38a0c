//! How a persistent shell and its commands end: no command can block it for ever.

// promise: P11, P31

use crate::client::shells::{with_shell, SHELLS};
use crate::client::*;
use serde_json::{json, Value};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[test]
fn end_of_the_shell_is_reported_and_cwd_and_environment_are_kept() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        for (command, code, signal) in [
            ("exit 7", 7, Value::Null),
            ("exec false", 1, Value::Null),
            ("set -e; false; echo never", 1, Value::Null),
            ("kill $$; sleep 5", -1, json!(15)),
            ("kill -9 $$; sleep 5", -1, json!(9)),
        ] {
            client.shell("cd /usr; export KEPT=\"a'b\n$(printf '\\377')c\"; LOST=1");
            let outcome = client.shell(command);
            assert_eq!(outcome.verdict(), (code, true), "{shell}: {command}");
            assert_eq!(outcome.exec()["signal"], signal, "{shell}: {command}");
            let next = client.shell("printf '%s|%s|%s' \"$KEPT\" \"$LOST\" \"$PWD\"");
            assert_eq!(next.verdict(), (0, false), "{shell}: {command}");
            assert_eq!(next.bytes(1), b"a'b\n\xffc||/usr", "{shell}: {command}");
        }
        let unset = client.shell("set -u; echo $no_such_variable");
        assert!(unset.verdict().1 && unset.verdict().0 > 0, "{shell}");
        assert_eq!(client.shell("echo ok").stdout(), "ok\n");
    }
}

#[test]
fn deadline_keeps_a_shell_that_answers_and_replaces_another() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        client.shell("V=1");
        let within = |client: &mut Client, command: &str, grace_ms: u64| {
            let outcome = client.exec(json!({"shell": "main", "command": command,
                "deadline_ms": 200, "grace_ms": grace_ms}));
            assert_eq!(
                outcome.exec()["timed_out"],
                json!(true),
                "{shell}: {command}"
            );
            outcome
        };
        let timed = |client: &mut Client, command: &str| within(client, command, 100);
        // It obeys: the rest of the grace period is not waited for.
        assert_eq!(
            within(&mut client, "echo before; sleep 1000", 600_000).verdict(),
            (143, false),
            "{shell}"
        );
        assert_eq!(client.shell("echo $V").stdout(), "1\n");
        assert_eq!(
            timed(&mut client, "trap '' TERM INT HUP; sleep 1000").verdict(),
            (137, false),
            "{shell}"
        );
        assert_eq!(client.shell("trap - TERM INT HUP; echo $V").stdout(), "1\n");
        assert_eq!(
            timed(&mut client, "while :; do :; done").verdict(),
            (-1, true),
            "{shell}"
        );
        assert_eq!(client.shell("echo [$V]").stdout(), "[]\n");
        assert_eq!(
            timed(&mut client, "while :; do sleep 0.01; done").verdict(),
            (-1, true),
            "{shell}"
        );
        assert_eq!(client.shell("echo fine").stdout(), "fine\n");
    }
}

#[test]
fn signal_ends_a_command_and_withdraws_a_queued_one() {
    let runner = Runner::start();
    let mut client = runner.connect();
    client.shell("V=1");
    let first = client.start(json!({"exec_id": "k1", "shell": "main", "command": "sleep 1000"}));
    client.started(first);
    let second = client.start(json!({"exec_id": "k2", "shell": "main", "command": "echo second"}));
    let third = client.start(json!({"exec_id": "k3", "shell": "main", "command": "echo third $V"}));
    let queued = client
        .call("exec.wait", json!({"exec_id": "k2", "timeout_ms": 0}))
        .unwrap();
    assert_eq!(queued["state"], "queued");
    client
        .call("exec.signal", json!({"exec_id": "k2", "signal": 15}))
        .unwrap();
    let withdrawn = client.finish(second);
    assert_eq!(
        (&withdrawn.exec()["state"], &withdrawn.exec()["killed"]),
        (&json!("signaled"), &json!(true))
    );
    client
        .call("exec.signal", json!({"exec_id": "k1", "signal": 9}))
        .unwrap();
    let killed = client.finish(first);
    assert_eq!(
        (
            killed.verdict(),
            &killed.exec()["killed"],
            &killed.exec()["oom_suspect"]
        ),
        ((137, false), &json!(true), &json!(false))
    );
    assert_eq!(client.finish(third).stdout(), "third 1\n");
}

#[test]
fn commands_of_one_shell_run_in_order_and_of_two_at_once() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let streams: Vec<u32> = (0..20)
        .map(|i| {
            client.start(
                json!({"shell": "main", "command": format!("echo {i} >> order; sleep 0.01")}),
            )
        })
        .collect();
    let other = client.exec(json!({"shell": "side", "command": "echo side"}));
    assert_eq!(other.stdout(), "side\n");
    for stream in streams {
        assert_eq!(client.finish(stream).verdict(), (0, false));
    }
    let order = std::fs::read_to_string(runner.workspace().join("order")).unwrap();
    let want: String = (0..20).map(|i| format!("{i}\n")).collect();
    assert_eq!(order, want);
}

#[test]
fn answer_that_is_too_large_ends_the_shell_and_not_the_runner() {
    let mut runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client.shell(
        "x=$(head -c 100000 /dev/zero | tr '\\0' x); for i in {1..50}; do export V$i=$x; done",
    );
    assert_eq!(outcome.verdict(), (-1, true));
    assert_eq!(outcome.exec()["state"], "lost");
    assert_eq!(client.shell("echo ok").stdout(), "ok\n");
    runner.assert_alive();
}

#[test]
fn closing_a_shell_ends_its_jobs_and_refuses_its_queue() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let mark = format!("close{}", std::process::id());
    client.shell(&format!("MARK={mark} sleep 1000 &"));
    let running = client.start(json!({"shell": "main", "command": "sleep 1000"}));
    client.started(running);
    let queued = client.start(json!({"shell": "main", "command": "echo never"}));
    client.call("shell.close", json!({"name": "main"})).unwrap();
    assert_eq!(client.finish(queued).code(), "closed");
    let ended = client.finish(running);
    assert_eq!(
        (&ended.exec()["state"], &ended.exec()["killed"]),
        (&json!("signaled"), &json!(true))
    );
    assert_nobody(&mark);
    assert_eq!(client.shell("echo new").stdout(), "new\n");
    assert_eq!(
        client.refused("shell.close", json!({"name": "missing"})),
        "not_found"
    );
    assert_eq!(
        client.refused("shell.close", json!({"name": "a/b"})),
        "invalid"
    );
}

#[test]
fn input_for_a_queued_command_waits_with_it() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let first = client.start(json!({"shell": "main", "command": "sleep 0.3"}));
    client.started(first);
    let second =
        client.start(json!({"exec_id": "q", "shell": "main", "command": "cat", "stdin": "stream"}));
    let mut other = runner.connect();
    let feed = other.open("exec.stdin", json!({"exec_id": "q", "close": true}));
    other.send(DATA, feed, b"for later");
    other.send(END, feed, b"");
    assert_eq!(other.finish(feed).end, Ok(json!({"bytes": 9})));
    assert_eq!(client.finish(second).stdout(), "for later");
}

#[test]
fn input_sent_before_the_command_runs_is_not_lost() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for (data, want) in [("", "0\n"), ("early", "5\n")] {
        for _ in 0..50 {
            let stream =
                client.start(json!({"shell": "main", "stdin": "stream", "command": "wc -c"}));
            client.send(DATA, stream, data.as_bytes());
            client.send(END, stream, b"");
            assert_eq!(client.finish(stream).stdout(), want);
        }
    }
}

fn shell_pid(client: &mut Client) -> i32 {
    client.shell("V=1");
    let list = client.call("shell.list", json!({})).unwrap();
    list["shells"][0]["pid"].as_i64().unwrap() as i32
}

/// Longer than the interval of the check, and than an answer may take.
const LONG: Duration = Duration::from_millis(1300);

/// Stop the runner while it waits for events. It then returns from there without any, to the timers.
fn stand_still(runner: &Runner, meanwhile: impl FnOnce()) {
    std::thread::sleep(Duration::from_millis(200));
    signal(runner.pid(), libc::SIGSTOP);
    meanwhile();
    std::thread::sleep(LONG);
    signal(runner.pid(), libc::SIGCONT);
}

#[test]
fn shell_that_answers_while_the_runner_is_stopped_keeps_its_state() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let shell = shell_pid(&mut client);
    for round in 0..3 {
        let go = runner.workspace().join(format!("go{round}"));
        let command = format!("until [ -e go{round} ]; do sleep 0.01; done; echo done");
        let stream = client.start(json!({"shell": "main", "command": command}));
        client.started(stream);
        stand_still(&runner, || std::fs::write(&go, "").unwrap());
        let outcome = client.finish(stream);
        assert_eq!(
            (outcome.verdict(), outcome.stdout()),
            ((0, false), "done\n".into())
        );
        // If the shell had got an empty command, its answer would be there by now.
        std::thread::sleep(Duration::from_millis(100));
        let next = client.shell("echo $V");
        assert_eq!((next.verdict(), next.stdout()), ((0, false), "1\n".into()));
        assert_eq!(shell_pid(&mut client), shell, "{round}");
    }
}

#[test]
fn shell_that_dies_while_it_waits_is_replaced() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let shell = shell_pid(&mut client);
    let stream = client.start(json!({"shell": "main", "command": "sleep 0.7"}));
    client.started(stream);
    stand_still(&runner, || {});
    assert_eq!(client.finish(stream).verdict(), (0, false));
    signal(shell, libc::SIGKILL);
    eventually(
        || match std::fs::read_to_string(format!("/proc/{shell}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => Err(stat),
            _ => Ok(()),
        },
    );
    let next = client.shell("echo [$V]");
    assert_eq!((next.verdict(), next.stdout()), ((0, true), "[]\n".into()));
}

/// A bash that reads its first command long after it was sent.
const SLOW: &str = r#"#!/bin/sh
loop=$4
fifo=${loop#*\'}
exec 8<"${fifo%%\'*}"
/bin/sleep 1.3
read -r line <&8
exec 8<&-
answer=${loop#*"'; "}
exec /bin/bash -c "$line
${answer%; done}; $loop" bash
"#;

#[test]
fn slow_shell_is_waited_for() {
    let place = std::env::temp_dir().join(format!("sk-slow-{}-{}", std::process::id(), serial()));
    std::fs::create_dir(&place).unwrap();
    let program = place.join("bash");
    std::fs::write(&program, SLOW).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut runner = Runner::with(&["--shell", program.to_str().unwrap()]);
    runner.also_remove = Some(place);
    let mut client = runner.connect();
    for command in ["V=1; echo $V", "echo $V"] {
        let outcome = client.shell(command);
        assert_eq!(
            (outcome.verdict(), outcome.stdout()),
            ((0, false), "1\n".into())
        );
    }
}

#[test]
fn timeout_of_an_answer_stands_still_while_frozen() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let hold = runner.workspace().join("hold");
    std::fs::write(&hold, "").unwrap();
    client.call("freeze", json!({"frozen": true})).unwrap();
    let held = "echo >at; while [ -e hold ]; do sleep 0.01; done";
    let trap = format!("trap 'case $BASH_COMMAND in times*) {held};; esac' DEBUG");
    let stream = client.start(json!({"shell": "main", "command": trap}));
    client.started(stream);
    let at = runner.workspace().join("at");
    eventually(|| at.exists().then_some(()).ok_or("no answer has begun"));
    std::thread::sleep(LONG);
    std::fs::remove_file(&hold).unwrap();
    assert_eq!(client.finish(stream).verdict(), (0, false));
}
