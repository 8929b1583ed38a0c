//! Deadlines and kills end every process that a command started, and no other.

use crate::client::*;
use serde_json::{json, Value};
use std::time::Duration;

fn mark() -> String {
    format!("m{}-{}", std::process::id(), serial())
}

fn timed(client: &mut Client, script: &str, mark: &str) -> Value {
    let outcome = client.exec(
        json!({"argv": ["bash", "-c", script], "env": {"MARK": mark},
        "deadline_ms": 300, "grace_ms": 200}),
    );
    outcome.exec().clone()
}

#[test]
fn deadline_ends_an_obedient_command_within_its_grace_period() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client.exec(json!({"argv": ["sh", "-c", "echo kept; sleep 1000"], "deadline_ms": 1000, "grace_ms": 600_000}));
    let exec = outcome.exec();
    assert_eq!(
        (&exec["timed_out"], &exec["signal"], &exec["exit_code"]),
        (&json!(true), &json!(15), &json!(null))
    );
    assert_eq!(outcome.stdout(), "kept\n");
    let quick = client.exec(json!({"argv": ["true"], "deadline_ms": 600_000}));
    assert_eq!(quick.exec()["timed_out"], json!(false));
}

#[test]
fn deadline_ends_every_process_however_it_was_started() {
    let runner = Runner::start();
    let mut client = runner.connect();
    for script in [
        "trap '' TERM; sleep 1000",
        "(setsid bash -c 'trap \"\" TERM; sleep 1000' &) ; trap '' TERM; sleep 1000",
        "bash -c '(bash -c \"(sleep 1000 &) ; sleep 1000\" &)' ; sleep 1000",
        "kill -STOP $$",
        "(kill -STOP $BASHPID; sleep 1000) & sleep 1000",
        "for i in $(seq 100); do setsid sleep 1000 & done; trap '' TERM; while :; do sleep 1; done",
        "trap '' TERM; f() { sleep 0.01; f & }; f; sleep 1000",
        "trap '' TERM; f() { setsid bash -c 'trap \"\" TERM; exec sleep 0.02' & sleep 0.01; f; }; f",
    ] {
        let mark = mark();
        let exec = timed(&mut client, script, &mark);
        assert_eq!(exec["timed_out"], json!(true), "{script}: {exec}");
        assert_eq!(exec["exit_code"], json!(null), "{script}: {exec}");
        // The answer means that no process is left: no waiting here.
        assert_eq!(marked(&mark), Vec::<i32>::new(), "{script}");
    }
}

#[test]
fn chain_of_forking_processes_is_killed() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let chain = "import os, signal, sys\n\
        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        new_session = sys.argv[1] == 'y'\n\
        while True:\n\
        \tif os.fork() > 0: os._exit(0)\n\
        \tif new_session: os.setsid()\n";
    for new_session in ["n", "y"] {
        let mark = mark();
        let outcome = client.exec(json!({"argv": ["sh", "-c", "python3 -c \"$1\" $2; sleep 1000", "sh", chain, new_session],
            "env": {"MARK": mark}, "deadline_ms": 300, "grace_ms": 200}));
        assert_eq!(outcome.exec()["timed_out"], json!(true));
        assert_eq!(marked(&mark), Vec::<i32>::new());
    }
}

#[test]
fn one_signal_kills_five_hundred_processes() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let mark = mark();
    let script = "trap '' TERM; for i in $(seq 500); do sleep 1000 & done; echo up; wait";
    let stream = client
        .start(json!({"exec_id": "many", "argv": ["bash", "-c", script], "env": {"MARK": mark}}));
    client.started(stream);
    client.next(stream);
    client
        .call("exec.signal", json!({"exec_id": "many", "signal": 9}))
        .unwrap();
    let exec = client.finish(stream).exec().clone();
    assert_nobody(&mark);
    assert_eq!(
        (&exec["signal"], &exec["killed"], &exec["oom_suspect"]),
        (&json!(9), &json!(true), &json!(false))
    );
}

#[test]
fn command_that_ends_by_itself_leaves_its_daemons_alone() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let mark = mark();
    let outcome = client.exec(json!({"exec_id": "leaves", "argv": ["sh", "-c", "sleep 1000 & exit 4"], "env": {"MARK": mark}, "deadline_ms": 1500}));
    assert_eq!(outcome.exec()["exit_code"], 4);
    assert_eq!(outcome.exec()["timed_out"], json!(false));
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(marked(&mark).len(), 1);
    client
        .call("exec.signal", json!({"exec_id": "leaves", "signal": 9}))
        .unwrap();
    assert_nobody(&mark);
}

#[test]
fn deadline_in_a_shell_spares_earlier_jobs() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let (old, new) = (mark(), mark());
    client.shell(&format!(
        "MARK={old} bash -c 'while :; do sleep 0.05; done' & MARK={old} sleep 1000 &"
    ));
    let outcome = client.exec(json!({"shell": "main", "deadline_ms": 300, "grace_ms": 200,
        "command": format!("export MARK={new}; trap '' TERM; (setsid sleep 1000 &); sleep 1000 & sleep 1000")}));
    assert_eq!(outcome.exec()["timed_out"], json!(true));
    assert_eq!(outcome.exec()["shell_reset"], json!(false));
    let left: Vec<i32> = marked(&new);
    // The shell itself has exported the mark only for its children; its own environ is older.
    assert_eq!(left, Vec::<i32>::new());
    assert!(marked(&old).len() >= 2);
    let jobs = client.shell("jobs").stdout();
    assert_eq!(jobs.matches("Running").count(), 2, "{jobs}");
    client.call("shell.close", json!({"name": "main"})).unwrap();
    assert_nobody(&old);
}

#[test]
fn command_of_a_killed_supervisor_is_lost_and_its_tree_is_swept() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let mark = mark();
    let outcome = client.exec(json!({"argv": ["bash", "-c", "(setsid sleep 1000 &); kill -9 $PPID; sleep 1000"], "env": {"MARK": mark}}));
    let exec = outcome.exec();
    assert_eq!(
        (&exec["state"], &exec["exit_code"]),
        (&json!("lost"), &json!(null))
    );
    assert_nobody(&mark);
    let outcome = client.shell(&format!(
        "MARK={mark} sleep 1000 & kill -9 $PPID; sleep 1000"
    ));
    assert_eq!(
        (&outcome.exec()["state"], outcome.verdict()),
        (&json!("lost"), (-1, true))
    );
    assert_nobody(&mark);
    assert_eq!(client.shell("echo again").stdout(), "again\n");
}

#[test]
fn nothing_survives_the_runner() {
    let mark = mark();
    let runner = Runner::start();
    let mut client = runner.connect();
    client.exec(json!({"argv": ["bash", "-c", "trap '' TERM; (setsid sleep 1000 &); sleep 1000"], "env": {"MARK": mark}, "follow": false}));
    client.shell(&format!("MARK={mark} sleep 1000 &"));
    eventually(|| {
        if marked(&mark).len() >= 3 {
            Ok(())
        } else {
            Err(marked(&mark))
        }
    });
    drop(runner);
    assert_nobody(&mark);
}

#[test]
fn deadlines_stand_still_while_frozen() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let stream = client.start(
        json!({"exec_id": "f", "argv": ["sleep", "100"], "deadline_ms": 1000, "grace_ms": 0}),
    );
    client.started(stream);
    client.call("freeze", json!({"frozen": true})).unwrap();
    std::thread::sleep(Duration::from_millis(1300));
    let state = client
        .call("exec.wait", json!({"exec_id": "f", "timeout_ms": 0}))
        .unwrap();
    assert_eq!(state["state"], "running");
    client.call("freeze", json!({"frozen": false})).unwrap();
    assert_eq!(client.finish(stream).exec()["timed_out"], json!(true));
}
