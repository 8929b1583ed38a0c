"""Programs that are started for a later command, and become that command when it comes."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from sandkasten.errors import ExecNotFound
from sandkasten.model.language_runtimes import HELD_PYTHON
from sandkasten_contract.box import Box, Ran, eventually
from sandkasten_runtime.engine.oneshot.held_interpreters import hold_python, prelude
from sandkasten_runtime.wire.call import OutputChunk
from tests.conformance.python_programs import PROGRAMS, Program

# Waits as a held program does: reads a message, then runs the command with the shell.
WAITS = r"""
import os, sys
os.write(1, b"\6")
size = int.from_bytes(os.read(0, 4), "big")
data = b""
while len(data) < size:
    data += os.read(0, size - len(data))
stdin, cwd, count, *words = data.split(b"\0")
argv, env = words[:int(count)], dict(one.split(b"=", 1) for one in words[int(count):])
os.chdir(cwd)
os.execvpe(argv[0], argv, env)
"""
HELD = "held_0"
READY = b"\6"
CORE = (
    "arguments",
    "main module",
    "modules",
    "environment",
    "no input",
    "input read",
    "exit with a string",
    "traceback",
    "multiprocessing spawn",
    "hash seed",
)
ADDRESS = re.compile("0x[0-9a-f]+")
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _other_id() -> None:
    """Use an id once: some platforms use a sandbox for several tests."""
    global HELD
    HELD = f"held_{next(_numbers)}"


async def hold(box: Box, source: str = WAITS, said: bytes = READY) -> int | None:
    """Start a held program, wait until it has said this, and return its process."""
    fields = box.fields(["python3", "-c", source], hold=True) | {"exec_id": HELD}
    async with box.channel.stream("exec.start", fields) as call:
        async for item in call:
            if isinstance(item, OutputChunk) and item.data == said:
                break
    return (await box.wait(HELD, timeout_ms=0)).pid


async def gone(box: Box) -> None:
    """Wait until the held program has ended."""

    async def state() -> bool:
        return (await box.wait(HELD, timeout_ms=0)).ended

    await eventually(state, True)


async def test_a_held_program_becomes_the_command_that_names_it(box: Box):
    pid = await hold(box)
    ran = await box.run(
        ["sh", "-c", "pwd; echo $WHO; cat; exit 3"],
        stdin=b"typed",
        env={"WHO": "me"},
        cwd="/tmp",
        held=HELD,
    )
    assert (ran.reply.pid, ran.exit_code, ran.events) == (pid, 3, ("started",))
    assert (ran.stdout, ran.stderr) == (b"/tmp\nme\ntyped", b"")
    with pytest.raises(ExecNotFound):
        await box.wait(HELD)


async def test_a_held_program_serves_one_command_only(box: Box):
    pid = await hold(box)
    first = await box.run(["sh", "-c", "echo $$"], held=HELD)
    second = await box.run(["sh", "-c", "echo $$"], held=HELD)
    assert first.reply.pid == pid != second.reply.pid
    assert (second.exit_code, first.exit_code) == (0, 0)


async def test_the_deadline_counts_from_the_hand_over(box: Box):
    await hold(box)
    ran = await box.run(["sh", "-c", "echo on; sleep 1002"], held=HELD, deadline_ms=1500)
    assert (ran.stdout, ran.reply.timed_out) == (b"on\n", True)
    assert ran.reply.duration_ms >= 1500


@pytest.mark.aspect("held")
async def test_time_before_the_hand_over_is_not_the_commands(box: Box):
    busy = "import time\nwhile time.process_time() < 0.4: pass\n"
    await hold(box, busy + WAITS)
    ran = await box.run(["true"], held=HELD)
    assert ran.reply.cpu_ms < 300


async def test_output_caps_are_those_of_the_command(box: Box):
    await hold(box)
    ran = await box.run(["sh", "-c", "echo 0123456789"], held=HELD, stdout_cap=4)
    assert (ran.reply.truncated, ran.reply.stdout_bytes) == (True, 11)


@pytest.mark.aspect("held")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import time; print('early', flush=True); time.sleep(1003)", b"early\n"),
        ("import os; os.write(1, b'\\6'); os.write(2, b'!'); os.read(0, 1)", b"!"),
        ("import os; os.write(1, b'\\6')", READY),
    ],
)
async def test_a_program_that_is_not_ready_is_ended_and_not_used(
    box: Box, source: str, said: bytes
):
    pid = await hold(box, source, said)
    if said == READY:
        await gone(box)
    ran = await box.run(["sh", "-c", "echo fresh"], held=HELD)
    assert ran.reply.pid != pid
    assert (ran.stdout, ran.stderr, ran.exit_code) == (b"fresh\n", b"", 0)

    await gone(box)


@pytest.mark.aspect("held")
async def test_a_held_program_is_no_command_until_it_is_used(box: Box):
    before = await box.ask("exec.list")
    await hold(box)
    assert await box.ask("exec.list") == before
    assert (await box.ask("stats"))["running"] == 0
    await box.ask("exec.signal", exec_id=HELD, signal=9)
    ran = await box.run(["true"], held=HELD)
    assert ran.exit_code == 0


async def test_a_request_that_names_no_held_program_leaves_it_alone(box: Box):
    pid = await hold(box)
    assert (await box.run(["true"])).reply.pid != pid
    assert (await box.run(["true"], held=HELD)).reply.pid == pid


def seen(ran: Ran) -> dict[str, Any]:
    reply = ran.reply
    return {
        "stdout": ADDRESS.sub("0x", ran.stdout.decode(errors="backslashreplace")),
        "stderr": ADDRESS.sub("0x", ran.stderr.decode(errors="backslashreplace")),
        "end": (reply.state, reply.exit_code, reply.signal, reply.timed_out),
    }


async def run_program(box: Box, program: Program, **fields: Any) -> Ran:
    await box.write("main.py", program.code)
    for name, data in program.files.items():
        await box.write(name, data)
    argv = ["python3", "-B", box.path("main.py"), *program.args]
    return await box.run(argv, stdin=program.stdin, env=program.env, **fields)


async def clear(box: Box, before: set[str]) -> None:
    for entry in (await box.list()).entries:
        if entry.name not in before:
            await box.remove(entry.path, recursive=True)


@pytest.mark.aspect("held")
@pytest.mark.promise("P95")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(CORE, id="core"),
        pytest.param(
            tuple(PROGRAMS), id="all", marks=pytest.mark.long("a hundred programs, each run twice")
        ),
    ],
)
async def test_python_programs_cannot_tell_a_held_interpreter_from_a_fresh_one(
    box: Box, names: tuple[str, ...]
):
    before = {entry.name for entry in (await box.list()).entries}
    different: dict[str, Any] = {}
    waiting = prelude(())
    for name in names:
        program = PROGRAMS[name]
        fresh = seen(await run_program(box, program))
        await clear(box, before)
        assert await hold_python(box.channel, box.path("main.py"), waiting, None) == ""
        pid = (await box.wait(HELD_PYTHON, timeout_ms=0)).pid
        ran = await run_program(box, program, held=HELD_PYTHON)
        await clear(box, before)
        assert ran.reply.pid == pid, name
        if seen(ran) != fresh:
            different[name] = (fresh, seen(ran))
    assert different == {}


async def test_a_held_interpreter_has_the_listed_modules_and_says_so_nowhere_else(box: Box):
    async def run(code: str, modules: tuple[str, ...] = ("wave", "no_such_module"), **more: Any):
        assert await hold_python(box.channel, box.path("main.py"), prelude(modules), None) == ""
        ran = await run_program(box, Program(code.encode(), **more), held=HELD_PYTHON)
        return ran.stdout.decode().strip(), ran.stderr.decode()

    loaded = "import sys; print('wave' in sys.modules)"
    assert await run(loaded) == ("True", "")
    assert await run(loaded, ()) == ("False", "")
    # What a module reads or the interpreter needs before it starts gets a new interpreter.
    assert await run(loaded, env={"PYTHONHASHSEED": "1"}) == ("False", "")
    assert await run(loaded, env={"ANYTHING": "1"}) == ("True", "")
    # A file beside the program comes before a module of the same name.
    hides = {"wave.py": b"here = True"}
    assert await run("import wave; print(wave.here)", files=hides) == ("True", "")


async def test_an_import_that_fails_leaves_no_interpreter_and_no_file(box: Box):
    await box.write("broken_module.py", b"raise ValueError('no')")
    path = box.workspace
    why = await hold_python(box.channel, box.path("main.py"), prelude(("broken_module",)), path)
    assert why == "ValueError: no"
    listed = await box.list("/tmp")
    assert [one.name for one in listed.entries if one.name.startswith(".sandkasten")] == []
