"""One-shots on a real Dagger engine: the contract, limits that do not hold, networks, refusals."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from plugins.dagger.tests import site
from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.oneshot_contract import *  # noqa: F403  (the contract)
from tests.oneshot_contract import Runs
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P114"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def engine(dagger_none, dagger_egress, tmp_path_factory, anyio_backend):
    folder = tmp_path_factory.mktemp("dagger") / "data"
    addresses = {
        "dagger_engines_none": dagger_none.address,
        "dagger_engines_egress": dagger_egress.address,
    }
    async with site.opened(folder, **addresses) as instance:
        yield instance


@pytest.fixture
def runs(engine, dagger_none):
    async def left() -> object:
        deadline = time.monotonic() + PATIENCE_S
        # The engine ends a container a moment after its command.
        while dagger_none.processes() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return [*await engine.list(all=True), *dagger_none.processes()]

    return Runs(engine, SandboxOptions(backend="dagger", image=site.IMAGE), left)


async def test_limits_that_dagger_does_not_have_are_named_in_the_answer(runs):
    warnings = " ".join((await runs("true")).warnings)
    for name in ("cpu", "memory", "pids", "workspace"):
        assert f"{name} is not limited" in warnings


async def test_the_size_of_tmp_is_limited(runs):
    result = await runs(
        "head -c 20000000 /dev/zero > /tmp/x", options=SandboxOptions(limits={"tmp_mb": 8})
    )
    assert not result.ok


async def test_a_cancelled_run_is_ended_in_the_engine(runs, engine, dagger_none):
    running = asyncio.create_task(engine.run(runs.request("sleep 1234")))
    async with asyncio.timeout(PATIENCE_S):
        while not dagger_none.processes():  # noqa: ASYNC110  (the engine tells no one)
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await runs.left()


async def test_a_run_has_a_network_only_if_it_asks_for_it(runs, dagger_egress):
    code = (
        "import socket, sys\n"
        "socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)\n"
        "print('reached')"
    )
    with socket.create_server((dagger_egress.machine.our_address, 0)) as server:
        host, port = server.getsockname()
        args = (host, str(port))
        closed = await runs(code, runtime="python", args=args)
        opened = await runs(
            code, runtime="python", args=args, options=SandboxOptions(network="full")
        )
    assert (closed.ok, opened.ok) == (False, True)
    assert b"unreachable" in closed.stderr
    assert any("network is not limited" in warning for warning in opened.warnings)


async def test_a_session_is_refused_by_name(engine):
    with pytest.raises(UnsupportedByBackend, match="dagger cannot keep a sandbox"):
        await engine.create(CreateRequest())


async def test_doctor_reports_the_engines_and_what_is_not_limited(engine):
    (tier,) = [report for report in await engine.tiers(measure=False) if report.backend == "dagger"]
    assert (tier.ready, tier.default) == (True, True)
    assert {entry.name for entry in tier.warnings} >= {"cpu", "memory"}


async def test_python_code_runs_with_files_and_artifacts(engine):
    code = (
        "import json, collections\n"
        "lines = open('/work/log.txt').read().splitlines()\n"
        "json.dump(collections.Counter(lines), open('out.json', 'w'))\n"
    )
    result = await engine.run(
        RunRequest(code, files={"log.txt": "a\nb\na\n"}, artifacts=("*.json",))
    )
    assert result.ok, result.stderr
    assert result.artifacts[0].data == b'{"a": 2, "b": 1}'
