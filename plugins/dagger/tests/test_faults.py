"""An engine, CLI or library that fails: named errors, nothing left, and the next run works."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plugins.dagger.tests import site
from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests import imagekit
from tests.dagger.engine_process import EngineProcess
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from sandkasten_runtime.engine.engine import Engine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P114"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]


def opened_small(folder: Path, dagger: EngineProcess) -> AbstractAsyncContextManager[Engine]:
    """Open an engine of ours with a small image."""
    return site.opened(
        folder / "data", archive=imagekit.busybox_tar(), dagger_engines_none=dagger.address
    )


async def test_an_engine_that_is_killed_during_a_run_is_an_error_and_is_used_when_it_is_back(
    tmp_path, dagger_none
):
    with EngineProcess("none") as dagger:
        async with opened_small(tmp_path, dagger) as engine:
            running = asyncio.create_task(engine.run(RunRequest("sleep 1000", runtime="sh")))
            async with asyncio.timeout(PATIENCE_S):
                while not dagger.processes():  # noqa: ASYNC110  (the engine tells no one)
                    await asyncio.sleep(0.05)
            dagger.kill9()
            with pytest.raises(BackendUnavailable) as failed:
                await running
            assert failed.value.hint
            assert await engine.list(all=True) == []
            with pytest.raises(BackendUnavailable):
                await engine.run(RunRequest("echo x", runtime="sh"))
            dagger.start()
            result = await engine.run(RunRequest("echo back", runtime="sh"))
            assert result.stdout == b"back\n"


async def test_a_session_that_is_killed_is_started_again(tmp_path, dagger_none):
    async with opened_small(tmp_path, dagger_none) as engine:
        assert (await engine.run(RunRequest("true", runtime="sh"))).ok
        (session,) = _sessions()
        os.kill(session, signal.SIGKILL)
        # The end may be noticed by this run, or before it.
        with suppress(BackendUnavailable):
            await engine.run(RunRequest("true", runtime="sh"))
        assert (await engine.run(RunRequest("true", runtime="sh"))).ok


async def test_an_absent_engine_is_an_error_with_a_remedy(tmp_path, dagger_none):
    address = f"unix://{tmp_path}/none.sock"
    async with site.opened(
        tmp_path / "data",
        archive=imagekit.busybox_tar(),
        dagger_engines_none=address,
        dagger_timeout_seconds="60",
    ) as engine:
        with pytest.raises(BackendUnavailable) as failed:
            await engine.run(RunRequest("true", runtime="sh"))
        # The address is for operators alone.
        assert address not in failed.value.message
        assert address in failed.value.operator_message
        assert "engine" in failed.value.hint
        (tier, *_) = await engine.tiers(measure=False)
        assert (tier.backend, tier.ready) == ("dagger", False)


async def test_an_absent_cli_is_an_error_with_a_remedy(tmp_path, dagger_none):
    async with site.opened(
        tmp_path / "data",
        archive=imagekit.busybox_tar(),
        dagger_engines_none=dagger_none.address,
        dagger_cli="/nowhere/dagger",
    ) as engine:
        with pytest.raises(BackendUnavailable, match="/nowhere/dagger") as failed:
            await engine.run(RunRequest("true", runtime="sh"))
        assert "backends.dagger.cli" in failed.value.hint


@pytest.mark.parametrize("script", ["exit 1", "echo '{}'", "echo nonsense"])
async def test_a_cli_that_fails_is_an_error_with_a_remedy(tmp_path, dagger_none, script):
    program = tmp_path / "dagger"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    async with site.opened(
        tmp_path / "data",
        archive=imagekit.busybox_tar(),
        dagger_engines_none=dagger_none.address,
        dagger_cli=str(program),
    ) as engine:
        with pytest.raises(BackendUnavailable, match="no session with") as failed:
            await engine.run(RunRequest("true", runtime="sh"))
        assert "backends.dagger.cli" in failed.value.hint
        assert await engine.list(all=True) == []


async def test_a_run_whose_class_of_network_has_no_engine_is_refused(tmp_path, dagger_none):
    async with opened_small(tmp_path, dagger_none) as engine:
        with pytest.raises(UnsupportedByBackend, match="no engine for a run with a network"):
            await engine.run(
                RunRequest("true", runtime="sh", options=SandboxOptions(network="full"))
            )


async def test_an_engine_with_a_network_is_not_taken_for_one_without(tmp_path, dagger_egress):
    async with opened_small(tmp_path, dagger_egress) as engine:
        with pytest.raises(BackendUnavailable, match="have a route"):
            await engine.run(RunRequest("true", runtime="sh"))


def _sessions() -> list[int]:
    """Return the processes of the sessions that this process started."""
    lists = Path("/proc/self/task").glob("*/children")
    pids = {pid for file in lists for pid in file.read_text().split()}
    return [
        int(pid) for pid in pids if b"session_program" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
