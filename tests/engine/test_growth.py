"""What a request or a round of the watch costs does not grow with the number of sessions.

Operations are counted, not timed: files of the ledger that this process opens, directories that it
lists, sandboxes that it attaches to and connections that it dials.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.lifecycle import end_watch
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import InjectedCell, World
from tests.engine.test_journal import until
from tests.store.memory_store import MemoryJournal

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P97")]

MANY = 300
QUOTA = TenantQuota(max_sessions=10_000)

_counts: Counter[str] | None = None


def _hook(event: str, args: tuple[object, ...]) -> None:
    if _counts is None:
        return
    # How often other files are opened depends on how soon a process ends.
    if event in ("os.listdir", "os.scandir") or (event == "open" and "ledger" in str(args[0])):
        _counts[event] += 1


sys.addaudithook(_hook)  # it cannot be removed, and does nothing between measurements


class Crowd:
    """One real sandbox, and rows of others that are alive as far as the backend says."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.calls: Counter[str] = Counter()
        self._fakes: set[SandboxId] = set()
        real = world.backend.attach

        async def attach(sandbox_id):
            self.calls["attach"] += 1
            if sandbox_id in self._fakes:
                return InjectedCell(
                    next(iter(world.backend.cells.values())).real, world.backend.gate
                )
            return await real(sandbox_id)

        async def dial():
            self.calls["dial"] += 1

        world.backend.attach = attach
        world.backend.gate.before_dial = dial

    async def grow(self, count):
        (row, *_) = await self.world.store.list()
        for _ in range(count):
            one = replace(row, id=new_sandbox_id(), created_at=row.created_at + 1)
            self._fakes.add(one.id)
            await self.world.store.put(one)
            await self.world.engine._session_journal.adopt(one)

    async def shrink(self):
        for one in self._fakes:
            await self.world.store.drop(one)
            await self.world.engine._session_journal.ended(one, "destroyed")

    async def cost(self, work) -> Counter[str]:
        """Return what one call costs, when everything that is read once has been read."""
        global _counts
        await work()
        await work()
        self.calls.clear()
        _counts = Counter()
        try:
            await work()
            return _counts + self.calls
        finally:
            _counts = None


@pytest.fixture
async def crowd(tmp_path, monkeypatch):
    monkeypatch.setattr(end_watch, "ROUND_S", 3600)
    world = World(store=DirectoryStore(tmp_path / "ledger"), journal=MemoryJournal())
    one = Crowd(world)
    try:
        yield one
        await one.shrink()
    finally:
        await world.engine.aclose()
        for the_id in await world.backend.real.owned():
            await world.backend.real.discard(the_id)


async def test_requests_cost_as_much_with_many_sessions_as_with_one(crowd):
    engine = crowd.world.engine
    info = await engine.create(CreateRequest())

    async def create() -> None:
        await engine.destroy((await engine.create(CreateRequest(), QUOTA)).id)

    async def joined() -> None:
        await engine.create(CreateRequest(session_key="k"), QUOTA)

    work = {
        "exec": lambda: engine.exec(info.id, ExecRequest("true")),
        "create and destroy": create,
        "create by key": joined,
        "get": lambda: engine.get(info.id),
        "page": lambda: engine.page(None, limit=1),
        "census": engine.census,
        "totals": engine.network.totals,
        "usage of a tenant": lambda: engine.quotas.usage("default"),
    }
    alone = {name: await crowd.cost(one) for name, one in work.items()}
    await crowd.grow(MANY)
    among_many = {name: await crowd.cost(one) for name, one in work.items()}
    # What depends on when a process ends may differ by a few; what grows differs by hundreds.
    more = {name: sum((among_many[name] - alone[name]).values()) for name in work}
    assert {name: count for name, count in more.items() if count > MANY // 50} == {}
    assert alone["census"] == Counter()


async def test_a_round_of_the_watch_reads_nothing_that_has_not_changed(crowd):
    engine = crowd.world.engine
    await engine.create(CreateRequest())
    assert await crowd.cost(engine._watch.round) == Counter()
    await crowd.grow(MANY)
    # They have no connection whose end would be noticed, so some of them are checked each time.
    bounded = Counter(attach=end_watch._MOST_CHECKS)
    assert await crowd.cost(engine._watch.round) == bounded


async def test_all_sandboxes_without_a_connection_are_checked_in_turn(crowd):
    engine = crowd.world.engine
    await engine.create(CreateRequest())
    await crowd.grow(MANY)
    seen: Counter[str] = Counter()
    attach = crowd.world.backend.attach

    async def counted(sandbox_id):
        seen[sandbox_id] += 1
        return await attach(sandbox_id)

    crowd.world.backend.attach = counted
    for _ in range(-(-MANY // end_watch._MOST_CHECKS)):
        await engine._watch.round()
    assert seen.keys() == crowd._fakes


@pytest.mark.slow
async def test_a_daemon_is_ready_before_it_has_asked_its_sandboxes(crowd):
    first = crowd.world.engine
    info = await first.create(CreateRequest())
    await crowd.grow(MANY)
    engine = crowd.world.another()
    try:
        crowd.calls.clear()
        await engine.recover_soon()
        assert crowd.calls == Counter()
        assert (await engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"
        assert crowd.calls["dial"] < MANY

        async def recovered() -> bool:
            return "daemon.recovered" in crowd.world.events.names()

        await until(recovered)
        assert ("daemon.recovered", MANY + 1) in [
            (name, told.get("kept")) for name, told in crowd.world.events.seen
        ]
    finally:
        await engine.aclose()
