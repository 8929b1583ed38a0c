"""Files of a named workspace through a helper sandbox: one, unlisted, and short-lived."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import Busy, Conflict, WorkspaceNotFound
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.lifecycle import workspace_loans

pytestmark = pytest.mark.anyio

NAMED = CreateRequest(SandboxOptions(workspace_id="w"))


@pytest.fixture(autouse=True)
async def workspace(engine):
    await engine.workspaces.create("w")


async def test_a_long_transfer_keeps_the_workspace_claimed(engine, monkeypatch):
    monkeypatch.setattr(workspace_loans, "TAKE_BACK_S", 0.2)
    async with engine.workspace_files.lent("w") as the_id:
        with pytest.raises(Conflict):
            await engine.create(NAMED)
        with pytest.raises(Conflict):
            await engine.workspaces.delete("w")
        async with engine.workspace_files.lent("w") as again:
            assert again == the_id
    await engine.workspaces.delete("w")
    assert await engine.list(all=True) == []


async def test_a_dead_helper_sandbox_is_replaced(engine):
    async with engine.workspace_files.lent("w") as first:
        await engine.files.write(first, "f", b"kept")
    await engine.destroy(first)
    async with engine.workspace_files.lent("w") as second:
        assert second != first
        assert (await engine.files.read(second, "f")).data == b"kept"


async def test_the_number_of_helper_sandboxes_is_bounded(engine, monkeypatch):
    monkeypatch.setattr(workspace_loans, "MAX_LOANS", 1)
    await engine.workspaces.create("v")
    async with engine.workspace_files.lent("v"):
        with pytest.raises(Busy):
            async with engine.workspace_files.lent("w"):
                pass
    async with engine.workspace_files.lent("w"):
        pass


async def test_a_missing_workspace_is_not_created(engine):
    with pytest.raises(WorkspaceNotFound):
        async with engine.workspace_files.lent("none"):
            pass
    assert [one.name for one in await engine.workspaces.list()] == ["w"]


@pytest.mark.promise("P22")
async def test_a_workspace_deleted_meanwhile_is_not_created_again(engine):
    planned = engine.workspace_files._planner.plan

    async def plan_and_delete(request):
        found = await planned(request)
        await engine.workspaces.delete("w")
        return found

    engine.workspace_files._planner.plan = plan_and_delete
    with pytest.raises(WorkspaceNotFound):
        async with engine.workspace_files.lent("w"):
            pass
    assert await engine.workspaces.list() == []


async def test_a_helper_sandbox_of_another_process_is_waited_for(world, monkeypatch):
    monkeypatch.setattr(workspace_loans, "IDLE_S", 0.3)
    other = world.another()
    try:
        async with other.workspace_files.lent("w") as lent:
            wanting = asyncio.create_task(world.engine.create(NAMED))
            await asyncio.sleep(0.2)
            assert not wanting.done()
        info = await wanting
        assert info.id != lent
    finally:
        await other.aclose()


async def test_a_helper_sandbox_is_unlisted_and_ends_with_the_engine(world):
    engine = world.engine
    async with engine.workspace_files.lent("w") as lent:
        assert await engine.list() == []
        assert [one.id for one in await engine.list(all=True)] == [lent]
        assert (await engine.workspaces.get("w")).used_by == ()
    await engine.aclose()
    assert not await world.backend.real.owned()
