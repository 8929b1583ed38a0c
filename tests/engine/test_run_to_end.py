"""One-shots on a backend that can only run a command to its end: the contract, and its records."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.host_image import HostImages
from tests.engine.injections import Events
from tests.oneshot_contract import *  # noqa: F403  (the contract)
from tests.oneshot_contract import Runs
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal, MemoryStore
from tests.unisolated.run_backend import UNENFORCED, RunBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(tmp_path):
    """The backend, the journal, the events, and an engine on them."""
    backend, journal, events = RunBackend(tmp_path), MemoryJournal(), Events()
    store = MemoryStore()
    engine = Engine(
        backends={backend.name: backend},
        default_backend=backend.name,
        store=store,
        images=HostImages(),
        policy=Policy(),
        clock=SystemClock(),
        events=events,
        journal=journal,
    )
    yield backend, journal, events, engine, store
    await engine.aclose()


@pytest.fixture
def runs(site):
    backend, _, _, engine, store = site

    async def left() -> object:
        return [*await store.list(), *([backend] if backend.running else [])]

    return Runs(engine, SandboxOptions(backend=backend.name), left)


async def test_limits_that_did_not_hold_are_named_in_the_answer(runs):
    result = await runs("true")
    assert f"pids_limit is not limited: {UNENFORCED.reason}" in result.warnings


async def test_artifacts_need_one_order_more_and_no_artifacts_none(runs, site):
    await runs("echo a > a")
    assert len(site[0].orders) == 1
    await runs("for i in 1 2 3; do echo $i > $i; done", artifacts=("*",))
    assert [bool(one.after) for one in site[0].orders] == [False, False, True]


async def test_a_session_is_refused_by_name_with_a_hint(site):
    with pytest.raises(UnsupportedByBackend, match="cannot keep a sandbox") as refused:
        await site[3].create(CreateRequest())
    assert "one-shots" in refused.value.hint


@pytest.mark.parametrize(
    "options", [SandboxOptions(profile="dev"), SandboxOptions(workspace_id="mine")]
)
async def test_what_only_a_kept_sandbox_has_is_refused_before_the_run(runs, site, options):
    with pytest.raises(UnsupportedByBackend, match="backend runs has no"):
        await runs("true", options=options)
    assert site[0].orders == []


async def test_a_run_has_a_row_while_it_runs_and_a_session_in_the_journal(runs, site):
    _, journal, events, engine, store = site
    running = asyncio.create_task(engine.run(runs.request("sleep 1000")))
    async with asyncio.timeout(PATIENCE_S):
        while not await store.list():  # noqa: ASYNC110  (the store tells no one)
            await asyncio.sleep(0.01)
    (row,) = await store.list()
    assert row.backend == "runs"
    await engine.sweep()
    assert await store.list() == [row]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await runs.left()
    ended = await journal.session(row.id)
    assert ended is not None
    assert ended.ended_at is not None
    assert "sandbox_run_finished" in events.names()


async def test_a_failure_of_the_backend_is_an_error_and_leaves_nothing(runs, site):
    backend, _, events, engine, _ = site
    backend.fail = BackendUnavailable("the engine was killed", hint="start it")
    with pytest.raises(BackendUnavailable):
        await engine.run(runs.request("echo x"))
    assert not await runs.left()
    name, fields = events.seen[-1]
    assert (name, fields["error"]) == ("sandbox_run_finished", "BACKEND_UNAVAILABLE")


async def test_the_command_is_recorded_with_its_end(runs, site):
    result = await runs("exit 3")
    rows = await site[1].execs(result.sandbox_id)
    assert [(one.status, one.exit_code) for one in rows] == [("completed", 3)]
