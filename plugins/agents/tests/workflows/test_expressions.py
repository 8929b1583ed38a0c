"""Expressions evaluate to a value or give the reason, within their limits of time and memory."""

# ruff: noqa: E501 - a workflow on a line of its own is easier to read than one in pieces

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
import uvloop

from sandkasten.errors import RunFailed, RunLimitReached
from sandkasten_agents.workflows.expressions import Bounds, Expressions, missing_path, problem
from tests.patience import PATIENCE_S

CONTEXT = {
    "input": {"list": [1, 2, 3], "name": "é😀", "none": None, "flag": True},
    "steps": {"a": {"output": {"n": 3, "f": 1.5}}, "a-b": {"output": {}}},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2", 3),
        ("steps.a.output.n > 2 && input.flag", True),
        ("has(steps.a.output.nope)", False),
        ("has(steps.nope)", False),
        ('steps["a-b"].output', {}),
        ("input.list.map(x, x * 2)", [2, 4, 6]),
        ("{'all': input.list, 'name': input.name}", {"all": [1, 2, 3], "name": "é😀"}),
        ("input.none", None),
        ("steps.a.output.f", 1.5),
        ("timestamp('2024-01-01T00:00:00Z')", "2024-01-01T00:00:00+00:00"),
        ("duration('90s')", 90.0),
        ("b'ab'", "YWI="),
        ("'A-B'.lowerAscii().split('-')", ["a", "b"]),
        ("input.name.matches('^(a+)+$')", False),
        ("input.list.map(input, input + 1)", [2, 3, 4]),
        ("double(steps.a.output.n) + 0.5", 3.5),
        ("['a', 'b'].join('-').replace('-', '+')", "a+b"),
        ("math.greatest([1, 3, 2])", 3),
        ("steps.a.output.n > 2.5", True),
    ],
)
async def test_an_expression_evaluates_to_json(expressions, expression, value) -> None:
    assert await expressions.value(expression, CONTEXT) == value


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("steps.a.output.nope", "steps.a.output.nope"),
        ("steps.b.output.n == 1", "steps.b"),
        ("has(steps.b.output)", "steps.b"),
        ("input.list[7] > 1", "input.list[7]"),
        ('steps["a-b"].output.x', 'steps["a-b"].output.x'),
        ("input.list.size() > 1 && input.nope", "input.nope"),
        ("input.none.deeper", "input.none.deeper"),
        ("vars.x", "vars"),
    ],
)
async def test_a_missing_value_is_named_and_never_guessed(expressions, expression, missing) -> None:
    with pytest.raises(RunFailed) as caught:
        await expressions.value(expression, CONTEXT)
    assert caught.value.details["missing"] == missing
    assert missing_path(expression, CONTEXT) == missing


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("1 / 0", "division by zero"),
        ("'a' + 1", "string + int"),
        ("nofunction(1)", "nofunction"),
        ("1 +", "cannot be read"),
        ("", "is empty"),
        ("0.0 / 0.0", "JSON"),
        ("__import__('os')", "__import__"),
        ("input.__class__", "input.__class__"),
    ],
)
async def test_an_expression_without_a_value_gives_the_reason(
    expressions, expression, part
) -> None:
    with pytest.raises(RunFailed) as caught:
        await expressions.value(expression, CONTEXT)
    assert part in caught.value.message
    assert await expressions.value("1", {}) == 1


async def test_a_condition_must_be_a_boolean(expressions) -> None:
    assert await expressions.truth("1 < 2", {}) is True
    for expression in ("1", "'true'", "null", "[]"):
        with pytest.raises(RunFailed, match="not true or false"):
            await expressions.truth(expression, {})


LONG = {"l": list(range(2000))}
PAIRS = "l.all(a, l.all(b, l.all(c, l.all(d, a + b + c + d >= 0))))"


@pytest.mark.promise("P62")
async def test_a_slow_expression_is_ended_and_the_next_one_works() -> None:
    async with Expressions(Bounds(cpu_s=0.2), processes=1) as expressions:
        with pytest.raises(RunLimitReached, match="0.2 s of processor time"):
            await expressions.value(PAIRS, LONG)
        assert await expressions.value("size(l)", LONG) == 2000


async def test_the_event_loop_is_not_blocked_by_a_slow_expression() -> None:
    async with Expressions(Bounds(cpu_s=0.3), processes=1) as expressions:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        with pytest.raises(RunLimitReached):
            await expressions.value(PAIRS, LONG)
        ticking.cancel()
        assert ticks > 20


async def test_an_expression_that_takes_too_much_memory_is_ended() -> None:
    bounds = Bounds(memory_bytes=400 * 1024 * 1024, cpu_s=20.0)
    async with Expressions(bounds, processes=1) as expressions:
        double = "[" + ",".join(["s+s+s+s+s+s+s+s"] * 8) + "].map(x, [x+x+x+x, x+x+x+x])"
        with pytest.raises(RunFailed):
            await expressions.value(double, {"s": "x" * 1_000_000})
        assert await expressions.value("1", {}) == 1


async def test_a_value_that_is_too_long_is_refused() -> None:
    async with Expressions(Bounds(value_bytes=1000), processes=1) as expressions:
        with pytest.raises(RunLimitReached, match="longer than 1000 bytes"):
            await expressions.value("s + s", {"s": "x" * 600})
        assert await expressions.value("s", {"s": "x" * 600}) == "x" * 600


async def test_only_accessed_data_counts_and_too_much_of_it_is_refused() -> None:
    async with Expressions(Bounds(context_bytes=1000), processes=1) as expressions:
        context = {"big": "x" * 2000, "small": 1}
        assert await expressions.value("small + 1", context) == 2
        with pytest.raises(RunLimitReached, match="1000 are allowed"):
            await expressions.value("size(big)", context)


async def test_a_cancelled_evaluation_leaves_no_process() -> None:
    before = _evaluators()
    expressions = Expressions(Bounds(cpu_s=60.0), processes=1)
    asked = asyncio.create_task(expressions.value(PAIRS, LONG))
    async with asyncio.timeout(60):
        while not _evaluators() - before:  # noqa: ASYNC110 - another process tells no event
            await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert _evaluators() == before
    assert await expressions.value("1", {}) == 1
    await expressions.close()


async def test_an_evaluator_process_that_was_killed_is_replaced() -> None:
    before = _evaluators()
    async with Expressions(processes=1) as expressions:
        assert await expressions.value("1", {}) == 1
        (pid,) = _evaluators() - before
        os.kill(int(pid), signal.SIGKILL)
        async with asyncio.timeout(60):
            while _evaluators() - before:  # noqa: ASYNC110 - another process tells no event
                await asyncio.sleep(0.01)
        assert await expressions.value("2", {}) == 2


PARENT = f"""
import asyncio
from sandkasten_agents.workflows.expressions import Bounds, Expressions

async def main():
    expressions = Expressions(Bounds(cpu_s=0.5))
    await expressions.value("1", {{}})
    print(expressions._idle[0].pid, flush=True)
    await expressions.value({PAIRS!r}, {{"l": list(range(2000))}})

asyncio.run(main())
"""


async def test_an_evaluator_process_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = (await parent.stdout.readline()).decode().strip()
    async with asyncio.timeout(60):
        while _state(pid) != "R":  # noqa: ASYNC110 - another process tells no event
            await asyncio.sleep(0.001)
        parent.kill()
        await parent.wait()
        while "evaluator.py" in _command(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _state(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat") as line:
            return line.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "R"  # The process had exited already.


def _evaluators() -> set[str]:
    children = [pid for thread in os.listdir("/proc/self/task") for pid in _children(thread)]
    return {pid for pid in children if "evaluator.py" in _command(pid)}


def _children(thread: str) -> list[str]:
    try:
        with open(f"/proc/self/task/{thread}/children") as listed:
            return listed.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as line:
            return line.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize(
    "expression",
    ["(" * 2000, "[1].map(a," * 300 + "1" + ")" * 300, "!" * 4096, "a" + "+a" * 2000, "-" * 4095, "a" * 5000, "{" * 4000],
)  # fmt: skip
async def test_hostile_expressions_are_refused_or_evaluated(expressions, expression) -> None:
    if problem(expression):
        with pytest.raises(RunFailed):
            await expressions.value(expression, {"a": 1})
    else:
        assert await expressions.value(expression, {"a": 1}) == 2001


async def test_the_keys_of_a_mapping_have_a_stable_order(expressions) -> None:
    names = [f"k{n:02}" for n in range(20)]
    context = {"input": {"all": dict.fromkeys(reversed(names), 1)}}
    assert list(await expressions.value("input.all", context)) == names
    assert await expressions.value("{1: 'a', 'x': 'b'}", context) == {"1": "a", "x": "b"}


def test_a_killed_evaluator_is_replaced_on_the_daemons_loop_too() -> None:
    async def twice() -> tuple[int, int]:
        async with Expressions() as expressions:
            first = await expressions.value("1 + 1", {})
            (process,) = expressions._idle
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            async with asyncio.timeout(PATIENCE_S):
                while not process.reader.at_eof():  # noqa: ASYNC110 - nothing else tells it
                    await asyncio.sleep(0)
            return first, await expressions.value("1 + 2", {})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(twice()) == (2, 3)


@pytest.mark.promise("P69")
async def test_signals_to_the_process_group_do_not_end_an_evaluator(expressions) -> None:
    """A service manager and Ctrl-C signal the whole group; runs continue during the drain."""
    await expressions.value("1", {})
    (process,) = expressions._idle
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    assert await expressions.value("2", {}) == 2
    assert expressions._idle == [process]
