"""argv commands: new processes, exact results, errors only for what could not be started."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import (
    CommandNotExecutable,
    CommandNotFound,
    Conflict,
    ExecNotFound,
    FileNotFound,
    InvalidRequest,
    NotADirectory,
)
from sandkasten_contract.box import Box
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.messages import decode_execs


async def test_a_command_returns_its_output_and_status(box: Box):
    ran = await box.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert ran.stdout == b"out\n"
    assert ran.stderr == b"err\n"
    assert ran.events == ("started",)
    reply = ran.reply
    assert (reply.state, reply.exit_code, reply.signal) == ("exited", 3, None)
    assert (reply.timed_out, reply.killed, reply.shell_reset) == (False, False, False)
    assert (reply.stdout_bytes, reply.stderr_bytes, reply.truncated) == (4, 4, False)
    assert reply.last_seq == ran.chunks[-1].seq
    assert reply.kind == "argv"
    assert reply.pid


@each("status", [0, 1, 2, 42, 126, 127, 255])
async def test_every_exit_status_is_reported_unchanged(box: Box, status: int):
    ran = await box.run(["sh", "-c", f"exit {status}"])
    assert (ran.reply.state, ran.exit_code) == ("exited", status)


async def test_true_and_false_return_their_status(box: Box):
    assert (await box.run(["true"])).exit_code == 0
    assert (await box.run(["false"])).exit_code == 1


async def test_arguments_arrive_untouched(box: Box):
    words = ["a b", "", "$HOME", "'", '"', "*", "-n", "line\nbreak", "ümlaut"]
    ran = await box.run(["printf", "%s|", *words])
    assert ran.stdout == "".join(f"{word}|" for word in words).encode()


async def test_arguments_may_be_any_bytes(box: Box):
    ran = await box.run(["printf", "%s", b"\xff\xfe raw".decode("utf-8", "surrogateescape")])
    assert ran.stdout == b"\xff\xfe raw"


async def test_output_without_a_newline_or_of_raw_bytes_is_exact(box: Box):
    assert (await box.run(["printf", "no newline"])).stdout == b"no newline"
    assert (await box.run(["printf", r"\377\000\n\200"])).stdout == b"\xff\x00\n\x80"


async def test_an_argv_command_starts_in_the_workspace(box: Box):
    assert (await box.run(["pwd"])).stdout.decode() == box.workspace + "\n"


async def test_cwd_is_where_the_command_runs(box: Box):
    await box.mkdir("deep/er")
    ran = await box.run(["pwd"], cwd=box.path("deep/er"))
    assert ran.stdout.decode() == box.path("deep/er") + "\n"
    assert (await box.run(["pwd"], cwd="deep")).stdout.decode() == box.path("deep") + "\n"


async def test_a_missing_cwd_is_an_error_and_not_a_result(box: Box):
    with pytest.raises(FileNotFound):
        await box.run(["true"], cwd="nowhere")
    await box.write("file", b"")
    with pytest.raises(NotADirectory):
        await box.run(["true"], cwd="file")


async def test_env_overrides_the_base_environment(box: Box):
    ran = await box.run(["sh", "-c", 'echo "$X" "${PATH:-none}"'], env={"X": "a b=c"})
    first, path = ran.stdout.decode().rsplit(" ", 1)
    assert first == "a b=c"
    assert path.strip() not in ("", "none")
    assert (await box.run(["sh", "-c", 'echo "${X:-unset}"'])).stdout == b"unset\n"


async def test_state_does_not_leak_between_argv_commands(box: Box):
    await box.run(["sh", "-c", "cd /; X=1; export X"])
    ran = await box.run(["sh", "-c", 'pwd; echo "${X:-unset}"'])
    assert ran.stdout.decode() == f"{box.workspace}\nunset\n"


@pytest.mark.promise("P10")
async def test_a_missing_program_is_an_error_and_not_a_result(box: Box):
    with pytest.raises(CommandNotFound):
        await box.run(["no-such-program-here"])
    with pytest.raises(CommandNotFound):
        await box.run(["/no/such/program"])


async def test_a_file_that_cannot_be_executed_is_an_error(box: Box):
    await box.write("data", b"just text", mode=0o644)
    with pytest.raises(CommandNotExecutable):
        await box.run([box.path("data")])


async def test_a_script_with_an_interpreter_line_runs(box: Box):
    await box.write("hello", b"#!/bin/sh\necho from a script\n", mode=0o755)
    assert (await box.run([box.path("hello")])).stdout == b"from a script\n"


async def test_a_program_is_looked_up_in_the_path_of_the_command(box: Box):
    await box.mkdir("bin")
    await box.write("bin/mine", b"#!/bin/sh\necho mine\n", mode=0o755)
    path = f"{box.path('bin')}:/usr/bin:/bin"
    assert (await box.run(["mine"], env={"PATH": path})).stdout == b"mine\n"


@each(
    "fields",
    [
        {"exec_id": "has space"},
        {"exec_id": ""},
        {"exec_id": "x" * 65},
        {"exec_id": 7},
        {"argv": "true"},
        {"argv": [1]},
        {"argv": ["nul\0"]},
        {"argv": []},
        {"deadline_ms": -1},
        {"deadline_ms": "soon"},
        {"deadline_ms": True},
        {"stdin": "maybe"},
        {"env": {"A": 1}},
        {"env": ["A"]},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"cwd": 4},
        {"follow": "yes"},
        {"stdout_cap": -5},
        {"pty": 1},
    ],
    ids=str,
)
async def test_a_malformed_request_is_invalid_and_runs_nothing(box: Box, fields: dict[str, object]):
    asked = {**box.fields(["touch", "ran"]), **fields}
    with pytest.raises(InvalidRequest):
        await box.ask("exec.start", **asked)
    assert (await box.list()).entries == ()


async def test_argv_with_a_shell_starts_with_its_directory(box: Box):
    await box.run("mkdir -p inner && cd inner")
    ran = await box.run(["pwd"], shell="default")
    assert ran.stdout.decode().strip().endswith("/inner")


async def test_unknown_fields_are_ignored(box: Box):
    assert (await box.run(["echo", "fine"], invented_later={"a": [1]})).stdout == b"fine\n"


async def test_stdin_is_empty_unless_asked_for(box: Box):
    ran = await box.run(["cat"])
    assert (ran.stdout, ran.exit_code) == (b"", 0)


async def test_stdin_is_streamed_and_closed(box: Box):
    data = bytes(range(256)) * 4096
    ran = await box.run(["cat"], stdin=data, stdout_cap=2 * len(data))
    assert (ran.stdout == data, ran.exit_code) == (True, 0)


async def test_stdin_longer_than_the_credit_passes(box: Box):
    data = b"0123456789abcdef" * (3 * 1024 * 1024 // 16)
    ran = await box.run(["wc", "-c"], stdin=data)
    assert int(ran.stdout) == len(data)


async def test_a_command_that_ignores_its_stdin_still_ends(box: Box):
    ran = await box.run(["echo", "done"], stdin=b"x" * 3_000_000)
    assert (ran.stdout, ran.exit_code) == (b"done\n", 0)


async def test_stdin_can_be_sent_later_by_a_separate_request(box: Box):
    exec_id = await box.begin(["cat"], stdin="stream")
    assert await box.ask("exec.stdin", exec_id=exec_id, data=b"first ") == {"bytes": 6}
    await box.prints(exec_id, b"first ")
    answer = await box.ask("exec.stdin", exec_id=exec_id, close=True, data=b"second")
    assert answer == {"bytes": 6}
    assert (await box.wait(exec_id)).exit_code == 0
    assert (await box.output(exec_id)).stdout == b"first second"


async def test_sending_stdin_to_a_command_without_stdin_is_refused(box: Box):
    exec_id = await box.begin(["sleep", "1000"])
    with pytest.raises(Conflict):
        await box.ask("exec.stdin", exec_id=exec_id, data=b"x")


async def test_without_follow_the_answer_is_immediate(box: Box):
    reply = await box.ask("exec.start", **box.fields(["sleep", "1000"], follow=False))
    assert reply["state"] == "running"
    assert reply["exit_code"] is None


async def test_wait_returns_running_when_its_timeout_is_over(box: Box):
    exec_id = await box.begin(["sleep", "1000"])
    reply = await box.wait(exec_id, timeout_ms=50)
    assert (reply.state, reply.exit_code, reply.ended) == ("running", None, False)


async def test_wait_returns_the_result_when_the_command_ends(box: Box):
    exec_id = await box.begin(["sh", "-c", "read x; exit 5"], stdin="stream")
    waiting = asyncio.create_task(box.wait(exec_id))
    await asyncio.sleep(0)
    await box.ask("exec.stdin", exec_id=exec_id, data=b"go\n", close=True)
    reply = await waiting
    assert reply.state == "exited"


async def test_an_unknown_exec_is_not_found_by_any_request(box: Box):
    for verb, more in (
        ("exec.wait", {}),
        ("exec.output", {}),
        ("exec.signal", {"signal": 15}),
        ("exec.stdin", {}),
        ("exec.resize", {"rows": 1, "cols": 1}),
    ):
        with pytest.raises(ExecNotFound):
            await box.ask(verb, exec_id="never", data=b"", **more)


async def test_the_list_of_execs_holds_what_ran_and_what_runs(box: Box):
    done = (await box.run(["true"])).reply.exec_id
    going = await box.begin(["sleep", "1000"])
    execs = {one.exec_id: one for one in decode_execs(await box.ask("exec.list"))}
    assert execs[done].state == "exited"
    assert execs[going].state == "running"


@pytest.mark.aspect("large")
@pytest.mark.timeout(600)
async def test_results_are_kept_for_the_newest_256(box: Box):
    first = (await box.run(["true"])).reply.exec_id
    second = (await box.run(["true"])).reply.exec_id
    for _ in range(255):
        await box.run(["true"])
    assert (await box.wait(second)).exit_code == 0
    with pytest.raises(ExecNotFound):
        await box.wait(first)
    assert len(decode_execs(await box.ask("exec.list"))) == 256


async def test_many_commands_at_once_do_not_mix(box: Box):
    ran = await asyncio.gather(
        *(box.run(["sh", "-c", f"echo {number}; exit {number}"]) for number in range(40))
    )
    assert [one.stdout for one in ran] == [b"%d\n" % number for number in range(40)]
    assert [one.exit_code for one in ran] == list(range(40))


async def test_cancelling_the_call_does_not_stop_the_command(box: Box):
    asked = box.fields(["sh", "-c", "echo up; cat; echo done"], stdin="stream")
    async with box.channel.stream("exec.start", asked) as call:
        async for item in call:
            if getattr(item, "data", b"") == b"up\n":
                break
    exec_id = str(asked["exec_id"])
    assert (await box.wait(exec_id, timeout_ms=50)).state == "running"
    await box.ask("exec.stdin", exec_id=exec_id, close=True, data=b"")
    assert (await box.wait(exec_id)).exit_code == 0
    assert (await box.output(exec_id)).stdout == b"up\ndone\n"


async def test_a_dropped_connection_does_not_stop_the_command(box: Box):
    exec_id = await box.begin(["sh", "-c", "read x; echo survived"], stdin="stream")
    await box.channel.aclose()
    again = await Box.open(box.cell)
    await again.ask("exec.stdin", exec_id=exec_id, close=True, data=b"x\n")
    assert (await again.wait(exec_id)).ended
    assert (await again.output(exec_id)).stdout == b"survived\n"
    await again.aclose()


async def test_a_pty_command_has_a_terminal_of_the_size_asked_for(box: Box):
    ran = await box.run(
        ["sh", "-c", "test -t 0 && test -t 1 && stty size"], pty={"rows": 40, "cols": 132}
    )
    assert (ran.source(0), ran.stdout, ran.exit_code) == (b"40 132\r\n", b"", 0)


async def test_a_terminal_can_be_resized_while_it_runs(box: Box):
    exec_id = await box.begin(
        ["sh", "-c", "echo up; read x; stty size"],
        pty={"rows": 24, "cols": 80},
        stdin="stream",
    )
    await box.prints(exec_id, b"up")
    assert await box.ask("exec.resize", exec_id=exec_id, rows=50, cols=99) == {}
    await box.ask("exec.stdin", exec_id=exec_id, data=b"\n")
    await box.wait(exec_id)
    assert b"50 99\r\n" in (await box.output(exec_id)).source(0)


async def test_both_streams_of_a_pty_command_come_as_one(box: Box):
    ran = await box.run(["sh", "-c", "echo out; echo err >&2"], pty={"rows": 24, "cols": 80})
    assert ran.source(0) == b"out\r\nerr\r\n"
    assert (ran.stdout, ran.stderr) == (b"", b"")


@pytest.mark.aspect("large")
@pytest.mark.timeout(600)
async def test_five_hundred_quick_commands_in_a_row_all_return(box: Box):
    for number in range(500):
        assert (await box.run(["echo", str(number)])).stdout == b"%d\n" % number
