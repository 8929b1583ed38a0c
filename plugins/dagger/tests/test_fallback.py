"""A list of `policy.backends` that begins with dagger: an engine that is away is passed over."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from plugins.dagger.tests import site
from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests import imagekit
from tests.dagger.engine_process import EngineProcess
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P118")]
RULES = json.dumps([{"use": ["dagger", "local"]}])


def opened(folder: Path, address: str, **more: str) -> AbstractAsyncContextManager[Engine]:
    """Open an engine of ours with a small image."""
    return site.opened(
        folder / "data", archive=imagekit.busybox_tar(), dagger_engines_none=address, **more
    )


def without_engine(folder: Path, **more: str) -> AbstractAsyncContextManager[Engine]:
    # Neither the CLI nor the library is used before something listens.
    programs = {"dagger_python": sys.executable, "dagger_cli": "/bin/true"}
    return opened(folder, f"unix://{folder}/nothing.sock", **programs, **more)


def run(code: str, backend: str | None = None) -> RunRequest:
    return RunRequest(code, runtime="sh", options=SandboxOptions(backend=backend))


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  (the engine tells no one)
            await asyncio.sleep(0.05)


async def test_a_run_goes_to_the_next_backend_of_the_operators_list(tmp_path):
    async with without_engine(tmp_path, policy_backends=RULES) as engine:
        result = await engine.run(run("echo here"))
        assert (result.backend, result.stdout) == ("local", b"here\n")
        warnings = [
            warning for warning in result.warnings if "backend dagger was unavailable" in warning
        ]
        assert "led to backend local" in warnings[0]
        assert await engine.list(all=True) == []


async def test_a_run_that_names_dagger_is_not_run_elsewhere(tmp_path):
    async with without_engine(tmp_path, policy_backends=RULES) as engine:
        with pytest.raises(BackendUnavailable):
            await engine.run(run("echo here", backend="dagger"))


async def test_without_a_list_an_engine_that_is_away_is_an_error(tmp_path):
    async with without_engine(tmp_path) as engine:
        with pytest.raises(BackendUnavailable):
            await engine.run(run("echo here"))
        assert await engine.list(all=True) == []


@pytest.mark.promise("P119")
async def test_an_engine_that_is_away_is_degraded_until_it_is_back(tmp_path):
    async with without_engine(tmp_path) as engine:
        await engine.sweep()
        assert engine.degraded() == []
        with pytest.raises(BackendUnavailable):
            await engine.run(run("echo here"))
        await engine.sweep()
        (away,) = engine.degraded()
        assert (away.details["backend"], "No such file" in away.message) == ("dagger", True)
        assert "start the engine" in away.hint
        assert "nothing.sock" not in f"{away} {away.details}"
        assert "nothing.sock" in away.operator_message
        assert "nothing.sock" in (await engine.probe("dagger")).reason
        listener = await asyncio.start_unix_server(
            lambda _, writer: writer.close(), f"{tmp_path}/nothing.sock"
        )
        async with listener, asyncio.timeout(PATIENCE_S):
            while engine.degraded():
                await engine.sweep()
                await asyncio.sleep(0.05)


@pytest.mark.long(reason="the engine is compiled for a quarter of an hour")
@pytest.mark.timeout(600)
async def test_code_that_may_have_run_is_not_run_again_and_the_engine_is_used_when_it_is_back(
    tmp_path, dagger_none
):
    with EngineProcess("none") as dagger:
        async with opened(tmp_path, dagger.address, policy_backends=RULES) as engine:
            assert (await engine.run(run("true"))).backend == "dagger"
            await until(lambda: not dagger.processes())
            running = asyncio.create_task(engine.run(run("sleep 1000")))
            await until(dagger.processes)
            dagger.kill9()
            with pytest.raises(BackendUnavailable):
                await running
            assert (await engine.run(run("true"))).backend == "local"
            dagger.start()
            assert (await engine.run(run("true"))).backend == "dagger"
