"""Tenants: equal names without collisions, and quotas."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import Conflict, InvalidRequest, QuotaExceeded, WorkspaceNotFound
from sandkasten.model.access.tenancy import TenantQuota, scoped, unscoped
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from tests.engine.injections import World

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("tenant", ["default", "acme", "a"])
@pytest.mark.parametrize("name", ["k", "k@acme", "k@default", "@", "user@example.com", "k@acme@x"])
def test_a_stored_name_contains_the_tenant_and_the_name(tenant, name):
    assert unscoped(scoped(tenant, name)) == (tenant, name)


def test_plain_names_of_the_operator_are_stored_unchanged():
    assert scoped("default", "workflow:1:main") == "workflow:1:main"


@pytest.mark.promise("P45")
async def test_one_key_names_another_sandbox_for_each_tenant(engine):
    async def open_(tenant, key="k"):
        return await engine.create(CreateRequest(session_key=key, tenant=tenant))

    ours, theirs = await open_("default"), await open_("acme")
    assert ours.id != theirs.id
    assert (ours.session_key, theirs.session_key) == ("k", "k")
    assert (await open_("acme")).id == theirs.id
    # Nobody can spell another tenant's key.
    assert (await open_("default", "k@acme")).id not in (ours.id, theirs.id)
    assert (await engine.get(theirs.id)).tenant == "acme"
    assert [one.id for one in await engine.list(tenant="acme")] == [theirs.id]


@pytest.mark.promise("P45")
async def test_one_workspace_name_is_another_workspace_for_each_tenant(engine):
    for tenant in ("default", "acme"):
        info = await engine.create(
            CreateRequest(SandboxOptions(workspace_id="data"), tenant=tenant)
        )
        assert info.workspace_id == "data"
        await engine.exec(info.id, ExecRequest(f"echo {tenant} > who"))
        await engine.destroy(info.id)
    info = await engine.create(CreateRequest(SandboxOptions(workspace_id="data"), tenant="acme"))
    assert (await engine.exec(info.id, ExecRequest("cat who"))).stdout == b"acme\n"
    (one,) = await engine.workspaces.list(tenant="acme")
    assert (one.name, one.used_by) == ("data", (info.id,))
    assert [w.used_by for w in await engine.workspaces.list()] == [()]
    with pytest.raises(Conflict, match="workspace data cannot be deleted"):
        await engine.workspaces.delete("data", tenant="acme")
    await engine.workspaces.delete("data")
    assert await engine.workspaces.list() == []
    assert (await engine.workspaces.get("data", tenant="acme")).name == "data"


async def test_a_tenant_sees_and_changes_only_its_own_workspaces(engine):
    made = await engine.workspaces.create("mine", size_mb=4, tenant="acme")
    assert made.name == "mine"
    assert (await engine.workspaces.copy("mine", "copy", tenant="acme")).name == "copy"
    assert (await engine.workspaces.resize("mine", 5, tenant="acme")).size_bytes == 5 * MIB
    assert [w.name for w in await engine.workspaces.list(tenant="acme")] == ["copy", "mine"]
    for tenant in ("default", "other"):
        assert await engine.workspaces.list(tenant=tenant) == []
        with pytest.raises(WorkspaceNotFound, match="named mine"):
            await engine.workspaces.get("mine", tenant=tenant)
        with pytest.raises(WorkspaceNotFound):
            await engine.workspaces.delete("mine", tenant=tenant)
    for name in ("mine@acme", "@acme", "../mine", "mine@"):
        with pytest.raises(InvalidRequest):
            await engine.workspaces.get(name)
        with pytest.raises(InvalidRequest):
            await engine.create(CreateRequest(SandboxOptions(workspace_id=name)))


async def test_a_warm_sandbox_has_no_tenant_until_it_is_claimed():
    world = World(pool=PoolRules(max_per_kind=1, idle_s=90))
    for tenant in ("acme", "acme", "other"):
        request = RunRequest(
            "echo hi", runtime="sh", tenant=tenant, options=SandboxOptions(image="host")
        )
        assert (await world.engine.run(request)).stdout == b"hi\n"
        await asyncio.sleep(0.02)
        assert await world.engine.list(all=True, tenant="acme") == []
        assert await world.engine.list(all=True, tenant="other") == []
    await world.engine.aclose()
    assert await world.left() == ([], [])


@pytest.mark.promise("P46")
async def test_fifty_concurrent_creates_against_a_quota_of_ten_create_ten(world):
    engine, listed = world.engine, world.store.list
    quota = TenantQuota(max_sessions=10)

    async def slowly():
        rows = await listed()
        await asyncio.sleep(0.001)
        return rows

    # Time passes between the count and what is written because of it.
    world.store.list = slowly
    refused: list[tuple[object, object]] = []

    async def one() -> str:
        try:
            return (await engine.create(CreateRequest(tenant="acme"), quota)).id
        except QuotaExceeded as exc:
            refused.append((exc.details["quota"], exc.details["limit"]))
            return ""

    made = [the_id for the_id in await asyncio.gather(*(one() for _ in range(50))) if the_id]
    assert len(made) == 10
    assert refused == [("sessions", 10)] * 40
    assert len(await engine.list(tenant="acme")) == 10
    # Others are not counted, and one that goes makes room for one.
    await engine.create(CreateRequest(tenant="other"), quota)
    await engine.destroy(made[0])
    await engine.create(CreateRequest(tenant="acme"), quota)
    with pytest.raises(QuotaExceeded, match="10 of 10 sessions"):
        await engine.run(RunRequest("true", runtime="sh", tenant="acme"), quota)


async def test_reopening_a_session_key_does_not_count_twice(engine):
    quota = TenantQuota(max_sessions=1)
    request = CreateRequest(tenant="acme", session_key="k")
    first = await engine.create(request, quota)
    assert (await engine.create(request, quota)).id == first.id


async def test_an_undetected_dead_sandbox_is_not_counted(world):
    quota = TenantQuota(max_sessions=1)
    info = await world.engine.create(CreateRequest(tenant="acme"), quota)
    await world.backend.cells[info.id].real.crash()
    await world.engine.create(CreateRequest(tenant="acme"), quota)


async def test_memory_is_summed_against_the_quota(engine):
    quota = TenantQuota(max_memory_bytes=100 * MIB)
    request = CreateRequest(SandboxOptions(limits={"mem_limit_mb": 60}), tenant="acme")
    await engine.create(request, quota)
    with pytest.raises(QuotaExceeded) as refused:
        await engine.create(request, quota)
    assert refused.value.details == {
        "quota": "memory",
        "limit": 100 * MIB,
        "used": 60 * MIB,
    }
    await engine.create(
        CreateRequest(SandboxOptions(limits={"mem_limit_mb": 40}), tenant="acme"), quota
    )


async def test_disk_counts_sandboxes_workspaces_and_stored_files(world):
    engine = world.engine
    quota = TenantQuota(max_disk_bytes=100 * MIB)
    await engine.workspaces.create("old", size_mb=30, tenant="acme", quota=quota)
    ours = CreateRequest(SandboxOptions(limits={"workspace_mb": 40}), tenant="acme")
    await engine.create(ours, quota)
    with pytest.raises(QuotaExceeded) as refused:
        await engine.create(ours, quota)
    assert (refused.value.details["quota"], refused.value.details["used"]) == ("disk", 70 * MIB)
    with pytest.raises(QuotaExceeded):
        await engine.workspaces.create("new", size_mb=31, tenant="acme", quota=quota)
    world.stored_files.bytes = 1
    with pytest.raises(QuotaExceeded):
        await engine.workspaces.copy("old", "new", tenant="acme", quota=quota)
    world.stored_files.bytes = 0
    with pytest.raises(QuotaExceeded):
        await engine.workspaces.resize("old", 61, tenant="acme", quota=quota)
    world.stored_files.bytes = 20 * MIB
    with pytest.raises(QuotaExceeded):
        await engine.create(
            CreateRequest(SandboxOptions(limits={"workspace_mb": 20}), tenant="acme"), quota
        )
    world.stored_files.bytes = 0
    # One that is there takes no more room, whoever mounts it.
    info = await engine.create(
        CreateRequest(SandboxOptions(workspace_id="old"), tenant="acme"), quota
    )
    assert info.limits.workspace_bytes == 30 * MIB
    request = CreateRequest(
        SandboxOptions(workspace_id="fresh", limits={"workspace_mb": 30}), tenant="acme"
    )
    assert (await engine.create(request, quota)).limits.workspace_bytes == 30 * MIB
    with pytest.raises(QuotaExceeded):
        await engine.create(
            CreateRequest(
                SandboxOptions(workspace_id="more", limits={"workspace_mb": 1}), tenant="acme"
            ),
            quota,
        )
    rows, held = await world.left()
    assert len(rows) == len(held) == 3


async def test_a_refused_workspace_leaves_no_quota_row(world):
    quota = TenantQuota(max_sessions=5)
    await world.engine.create(CreateRequest(SandboxOptions(workspace_id="w"), tenant="acme"), quota)
    with pytest.raises(Conflict, match="workspace w is in use"):
        await world.engine.create(
            CreateRequest(SandboxOptions(workspace_id="w"), tenant="acme"), quota
        )
    rows, held = await world.left()
    assert len(rows) == len(held) == 1
