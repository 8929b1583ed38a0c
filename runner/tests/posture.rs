//! What user code can do and see, and what the runner is: identity, descriptors, limits, first process.
//!
//! These tests need root, and `unshare` for a pid namespace of their own.

use crate::client::{self, *};
use serde_json::{json, Value};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Each test has a uid of its own: some of them signal every process that has it.
fn as_user(uid: u32) -> Runner {
    let runner = Runner::with(&["--user", &format!("{uid}:12346")]);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(runner.workspace(), open).unwrap();
    runner
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {status}"))[name.len()..]
        .trim()
        .to_owned()
}

#[test]
fn user_code_has_no_capability_no_group_no_descriptor_and_cannot_gain() {
    let runner = as_user(12345);
    let mut client = runner.connect();
    assert_eq!(
        (&client.hello["uid"], &client.hello["user_uid"]),
        (&json!(0), &json!(12345))
    );
    let script =
        "cat /proc/self/status; ls /proc/$$/fd; ulimit -c; cat /proc/self/oom_score_adj; umask";
    for outcome in [
        client.script(script),
        client.shell(&format!("sh -c '{}'", script.replace('\'', "'\\''"))),
    ] {
        let text = outcome.stdout();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(&text, set), "0000000000000000", "{set}");
        }
        assert_eq!(field(&text, "NoNewPrivs:"), "1");
        assert_eq!(field(&text, "Groups:"), "");
        assert_eq!(field(&text, "Uid:"), "12345\t12345\t12345\t12345");
        assert_eq!(field(&text, "Gid:"), "12346\t12346\t12346\t12346");
        for set in ["SigBlk:", "SigIgn:", "SigPnd:"] {
            assert_eq!(field(&text, set), "0000000000000000", "{set}");
        }
        assert!(text.ends_with("\n0\n1\n2\n0\n500\n0022\n"), "{text}");
    }
}

#[test]
fn runner_cannot_be_read_traced_or_signalled_by_its_user() {
    let mut runner = as_user(12355);
    let mut client = runner.connect();
    let pid = runner.pid();
    for who in [pid.to_string(), "$PPID".to_owned()] {
        let probe = client.shell(&format!(
            "for f in environ mem maps auxv; do head -c 1 /proc/{who}/$f; done; ls /proc/{who}/fd /proc/{who}/root/; kill -9 {who}; kill -STOP {who}"));
        assert_eq!(probe.stdout(), "", "{who}");
        assert_eq!(
            probe.stderr().matches("not permitted").count(),
            2,
            "{}",
            probe.stderr()
        );
    }
    let state = runner.root.join("state");
    let probe = client.shell(&format!(
        "ls {0}; touch {0}/x; for d in {0}/shell-*; do rm -rf $d/cmd; echo x > $d/cmd; done",
        state.display()
    ));
    assert_eq!(probe.stdout(), "");
    assert_eq!(client.shell("kill -9 -1; echo after").stdout(), "after\n");
    assert_eq!(
        client.argv(&["sh", "-c", "kill -9 -1; exit 3"]).exec()["exit_code"],
        3
    );
    runner.assert_alive();
    // For its own directory it uses its own id; otherwise it accesses files as the user.
    eventually(|| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let seen = (field(&status, "Uid:"), field(&status, "CapEff:"));
        match (seen.0.as_str(), seen.1.as_str()) {
            ("0\t0\t0\t12355", "00000000000001e0") => Ok(()),
            _ => Err(seen),
        }
    });
}

#[test]
fn deadlines_kill_processes_of_another_uid() {
    let runner = as_user(12365);
    let mut client = runner.connect();
    let outcome = client.exec(
        json!({"argv": ["bash", "-c", "trap '' TERM; (setsid sleep 1000 &); sleep 1000"],
        "env": {"MARK": "posture"}, "deadline_ms": 200, "grace_ms": 100}),
    );
    assert_eq!(outcome.exec()["timed_out"], json!(true));
    assert_eq!(marked("posture"), Vec::<i32>::new());
}

#[test]
fn files_are_accessed_as_the_user() {
    use std::os::unix::fs::MetadataExt;
    let runner = as_user(12375);
    let mut client = runner.connect();
    let stream = client.open("fs.write", json!({"path": "mine"}));
    client.send(DATA, stream, b"hello");
    client.send(END, stream, b"");
    client.finish(stream).end.unwrap();
    let meta = std::fs::metadata(runner.workspace().join("mine")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (12375, 12346, 0o644)
    );
    assert_eq!(
        client.refused("fs.read", json!({"path": "/etc/shadow"})),
        "permission"
    );
}

/// A runner that is the first process of its own pid namespace.
fn as_init() -> Runner {
    Runner::under(
        &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
        &[],
    )
}

#[test]
fn first_process_reaps_everything_and_survives_every_signal() {
    let mut runner = as_init();
    let mut client = runner.connect();
    let who = client.shell("cat /proc/1/comm; kill -9 1; kill -TERM 1; kill -INT 1; kill -SEGV 1; kill -9 -1; echo here");
    assert!(who.stdout().starts_with("sandkasten-runn\n"), "{who:?}");
    runner.assert_alive();
    let orphans = "import os\nfor i in range(1000):\n if os.fork() == 0:\n  if os.fork() == 0: os._exit(0)\n  os._exit(0)\n os.wait()\n";
    let mut fresh = runner.connect();
    assert_eq!(
        fresh.argv(&["python3", "-c", orphans]).exec()["exit_code"],
        0
    );
    eventually(|| {
        let list = fresh.call("proc.list", json!({})).unwrap();
        let zombies = list["processes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| p["state"] == "Z")
            .count();
        if zombies == 0 {
            Ok(())
        } else {
            Err(zombies)
        }
    });
}

#[test]
fn first_process_survives_the_death_of_every_supervisor() {
    let mut runner = as_init();
    let mut client = runner.connect();
    client.shell("sleep 1000 &");
    let stream = client.start(json!({"argv": ["sleep", "1000"]}));
    client.started(stream);
    // Same uid: this reaches every process but the runner and the killer itself.
    client.exec(json!({"argv": ["python3", "-c", "import os; os.kill(-1, 9)"]}));
    assert_eq!(client.finish(stream).exec()["exit_code"], json!(null));
    let next = client.shell("echo alive");
    assert_eq!(
        (next.stdout().as_str(), next.verdict()),
        ("alive\n", (0, true))
    );
    eventually(|| {
        let list = client.call("proc.list", json!({})).unwrap().to_string();
        if list.contains("\"1000\"") {
            Err(list)
        } else {
            Ok(())
        }
    });
    // A process started right after the kill is not taken for an orphan.
    for _ in 0..30 {
        client.exec(json!({"argv": ["python3", "-c", "import os; os.kill(-1, 9)"]}));
        assert_eq!(client.argv(&["sleep", "0.02"]).exec()["exit_code"], 0);
    }
    runner.assert_alive();
}

#[test]
fn fork_bomb_is_an_error_for_others_and_ends_with_its_deadline() {
    let mut runner = as_init();
    let mut client = runner.connect();
    let bomb = "ulimit -u 200; f() { f | f & }; f; sleep 1000";
    let runner_user = [
        "setpriv",
        "--reuid",
        "23456",
        "--regid",
        "23456",
        "--clear-groups",
        "bash",
        "-c",
        bomb,
    ];
    let outcome = client.exec(
        json!({"argv": runner_user, "deadline_ms": 1500, "grace_ms": 200, "stderr_cap": 1000}),
    );
    assert_eq!(outcome.exec()["timed_out"], json!(true));
    let list = client.call("proc.list", json!({})).unwrap();
    let left = list["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["uid"] == 23456)
        .count();
    assert_eq!(left, 0, "{list}");
    runner.assert_alive();
}

#[test]
fn runner_is_ready_quickly_and_small_when_idle() {
    let runner = Runner::start();
    let _client = runner.connect();
    std::thread::sleep(Duration::from_millis(50));
    let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid())).unwrap();
    let anon: u64 = field(&status, "RssAnon:")
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(anon <= 1024, "{anon} kB");
    let fds: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", runner.pid()))
        .unwrap()
        .map(|fd| {
            std::fs::read_link(fd.unwrap().path())
                .unwrap()
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(
        fds.iter().filter(|fd| *fd == "/dev/null").count(),
        3,
        "{fds:?}"
    );
    assert_eq!(
        std::fs::read_link(format!("/proc/{}/cwd", runner.pid()))
            .unwrap()
            .to_str(),
        Some("/")
    );
}

fn parse_posture(outcome: &Outcome) -> Value {
    assert_eq!(outcome.exec()["exit_code"], 0, "{}", outcome.stderr());
    serde_json::from_str(&outcome.stdout()).unwrap()
}

// promise: P01
#[test]
fn command_reports_its_posture_without_any_program_of_the_image() {
    let runner = as_user(12385);
    let copy = runner.workspace().join("program");
    client::copy_program(&copy);
    let mut client = runner.connect();
    let before = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let outcome = client.exec(json!({"argv": [copy.to_str().unwrap(), "--posture"]}));
    let posture = parse_posture(&outcome);
    let none = "0000000000000000";
    let seccomp = field(
        &std::fs::read_to_string("/proc/self/status").unwrap(),
        "Seccomp:",
    );
    let status = json!({
        "Uid": "12385\t12385\t12385\t12385", "Gid": "12346\t12346\t12346\t12346", "Groups": "",
        "CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
        "NoNewPrivs": "1", "Seccomp": seccomp,
    });
    assert_eq!(posture["status"], status);
    assert_eq!(posture["descriptors"], json!([0, 1, 2]));
    assert_eq!(posture["oom_score_adj"], json!(500));
    // Others may mount and unmount meanwhile: what was there before and after is in the report.
    let after = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let reported = posture["mountinfo"].as_str().unwrap();
    for line in before
        .lines()
        .filter(|&line| after.lines().any(|other| other == line))
    {
        assert!(reported.lines().any(|other| other == line), "{line}");
    }
    for name in ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup"] {
        let ours = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_eq!(posture["namespaces"][name], json!(ours.to_str().unwrap()));
    }
}

#[test]
fn posture_lists_extra_descriptors_and_capabilities() {
    let output = std::process::Command::new("sh")
        .args(["-c", "exec 9</dev/null; exec \"$0\" --posture", &program()])
        .output()
        .unwrap();
    let posture: Value = serde_json::from_slice(&output.stdout).unwrap();
    let open = posture["descriptors"].as_array().unwrap();
    assert!(open.contains(&json!(9)), "{open:?}");
    assert_ne!(posture["status"]["CapEff"], json!("0000000000000000"));
}

/// Start it as a container engine does: root, with these capabilities and no other.
const LIKE_AN_ENGINE: [&str; 5] = [
    "setpriv",
    "--inh-caps",
    "-all",
    "--bounding-set",
    "-all,+setuid,+setgid,+setpcap,+kill,+chown",
];

fn owned(path: &std::path::Path) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

// promise: P01
#[test]
fn directories_are_given_to_the_user_and_the_capability_is_dropped() {
    let place = std::env::temp_dir().join(format!("sk-own-{}-{}", std::process::id(), serial()));
    let state = place.join("state");
    let (fresh, closed) = (place.join("fresh"), place.join("closed"));
    for directory in [&place, &state, &fresh, &closed] {
        std::fs::create_dir(directory).unwrap();
    }
    std::fs::write(fresh.join("inside"), b"").unwrap();
    give(&state, 12391, 12391);
    // It belongs to the user already, and root without capabilities could not even open it.
    give(&closed, 12395, 12346);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let mut runner = Runner::under(
        &LIKE_AN_ENGINE,
        &[
            "--state-dir",
            &text(&state),
            "--run-as",
            "12391:12391",
            "--user",
            "12395:12346",
            "--own",
            &text(&fresh),
            "--own",
            &text(&closed),
        ],
    );
    runner.also_remove = Some(place);
    let mut client = runner.connect();
    assert_eq!(owned(&fresh), (12395, 12346, 0o755));
    assert_eq!(owned(&closed), (12395, 12346, 0o700));
    // The directory itself and nothing in it.
    assert_eq!(owned(&fresh.join("inside")).0, 0);
    let script = format!(
        "touch {0}/x {1}/x && ls -A {1}",
        fresh.display(),
        closed.display()
    );
    assert_eq!(client.script(&script).stdout(), "x\n");
    eventually(|| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid())).unwrap();
        let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
            .map(|set| u64::from_str_radix(&field(&status, set), 16).unwrap());
        match sets {
            [0, 0x1e0, 0x1e0, 0, 0] => Ok(()),
            sets => Err(sets),
        }
    });
}

#[test]
fn directory_that_cannot_be_given_stops_the_start_with_a_reason() {
    let place = std::env::temp_dir().join(format!("sk-own-{}-{}", std::process::id(), serial()));
    std::fs::create_dir(&place).unwrap();
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(path("real")).unwrap();
    std::fs::write(path("file"), b"").unwrap();
    std::os::unix::fs::symlink(path("real"), path("link")).unwrap();
    let start = |wrapper: &[&str], words: &[&str]| {
        let socket = path("socket");
        // A runner that starts after all must not be waited for.
        let patience = ["timeout", "-s", "KILL", "60"];
        let runner = program();
        let own = [runner.as_str(), "--listen", &socket];
        let line = [&patience, wrapper, &own, words].concat();
        let output = std::process::Command::new(line[0])
            .args(&line[1..])
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let user = ["--user", "12396:12346", "--own"];
    for (name, why) in [
        ("missing", "No such file"),
        ("file", "Not a directory"),
        ("link", "Not a directory"),
    ] {
        let (code, stderr) = start(&[], &[&user[..], &[&path(name)]].concat());
        assert_eq!(code, 1, "{stderr}");
        assert!(
            stderr.contains(&path(name)) && stderr.contains(why),
            "{stderr}"
        );
    }
    let powerless = ["setpriv", "--inh-caps", "-all", "--bounding-set", "-chown"];
    let (code, stderr) = start(&powerless, &[&user[..], &[&path("real")]].concat());
    assert!(code == 1 && stderr.contains("not permitted"), "{stderr}");
    assert_eq!(owned(&place.join("real")).0, 0);
    let (code, stderr) = start(&[], &["--own", &path("real")]);
    assert!(
        code == 2 && stderr.contains("--own requires --user"),
        "{stderr}"
    );
    std::fs::remove_dir_all(&place).unwrap();
}

// promise: P01
#[test]
fn stepping_down_keeps_only_what_the_runner_needs() {
    let runner = Runner::with(&["--run-as", "0:12397"]);
    runner.connect();
    let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid())).unwrap();
    assert_eq!(field(&status, "Gid:"), "12397\t12397\t12397\t12397");
    for set in ["CapPrm:", "CapEff:"] {
        assert_eq!(field(&status, set), "00000000000001e0", "{set}");
    }
}
