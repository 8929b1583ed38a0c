"""Commands: results, live output, started commands, cancellation, broken connections."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from sandkasten.errors import (
    CommandNotFound,
    ExecNotFound,
    FileNotFound,
    IdempotencyKeyReused,
    InvalidRequest,
    NotADirectory,
    PayloadTooLarge,
    SandboxLost,
    SandkastenError,
)
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, ExecResult, Pty
from sandkasten.model.commands.kept_output import gap_marker
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.usage import Usage
from sandkasten_runtime.engine.commands import exec_follower
from sandkasten_runtime.engine.commands.terminals import terminal_fields
from tests.engine.injections import GO, UNTIL_GO
from tests.patience import DEADLINES_S, PATIENCE_S

pytestmark = pytest.mark.anyio


async def collect(stream) -> tuple[list[Chunk], ExecResult]:
    items = [item async for item in stream]
    assert isinstance(items[-1], ExecResult)
    return items[:-1], items[-1]


async def until(question) -> None:
    """Repeat the call until it returns something."""
    async with asyncio.timeout(PATIENCE_S):
        while not await question():  # noqa: ASYNC110  (a store has no events)
            await asyncio.sleep(0.01)


async def test_the_shell_remembers(engine, box):
    await engine.exec(box, ExecRequest("cd /tmp && export A=1"))
    result = await engine.exec(box, ExecRequest("echo $A; pwd"))
    assert (result.status, result.exit_code, result.output) == ("completed", 0, b"1\n/tmp\n")
    assert (result.cwd, result.shell, result.why) == ("/tmp", "default", None)


async def test_the_directory_of_the_shell_is_that_of_the_sandbox(engine, box):
    assert (await engine.get(box)).cwd == "/workspace"
    await engine.exec(box, ExecRequest("cd /tmp"))
    assert (await engine.get(box)).cwd == "/tmp"
    assert [one.cwd for one in await engine.list()] == ["/tmp"]
    # Other shells and processes have directories of their own.
    await engine.exec(box, ExecRequest("cd /usr", shell="other"))
    await engine.exec(box, ExecRequest(("true",), cwd="/etc"))
    assert (await engine.get(box)).cwd == "/tmp"
    started = await engine.exec_start(box, ExecRequest("cd /usr", stateful=True))
    await engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S)
    assert (await engine.get(box)).cwd == "/usr"


async def test_another_process_learns_the_directory_of_the_shell(engine, box):
    await engine.exec(box, ExecRequest("cd /tmp"))
    await engine._handles.forget(box)
    assert (await engine.get(box)).cwd == "/tmp"


async def test_a_list_is_a_new_process_in_the_workspace(engine, box):
    await engine.exec(box, ExecRequest("cd /tmp; export A=1"))
    result = await engine.exec(box, ExecRequest(("sh", "-c", "pwd; echo [$A]")))
    assert (result.stdout, result.shell) == (b"/workspace\n[]\n", None)


async def test_a_string_can_run_outside_the_shell(engine, box):
    await engine.exec(box, ExecRequest("A=1; cd /tmp"))
    result = await engine.exec(box, ExecRequest("pwd; echo [$A]; cd /", stateful=False))
    assert result.stdout == b"/workspace\n[]\n"
    assert (await engine.exec(box, ExecRequest("pwd"))).stdout == b"/tmp\n"


async def test_a_list_can_run_inside_the_shell(engine, box):
    await engine.exec(box, ExecRequest(("cd", "/tmp"), stateful=True))
    assert (await engine.exec(box, ExecRequest("pwd"))).stdout == b"/tmp\n"


async def test_shells_with_different_names_have_separate_state(engine, box):
    await engine.exec(box, ExecRequest("A=1", shell="one"))
    two = await engine.exec(box, ExecRequest("echo [$A]", shell="two"))
    one = await engine.exec(box, ExecRequest("echo [$A]", shell="one"))
    assert (one.stdout, two.stdout) == (b"[1]\n", b"[]\n")


async def test_streams_are_available_separately_and_combined_in_order(engine, box):
    # Two pipes have no order between them, so each line waits until the one before it was read.
    wait = "until test -e {0}; do sleep 0.01; done"
    script = f"echo a; {wait.format('b')}; echo b >&2; {wait.format('c')}; echo c"
    async for item in engine.exec_stream(box, ExecRequest(script)):
        if isinstance(item, ExecResult):
            result = item
        elif item.data != b"c\n":
            await engine.files.write(box, {b"a\n": "b", b"b\n": "c"}[item.data], b"")
    assert (result.stdout, result.stderr, result.output) == (b"a\nc\n", b"b\n", b"a\nb\nc\n")
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (4, 2, False)


@pytest.mark.promise("P10")
async def test_a_failure_is_a_result(engine, box):
    result = await engine.exec(box, ExecRequest("false"))
    assert (result.status, result.exit_code, result.why) == ("completed", 1, None)
    missing = await engine.exec(box, ExecRequest("no-such-program"))
    assert (missing.status, missing.exit_code) == ("completed", 127)


async def test_a_command_that_cannot_be_started_is_an_error(engine, box):
    with pytest.raises(CommandNotFound):
        await engine.exec(box, ExecRequest(("no-such-program",)))
    with pytest.raises((FileNotFound, NotADirectory)):
        await engine.exec(box, ExecRequest(("true",), cwd="/nowhere"))


async def test_a_word_of_the_shell_in_place_of_a_program_is_explained_by_every_start(engine, box):
    hint = "cd is a word of the shell: give the command as one string, 'cd /tmp', or run sh -c"
    command = ("cd", "/tmp")

    async def stream():
        async for _ in engine.exec_stream(box, ExecRequest(command)):
            pass

    async def terminal():
        async with engine.terminal(box, command=command, rows=24, cols=80):
            pass

    starts = (
        engine.exec(box, ExecRequest(command)),
        stream(),
        engine.exec_start(box, ExecRequest(command)),
        terminal(),
        engine.terminals.start(box, command=command, rows=24, cols=80),
    )
    for start in starts:
        with pytest.raises(CommandNotFound) as refused:
            await start
        assert refused.value.hint == hint


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ExecRequest("a\0"), InvalidRequest),
        (ExecRequest("x" * (2**20 + 1)), PayloadTooLarge),
        (ExecRequest("true", timeout_seconds=4000), InvalidRequest),
        (ExecRequest("true", env={"A B": ""}), InvalidRequest),
        (ExecRequest("true", stdin="text"), InvalidRequest),  # type: ignore[arg-type]
        (ExecRequest("true", idempotency_key=""), InvalidRequest),
    ],
)
async def test_invalid_requests_are_refused_and_the_shell_continues(engine, box, request_, error):
    with pytest.raises(error):
        await engine.exec(box, request_)
    assert (await engine.exec(box, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_stdin_is_the_given_input_or_empty(engine, box):
    assert (await engine.exec(box, ExecRequest(("cat",), stdin=b"abc"))).stdout == b"abc"
    assert (await engine.exec(box, ExecRequest(("cat",)))).stdout == b""
    large = bytes(range(256)) * 8192
    result = await engine.exec(box, ExecRequest(("wc", "-c"), stdin=large))
    assert result.stdout.strip() == str(len(large)).encode()


async def test_env_and_cwd_reach_the_command(engine, box):
    result = await engine.exec(
        box, ExecRequest(("sh", "-c", "echo $A; pwd"), env={"A": "x y"}, cwd="/tmp")
    )
    assert result.stdout == b"x y\n/tmp\n"


async def test_a_deadline_is_a_result_with_the_output_before_it(engine, box):
    for timeout_s in DEADLINES_S:
        late = ExecRequest("echo before; sleep 600", timeout_seconds=timeout_s)
        result = await engine.exec(box, late)
        if result.stdout:
            break
    assert (result.status, result.timed_out, result.stdout) == ("timed_out", True, b"before\n")
    assert result.why is not None
    assert result.why.code == "TIMEOUT"
    assert f"{timeout_s:g} s" in result.why.message


async def test_a_shell_that_ends_is_reported_and_replaced(engine, box):
    result = await engine.exec(box, ExecRequest("cd /tmp; exit 7"))
    assert (result.exit_code, result.shell_reset) == (7, True)
    assert result.why is not None
    assert result.why.code == "SHELL_EXIT"
    after = await engine.exec(box, ExecRequest("echo alive"))
    assert (after.stdout, after.shell_reset) == (b"alive\n", False)


async def test_output_over_the_cap_keeps_head_and_tail_and_counts_the_gap(engine, box):
    request = ExecRequest(("printf", "%s", "0123456789" * 100), max_output_bytes=10)
    result = await engine.exec(box, request)
    assert result.stdout == b"01234" + gap_marker(990) + b"56789"
    assert (result.truncated, result.stdout_bytes) == (True, 1000)
    raw = await engine.exec(box, ExecRequest(request.command, max_output_bytes=10, raw_output=True))
    assert (raw.stdout, raw.output, raw.truncated) == (b"0123456789",) * 2 + (True,)


async def test_memory_stays_flat_under_a_flood(engine, box):
    await engine.exec(box, ExecRequest("true"))
    tracemalloc.start()
    try:
        result = await engine.exec(box, ExecRequest("yes | head -c 50000000"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.stdout_bytes, result.truncated) == (50_000_000, True)
    assert len(result.stdout) < 201_000
    assert peak < 32 * 2**20


async def test_a_success_reads_no_counters_and_a_failure_does(world, box):
    reads = world.backend.gate.usage_reads
    await world.engine.exec(box, ExecRequest("true"))
    assert world.backend.gate.usage_reads == reads
    await world.engine.exec(box, ExecRequest("false"))
    assert world.backend.gate.usage_reads == reads + 1


async def test_a_counted_oom_is_the_verdict_on_a_kill_and_only_once(world, box):
    world.backend.gate.usage = Usage(oom_kills=1)
    result = await world.engine.exec(box, ExecRequest("exit 137", stateful=False))
    assert (result.oom_killed, result.exit_code) == (True, 137)
    assert result.why is not None
    assert result.why.code == "OOM"
    again = await world.engine.exec(box, ExecRequest("exit 137", stateful=False))
    assert (again.oom_killed, again.why) == (False, None)


async def test_refused_forks_are_the_verdict_on_a_failure(world, box):
    world.backend.gate.usage = Usage(pids_refused=4)
    result = await world.engine.exec(box, ExecRequest("false"))
    assert result.why is not None
    assert result.why.code == "PIDS"


async def test_a_full_workspace_is_the_verdict_on_a_failure(world):
    info = await world.engine.create(CreateRequest(SandboxOptions(limits={"workspace_mb": 1})))
    await world.engine.files.write(info.id, "big", bytes(2**20))
    assert (await world.engine.exec(info.id, ExecRequest("true"))).why is None
    result = await world.engine.exec(info.id, ExecRequest("false"))
    assert result.why is not None
    assert result.why.code == "QUOTA"
    assert "/workspace" in result.why.message


async def test_output_is_streamed_live(engine, box):
    stream = engine.exec_stream(box, ExecRequest(f"echo one; {UNTIL_GO}; echo two >&2"))
    first = await anext(stream)
    await engine.files.write(box, GO, b"")
    assert isinstance(first, Chunk)
    assert (first.seq, first.source, first.data) == (1, "stdout", b"one\n")
    chunks, result = await collect(stream)
    assert [(c.source, c.data) for c in chunks] == [("stderr", b"two\n")]
    assert (result.stdout, result.stderr) == (b"one\n", b"two\n")
    assert first.exec_id == result.exec_id


async def test_a_started_command_can_be_fetched_later(engine, box):
    started = await engine.exec_start(
        box, ExecRequest(("sh", "-c", f"{UNTIL_GO}; echo done; exit 3"))
    )
    assert (started.status, started.exit_code) == ("running", None)
    await engine.files.write(box, GO, b"")
    result = await engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S)
    assert (result.status, result.exit_code, result.stdout) == ("completed", 3, b"done\n")
    chunks, last = await collect(engine.exec_output(box, started.exec_id))
    assert ([c.data for c in chunks], last.exit_code) == ([b"done\n"], 3)
    assert [one.exec_id for one in await engine.execs(box)] == [started.exec_id]


async def test_waiting_for_a_command_ends_at_its_timeout(engine, box):
    started = await engine.exec_start(box, ExecRequest(("sleep", "600")))
    assert (await engine.exec_get(box, started.exec_id, wait_s=0.05)).status == "running"
    await engine.exec_signal(box, started.exec_id, 9)
    result = await engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S)
    assert (result.status, result.signal) == ("killed", 9)
    assert result.why is not None
    assert result.why.code == "SIGNAL"


async def test_stdin_of_a_started_command_is_fed_in_pieces(engine, box):
    started = await engine.exec_start(box, ExecRequest(("cat",), stdin=b"a", keep_stdin_open=True))
    await engine.exec_stdin(box, started.exec_id, b"b")
    await engine.exec_stdin(box, started.exec_id, b"c", close=True)
    assert (await engine.exec_get(box, started.exec_id, wait_s=PATIENCE_S)).stdout == b"abc"


async def test_output_is_read_from_a_sequence_number(engine, box):
    result = await engine.exec(box, ExecRequest("echo a; echo b >&2; echo c"))
    every, _ = await collect(engine.exec_output(box, result.exec_id))
    chunks, _ = await collect(engine.exec_output(box, result.exec_id, since_seq=1))
    assert [(c.seq, c.gap_bytes) for c in every] == [(n + 1, 0) for n in range(len(every))]
    assert sorted(b"".join(c.data for c in every).splitlines()) == [b"a", b"b", b"c"]
    assert chunks == every[1:]
    assert chunks


@pytest.mark.promise("P14")
async def test_a_gap_is_reported_with_its_size(engine, box):
    result = await engine.exec(box, ExecRequest("yes | head -c 1000000", max_output_bytes=1000))
    chunks, _ = await collect(engine.exec_output(box, result.exec_id))
    assert sum(len(c.data) for c in chunks) == 1000
    assert sum(c.gap_bytes for c in chunks) == 999_000


async def test_an_unknown_exec_is_not_found_and_an_invalid_id_refused(engine, box):
    with pytest.raises(ExecNotFound):
        await engine.exec_get(box, "exe_0123456789abcdef")
    with pytest.raises(InvalidRequest):
        await engine.exec_get(box, "../x")
    for signal in (0, -1, 65, True):
        with pytest.raises(InvalidRequest):
            await engine.exec_signal(box, "exe_0123456789abcdef", signal)


async def test_a_cancelled_caller_leaves_the_command_running(world, box):
    engine = world.engine
    running = asyncio.create_task(
        engine.exec(box, ExecRequest(f"{UNTIL_GO}; echo finished", stateful=False))
    )
    await until(lambda: engine.execs(box))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.files.write(box, GO, b"")
    (one,) = await engine.execs(box)
    result = await engine.exec_get(box, one.exec_id, wait_s=PATIENCE_S)
    assert (result.status, result.stdout) == ("completed", b"finished\n")


async def test_an_idempotency_key_runs_once(engine, box):
    request = ExecRequest("echo x >> log; cat log", idempotency_key="k")
    first = await engine.exec(box, request)
    second = await engine.exec(box, request)
    assert (
        (first.exec_id, first.stdout)
        == (second.exec_id, second.stdout)
        == (
            first.exec_id,
            b"x\n",
        )
    )


@pytest.mark.promise("P16")
@pytest.mark.parametrize(
    "other",
    [
        ExecRequest("echo b >> log"),
        ExecRequest(("echo a >> log",)),
        ExecRequest("echo a >> log", env={"A": "1"}),
        ExecRequest("echo a >> log", cwd="/tmp"),
        ExecRequest("echo a >> log", shell="second"),
        ExecRequest("echo a >> log", stdin=b"x"),
    ],
    ids=["text", "list", "env", "cwd", "shell", "stdin"],
)
async def test_an_idempotency_key_of_another_command_is_refused(engine, box, other):
    first = await engine.exec(box, ExecRequest("echo a >> log", idempotency_key="k"))
    reused = replace(other, idempotency_key="k")
    for ask in (engine.exec, engine.exec_start):
        with pytest.raises(IdempotencyKeyReused) as refused:
            await ask(box, reused)
        assert refused.value.details == {"exec_id": first.exec_id}
    with pytest.raises(IdempotencyKeyReused):
        async for _ in engine.exec_stream(box, reused):
            pass
    assert (await engine.exec(box, ExecRequest("cat log"))).stdout == b"a\n"


async def test_an_idempotency_key_with_another_timeout_is_the_same_command(engine, box):
    request = ExecRequest("echo a >> log; cat log", idempotency_key="k")
    first = await engine.exec(box, request)
    again = await engine.exec(box, replace(request, timeout_seconds=7, max_output_bytes=5))
    assert (again.exec_id, again.stdout) == (first.exec_id, b"a\n")


async def test_commands_of_one_shell_run_one_after_the_other(engine, box):
    slow = asyncio.create_task(engine.exec(box, ExecRequest("sleep 0.2; echo a >> log")))
    await until(lambda: engine.execs(box))
    await engine.exec(box, ExecRequest("echo b >> log"))
    await slow
    assert (await engine.exec(box, ExecRequest("cat log"))).stdout == b"a\nb\n"


@pytest.mark.long(reason="`make test` has it for the runner (tests/conformance)")
async def test_a_thousand_commands_keep_the_state(engine, box):
    await engine.exec(box, ExecRequest("export N=1; cd /tmp"))
    for _ in range(1000):
        await engine.exec(box, ExecRequest("true"))
    assert (await engine.exec(box, ExecRequest("echo $N; pwd"))).stdout == b"1\n/tmp\n"


# ---- over a connection that breaks


async def break_connection(world, box) -> None:
    await world.backend.cells[box].streams[-1].aclose()


async def test_a_broken_connection_between_commands_is_reconnected_silently(world, box):
    await world.engine.exec(box, ExecRequest("A=1"))
    await break_connection(world, box)
    assert (await world.engine.exec(box, ExecRequest("echo $A"))).stdout == b"1\n"
    assert len(world.backend.cells[box].streams) == 2


async def test_a_connection_lost_midway_is_reestablished_without_loss_or_repetition(world, box):
    command = f"echo one; echo x >> log; {UNTIL_GO}; echo two; cat log"
    stream = world.engine.exec_stream(box, ExecRequest(command, stateful=False))
    first = await anext(stream)
    assert isinstance(first, Chunk)
    await break_connection(world, box)
    collecting = asyncio.create_task(collect(stream))

    async def made_again() -> bool:
        return len(world.backend.cells[box].streams) == 2

    await until(made_again)
    await world.engine.files.write(box, GO, b"")
    _, result = await collecting
    assert (result.status, result.stdout) == ("completed", b"one\ntwo\nx\n")
    assert len(world.backend.cells[box].streams) == 2


@pytest.mark.promise("P10")
async def test_a_sandbox_that_dies_midway_gives_a_lost_result(world, box):
    stream = world.engine.exec_stream(box, ExecRequest("echo one; sleep 600"))
    assert (await anext(stream)).data == b"one\n"
    await world.backend.cells[box].real.crash()
    _, result = await collect(stream)
    assert (result.status, result.exit_code, result.stdout) == ("lost", None, b"one\n")
    assert result.why is not None
    assert result.why.code == "LOST"


async def test_a_sandbox_that_is_already_dead_is_an_error(world, box):
    await world.engine.exec(box, ExecRequest("true"))
    await world.backend.cells[box].real.crash()
    with pytest.raises(SandboxLost):
        await world.engine.exec(box, ExecRequest("true"))


async def test_a_runner_that_never_reports_is_abandoned(world, box, monkeypatch):
    monkeypatch.setattr(exec_follower, "GRACE_S", 0)
    for bound_s in DEADLINES_S:
        monkeypatch.setattr(exec_follower, "REPORT_SLACK_S", bound_s - 60)
        result = await world.engine.exec(
            box, ExecRequest(("sh", "-c", "echo x; sleep 600"), timeout_seconds=60)
        )
        if result.stdout:
            break
    assert (result.status, result.stdout) == ("lost", b"x\n")


async def test_a_closed_engine_is_an_error(world, box):
    running = asyncio.create_task(world.engine.exec(box, ExecRequest("sleep 600")))
    await asyncio.sleep(0.05)
    await world.engine.aclose()
    with pytest.raises(SandkastenError):
        await running


# ---- terminals


async def test_a_terminal_accepts_input_and_returns_output(engine, box):
    async with engine.terminal(box, rows=30, cols=100) as terminal:
        await terminal.send(b"echo from-the-terminal\n")
        seen = b""
        async for data in terminal:
            seen += data
            if b"from-the-terminal" in seen:
                break
        await terminal.resize(40, 120)
        exec_id = terminal.exec_id
    ended = await engine.exec_get(box, exec_id, wait_s=PATIENCE_S)
    assert ended.status != "running"


async def test_a_terminal_has_a_result(engine, box):
    async with engine.terminal(box, command=("sh", "-c", "exit 5")) as terminal:
        result = await terminal.result()
    assert (result.exit_code, result.status) == (5, "completed")


async def test_an_invalid_terminal_request_is_refused(engine, box):
    for bad in ({"rows": 0}, {"command": ()}, {"command": ("a\0",)}, {"env": {"=": ""}}):
        with pytest.raises(InvalidRequest):
            async with engine.terminal(box, **bad):
                pass


async def test_a_command_on_a_terminal_has_one_stream(engine, box):
    result = await engine.exec(
        box, ExecRequest(("sh", "-c", "echo a; echo b >&2"), pty=Pty(24, 80))
    )
    assert result.stderr == b""
    assert result.stdout.replace(b"\r", b"") == b"a\nb\n"
    assert result.output == result.stdout


@pytest.mark.promise("P13")
@pytest.mark.parametrize("command", [("sh", "-c", UNTIL_GO), UNTIL_GO], ids=["list", "string"])
async def test_a_background_command_outlives_the_default_timeout(engine, command):
    limits = {"exec_timeout_seconds": 0.2, "max_exec_timeout_seconds": 0.5}
    box = (await engine.create(CreateRequest(SandboxOptions(limits=limits)))).id
    began = await engine.exec_start(box, ExecRequest(command))
    # Started later with the same default, and over: a deadline of the first would be over too.
    assert (await engine.exec(box, ExecRequest(("sleep", "600")))).timed_out
    assert (await engine.exec_get(box, began.exec_id)).status == "running"
    await engine.files.write(box, GO, b"")
    ended = await engine.exec_get(box, began.exec_id, wait_s=PATIENCE_S)
    assert (ended.status, ended.exit_code, ended.why) == ("completed", 0, None)


async def test_a_background_command_with_a_timeout_is_stopped_then(engine, box):
    began = await engine.exec_start(box, ExecRequest(("sleep", "600"), timeout_seconds=0.2))
    ended = await engine.exec_get(box, began.exec_id, wait_s=PATIENCE_S)
    assert (ended.status, ended.why.code) == ("timed_out", "TIMEOUT")
    assert ended.why.message == "the command was stopped at its deadline of 0.2 s"
    # A day is over the largest timeout of a command that is waited for.
    long = ExecRequest(("true",), timeout_seconds=86_400)
    with pytest.raises(InvalidRequest, match="max_exec_timeout_seconds") as caught:
        await engine.exec(box, long)
    assert "in the background" in caught.value.hint
    assert (await engine.exec_start(box, long)).exec_id


async def test_a_string_in_the_background_runs_beside_the_shell_with_its_state(engine, box):
    await engine.exec(box, ExecRequest("cd /tmp; export A=kept; B=lost"))
    began = await engine.exec_start(box, ExecRequest(f"{UNTIL_GO}; cd /; echo $A [$B]; export A=2"))
    # The shell is free, and writes what the other one waits for.
    after = await engine.exec(box, ExecRequest(f"echo $A; pwd; : > {GO}"))
    assert after.stdout == b"kept\n/tmp\n"
    ended = await engine.exec_get(box, began.exec_id, wait_s=PATIENCE_S)
    assert (ended.stdout, ended.shell) == (b"kept []\n", None)
    told = await engine.exec_start(box, ExecRequest("pwd", cwd="/usr"))
    assert (await engine.exec_get(box, told.exec_id, wait_s=PATIENCE_S)).stdout == b"/usr\n"
    told = await engine.exec_start(box, ExecRequest("pwd; cd /usr", stateful=True))
    ended = await engine.exec_get(box, told.exec_id, wait_s=PATIENCE_S)
    assert (ended.stdout, ended.shell, ended.cwd) == (b"/tmp\n", "default", "/usr")


async def test_a_background_string_of_a_new_sandbox_runs_in_the_workspace(engine, box):
    began = await engine.exec_start(box, ExecRequest("pwd"))
    ended = await engine.exec_get(box, began.exec_id, wait_s=PATIENCE_S)
    assert ended.stdout == b"/workspace\n"


@pytest.mark.parametrize("shell", [("bash", "--norc"), ("dash",), ("busybox", "sh")])
async def test_the_prompt_of_a_shell_names_the_sandbox_and_the_directory(engine, box, shell):
    _, channel = await engine._handles.connect(box)
    env = {"TERM": "xterm-256color", "PS1": f"{box[:8]}:$PWD\\$ "}
    assert terminal_fields(box, channel, None, Pty(24, 80), None, None)["env"] == env
    # Only a shell that was not named gets it, and a prompt of the request wins.
    named = terminal_fields(box, channel, shell, Pty(24, 80), None, None)
    assert named["env"] == {"TERM": "xterm-256color"}
    asked = terminal_fields(box, channel, None, Pty(24, 80), {"PS1": "mine> "}, None)
    assert asked["env"] == env | {"PS1": "mine> "}
    # Each shell shows it alike; the start-up files of the machine would replace it.
    async with engine.terminal(box, command=shell, env=env, cwd="/tmp") as terminal:
        await terminal.send(b"exit\n")
        seen = b"".join([chunk async for chunk in terminal]).decode()
    assert f"{box[:8]}:/tmp$ " in seen


@pytest.mark.parametrize("kept", [0, 200_000, 8 * 1024 * 1024])
async def test_slow_reader_gets_or_is_told_of_every_byte(engine, box, kept):
    written = 20_000_000
    request = ExecRequest(f"head -c {written} /dev/zero", max_output_bytes=kept)
    received = missing = 0
    last = b""
    async for item in engine.exec_stream(box, request):
        if isinstance(item, Chunk):
            received, missing, last = received + len(item.data), missing + item.gap_bytes, item.data
            await asyncio.sleep(0.002)
    assert received + missing == written
    # The newest output is what is kept, so only a reader without any kept output misses the end.
    assert bool(last) == bool(kept)


async def test_output_that_was_dropped_after_the_end_is_a_gap(engine, box):
    most = 8 * 1024 * 1024
    noisy = ExecRequest(("sh", "-c", f"head -c {most} /dev/zero"), max_output_bytes=most)
    first = await engine.exec(box, noisy)
    await engine.exec(box, noisy)
    chunks, _ = await collect(engine.exec_output(box, first.exec_id))
    assert sum(len(chunk.data) + chunk.gap_bytes for chunk in chunks) == most
