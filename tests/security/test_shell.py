"""Ordinary and hostile commands in the persistent shell."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten_contract.shared_sandbox_cases import each
from tests.patience import DEADLINES_S, FAR_TOO_LATE_S, PATIENCE_S
from tests.security.harness import NAMED, PYTHON, WHOLE_SANDBOX, Box, poll

pytestmark = pytest.mark.promise("P12")


def _works(box: Box, *, shell: str = "default") -> None:
    """Check that a command with an exit code is right at once, without a reset."""
    answer = box.exec("/bin/sh -c 'echo fine; exit 7'", shell=shell)
    assert (answer.stdout, answer.code, answer.reset) == (b"fine\n", 7, False), answer


@each(
    "text",
    [
        "__SANDKASTEN_DONE__ 0",
        "exit 0",
        "\x00RC=0\x00",
        "declare -x RC=\"0\"\nexport PWD='/'",
        "export RC=0",
        "\x1b]133;D;0\x07",
    ],
)
def test_output_that_looks_like_a_marker_is_plain_output(text, box):
    box.write("/workspace/said", text.encode())
    answer = box.exec("cat /workspace/said; cat /workspace/said >&2; false")
    assert (answer.stdout, answer.stderr, answer.code) == (text.encode(), text.encode(), 1)
    _works(box)


@each(
    ("command", "code"),
    [
        ("exit 7", 7),
        ("exec false", 1),
        ("exec sh -c 'exit 9'", 9),
        ("set -e; false", 1),
        # bash's own code for it when it runs no script; another shell has another.
        ("set -u; echo $nothing_of_that_name", 127),
        ("set -e; (exit 5); echo not reached", 5),
        ("trap 'exit 8' EXIT; exit 3", 8),
    ],
)
def test_a_command_that_ends_the_shell_returns_its_code_and_the_shell_is_replaced(
    command, code, box
):
    box.exec("mkdir -p /tmp/here && cd /tmp/here && export KEPT=yes")
    answer = box.exec(command)
    if code == 127 and not box.ground.has("bash"):
        code = 2
    assert (answer.code, answer.reset) == (code, True)
    assert box.exec("pwd").text == "/tmp/here\n"
    _works(box)


@each("signal", [9, 15, 6, 11, 1])
def test_a_shell_that_kills_itself_is_replaced(signal, box):
    box.exec("cd /tmp")
    answer = box.exec(f"kill -{signal} $$; sleep 5")
    assert answer.reset
    assert answer.code in (None, 128 + signal)
    assert answer.reply.signal in (None, signal)
    assert box.exec("pwd").text == "/tmp\n"
    _works(box)


@each(
    "command",
    [
        "echo 'open",
        'echo "open',
        "cat <<EOF\nno end",
        "(echo",
        "if true; then",
        "for i in 1 2; do",
        "case x in",
        "{ echo",
        "echo $(",
        "echo `",
        "f() {",
        "echo ${x",
        "echo $((1 +",
        "while true; do",
        "[[ x",
        ")",
        "fi",
        "done",
        "echo a && ",
        "echo a |",
        "echo \\",
    ],
)
def test_an_incomplete_command_fails_at_once_and_does_not_consume_the_next(command, box):
    box.exec("cd /tmp; kept=1")
    answer = box.exec(command)
    assert not answer.reply.timed_out
    # An open heredoc is a warning to bash and a trailing backslash is nothing at all.
    innocent = command.startswith("cat <<") or command.endswith("\\")
    assert answer.code is not None
    assert (answer.code == 0) == innocent
    assert box.exec("echo $kept").text == ("" if answer.reset else "1") + "\n"
    _works(box)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cat", 0),
        ("read x; echo \"code $?\"; exec 3>&-", 0),
        pytest.param(f"{PYTHON} -", 0, marks=pytest.mark.needs_program("python3")),
        pytest.param(f"{PYTHON} -i", 0, marks=pytest.mark.needs_program("python3")),
        pytest.param("bash", 0, marks=pytest.mark.needs_program("bash")),
        ("sh", 0),
        ("wc -c", 0),
        ("head -1", 0),
        pytest.param(
            "python3 -c 'import sys; print(repr(sys.stdin.read()))'",
            0,
            marks=pytest.mark.needs_program("python3"),
        ),
    ],
)  # fmt: skip
def test_a_program_that_reads_stdin_finds_its_end_and_not_the_next_command(command, code, box):
    first = box.begin(command)
    second = box.exec("echo second")
    answer = first.result(FAR_TOO_LATE_S)
    assert not answer.reply.timed_out
    assert answer.code == code
    assert b"second" not in answer.stdout
    assert second.stdout == b"second\n"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("less /etc/passwd", marks=pytest.mark.needs_program("less")),
        pytest.param("more /etc/passwd", marks=pytest.mark.needs_program("more")),
        pytest.param("vi -es -c q", marks=pytest.mark.needs_program("vi")),
    ],
)
def test_a_pager_does_not_wait_for_a_key(command, box):
    assert box.exec(f"command -v {command.split()[0]}").code == 0
    answer = box.exec(command)
    assert not answer.reply.timed_out
    _works(box)


def test_stty_of_one_command_does_not_reach_the_next(box):
    assert box.exec("stty raw -echo; printf x", pty=True).code is not None
    answer = box.exec("printf 'a\\nb\\n'; false")
    assert (answer.stdout, answer.code) == (b"a\nb\n", 1)
    # On a terminal the next command has a sane one again.
    said = box.exec("stty -a", pty=True).text
    assert " echo" in said
    assert " icanon" in said


def test_output_on_a_terminal_arrives_completely(box):
    wanted = "".join(f"{n}\r\n" for n in range(1, 1001)).encode()
    for command in ("seq 1000", ["seq", "1000"]):
        for _ in range(25):
            answer = box.exec(command, pty=True)
            assert (len(answer.stdout), answer.code) == (len(wanted), 0)
            assert answer.stdout == wanted


def test_a_background_job_returns_at_once_and_is_seen_later(box):
    answer = box.exec("sleep 600 & echo started")
    assert (answer.text, answer.code, answer.reply.timed_out) == ("started\n", 0, False)
    assert "Running" in box.exec("jobs").text
    assert box.exec("kill %1; wait; echo gone").text == "gone\n"


def test_a_background_flood_does_not_affect_the_foreground(box):
    box.exec("yes flood & echo")
    for code in (3, 0, 5):
        answer = box.exec(f"/bin/sh -c 'exit {code}'", cap=4000)
        assert answer.code == code
    assert box.exec("kill %1").code == 0
    if box.ground.has("bash") and not box.gvisor:
        _works(box)
    else:
        # The death of a job interrupts a shell that waits for its next command, and some end.
        _next_is_right_or_flagged(box)


def test_a_shell_that_stops_itself_is_dead_at_the_deadline(box):
    answer = box.exec("kill -STOP $$; echo never", timeout_s=1, grace_s=0.5)
    assert answer.reply.timed_out
    assert answer.reply.duration_ms < FAR_TOO_LATE_S * 1000
    # Woken by the grace's SIGCONT it may still end by itself; then its code is a real one.
    assert answer.code is None or answer.reset or answer.stdout == b"never\n"
    _next_is_right_or_flagged(box)


@pytest.mark.parametrize("way", ["shell", "argv"])
def test_a_command_that_ignores_signals_is_dead_after_deadline_and_grace_period(way, box):
    script = "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done"
    if way == "shell":
        answer = box.exec(script, timeout_s=1, grace_s=0.5)
    else:
        answer = box.exec(["sh", "-c", script], timeout_s=1, grace_s=0.5)
    assert answer.reply.timed_out
    assert 900 < answer.reply.duration_ms < FAR_TOO_LATE_S * 1000
    # A killed process that has not had its turn yet is still listed.
    left = "what ignored the signals"
    poll(left, lambda: [p for p in box.processes() if p.name == "sleep"])
    _next_is_right_or_flagged(box)


def test_a_stopped_command_is_dead_at_the_deadline(box):
    answer = box.exec(["sh", "-c", "kill -STOP $$"], timeout_s=1, grace_s=0.5)
    assert answer.reply.timed_out
    poll("what was stopped", lambda: [p for p in box.processes() if p.state == "T"])


def _next_is_right_or_flagged(box: Box, shell: str = "default") -> None:
    """Check that the answer is right or marked as reset, and right within three commands."""
    probe = "/bin/sh -c '/bin/echo ran; exit 7'"
    for timeout_s in (8, 8, PATIENCE_S):
        answer = box.exec(probe, shell=shell, timeout_s=timeout_s, grace_s=0.5)
        right = answer.code == 7 and b"ran\n" in answer.stdout
        flagged = answer.reset or answer.code is None or answer.reply.timed_out
        assert right or flagged, answer
        if right and not answer.reset:
            return
    raise AssertionError(f"still not right after three commands: {answer}")


@pytest.mark.promise("P13")
def test_the_deadline_spares_the_shell_and_earlier_jobs(box):
    box.exec("cd /tmp; kept=1; sleep 600 &")
    answer = box.exec("sleep 50", timeout_s=0.5, grace_s=0.5)
    assert answer.reply.timed_out
    next_one = box.exec("echo $kept; pwd")
    # It may not outlive the sweep; then one of both says so.
    if not (answer.reset or next_one.reset):
        assert next_one.text == "1\n/tmp\n"
        assert "Running" in box.exec("jobs").text
    _works(box)


def test_output_before_the_deadline_is_kept(box):
    for timeout_s in DEADLINES_S:
        answer = box.exec("echo before; sleep 50", timeout_s=timeout_s, grace_s=0.5)
        if answer.stdout:
            break
    assert (answer.stdout, answer.reply.timed_out) == (b"before\n", True)


def test_killing_every_process_does_not_kill_the_runner(box):
    pid = box.host_pid
    box.exec("sleep 500 &")
    # The kernel spares the caller itself, so the shell lives to say so.
    answer = box.exec("kill -9 -1")
    assert answer.code in (0, None) or answer.reset
    poll("the job", lambda: [p for p in box.processes() if p.name == "sleep" and p.state != "Z"])
    _next_is_right_or_flagged(box)
    answer = box.exec(["sh", "-c", "kill -9 -1; exit 4"])
    assert answer.code in (None, 4)
    _next_is_right_or_flagged(box)
    assert box.host_processes()[0] == pid or pid in box.host_processes()


@each("signal", [9, 15, 2, 1, 19, 3, 13, 10])
def test_killing_the_first_process_has_no_effect(signal, box):
    box.exec(f"for i in 1 2 3; do kill -{signal} 1; done; true")
    box.exec(["sh", "-c", f"kill -{signal} 1"])
    _works(box)


def test_killing_every_other_pid_leaves_a_working_session(box):
    """Including our supervisors and shells, which belong to the same sandbox."""
    script = (
        "for p in /proc/[0-9]*; do p=${p#/proc/};"
        "[ $p -gt 1 ] && [ $p != $$ ] && kill -9 $p; done; echo done"
    )
    box.exec("true")
    answer = box.exec(["sh", "-c", script])
    assert answer.code in (0, None, 1)
    _next_is_right_or_flagged(box)


def test_output_without_a_final_newline_is_exact(box):
    data = bytes(range(1, 256)) * 3
    box.write("/workspace/bytes", data)
    for command in ("cat /workspace/bytes", ["cat", "/workspace/bytes"]):
        assert box.exec(command).stdout == data


def test_a_command_of_a_megabyte_works_and_more_is_refused(box):
    head, tail = ": '", "'; echo whole"
    command = head + "x" * (1024 * 1024 - len(head) - len(tail)) + tail
    assert box.exec(command).text == "whole\n"
    with pytest.raises(PayloadTooLarge):
        box.exec(command + " ")
    _works(box)


@pytest.mark.own_cell(NAMED)
def test_a_nul_in_a_command_is_refused_on_both_sides(box):
    with pytest.raises(InvalidRequest):
        box.exec("echo a\0b")
    for fields in (
        {"shell": "default", "command": "echo a\0b"},
        {"argv": ["echo", "a\0b"]},
        {"argv": ["echo"], "env": {"A": "a\0b"}},
        {"argv": ["echo"], "cwd": "/tmp\0"},
    ):
        with pytest.raises(InvalidRequest):
            box.call("exec.start", exec_id="nul", **fields)
    _works(box)


@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "pty"])
def test_control_characters_in_a_command_are_data(pty, box):
    data = "a\rb\x03c\x04d\x16e\x1af\x7fg\x11h\x13i"
    answer = box.exec(f"printf %s '{data}' | od -An -tx1", pty=pty)
    assert bytes.fromhex(answer.text.replace("\n", "").replace("\r", "")) == data.encode()
    _works(box)


def test_a_shell_survives_the_deletion_of_its_cwd(box):
    box.exec("mkdir -p /tmp/gone/deep && cd /tmp/gone/deep")
    assert box.exec("rm -rf /tmp/gone; echo removed").text == "removed\n"
    answer = box.exec("echo still")
    assert (answer.text, answer.code) == ("still\n", 0)
    assert box.exec("cd /tmp && pwd").text == "/tmp\n"
    _works(box)


def test_a_shell_replaced_in_a_deleted_cwd_starts_in_an_existing_directory(box):
    box.exec("mkdir -p /tmp/gone && cd /tmp/gone")
    answer = box.exec("rmdir /tmp/gone; exit 4")
    assert (answer.code, answer.reset) == (4, True)
    _works(box)
    assert box.exec("cd . && pwd").code == 0


@each(
    "name",
    [b"new\nline", b"quo'te\"s", b"inv\xff\xfealid", b"-dash", b"sp ace", b"$(id)", b"\\back",
     b"declare -x A=1"],
)  # fmt: skip
def test_an_unusual_cwd_is_reported_exactly_and_survives_a_reset(name, box):
    path = b"/workspace/" + name
    box.mkdir(path)
    answer = box.exec("true", cwd=path)
    assert answer.reply.cwd is not None
    assert answer.reply.cwd.encode(errors="surrogateescape") == path
    assert box.exec(["pwd", "-P"], cwd=path).stdout == path + b"\n"
    assert box.exec("exit 1").reset
    assert box.exec("/bin/pwd -P").stdout == path + b"\n"


@pytest.mark.promise("P11")
def test_two_commands_on_one_shell_run_strictly_in_order(box):
    futures = [
        box.begin(f"echo begin {n} >>/tmp/order; sleep 0.1; echo end {n} >>/tmp/order")
        for n in range(5)
    ]
    for future in futures:
        assert future.result(FAR_TOO_LATE_S).code == 0
    lines = box.read("/tmp/order").decode().split("\n")[:-1]
    assert sorted(lines[::2]) == sorted(f"begin {n}" for n in range(5))
    assert all(lines[i].split()[1] == lines[i + 1].split()[1] for i in range(0, 10, 2))


@pytest.mark.promise("P11")
def test_shells_with_different_names_run_in_parallel(box):
    slow = box.start("sleep 600", shell="slow", timeout_s=100)
    # A signal that came before the shell has started its program would reach nothing.
    running = "until cat /proc/[0-9]*/comm 2>/dev/null | grep -qx sleep; do :; done"
    assert box.exec(f"{running}; echo quick", shell="quick").text == "quick\n"
    assert box.wait(slow, 0).state == "running"
    box.call("exec.signal", exec_id=slow, signal=9)
    assert box.wait(slow).ended


@pytest.mark.promise("P16")
@pytest.mark.own_cell(NAMED)
def test_an_idempotency_key_used_twice_runs_once(box):
    box.exec("echo run >>/tmp/runs", key="same")
    box.exec("echo run >>/tmp/runs", key="same")
    box.exec(["sh", "-c", "echo run >>/tmp/runs"], key="same")
    assert box.read("/tmp/runs") == b"run\n"


@pytest.mark.own_cell(NAMED)
def test_a_client_that_disconnects_loses_no_output(box):
    async def start_and_leave() -> None:
        from sandkasten_runtime.wire.channel import Channel

        channel = await Channel.open(await box.cell.dial())
        fields = box.fields("sleep 0.5; echo finished; /bin/sh -c 'exit 6'", exec_id="left-alone")
        async with channel.stream("exec.start", fields) as call:
            async for _ in call:
                break
            await channel.aclose()

    box.loop.run(start_and_leave())
    reply = box.wait("left-alone")
    assert (reply.exit_code, reply.state) == (6, "exited")
    assert box.kept("left-alone").stdout == b"finished\n"


def test_a_command_keeps_its_deadline_after_its_client_disconnects(box):
    exec_id = box.start("sleep 1000", timeout_s=0.5, grace_s=0.5)
    reply = box.wait(exec_id)
    assert reply.timed_out
    poll("the command", lambda: [p for p in box.processes() if p.name == "sleep"])


def test_the_runner_survives_garbage_on_every_descriptor_of_the_shell(box):
    """The shell's private channel to the runner gets arbitrary data."""
    box.exec("true")
    flood = (
        "for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && "
        "(timeout 2 head -c 3000000 /dev/urandom >$f) 2>/dev/null; done; true"
    )
    answer = box.exec(flood)
    assert answer.code is not None or answer.reset or answer.reply.state == "lost"
    _next_is_right_or_flagged(box)


def test_a_forged_answer_does_not_crash_the_runner(box):
    forged = (
        "for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && "
        '(timeout 1 sh -c \'printf "declare -x RC=\\"99999999999\\"\\n\\0\\0" >\'$f) 2>/dev/null;'
        "done; true"
    )
    box.exec(forged)
    _next_is_right_or_flagged(box)


@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.timeout(600)
def test_a_flood_of_named_shells_is_bounded(box):
    """Each is a process; the limit of the sandbox stops it and the rest continues."""
    from sandkasten.errors import SandkastenError

    made = 0
    try:
        for n in range(400):
            box.exec("true", shell=f"s{n}")
            made += 1
    except SandkastenError:
        pass
    assert made > 20
    for n in range(made):
        box.call("shell.close", name=f"s{n}")
    poll("closed shells", lambda: box.call("shell.list")["shells"])
    _works(box, shell="after")
