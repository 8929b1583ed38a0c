"""One-shots: results, artifacts, refusals, and nothing left afterwards."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    CommandNotFound,
    InvalidRequest,
    IsolationRefused,
    PayloadTooLarge,
    QuotaExceeded,
)
from sandkasten.model.sandbox.oneshot_values import Artifact, RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_runtime.engine.oneshot import artifacts
from tests.patience import DEADLINES_S, PATIENCE_S

if TYPE_CHECKING:
    from sandkasten.model.commands.exec_values import Chunk

pytestmark = pytest.mark.anyio


async def sh(world, code: str, **more):
    result = await world.engine.run(RunRequest(code, runtime="sh", **more))
    assert await world.left() == ([], [])
    return result


async def test_code_runs_and_everything_is_gone(world):
    result = await sh(world, "echo out; echo err >&2; pwd")
    assert (result.ok, result.exit_code, result.error) == (True, 0, None)
    assert (result.stdout, result.stderr) == (b"out\n/workspace\n", b"err\n")
    assert (result.runtime, result.image, result.backend) == ("sh", "host", "unisolated")
    assert result.limits["timeout_seconds"] == 120
    assert result.limits["max_stdout_bytes"] == 200_000
    assert result.limits["max_artifact_bytes"] == 10_000_000


async def test_failing_one_shot_code_is_a_result(world):
    result = await sh(world, "exit 3")
    assert (result.ok, result.exit_code) == (False, 3)
    assert result.error == "the code exited with status 3"


async def test_a_one_shot_timeout_is_a_result(world):
    # A one-shot has at least a second.
    for timeout_s in (1, *DEADLINES_S[1:]):
        result = await sh(world, "echo before; sleep 600", timeout_seconds=timeout_s)
        if result.stdout:
            break
    assert (result.ok, result.timed_out, result.stdout) == (False, True, b"before\n")
    assert result.why is not None
    assert (result.why.code, result.error) == ("TIMEOUT", result.why.message)
    assert result.limits["timeout_seconds"] == timeout_s


async def test_args_env_files_and_stdin_reach_the_code(world):
    result = await sh(
        world,
        "echo $1 $2; echo $A; cat data/in.txt; cat raw; cat",
        args=("one", "two words"),
        options=SandboxOptions(env={"A": "value"}),
        files={"data/in.txt": "text\n", "/work/raw": b"raw\n"},
        stdin=b"stdin\n",
    )
    assert result.stdout == b"one two words\nvalue\ntext\nraw\nstdin\n"


async def test_every_file_exists_when_the_code_starts(world):
    files = {f"f{i}": bytes(10) for i in range(200)}
    assert (await sh(world, "cat f199 | wc -c", files=files)).stdout.strip() == b"10"
    files = {"big": bytes(3_000_000)}
    assert (await sh(world, "cat big | wc -c", files=files)).stdout.strip() == b"3000000"
    long = "#" * 500_000 + "\necho long"
    assert (await sh(world, long)).stdout == b"long\n"


async def test_code_that_does_not_fit_the_workspace_is_a_typed_error(world):
    with pytest.raises(QuotaExceeded):
        await world.engine.run(
            RunRequest(
                "#" * 2_000_000, runtime="sh", options=SandboxOptions(limits={"workspace_mb": 1})
            )
        )
    assert await world.left() == ([], [])


async def test_artifacts_are_selected_by_glob(world):
    result = await sh(
        world,
        "mkdir -p out/deep; echo a > out/a.txt; echo b > out/deep/b.txt; echo c > c.log;"
        " ln -s out/a.txt link.txt",
        artifacts=("**/*.txt",),
    )
    assert result.artifacts == (
        Artifact("out/a.txt", 2, b"a\n"),
        Artifact("out/deep/b.txt", 2, b"b\n"),
    )


async def test_the_code_itself_is_not_an_artifact(world):
    result = await sh(world, "echo a > a", artifacts=("*",))
    assert [one.path for one in result.artifacts] == ["a"]


async def test_artifacts_over_a_limit_are_named_and_left_out(world, monkeypatch):
    result = await sh(
        world,
        "echo small > a; yes | head -c 5000 > b",
        artifacts=("*",),
        options=SandboxOptions(limits={"max_artifact_bytes": 100}),
    )
    assert result.artifacts == (
        Artifact("a", 6, b"small\n"),
        Artifact("b", 5000, None, "larger than 100 bytes"),
    )
    monkeypatch.setattr(artifacts, "MAX_ARTIFACTS_BYTES", 10)
    result = await sh(
        world,
        "for i in 1 2 3; do echo 123456 > $i; done",
        artifacts=("*",),
        options=SandboxOptions(limits={"max_artifacts_count": 2}),
    )
    assert result.limits["max_artifacts_count"] == 2
    assert result.artifacts == (
        Artifact("1", 7, b"123456\n"),
        Artifact("2", 7, None, "all together over 10 bytes"),
    )
    assert result.warnings == ("1 more artifacts were left out (at most 2)",)


async def test_a_run_is_logged_at_its_start_and_at_its_end(world):
    done = await sh(
        world,
        "echo out; printf error >&2; echo x > a; exit 3",
        artifacts=("a",),
        agent_run_id="run_0123456789abcdef",
    )
    told = [(name, fields) for name, fields in world.events.seen if name.startswith("sandbox_run")]
    (_, started), (_, finished) = told
    assert [name for name, _ in told] == ["sandbox_run_started", "sandbox_run_finished"]
    about = {
        "run": started["run"],
        "agent_run": "run_0123456789abcdef",
        "tenant": "default",
        "runtime": "sh",
        "image": "host",
        "backend": "unisolated",
    }
    assert re.fullmatch("run_[0-9a-f]{16}", str(about["run"]))
    assert started == about | {"timeout_seconds": 120.0}
    assert finished == about | {
        "sandbox": done.sandbox_id,
        "ok": False,
        "status": "completed",
        "exit_code": 3,
        "duration_ms": done.duration_ms,
        "stdout_bytes": 4,
        "stderr_bytes": 5,
        "artifacts": 1,
        "error": None,
    }


async def test_a_run_that_could_not_be_made_is_logged_with_its_error(world):
    async def fail() -> None:
        raise IsolationRefused("no")

    world.backend.gate.before_create = fail
    with pytest.raises(IsolationRefused):
        await sh(world, "true")
    [finished] = [f for name, f in world.events.seen if name == "sandbox_run_finished"]
    assert (finished["ok"], finished["error"], finished["exit_code"]) == (
        False,
        "ISOLATION_REFUSED",
        None,
    )
    # A request that is refused was no run.
    with pytest.raises(InvalidRequest):
        await world.engine.run(RunRequest("", runtime="cobol"))
    names = [name for name, _ in world.events.seen if name.startswith("sandbox_run")]
    assert names == ["sandbox_run_started", "sandbox_run_finished"]


async def test_a_tree_too_large_to_match_is_reported(world, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_LISTED", 2)
    result = await sh(world, "for i in 1 2 3; do echo $i > $i; done", artifacts=("*",))
    assert [one.path for one in result.artifacts] == ["1", "2"]
    assert result.warnings == ("only the first 2 files were matched for artifacts",)


async def test_artifacts_of_failed_code_are_returned(world):
    result = await sh(world, "echo a > a; exit 1", artifacts=("a",))
    assert (result.ok, len(result.artifacts)) == (False, 1)


async def test_a_missing_interpreter_is_reported_with_a_remedy(world):
    with pytest.raises(CommandNotFound) as refused:
        await world.engine.run(
            RunRequest("1", runtime="node", options=SandboxOptions(env={"PATH": "/nowhere"}))
        )
    assert "node" in refused.value.message
    assert "nodejs" in refused.value.hint
    assert await world.left() == ([], [])


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (RunRequest("x", runtime="ruby"), InvalidRequest),
        (RunRequest("x" * 50_000_000), PayloadTooLarge),
        (RunRequest("x", files={"../x": ""}), InvalidRequest),
        (RunRequest("x", files={"/etc/x": ""}), InvalidRequest),
        (RunRequest("x", files={"": ""}), InvalidRequest),
        (RunRequest("x", files={str(i): "" for i in range(1001)}), PayloadTooLarge),
        (RunRequest("x", files={"main.py": ""}), InvalidRequest),
        (RunRequest("x", args=("a\0",)), InvalidRequest),
        (RunRequest("x", options=SandboxOptions(env={"1": ""})), InvalidRequest),
        (RunRequest("x", timeout_seconds=0.5), InvalidRequest),
        (RunRequest("x", timeout_seconds=3601), InvalidRequest),
        (RunRequest("x", timeout_seconds=True), InvalidRequest),
        (RunRequest("x", artifacts=("/etc/*",)), InvalidRequest),
        (RunRequest("x", options=SandboxOptions(limits={"ram": 1})), InvalidRequest),
        (RunRequest("\ud800"), InvalidRequest),
        (RunRequest(7), InvalidRequest),  # type: ignore[arg-type]
    ],
)
async def test_invalid_requests_are_refused_before_anything_is_created(world, request_, error):
    with pytest.raises(error) as refused:
        await world.engine.run(request_)
    assert refused.value.hint
    assert world.backend.created == 0


async def test_oversized_code_is_refused_with_the_limit_and_a_hint(world):
    with pytest.raises(PayloadTooLarge) as refused:
        await world.engine.run(RunRequest("x" * 50_000_000))
    assert "10000000" in refused.value.hint
    assert "file" in refused.value.hint


async def test_an_unknown_runtime_is_refused_with_the_nearest_name(world):
    with pytest.raises(InvalidRequest) as refused:
        await world.engine.run(RunRequest("x", runtime="pyhton"))
    assert refused.value.hint.startswith("did you mean python")


async def test_a_cancelled_one_shot_leaves_nothing(world):
    running = asyncio.create_task(world.engine.run(RunRequest("sleep 600", runtime="sh")))
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not (await world.left())[1]:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await world.left() == ([], [])


async def test_a_one_shot_whose_sandbox_cannot_be_created_leaves_nothing(world):
    async def fail() -> None:
        raise IsolationRefused("no")

    world.backend.gate.after_create = fail
    with pytest.raises(IsolationRefused):
        await world.engine.run(RunRequest("true", runtime="sh"))
    assert await world.left() == ([], [])


async def test_a_one_shot_whose_sandbox_dies_has_a_result(world):
    begun = asyncio.Event()

    async def show(_chunk: Chunk) -> None:
        begun.set()

    request = RunRequest("echo x; sleep 600", runtime="sh", artifacts=("*",))
    running = asyncio.create_task(world.engine.run(request, show=show))
    # A sandbox that dies before its first output may not have run the command: that is an error.
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    (cell,) = world.backend.cells.values()
    await cell.real.crash()
    result = await running
    assert (result.ok, result.exit_code) == (False, None)
    assert result.why is not None
    assert result.why.code == "LOST"
    assert await world.left() == ([], [])


async def test_files_that_do_not_fit_the_workspace_are_a_typed_error(world):
    files = {"a": bytes(2**20), "b": bytes(2**20)}
    with pytest.raises(QuotaExceeded):
        await world.engine.run(
            RunRequest(
                "true",
                runtime="sh",
                files=files,
                options=SandboxOptions(limits={"workspace_mb": 1}),
            )
        )
    assert await world.left() == ([], [])


async def test_parallel_one_shots_are_isolated_from_each_other(world):
    results = await asyncio.gather(
        *(world.engine.run(RunRequest(f"echo {i} > x; cat x", runtime="sh")) for i in range(20))
    )
    assert [r.stdout for r in results] == [f"{i}\n".encode() for i in range(20)]
    assert await world.left() == ([], [])
