"""A sandbox that ends while the daemon runs is noticed without a request."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import BackendUnavailable, Conflict, SandboxLost, SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, UpdateRequest
from sandkasten_runtime.engine.lifecycle import end_watch
from tests.engine.injections import GO, UNTIL_GO
from tests.engine.test_journal import until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def watched(journaled, monkeypatch):
    monkeypatch.setattr(end_watch, "ROUND_S", 0.1)
    await journaled.engine.recover()
    return journaled


async def ended(world, the_id):
    """Return the journal row once it has an end and nothing of the sandbox is left."""

    async def over() -> bool:
        row = await world.journal.session(the_id)
        return row.ended_at is not None and the_id not in sum(await world.left(), [])

    await until(over)
    return await world.journal.session(the_id)


@pytest.mark.promise("P32")
async def test_a_killed_sandbox_is_marked_crashed_without_a_request(watched):
    info = await watched.engine.create(CreateRequest(tenant="acme"))
    await watched.backend.cells[info.id].real.crash()
    row = await ended(watched, info.id)
    assert (row.status, "killed" in row.reason) == ("crashed", True)
    assert "sandbox.crashed" in watched.events.names()
    for _ in range(2):
        with pytest.raises(SessionExpired) as gone:
            await watched.engine.exec(info.id, ExecRequest("true"))
        assert gone.value.details["status"] == "crashed"
        assert gone.value.details["reason"] == row.reason
    with pytest.raises(SessionExpired):
        await watched.engine.check_owner(info.id, "acme")


@pytest.mark.promise("P32")
@pytest.mark.parametrize("status", ["lost", "crashed"])
async def test_the_reason_that_a_backend_knows_is_recorded(watched, status):
    info = await watched.engine.create(CreateRequest())

    async def evicted() -> None:
        raise SandboxLost("gone", reason="its node evicted it", status=status)

    watched.backend.gate.before_attach = evicted
    await watched.backend.cells[info.id].real.crash()
    row = await ended(watched, info.id)
    assert (row.status, row.reason) == (status, "its node evicted it")
    with pytest.raises(SessionExpired, match="its node evicted it") as gone:
        await watched.engine.exec(info.id, ExecRequest("true"))
    assert gone.value.details["status"] == status


async def test_a_killed_sandbox_without_connections_is_noticed(watched):
    other = watched.another()
    info = await other.create(CreateRequest())
    await other.aclose()
    await watched.backend.cells[info.id].real.crash()
    assert (await ended(watched, info.id)).status == "crashed"


async def test_a_sandbox_that_ends_by_its_lease_is_expired(watched):
    busy = await watched.engine.create(CreateRequest())
    await watched.engine.exec_start(busy.id, ExecRequest(("sleep", "600")))
    await watched.engine.update(busy.id, UpdateRequest(ttl_seconds=1))
    idle = await watched.engine.create(CreateRequest(SandboxOptions(ttl_seconds=1)))
    old = await watched.engine.create(
        CreateRequest(SandboxOptions(lifetime_seconds=1.2, ttl_seconds=1.2))
    )
    row = await ended(watched, idle.id)
    assert (row.status, row.reason) == ("expired", "nothing was asked of it for 1 s")
    row = await ended(watched, old.id)
    assert row.status == "expired"
    assert (await watched.engine.get(busy.id)).status == "running"
    assert "sandbox.expired" in watched.events.names()
    assert "sandbox.crashed" not in watched.events.names()


async def test_a_kill_after_long_idleness_is_a_crash(watched):
    """Its work kept it alive, and the runner announced no end."""
    info = await watched.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    watched.clock.ahead_s = 100
    await watched.backend.cells[info.id].real.crash()
    assert (await ended(watched, info.id)).status == "crashed"


async def test_a_lost_connection_does_not_end_a_session(watched):
    info = await watched.engine.create(CreateRequest())
    await watched.backend.cells[info.id].streams[0].aclose()
    await asyncio.sleep(0.3)
    assert (await watched.engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"
    assert (await watched.journal.session(info.id)).ended_at is None


async def test_a_failed_removal_of_leftovers_is_retried(watched):
    async def fail() -> None:
        raise BackendUnavailable("no")

    info = await watched.engine.create(CreateRequest())
    watched.backend.gate.before_destroy = fail
    await watched.backend.cells[info.id].real.crash()

    async def marked() -> bool:
        return (await watched.journal.session(info.id)).ended_at is not None

    await until(marked)
    assert (await watched.left())[0] == [info.id]
    watched.backend.gate.before_destroy = None

    # A sweep skips an id whose lock the watch holds at that moment; the next one finds it.
    async def removed() -> bool:
        await watched.engine.sweep()
        return await watched.left() == ([], [])

    await until(removed)


async def test_sandboxes_created_or_destroyed_by_another_process_are_noticed(watched):
    watched.journal, journal = None, watched.journal
    embedded = watched.another()
    watched.journal = journal
    info = await embedded.create(CreateRequest())

    async def adopted() -> bool:
        return await journal.session(info.id) is not None

    await until(adopted)
    assert (await journal.session(info.id)).status == "running"
    await embedded.destroy(info.id)
    row = await ended(watched, info.id)
    assert (row.status, row.reason) == ("destroyed", "another process destroyed it")
    await embedded.aclose()


async def test_creates_and_destroys_under_watch_end_with_the_right_status(watched, monkeypatch):
    begin = watched.journal.begin_session

    async def slowly(row):
        await begin(row)
        await asyncio.sleep(0.002)

    # Time passes between the row in the journal and the one in the ledger.
    monkeypatch.setattr(watched.journal, "begin_session", slowly)

    async def cycle() -> str:
        info = await watched.engine.create(CreateRequest())
        await watched.engine.exec(info.id, ExecRequest("true"))
        await watched.engine.destroy(info.id)
        return info.id

    async def rounds() -> None:
        while True:
            await watched.engine._watch.round()
            await asyncio.sleep(0)

    going = asyncio.create_task(rounds())
    ids = [
        the_id for _ in range(5) for the_id in await asyncio.gather(*(cycle() for _ in range(8)))
    ]
    going.cancel()
    for the_id in ids:
        row = await watched.journal.session(the_id)
        assert (row.status, row.reason) == ("destroyed", "")
    assert await watched.left() == ([], [])


@pytest.mark.promise("P29")
async def test_a_row_added_during_a_round_is_not_treated_as_gone(watched, monkeypatch):
    begin, listed = watched.journal.begin_session, watched.engine._watch._store.list
    begun, listing = asyncio.Event(), asyncio.Event()

    async def held(row):
        await begin(row)
        begun.set()
        await listing.wait()

    monkeypatch.setattr(watched.journal, "begin_session", held)
    making = asyncio.create_task(watched.engine.create(CreateRequest()))
    await begun.wait()

    async def late():
        found = await listed()
        listing.set()
        await making
        return found

    monkeypatch.setattr(watched.engine._watch._store, "list", late)
    await watched.engine._watch.round()
    assert (await watched.journal.session(making.result().id)).status == "running"


async def test_an_idle_round_costs_little(watched):
    """Connected sandboxes are not asked whether they are alive."""
    await asyncio.gather(*(watched.engine.create(CreateRequest()) for _ in range(50)))
    asked: list[str] = []

    async def note() -> None:
        asked.append("asked")

    gate = watched.backend.gate
    gate.before_attach = gate.before_dial = gate.before_owned = note
    await watched.engine._watch.round()
    assert asked == []


async def test_nothing_is_watched_after_the_end(journaled):
    await journaled.engine.recover()
    info = await journaled.engine.create(CreateRequest())
    await journaled.engine.aclose()
    await asyncio.sleep(0.05)
    assert (await journaled.store.get(info.id)).state is State.RUNNING
    assert (await journaled.journal.session(info.id)).ended_at is None


@pytest.mark.promise("P33")
async def test_drain_starts_nothing_new_and_waits_for_creates(journaled):
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    async def lent(engine, name) -> None:
        async with engine.workspace_files.lent(name):
            pass

    await journaled.engine.workspaces.create("old")
    running = await journaled.engine.create(CreateRequest())
    started = await journaled.engine.exec_start(running.id, ExecRequest(("sh", "-c", UNTIL_GO)))
    journaled.backend.gate.after_create = wait
    creating = asyncio.create_task(journaled.engine.create(CreateRequest()))
    await reached.wait()
    assert not await journaled.engine.drain(0.05)
    draining = asyncio.create_task(journaled.engine.drain(PATIENCE_S))
    await asyncio.sleep(0.05)
    assert not draining.done()
    for refused in (
        journaled.engine.create(CreateRequest()),
        journaled.engine.exec(running.id, ExecRequest("true")),
        journaled.engine.exec_start(running.id, ExecRequest("true")),
        journaled.engine.terminals.start(running.id),
        journaled.engine.workspaces.create("new"),
        journaled.engine.workspaces.copy("old", "new"),
        journaled.engine.workspaces.resize("old", 600),
        lent(journaled.engine, "old"),
    ):
        with pytest.raises(BackendUnavailable, match="shutting down") as error:
            await refused
        assert error.value.retryable
        assert error.value.hint
    go.set()
    made = await creating
    assert await draining
    # What runs goes on, can be looked at and taken away.
    assert (await journaled.engine.exec_get(running.id, started.exec_id)).status == "running"
    await journaled.engine.files.write(running.id, GO, b"")
    result = await journaled.engine.exec_get(running.id, started.exec_id, wait_s=PATIENCE_S)
    assert result.status == "completed"
    await journaled.engine.destroy(made.id)
    await journaled.engine.workspaces.delete("old")


async def test_a_paused_sandbox_is_not_treated_as_dead(watched):
    info = await watched.engine.create(CreateRequest())
    from dataclasses import replace

    record = await watched.store.get(info.id)
    await watched.store.put(replace(record, state=State.PAUSED))
    await watched.backend.cells[info.id].streams[0].aclose()
    await asyncio.sleep(0.3)
    with pytest.raises(Conflict):
        await watched.engine.exec(info.id, ExecRequest("true"))
    assert (await watched.journal.session(info.id)).ended_at is None
