"""A backend with a place for each tenant: one place that fails does not affect the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.lifecycle import end_watch
from sandkasten_runtime.engine.placement import backend_health
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from tests.engine.test_journal import until
from tests.engine.unavailable_backend import FarBackend, FarCell, FarWorld

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P109")]


class PlacedBackend(FarBackend):
    """Has a place for each tenant, and is told where a sandbox is."""

    capabilities = replace(
        FarBackend.capabilities,
        places={name: f"of-{name}" for name in ("acme", "beta")},
        default_place="of-default",
    )

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""
        self.where: dict[SandboxId, str] = {}

    def note_place(self, sandbox_id: SandboxId, place: str) -> None:
        self.where[sandbox_id] = place

    def check(self, place: str) -> None:
        if place == self.broken:
            raise BackendUnavailable(f"{place} is not permitted", hint="allow it", place=place)

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> FarCell:
        self.check(spec.place)
        return await super().create(sandbox_id, spec)

    async def attach(self, sandbox_id: SandboxId) -> FarCell:
        self.check(self.where[sandbox_id])
        return await super().attach(sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        return [one for one in await super().owned() if self.where.get(one) != self.broken]

    async def discard(self, sandbox_id: SandboxId) -> None:
        self.check(self.where[sandbox_id])
        await super().discard(sandbox_id)


@pytest.fixture
async def world(monkeypatch):
    monkeypatch.setattr(end_watch, "ROUND_S", 0.02)
    monkeypatch.setattr(backend_health, "QUIET_S", 0.01)
    one = FarWorld()
    one.far = PlacedBackend()
    one.engine = one.another()
    yield one
    one.far.broken = ""
    await one.engine.aclose()
    for the_id in await one.far.real.owned():
        await one.far.real.discard(the_id)


def request(tenant: str) -> CreateRequest:
    return CreateRequest(SandboxOptions(backend="docker"), tenant=tenant)


async def crash(world, the_id: SandboxId) -> None:
    """End a sandbox without a connection here: only the watch finds it."""
    await world.engine._handles.forget(the_id)
    await (await world.far.real.attach(the_id)).crash()


async def test_the_row_says_where_a_sandbox_is(world):
    for tenant in ("acme", "beta"):
        the_id = (await world.engine.create(request(tenant))).id
        assert (await world.store.get(the_id)).place == f"of-{tenant}"
    # Another process is told by the row.
    world.far.where.clear()
    await world.engine.aclose()
    world.engine = world.another()
    await world.engine.recover()
    assert sorted(world.far.where.values()) == ["of-acme", "of-beta"]


async def test_a_create_in_a_broken_place_fails_and_leaves_no_row(world):
    world.far.broken = "of-acme"
    with pytest.raises(BackendUnavailable) as error:
        await world.engine.create(request("acme"))
    assert error.value.details == {"place": "of-acme", "backend": "docker"}
    assert await world.store.list() == []
    await world.engine.create(request("beta"))


async def test_the_watch_and_the_sweep_go_on_in_other_places(world):
    acme, beta, kept = [
        (await world.engine.create(request(one))).id for one in ("acme", "beta", "beta")
    ]
    for one in (acme, beta, kept):
        row = await world.store.get(one)
        world.far.note_place(row.id, row.place)
    await world.engine.recover()
    world.far.broken = "of-acme"
    for one in (acme, beta):
        await crash(world, one)

    async def buried() -> bool:
        return await world.store.get(beta) is None

    await until(buried)
    # Nobody can tell what became of this one, and the backend as a whole answers.
    assert await world.state(acme) == "running/running"
    assert await world.state(kept) == "running/running"
    assert world.engine._handles.health.names() == []
    (known,) = world.engine.degraded()
    assert known.details == {"backend": "docker", "place": "of-acme"}
    swept = await world.engine.sweep()
    assert (swept.dead, swept.orphans) == ((), ())
    world.far.broken = ""

    async def settled() -> bool:
        return await world.store.get(acme) is None and world.engine.degraded() == []

    await until(settled)
    seen = [name for name in world.events.names() if name.startswith("backend.")]
    assert seen == ["backend.away", "backend.back"]


async def test_a_destroy_in_a_broken_place_is_finished_when_it_is_back(world):
    the_id = (await world.engine.create(request("acme"))).id
    row = await world.store.get(the_id)
    world.far.note_place(row.id, row.place)
    await world.engine.recover()
    world.far.broken = "of-acme"
    await world.engine._handles.forget(the_id)
    with pytest.raises(BackendUnavailable) as error:
        await world.engine.destroy(the_id)
    assert error.value.details == {"place": "of-acme", "backend": "docker"}
    world.far.broken = ""

    async def gone() -> bool:
        return await world.store.get(the_id) is None

    await until(gone)


async def test_pooled_sandboxes_are_given_only_to_tenants_of_their_place(world):
    await world.engine.aclose()
    world.engine = world.another(pool=PoolRules())

    async def source(tenant: str) -> str:
        return (await world.engine.create(request(tenant))).acquire_source

    async def pooled() -> bool:
        return await source("acme") == "pool"

    await until(pooled)
    await until(lambda: ready(world))
    # One is ready, in the place of the other tenant.
    assert await source("beta") == "cold"
    assert await source("acme") == "pool"


async def ready(world) -> bool:
    return any(one.acquired == "spare" for one in await world.store.list())
