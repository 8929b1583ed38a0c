//! The persistent shell: it keeps its state, and never reports an exit status that was not observed.

use crate::client::shells::{with_shell, SHELLS};
use crate::client::*;
use base64::engine::Engine;
use serde_json::json;

#[test]
fn directory_variables_functions_and_status_are_remembered() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        let first = client.shell("cd /usr; A=1; export B='two words'; f() { echo f$1; }; false");
        assert_eq!(first.verdict(), (1, false), "{shell}");
        assert_eq!(first.exec()["cwd"], "/usr");
        assert_eq!(first.exec()["kind"], "shell");
        assert_eq!(first.exec()["shell"], "main");
        let second = client.shell("echo $? $A \"$B\" $(f 3) $PWD; sh -c 'echo $A $B'");
        assert_eq!(
            second.stdout(),
            "1 1 two words f3 /usr\ntwo words\n",
            "{shell}"
        );
        assert_eq!(second.exec()["pid"], first.exec()["pid"]);
        let other = client.exec(json!({"shell": "other", "command": "echo [$A] $PWD"}));
        assert_eq!(
            other.stdout(),
            format!("[] {}\n", runner.workspace().display()),
            "{shell}"
        );
    }
}

#[test]
fn process_beside_a_shell_starts_with_its_directory_and_exports_and_changes_neither() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        let script = "echo $A [$B] $PWD; cd /; export A=2";
        let beside = json!({"argv": ["sh", "-c", script], "shell": "main"});
        let unknown = client.exec(beside.clone());
        assert_eq!(
            unknown.stdout(),
            format!("[] {}\n", runner.workspace().display()),
            "{shell}: there is no such shell yet"
        );
        client.shell("cd /usr; export A=1; B=1");
        let outcome = client.exec(beside);
        assert_eq!(outcome.stdout(), "1 [] /usr\n", "{shell}");
        assert_eq!(outcome.exec()["kind"], "argv");
        assert_eq!(client.shell("echo $A $PWD").stdout(), "1 /usr\n", "{shell}");
        let elsewhere = json!({"argv": ["pwd"], "shell": "main", "cwd": "/tmp"});
        assert_eq!(client.exec(elsewhere).stdout(), "/tmp\n", "{shell}");
    }
}

#[test]
fn process_beside_a_shell_whose_directory_is_gone_starts_in_the_workspace() {
    let runner = with_shell(SHELLS[0]);
    let mut client = runner.connect();
    client.shell("mkdir gone; cd gone; rmdir ../gone");
    let outcome = client.exec(json!({"argv": ["pwd"], "shell": "main"}));
    assert_eq!(
        outcome.stdout(),
        format!("{}\n", runner.workspace().display())
    );
}

#[test]
fn open_quote_is_a_syntax_error_at_once() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        for command in [
            "echo 'x",
            "echo \"x",
            "(echo",
            "if true; then",
            "f() {",
            "echo $(",
            "done",
        ] {
            let outcome = client.shell(command);
            // bash stays; dash and busybox exit, and that is reported.
            assert_eq!(
                outcome.verdict(),
                (2, shell != "/bin/bash"),
                "{shell}: {command}"
            );
            assert!(!outcome.stderr().is_empty());
            assert_eq!(client.shell("echo usable").stdout(), "usable\n");
        }
        let heredoc = client.shell("cat <<EOF\ntext");
        assert_eq!(
            (heredoc.verdict(), heredoc.stdout().as_str()),
            ((0, false), "text\n"),
            "{shell}"
        );
    }
}

#[test]
fn messages_of_the_shell_name_the_shell_and_the_line() {
    for (shell, missing, syntax) in [
        (
            "/bin/bash",
            "bash: line N: nosuch: command not found\n",
            "bash: eval: line 2: ",
        ),
        (
            "/bin/dash",
            "sh: N: eval: nosuch: not found\n",
            "sh: 2: eval: ",
        ),
        (
            "busybox",
            "sh: eval: line N: nosuch: not found\n",
            "sh: eval: line 2: ",
        ),
    ] {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        // The same after a failed command, and in another directory.
        for (before, cwd) in [
            (":", json!(null)),
            ("(exit 3)", json!(null)),
            (":", json!("/usr")),
        ] {
            client.shell(before);
            let outcome = client.exec(json!({"shell": "main", "cwd": cwd,
                "command": "nosuch\necho $? # it's\n\nnosuch"}));
            assert_eq!(
                (outcome.stdout(), outcome.stderr()),
                (
                    "127\n".to_owned(),
                    missing.replace('N', "1") + &missing.replace('N', "4")
                ),
                "{shell} {before} {cwd}"
            );
        }
        let outcome = client.shell("echo one\n)");
        assert_eq!(outcome.stdout(), "one\n", "{shell}");
        assert!(outcome.stderr().starts_with(syntax), "{shell}: {outcome:?}");
    }
}

#[test]
fn function_named_exit_is_not_called_by_the_runner() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        client.shell("exit() { echo called; sleep 1000; }");
        client.shell("alias exit='echo alias'");
        assert_eq!(client.shell("(false)").verdict(), (1, false), "{shell}");
        let outcome = client.exec(json!({"shell": "main", "command": "echo hi $?",
            "deadline_ms": 5000, "grace_ms": 100}));
        assert_eq!(
            (outcome.stdout().as_str(), outcome.verdict()),
            ("hi 1\n", (0, false)),
            "{shell}"
        );
        assert_eq!(outcome.exec()["timed_out"], json!(false), "{shell}");
    }
}

#[test]
fn peak_memory_is_that_of_the_command() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let peak = |outcome: &Outcome| outcome.exec()["peak_rss_bytes"].as_u64().unwrap();
    // dd holds one block, and waits until it was looked at.
    let heavy = "dd if=/dev/zero bs=64M count=1 2>/dev/null | (sleep 0.3; cat) | wc -c";
    // On a busy machine dd may not hold its block yet: then try again with a longer wait.
    let mut peaks = ["0.3", "4", "20"].iter().map(|seconds| {
        let outcome = client.shell(&heavy.replace("0.3", seconds));
        assert_eq!(outcome.stdout(), "67108864\n");
        peak(&outcome)
    });
    assert!(peaks.any(|peak| peak > 60 << 20));
    let outcome = client.shell("sleep 0.1");
    let light = peak(&outcome);
    assert!(light > 500_000 && light < 30 << 20, "{outcome:?}");
    // The same for a command that its deadline ends.
    let mut peaks = [500, 4_000, 20_000].iter().map(|deadline_ms| {
        let outcome = client.exec(
            json!({"shell": "main", "command": heavy.replace("0.3", "60"),
            "deadline_ms": deadline_ms, "grace_ms": 0}),
        );
        peak(&outcome)
    });
    assert!(peaks.any(|most| most > 60 << 20));
}

#[test]
fn redefinitions_by_the_user_do_not_change_later_results() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let reset = |client: &mut Client| {
        client.call("shell.close", json!({"name": "main"})).unwrap();
    };
    let names =
        "eval . export unset trap set times : exec exit kill read printf builtin command echo return \
        break continue source cd test [ shift local declare typeset alias wait while do done if";
    for name in names.split_whitespace() {
        for definition in [
            format!("function {name} {{ /bin/echo shadow; }}"),
            format!("{name}() {{ /bin/echo shadow; }}"),
            format!("shopt -s expand_aliases; alias {name}='/bin/echo alias'"),
        ] {
            client.shell(&definition);
            for (command, code, text) in [
                ("/bin/false", 1, ""),
                ("/bin/echo right", 0, "right\n"),
                ("/bin/sh -c 'exit 5'", 5, ""),
            ] {
                let outcome = client.shell(command);
                let (seen, flagged) = outcome.verdict();
                assert!(
                    seen == code || flagged,
                    "{definition}, then {command}: {outcome:?}"
                );
                assert!(
                    outcome.stdout() == text || flagged,
                    "{definition}, then {command}: {outcome:?}"
                );
            }
            reset(&mut client);
        }
    }
    for spoil in [
        "trap '/bin/echo trapped' DEBUG",
        "trap 'false' DEBUG",
        "trap '/bin/echo trapped >&9' DEBUG",
        "trap '/bin/echo trapped' ERR",
        "trap '/bin/echo trapped' RETURN",
        "trap 'exit 3' EXIT",
        "readonly PWD",
        "readonly PS1",
        "readonly IFS",
        "readonly __sandkasten_rc",
        "readonly POSIXLY_CORRECT",
        "export __sandkasten_rc=0; readonly __sandkasten_rc",
        "IFS=0123456789",
        "set -f",
        "set -C",
        "set -k",
        "enable -n .",
        "enable -n export",
        "enable -n eval",
        "eval() { /bin/echo shadow; }; readonly -f eval",
        "readonly __sandkasten_call",
        "declare -i __sandkasten_call",
        "shopt -s extdebug; trap false DEBUG",
        "enable -n times",
        "enable -n unset",
        "enable -n :",
        "enable -n exit",
        "set -o posix",
        "set -a",
        "exec 9>&-",
        "exec 10>&- 11>&- 12>&- 13>&-",
        "unset PATH",
        "cd /; unset PWD",
        "export -n PWD",
        "ulimit -n 10",
        "LC_ALL=C",
        "export LC_ALL=de_DE.UTF-8",
        "BASH_XTRACEFD=9; set -x",
    ] {
        client
            .exec(json!({"shell": "main", "command": spoil, "deadline_ms": 3000, "grace_ms": 100}));
        for (command, code) in [
            ("/bin/false", 1),
            ("/bin/true", 0),
            ("/bin/sh -c 'exit 5'", 5),
        ] {
            let outcome = client.exec(
                json!({"shell": "main", "command": command, "deadline_ms": 3000, "grace_ms": 100}),
            );
            let (seen, flagged) = outcome.verdict();
            assert!(
                seen == code || flagged,
                "{spoil}, then {command}: {outcome:?}"
            );
        }
        reset(&mut client);
    }
}

#[test]
fn names_of_the_main_loop_do_not_leak_into_commands() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        client.shell("true");
        let seen = client
            .shell("env; echo [${__sandkasten_rc-}${__sandkasten_call-}${POSIXLY_CORRECT-}]")
            .stdout();
        assert!(
            !seen.contains("__sandkasten") && !seen.contains("POSIXLY_CORRECT"),
            "{shell}: {seen}"
        );
        assert!(seen.ends_with("[]\n"), "{shell}: {seen}");
        let child = client.shell("/bin/sh -c 'ls /proc/$$/fd; true'").stdout();
        assert_eq!(
            child.split_whitespace().collect::<Vec<_>>().join(" "),
            "0 1 2",
            "{shell}"
        );
    }
}

#[test]
fn markers_in_output_are_plain_output() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let text = "export __sandkasten_rc=\"9\"\n0m0.000s 0m0.000s\n0m0.000s 0m0.000s\n";
    let outcome = client.shell(&format!("cat <<'EOF'\n{text}EOF\n"));
    assert_eq!(
        (outcome.verdict(), outcome.stdout().as_str()),
        ((0, false), text)
    );
}

#[test]
fn input_is_empty_unless_requested() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        assert_eq!(client.shell("cat").verdict(), (0, false));
        assert_eq!(client.shell("read x; echo $?").stdout(), "1\n");
        assert_eq!(client.shell("python3").verdict(), (0, false));
        let stream = client
            .start(json!({"shell": "main", "stdin": "stream", "command": "read a; cat; echo $a"}));
        client.started(stream);
        let data = vec![b'x'; 200_000];
        client.send(DATA, stream, b"first\n");
        client.send(DATA, stream, &data);
        client.send(END, stream, b"");
        let outcome = client.finish(stream);
        let all = outcome.bytes(1);
        assert!(
            all[..200_000] == data[..] && &all[200_000..] == b"first\n",
            "{shell} {}",
            all.len()
        );
        assert_eq!(client.shell("echo next").stdout(), "next\n");
    }
}

#[test]
fn terminal_is_per_command_and_leaves_no_trace() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        let spoiled = client.exec(json!({"shell": "main", "pty": {"rows": 5, "cols": 44}, "command": "stty size; stty raw -echo; echo x"}));
        assert_eq!(spoiled.bytes(0), b"5 44\r\nx\n", "{shell}");
        let next = client.exec(
            json!({"shell": "main", "pty": {"rows": 5, "cols": 44}, "command": "echo y; (exit 3)"}),
        );
        assert_eq!(
            (next.bytes(0), next.verdict()),
            (b"y\r\n".to_vec(), (3, false)),
            "{shell}"
        );
        assert_eq!(client.shell("echo z").stdout(), "z\n");
    }
}

#[test]
fn background_jobs_return_at_once_and_can_be_signalled() {
    let runner = Runner::start();
    let mut client = runner.connect();
    assert_eq!(client.shell("sleep 600 &").verdict(), (0, false));
    assert!(client.shell("jobs").stdout().contains("sleep 600"));
    assert_eq!(client.shell("kill %1; wait %1; echo $?").stdout(), "143\n");
    client.shell("(sleep 0.2; echo late) &");
    assert_eq!(client.shell("wait; echo waited").stdout(), "waited\n");
    let flood = client.shell("yes & sleep 0.1; (exit 6)");
    assert_eq!(flood.verdict(), (6, false));
    assert_eq!(client.shell("kill %%; echo calm").stdout(), "calm\n");
}

#[test]
fn directories_are_reported_exactly_and_replaced_when_gone() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        let odd = client.shell("d=$(printf \"a\\nb'c\\\"\\377\"); mkdir \"$d\"; cd \"$d\"");
        let want = [
            runner.workspace().to_str().unwrap().as_bytes(),
            b"/a\nb'c\"\xff",
        ]
        .concat();
        assert_eq!(
            odd.exec()["cwd"],
            json!({ "b64": base64(&want) }),
            "{shell}"
        );
        assert_eq!(client.shell("exit 1").verdict(), (1, true));
        assert_eq!(
            client.shell("true").exec()["cwd"],
            json!({ "b64": base64(&want) }),
            "{shell}"
        );
        let gone = client.shell("cd ..; mkdir gone; cd gone; rmdir ../gone");
        assert_eq!(
            gone.exec()["cwd"],
            json!(runner.workspace().join("gone").to_str().unwrap()),
            "{shell}"
        );
        assert_eq!(client.shell("echo still").stdout(), "still\n");
        assert_eq!(client.shell("exit 1").verdict(), (1, true));
        assert_eq!(
            client.shell("true").exec()["cwd"],
            json!(runner.workspace().to_str().unwrap())
        );
        let link = client.shell("mkdir real; ln -s real link; cd link");
        assert_eq!(
            link.exec()["cwd"],
            json!(runner.workspace().join("link").to_str().unwrap())
        );
    }
}

#[test]
fn cwd_and_env_of_a_request_act_like_cd_and_export() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        let set = client.exec(json!({"shell": "main", "cwd": "/usr", "env": {"Q": "a'b\nc $x"}, "command": "echo \"$Q $PWD\""}));
        assert_eq!(set.stdout(), "a'b\nc $x /usr\n", "{shell}");
        assert_eq!(
            client.shell("sh -c 'echo \"$Q $PWD\"'").stdout(),
            "a'b\nc $x /usr\n"
        );
        let relative = client.exec(json!({"shell": "main", "cwd": "bin", "command": "pwd"}));
        assert_eq!(relative.stdout(), "/usr/bin\n");
        let wrong =
            client.exec(json!({"shell": "main", "cwd": "/no/such", "command": "echo never"}));
        assert_eq!(wrong.code(), "not_found");
        let file =
            client.exec(json!({"shell": "main", "cwd": "/etc/passwd", "command": "echo never"}));
        assert_eq!(file.code(), "not_directory");
        let name = client.exec(json!({"shell": "main", "env": {"A-B": "x"}, "command": "true"}));
        assert_eq!(name.code(), "invalid");
        assert_eq!(client.shell("pwd").stdout(), "/usr/bin\n");
    }
}

#[test]
fn command_of_1_mib_runs_and_a_longer_one_is_too_large() {
    for shell in SHELLS {
        let runner = with_shell(shell);
        let mut client = runner.connect();
        client.shell("true");
        let prefix = "x='";
        let suffix = "'; echo ${#x}";
        let fill = (1 << 20) - prefix.len() - suffix.len();
        let outcome = client.shell(&format!("{prefix}{}{suffix}", "y".repeat(fill)));
        assert_eq!(outcome.stdout(), format!("{fill}\n"));
        assert_eq!(
            client
                .exec(json!({"shell": "main", "command": "#".repeat((1 << 20) + 1)}))
                .code(),
            "too_large"
        );
    }
}

#[test]
fn control_characters_are_data_and_nul_is_invalid() {
    let runner = Runner::start();
    let mut client = runner.connect();
    let outcome = client.shell("printf '%s' 'a\rb\x03c\x04d\x16e\x1b[31m'");
    assert_eq!(outcome.bytes(1), b"a\rb\x03c\x04d\x16e\x1b[31m");
    assert_eq!(
        client
            .exec(json!({"shell": "main", "command": "echo a\u{0}b"}))
            .code(),
        "invalid"
    );
    let bytes = client.exec(json!({"shell": "main", "command": {"b64": "cHJpbnRmICVzICf//ic="}}));
    assert_eq!(bytes.bytes(1), b"\xff\xfe");
}

#[test]
fn thousand_commands_keep_their_state_and_leave_no_file() {
    let runner = Runner::start();
    let mut client = runner.connect();
    client.shell("n=0");
    for i in 1..=1000 {
        let outcome = client.shell("n=$((n+1)); echo $n");
        assert_eq!(
            (outcome.stdout(), outcome.verdict()),
            (format!("{i}\n"), (0, false))
        );
    }
    let state = runner.root.join("state");
    // Beside it, the link of `python` to python3.
    let shells: Vec<_> = std::fs::read_dir(&state)
        .unwrap()
        .flatten()
        .filter(|f| f.file_name() != "bin")
        .collect();
    assert_eq!(shells.len(), 1);
    let mut files: Vec<_> = std::fs::read_dir(shells[0].path())
        .unwrap()
        .flatten()
        .map(|f| f.file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["cmd", "err", "out"]);
    let open = std::fs::read_dir(format!("/proc/{}/fd", runner.pid()))
        .unwrap()
        .count();
    assert!(open < 20, "{open}");
}

#[test]
fn image_without_a_shell_is_an_error() {
    let runner = Runner::with(&["--shell", "/no/such/shell"]);
    let mut client = runner.connect();
    assert_eq!(client.shell("true").code(), "no_shell");
    assert_eq!(client.argv(&["true"]).exec()["exit_code"], 0);
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
