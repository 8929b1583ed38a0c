"""Python that was started in a pooled sandbox, and the one-shots that use it."""

from __future__ import annotations

import pytest

from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from tests.engine.injections import World
from tests.store.memory_store import MemoryJournal

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P95")]

# Only /proc shows it: the environment that the process was started with.
HELD = "b'.sandkasten-' in open('/proc/self/environ', 'rb').read()"


@pytest.fixture
async def world():
    one = World(
        pool=PoolRules(max_per_kind=1, idle_s=90.0), interpreters=("wave",), journal=MemoryJournal()
    )
    yield one
    await one.engine.aclose()
    assert await one.left() == ([], [])


async def run(world: World, code: str, runtime: str = "python", **more):
    return await world.engine.run(RunRequest(code, runtime=runtime, **more))


async def warm(world: World) -> None:
    for _ in range(2):
        assert (await run(world, "print(1)")).ok


async def test_repeated_runs_find_python_started_and_modules_imported(world):
    loaded = f"import sys; print({HELD}, 'wave' in sys.modules)"
    said = [(await run(world, loaded)).stdout for _ in range(4)]
    assert said[0] == b"False False\n"
    assert said[-1] == b"True True\n"


async def test_a_run_in_a_held_interpreter_has_its_own_input_arguments_and_end(world):
    await warm(world)
    code = f"import sys; print({HELD}, sys.argv[1:], sys.stdin.read()); sys.exit(3)"
    result = await run(world, code, args=("a", "b"), stdin=b"in")
    assert (result.stdout, result.exit_code) == (b"True ['a', 'b'] in\n", 3)


async def test_the_time_limit_of_a_run_ends_a_held_interpreter(world):
    await warm(world)
    code = f"print({HELD}, flush=True)\nimport time; time.sleep(1005)"
    result = await run(world, code, timeout_seconds=1)
    assert (result.stdout, result.timed_out) == (b"True\n", True)
    assert result.why is not None
    assert result.why.code == "TIMEOUT"


async def test_the_journal_has_the_command_of_the_run(world):
    await warm(world)
    result = await run(world, f"print({HELD})", args=("x",))
    assert result.stdout == b"True\n"
    (row,) = await world.journal.execs(result.sandbox_id)
    assert row.command == "python3 -B /workspace/main.py x"


async def test_a_run_of_another_runtime_has_no_python_waiting(world):
    for _ in range(3):
        result = await run(world, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", "sh")
    assert b"python3 -B" not in result.stdout


async def test_a_module_that_fails_to_import_leaves_runs_as_they_were():
    world = World(
        pool=PoolRules(max_per_kind=1, idle_s=90.0), interpreters=("asyncio.windows_utils",)
    )
    try:
        said = [(await run(world, f"print({HELD})")).stdout for _ in range(3)]
        assert said == [b"False\n"] * 3
    finally:
        await world.engine.aclose()
    failed = [fields for name, fields in world.events.seen if name == "interpreter.not_held"]
    assert {one["reason"] for one in failed} == {"ImportError: win32 only"}
    assert await world.left() == ([], [])
