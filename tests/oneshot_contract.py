"""What a one-shot promises on every backend; imported by a module that has the fixture `runs`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import CommandNotFound, NotADirectory
from sandkasten.model.sandbox.oneshot_values import Artifact, RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten.model.sandbox.oneshot_values import RunResult
    from sandkasten_runtime.engine.engine import Engine


class Runs:
    """An engine whose one-shots run on one backend. `left` returns what is left of them."""

    def __init__(
        self, engine: Engine, options: SandboxOptions, left: Callable[[], Awaitable[object]]
    ) -> None:
        self.engine = engine
        self.options = options
        self.left = left

    def request(
        self, code: str, *, runtime: str = "sh", options: SandboxOptions | None = None, **more
    ) -> RunRequest:
        named = replace(
            options or SandboxOptions(), backend=self.options.backend, image=self.options.image
        )
        return RunRequest(code, runtime=runtime, options=named, **more)

    async def __call__(self, code: str, **more) -> RunResult:
        result = await self.engine.run(self.request(code, **more))
        assert not await self.left()
        return result


async def test_output_and_status_are_the_result(runs):
    result = await runs("echo out; echo err >&2; pwd")
    assert (result.ok, result.exit_code, result.error) == (True, 0, None)
    assert (result.stdout, result.stderr) == (b"out\n/workspace\n", b"err\n")
    assert result.backend == runs.options.backend
    assert result.limits["timeout_seconds"] == 120


async def test_the_code_runs_as_the_user_of_sandboxes(runs):
    result = await runs("id -u; grep -c 0000000000000000 /proc/self/status; touch /x /etc/x")
    assert result.stdout.split()[0] == b"1000"
    assert int(result.stdout.split()[1]) >= 4
    assert not result.ok


@pytest.mark.parametrize("code", [1, 3, 126, 127, 128, 137, 143, 191, 192, 255])
async def test_every_exit_code_is_reported_as_it_is(runs, code):
    result = await runs(f"exit {code}")
    assert (result.ok, result.exit_code, result.signal) == (False, code, None)
    assert result.error == f"the code exited with status {code}"


async def test_a_signal_is_reported_as_one(runs):
    result = await runs("kill -9 $$")
    assert (result.ok, result.exit_code, result.signal) == (False, None, 9)


async def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(runs):
    code = "(setsid sh -c 'sleep 1000; echo late' &); echo before; sleep 600"
    result = await runs(code, timeout_seconds=3)
    assert (result.ok, result.timed_out, result.stdout) == (False, True, b"before\n")
    assert result.why is not None
    assert (result.why.code, result.error) == ("TIMEOUT", result.why.message)


async def test_args_env_files_and_stdin_reach_the_code(runs):
    result = await runs(
        'echo "$1" "$2"; echo "$A"; cat data/in.txt; cat raw; cat',
        args=("one", "two words"),
        options=SandboxOptions(env={"A": "value $HOME"}),
        files={"data/in.txt": "text\n", "/work/raw": b"\xff\x00raw\n"},
        stdin=b"stdin\n",
    )
    assert result.stdout == b"one two words\nvalue $HOME\ntext\n\xff\x00raw\nstdin\n"


async def test_many_files_and_large_ones_exist_when_the_code_starts(runs):
    files = {f"d/f{i}": bytes(10) for i in range(200)} | {"big": bytes(3_000_000)}
    result = await runs("cat d/* big | wc -c", files=files)
    assert result.stdout.strip() == b"3002000"


async def test_stdin_that_is_not_read_delays_nothing(runs):
    result = await runs("echo done", stdin=bytes(4_000_000))
    assert (result.ok, result.stdout) == (True, b"done\n")


async def test_files_that_exclude_each_other_are_an_error(runs):
    with pytest.raises(NotADirectory):
        await runs("true", files={"a": b"", "a/b": b""})
    assert not await runs.left()


async def test_long_output_is_cut_in_the_middle(runs):
    limits = {"max_stdout_bytes": 1000, "max_stderr_bytes": 1000}
    result = await runs(
        "echo begin; yes | head -c 3000000; echo end; echo short >&2",
        options=SandboxOptions(limits=limits),
    )
    assert (result.ok, result.truncated, result.stderr) == (True, True, b"short\n")
    assert len(result.stdout) < 1100
    assert result.stdout.startswith(b"begin\n")
    assert result.stdout.endswith(b"end\n")


async def test_artifacts_are_selected_by_glob(runs):
    result = await runs(
        "mkdir -p out/deep; echo a > out/a.txt; printf '\\377\\0' > out/deep/b.txt; echo c > c.log;"
        " ln -s out/a.txt link.txt",
        artifacts=("**/*.txt",),
    )
    assert result.artifacts == (
        Artifact("out/a.txt", 2, b"a\n"),
        Artifact("out/deep/b.txt", 2, b"\xff\x00"),
    )


async def test_artifacts_over_a_limit_are_named_and_left_out(runs):
    result = await runs(
        "echo small > a; yes | head -c 5000 > b; echo c > c; exit 1",
        artifacts=("*",),
        options=SandboxOptions(limits={"max_artifact_bytes": 100, "max_artifacts_count": 2}),
    )
    assert result.artifacts == (
        Artifact("a", 6, b"small\n"),
        Artifact("b", 5000, None, "larger than 100 bytes"),
    )
    assert "1 more artifacts were left out (at most 2)" in result.warnings


async def test_a_missing_interpreter_is_an_error_with_a_remedy(runs):
    with pytest.raises(CommandNotFound) as refused:
        await runs("1", runtime="node", options=SandboxOptions(env={"PATH": "/nowhere"}))
    assert "node" in refused.value.message
    assert not await runs.left()


async def test_the_same_code_runs_again_each_time(runs):
    code = "cat /proc/sys/kernel/random/uuid"
    first, second = await runs(code), await runs(code)
    assert first.stdout != second.stdout


async def test_parallel_one_shots_are_isolated_from_each_other(runs):
    codes = [f"echo {i} > x; cat x" for i in range(6)]
    results = await asyncio.gather(*(runs.engine.run(runs.request(one)) for one in codes))
    assert [one.stdout for one in results] == [f"{i}\n".encode() for i in range(6)]
    assert not await runs.left()
