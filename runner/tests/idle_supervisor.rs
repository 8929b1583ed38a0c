//! A supervisor carries one command after another, and the commands cannot tell.

use crate::client::*;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

fn supervisor(client: &mut Client) -> i32 {
    let outcome = client.script("echo $PPID");
    outcome.stdout().trim().parse().unwrap()
}

fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

fn status(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line[name.len()..].trim().to_owned()
}

#[test]
fn one_supervisor_carries_one_command_after_another_and_no_two_at_once() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let first = supervisor(&mut client);
    for _ in 0..3 {
        assert_eq!(supervisor(&mut client), first);
    }
    assert_eq!(
        client.argv(&["no-such-program"]).code(),
        "command_not_found"
    );
    assert_eq!(supervisor(&mut client), first);
    let busy = client.start(json!({"exec_id": "busy", "argv": ["sleep", "1000"]}));
    client.started(busy);
    let second = supervisor(&mut client);
    assert_ne!(second, first);
    assert_eq!(supervisor(&mut client), second);
    client
        .call("exec.signal", json!({"exec_id": "busy", "signal": 9}))
        .unwrap();
    assert_eq!(client.finish(busy).exec()["signal"], 9);
    // One idle supervisor is enough.
    eventually(|| match children(runner.pid()) {
        left if left.len() == 1 => Ok(()),
        left => Err(left),
    });
}

#[test]
fn supervisor_is_idle_when_its_last_process_is_gone() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client.script("sleep 0.3 & echo $PPID");
    let first: i32 = outcome.stdout().trim().parse().unwrap();
    eventually(|| match children(first) {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    });
    eventually(|| match supervisor(&mut client) {
        next if next == first => Ok(()),
        next => Err(next),
    });
}

// promise: P15
#[test]
fn nothing_of_a_command_is_inherited_by_the_next() {
    let uid = 12_385;
    let runner = Runner::with(&["--user", &format!("{uid}:12346")]);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(runner.workspace(), open).unwrap();
    let mut client = runner.connect();
    let probe = "cat /proc/self/status; ls /proc/$$/fd; ulimit -a; cat /proc/self/oom_score_adj; \
        umask; pwd; env | sort; echo $PPID; ps -o sid= -p $$ | tr -d ' ' | grep -cx $$";
    let fresh = client.script(probe).stdout();
    let stream = client.start(json!({"stdin": "stream", "cwd": "/usr",
        "env": {"SECRET": "x"}, "pty": {"rows": 2, "cols": 2},
        "argv": ["sh", "-c", "trap '' PIPE INT; umask 0; ulimit -n 20; exec 5>&1; cd /; exec sleep 0.01"]}));
    client.started(stream);
    assert_eq!(client.finish(stream).exec()["exit_code"], 0);
    let again = client.script(probe).stdout();
    // Pids, and counters that the kernel changes meanwhile.
    let settled = |text: &str| -> Vec<String> {
        let varies = [
            "Pid:", "PPid:", "Tgid:", "NStgid:", "NSpid:", "NSpgid:", "NSsid:", "Ngid:",
        ];
        let counts = ["Vm", "Rss", "voluntary_", "nonvoluntary_", "Cpus_", "Mems_"];
        text.lines()
            .filter(|line| {
                !varies
                    .iter()
                    .chain(&counts)
                    .any(|name| line.starts_with(name))
            })
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(settled(&again), settled(&fresh));
    for line in [
        "NoNewPrivs:\t1",
        "CapBnd:\t0000000000000000",
        "Groups:\t ",
        "500",
        "0022",
    ] {
        assert!(
            again.lines().any(|found| found == line),
            "{line} in {again}"
        );
    }
    assert!(again.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")));
    assert!(!again.contains("SECRET"));
}

#[test]
fn reused_supervisor_is_as_protected_as_a_new_one() {
    let runner = Runner::with(&["--user", "12395:12346"]);
    let mut client = runner.connect();
    let pid = supervisor(&mut client);
    for _ in 0..3 {
        let probe = client.script(
            "for f in environ mem maps auxv; do head -c 1 /proc/$PPID/$f; done; \
             ls /proc/$PPID/fd /proc/$PPID/root/; kill -9 $PPID; kill -STOP $PPID",
        );
        assert_eq!(probe.stdout(), "");
        assert_eq!(
            probe.stderr().matches("ermi").count(),
            8,
            "{}",
            probe.stderr()
        );
        assert_eq!(supervisor(&mut client), pid);
        assert_eq!(status(pid, "Uid:"), "0\t12395\t0\t12395");
        // Not dumpable: its files in /proc belong to root.
        use std::os::unix::fs::MetadataExt;
        let shown = std::fs::metadata(format!("/proc/{pid}/environ")).unwrap();
        assert_eq!(shown.uid(), 0);
        let mut open: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        open.sort();
        assert_eq!(open, ["0", "1", "2", "3", "4"]);
    }
}

#[test]
fn user_who_is_root_inside_has_exactly_the_given_capabilities_each_time() {
    // Where the runner's own id may write; root is given up by then.
    let name = format!("sk-state-{}-{}", std::process::id(), serial());
    let state = std::env::temp_dir().join(name);
    std::fs::create_dir(&state).unwrap();
    give(&state, 12405, 12405);
    let arguments = [
        "--run-as",
        "12405:12405",
        "--user",
        "0:0",
        "--user-capabilities",
        "c1",
        "--state-dir",
        state.to_str().unwrap(),
    ];
    let mut runner = Runner::with(&arguments);
    runner.also_remove = Some(state.clone());
    let mut client = runner.connect();
    let first = supervisor(&mut client);
    for _ in 0..3 {
        let text = client.script("cat /proc/self/status").stdout();
        for line in [
            "Uid:\t0\t0\t0\t0",
            "CapInh:\t0000000000000000",
            "CapPrm:\t00000000000000c1",
            "CapEff:\t00000000000000c1",
            "CapBnd:\t00000000000000c1",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
    assert_eq!(supervisor(&mut client), first);
}

// promise: P15
#[test]
fn usage_of_a_command_is_not_counted_for_the_next() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let work = "x = bytearray(60 << 20)\nimport time\nwhile time.process_time() < 0.3: pass";
    let heavy = client.argv(&["python3", "-c", work]).exec().clone();
    assert!(heavy["cpu_ms"].as_u64().unwrap() >= 300, "{heavy}");
    assert!(
        heavy["peak_rss_bytes"].as_u64().unwrap() > 60 << 20,
        "{heavy}"
    );
    let light = client.argv(&["true"]).exec().clone();
    assert!(light["cpu_ms"].as_u64().unwrap() < 100, "{light}");
    assert!(
        light["peak_rss_bytes"].as_u64().unwrap() < 30 << 20,
        "{light}"
    );
    // Children of the command count, whichever process waited for them.
    let script = format!(
        "(python3 -c '{work}' & echo $! > pid)\nwhile kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done"
    );
    let orphan = client.script(&script).exec().clone();
    assert!(orphan["cpu_ms"].as_u64().unwrap() >= 300, "{orphan}");
    assert!(
        orphan["peak_rss_bytes"].as_u64().unwrap() > 60 << 20,
        "{orphan}"
    );
}

// promise: P15
#[test]
fn death_of_an_idle_supervisor_loses_no_command() {
    let mut runner = Runner::start();
    let mut client = runner.connect();
    for _ in 0..20 {
        let spare = supervisor(&mut client);
        signal(spare, libc::SIGKILL);
        assert_ne!(supervisor(&mut client), spare);
    }
    runner.assert_alive();
}

// promise: P15
#[test]
fn command_handed_to_a_stopped_supervisor_runs_once() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let file = runner.workspace().join("runs");
    let script = format!("cat >> {}; echo said", file.display());
    for round in 0..10 {
        let spare = supervisor(&mut client);
        // The runner reads the request first, then learns that its idle supervisor is stopped.
        signal(runner.pid(), libc::SIGSTOP);
        let stream = client.start(json!({"argv": ["sh", "-c", script], "stdin": "stream"}));
        client.send(DATA, stream, b"run\n");
        client.send(END, stream, b"");
        signal(spare, libc::SIGSTOP);
        signal(runner.pid(), libc::SIGCONT);
        let outcome = client.finish(stream);
        assert_eq!(outcome.stdout(), "said\n", "{round}");
        assert_eq!(outcome.exec()["exit_code"], 0);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "run\n".repeat(10));
}

#[test]
fn command_of_a_killed_reused_supervisor_is_lost() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let mark = format!("spare{}-{}", std::process::id(), serial());
    supervisor(&mut client);
    let outcome = client.exec(
        json!({"argv": ["bash", "-c", "(setsid sleep 1000 &); sleep 0.1; kill -9 $PPID; sleep 1000"],
        "env": {"MARK": mark}}),
    );
    assert_eq!(outcome.exec()["state"], "lost");
    assert_nobody(&mark);
}

#[test]
fn command_too_large_for_the_handover_runs_anyway() {
    let runner = Runner::start();
    let mut client = runner.connect();
    supervisor(&mut client);
    for size in [1_000, 32_000, 33_000, 100_000] {
        let outcome = client.argv(&[
            "sh",
            "-c",
            "printf %s \"$1\" | wc -c",
            "sh",
            &"x".repeat(size),
        ]);
        assert_eq!(outcome.stdout().trim(), size.to_string());
    }
}

// promise: P15
#[test]
fn idle_supervisor_does_not_grow_and_is_released_when_unused() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let spare = supervisor(&mut client);
    for _ in 0..50 {
        client.argv(&["true"]);
    }
    let size = || -> u64 {
        let text = status(spare, "RssAnon:");
        text.trim_end_matches(" kB").parse().unwrap()
    };
    let before = size();
    for _ in 0..600 {
        client.exec(json!({"argv": ["true"], "env": {"PAD": "x".repeat(4000)}}));
    }
    assert_eq!(supervisor(&mut client), spare);
    assert!(size() <= before + 64, "{before} kB, then {} kB", size());
    let begin = Instant::now();
    while !children(runner.pid()).is_empty() {
        assert!(begin.elapsed() < 2 * PATIENCE, "it stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begin.elapsed() > Duration::from_secs(5));
    assert_ne!(supervisor(&mut client), spare);
}
