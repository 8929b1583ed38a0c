"""Named workspaces: one holder or several that share, kept over sandboxes, crashes and races."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    InvalidRequest,
    PolicyDenied,
    QuotaExceeded,
    UnsupportedByBackend,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.host_mounts import Mounted, MountRule
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.workspace import WorkspaceRules
from sandkasten_runtime.linux.storage.host_mount_check import HostMountCheck
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.injections import World
from tests.engine.workspace_process import REQUEST, engine_at

pytestmark = pytest.mark.anyio

NAMED = CreateRequest(SandboxOptions(workspace_id="w"))
SHARED = CreateRequest(SandboxOptions(workspace_id="w", workspace_mode="shared"))


async def test_files_in_a_named_workspace_persist_for_the_next_sandbox(engine):
    first = await engine.create(NAMED)
    assert (first.workspace_id, first.workspace_shared) == ("w", False)
    await engine.exec(first.id, ExecRequest("echo kept > file; echo gone > /tmp/file"))
    await engine.destroy(first.id)
    second = await engine.create(NAMED)
    result = await engine.exec(second.id, ExecRequest("cat file; cat /tmp/file"))
    assert result.stdout == b"kept\n"
    other = await engine.create(CreateRequest())
    assert other.workspace_id is None
    assert (await engine.exec(other.id, ExecRequest("ls"))).stdout == b""


async def test_a_workspace_has_one_sandbox_at_a_time(world):
    holder = await world.engine.create(NAMED)
    for request in (NAMED, SHARED):
        with pytest.raises(Conflict) as refused:
            await world.engine.create(request)
        assert holder.id in refused.value.message
        assert refused.value.details == {"workspace": "w", "sandbox_id": holder.id}
    assert [row.id for row in await world.store.list()] == [holder.id]
    await world.engine.create(CreateRequest(SandboxOptions(workspace_id="other")))


async def test_sharing_sandboxes_use_a_workspace_together_and_exclude_exclusive_use(world):
    ids = [(await world.engine.create(SHARED)).id for _ in range(3)]
    await world.engine.exec(ids[0], ExecRequest("echo seen > file"))
    assert (await world.engine.exec(ids[2], ExecRequest("cat file"))).stdout == b"seen\n"
    with pytest.raises(Conflict):
        await world.engine.create(NAMED)
    told = await world.engine.workspaces.get("w")
    assert (set(told.used_by), told.shared) == (set(ids), True)
    for one in ids:
        await world.engine.destroy(one)
    assert (await world.engine.create(NAMED)).workspace_shared is False


@pytest.mark.promise("P22")
async def test_a_dead_holder_does_not_count_and_is_removed(world):
    dead = await world.engine.create(NAMED)
    await world.backend.cells[dead.id].real.crash()
    heir = await world.another().create(NAMED)
    assert [row.id for row in await world.store.list()] == [heir.id]
    assert await world.backend.real.owned() == (heir.id,)


@pytest.mark.promise("P22")
@pytest.mark.parametrize("state", [State.CREATING, State.DESTROYING, State.LOST])
async def test_a_half_created_holder_does_not_count(world, state):
    made = await world.engine.create(NAMED)
    row = await world.store.get(made.id)
    await world.store.put(replace(row, state=state, owner_start=row.owner_start + 1))
    heir = await world.another().create(NAMED)
    assert [row.id for row in await world.store.list()] == [heir.id]
    assert await world.backend.real.owned() == (heir.id,)


async def test_a_holder_that_is_being_created_counts(world):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly():
        begun.set()
        await go_on.wait()

    world.backend.gate.before_create = slowly
    first = asyncio.ensure_future(world.engine.create(NAMED))
    await begun.wait()
    with pytest.raises(Conflict):
        await world.another().create(NAMED)
    with pytest.raises(Conflict, match="cannot be deleted while"):
        await world.engine.workspaces.delete("w")
    world.backend.gate.before_create = None
    go_on.set()
    assert (await first).workspace_id == "w"


async def test_a_holder_whose_backend_does_not_answer_counts(world):
    holder = await world.engine.create(NAMED)
    await world.engine._handles.forget(holder.id)

    async def silent():
        raise BackendUnavailable("not now")

    world.backend.gate.before_attach = silent
    with pytest.raises(Conflict):
        await world.engine.create(NAMED)


async def test_a_failed_create_releases_the_workspace(world):
    async def fail():
        raise BackendUnavailable("not today")

    world.backend.gate.after_create = fail
    with pytest.raises(BackendUnavailable):
        await world.engine.create(NAMED)
    world.backend.gate.after_create = None
    assert (await world.engine.create(NAMED)).workspace_id == "w"


async def test_concurrent_claims_leave_one_holder(world):
    made = await asyncio.gather(
        *(world.engine.create(NAMED) for _ in range(20)), return_exceptions=True
    )
    winners = [one for one in made if not isinstance(one, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(one, Conflict) for one in made if one not in winners)
    assert len(await world.store.list()) == 1


async def test_a_workspace_keeps_its_own_size(world):
    first = await world.engine.create(
        CreateRequest(SandboxOptions(workspace_id="w", limits={"workspace_mb": 64}))
    )
    assert first.limits.workspace_bytes == 64 * MIB
    await world.engine.destroy(first.id)
    second = await world.engine.create(NAMED)
    assert second.limits.workspace_bytes == 64 * MIB
    await world.engine.destroy(second.id)
    for size, said in ((32, "has 64 MB, not 32 MB"), (65, "has 64 MB, not 65 MB")):
        with pytest.raises(Conflict, match=said):
            await world.engine.create(
                CreateRequest(SandboxOptions(workspace_id="w", limits={"workspace_mb": size}))
            )
    assert await world.store.list() == []
    default = await world.engine.create(CreateRequest(SandboxOptions(workspace_id="d")))
    assert default.limits.workspace_bytes == 500 * MIB


@pytest.mark.parametrize(
    "request_",
    [
        CreateRequest(SandboxOptions(workspace_id=name))
        for name in ("", "..", "../x", "/etc", "A", "ü", "a" * 10_000, "-rf", "a/b")
    ]
    + [
        CreateRequest(SandboxOptions(workspace_mode="shared")),
        CreateRequest(SandboxOptions(workspace_id="w", workspace_mode="x")),
    ],
)
async def test_an_invalid_workspace_name_is_refused_before_anything_is_created(world, request_):
    with pytest.raises(InvalidRequest):
        await world.engine.create(request_)
    assert world.backend.created == 0
    assert await world.engine.workspaces.list() == []


async def test_a_session_key_includes_the_workspace(engine):
    first = await engine.create(CreateRequest(SandboxOptions(workspace_id="w"), session_key="k"))
    again = await engine.create(CreateRequest(SandboxOptions(workspace_id="w"), session_key="k"))
    assert (again.id, again.created, again.workspace_id) == (first.id, False, "w")
    with pytest.raises(Conflict) as error:
        await engine.create(CreateRequest(SandboxOptions(workspace_id="x"), session_key="k"))
    details = error.value.details
    assert details["fields"] == ["workspace_id"]
    assert (details["requested"], details["session"]) == (["x"], ["w"])


async def test_workspaces_are_created_listed_measured_copied_and_deleted(world):
    workspaces = world.engine.workspaces
    made = await workspaces.create("w", size_mb=16)
    assert (made.name, made.size_bytes, made.used_by) == ("w", 16 * MIB, ())
    box = await world.engine.create(NAMED)
    await world.engine.exec(box.id, ExecRequest("echo 12345 > file"))
    assert (await workspaces.list())[0].used_by == (box.id,)
    # A directory counts too, with a size that the file system chooses.
    before = (await workspaces.get("w")).used_bytes
    await world.engine.exec(box.id, ExecRequest("echo 12345 >> file"))
    told = await workspaces.get("w")
    assert (told.used_bytes, told.used_by, told.problem) == (before + 6, (box.id,), None)
    for attempt in (
        workspaces.delete("w"),
        workspaces.copy("w", "x"),
        workspaces.resize("w", 32),
    ):
        with pytest.raises(Conflict) as error:
            await attempt
        assert error.value.details == {"workspace": "w", "sandbox_ids": [box.id]}
    await world.engine.destroy(box.id)
    assert (await workspaces.copy("w", "x")).used_bytes == before + 6
    assert (await workspaces.resize("x", 32)).size_bytes == 32 * MIB
    assert [one.name for one in await workspaces.list()] == ["w", "x"]
    await workspaces.delete("w")
    copy = await world.engine.create(CreateRequest(SandboxOptions(workspace_id="x")))
    assert (await world.engine.exec(copy.id, ExecRequest("cat file"))).stdout == b"12345\n12345\n"
    assert {"workspace.created", "workspace.copied", "workspace.resized", "workspace.deleted"} <= {
        *world.events.names()
    }


async def test_an_invalid_workspace_operation_is_a_typed_error(engine):
    workspaces = engine.workspaces
    await workspaces.create("w")
    with pytest.raises(Conflict):
        await workspaces.create("w")
    with pytest.raises(Conflict):
        await workspaces.copy("w", "w")
    with pytest.raises(InvalidRequest):
        await workspaces.create("x", size_mb=0)
    with pytest.raises(InvalidRequest, match="cannot be made smaller"):
        await workspaces.resize("w", 1)
    for attempt in (
        workspaces.get("no"),
        workspaces.delete("no"),
        workspaces.copy("no", "x"),
        workspaces.resize("no", 64),
    ):
        with pytest.raises(WorkspaceNotFound):
            await attempt
    assert [one.name for one in await workspaces.list()] == ["w"]


async def test_the_operator_bounds_sizes_and_numbers():
    rules = WorkspaceRules(default_bytes=8 * MIB, max_bytes=16 * MIB, max_count=2)
    world = World(policy=Policy(workspaces=rules))
    with pytest.raises(InvalidRequest, match="from 1 to 16"):
        await world.engine.workspaces.create("w", size_mb=17)
    with pytest.raises(InvalidRequest, match="from 1 to 16"):
        await world.engine.create(
            CreateRequest(SandboxOptions(workspace_id="w", limits={"workspace_mb": 17}))
        )
    assert (await world.engine.workspaces.create("w")).size_bytes == 8 * MIB
    await world.engine.workspaces.copy("w", "x")
    for attempt in (
        world.engine.workspaces.create("y"),
        world.engine.workspaces.copy("w", "y"),
        world.engine.create(CreateRequest(SandboxOptions(workspace_id="y"))),
    ):
        with pytest.raises(QuotaExceeded, match="there are 2 workspaces already"):
            await attempt
    assert await world.left() == ([], [])
    await world.engine.aclose()


async def test_a_workspace_name_is_refused_on_a_backend_without_workspaces(world):
    world.engine.workspaces._claims._port = None
    with pytest.raises(UnsupportedByBackend):
        await world.engine.create(NAMED)
    assert await world.left() == ([], [])
    await world.engine.sweep()


async def test_a_one_shot_in_a_named_workspace_leaves_its_files_but_not_its_code(engine):
    await engine.workspaces.create("w")
    first = await engine.run(
        RunRequest(
            "echo out > made; pwd",
            runtime="sh",
            files={"in": "x"},
            options=SandboxOptions(workspace_id="w"),
        )
    )
    assert (first.ok, first.stdout) == (True, b"/workspace\n")
    second = await engine.run(
        RunRequest("ls", runtime="sh", artifacts=("*",), options=SandboxOptions(workspace_id="w"))
    )
    assert second.stdout == b"in\nmade\n"
    assert {one.path for one in second.artifacts} == {"in", "made"}
    box = await engine.create(NAMED)
    assert (await engine.exec(box.id, ExecRequest("ls -a"))).stdout.split() in (
        [b"in", b"made"],
        [b".", b"..", b"in", b"made"],
    )


# ---- on disk, over processes


def _processes(act: str, root, count: int) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.workspace_process", act, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]


def _first_words(crowd: list[subprocess.Popen[str]]) -> list[str]:
    return [one.stdout.readline().strip() for one in crowd if one.stdout is not None]


@pytest.mark.promise("P22")
async def test_one_of_many_processes_gets_the_workspace(tmp_path):
    crowd = _processes("claim", tmp_path, 6)
    try:
        said = await asyncio.to_thread(_first_words, crowd)
        assert sorted(said)[:5] == ["CONFLICT"] * 5, said
        assert sorted(said)[5].startswith("sbx_")
    finally:
        for one in crowd:
            await asyncio.to_thread(one.communicate)


@pytest.mark.promise("P23")
async def test_concurrent_create_and_delete_of_a_workspace_end_consistently(tmp_path):
    crowd = _processes("churn", tmp_path, 3)
    spoken = [await asyncio.to_thread(one.communicate) for one in crowd]
    assert [one.returncode for one in crowd] == [0, 0, 0], spoken
    words = {word for out, _ in spoken for word in out.split()}
    assert {word for word in words if not word.startswith("sbx_")} <= {
        "CONFLICT",
        "WORKSPACE_NOT_FOUND",
    }
    engine = engine_at(tmp_path)
    assert await engine.list() == []
    assert await engine.workspaces._claims.port.half_made() == []


@pytest.mark.promise("P23")
@pytest.mark.parametrize("moment", ["before", "after", "making"])
async def test_a_workspace_of_a_process_that_crashed_is_free_again(tmp_path, moment):
    crashed = _processes(moment, tmp_path, 1)[0]
    await asyncio.to_thread(crashed.communicate)
    assert crashed.returncode == 9
    engine = engine_at(tmp_path)
    if moment == "making":
        assert await engine.workspaces.list() == []
        assert await engine.workspaces._claims.port.half_made() == ["w"]
        await engine.sweep()
        assert await engine.workspaces._claims.port.half_made() == []
    info = await engine.create(REQUEST)
    assert (info.workspace_id, info.limits.workspace_bytes) == ("w", 8 * MIB)
    assert [row.id for row in await engine.list()] == [info.id]
    await engine.destroy(info.id)
    assert (await engine.workspaces.get("w")).used_by == ()
    await engine.aclose()


async def test_leftovers_of_a_crashed_create_are_removed_when_the_name_is_used(tmp_path):
    engine = engine_at(tmp_path)
    (tmp_path / "workspaces" / ".making-00112233-w").mkdir(parents=True)
    await engine.workspaces.create("w", size_mb=8)
    (tmp_path / "workspaces" / ".removing-00112233-x").mkdir(parents=True)
    await engine.workspaces.copy("w", "x")
    assert sorted(os.listdir(tmp_path / "workspaces")) == ["w", "x"]


async def test_a_sweep_keeps_workspaces_that_are_being_created(tmp_path):
    engine = engine_at(tmp_path)
    half = tmp_path / "workspaces" / ".making-00112233-w"
    half.mkdir(parents=True)
    async with DirectoryStore(tmp_path / "ledger").lock("workspace:w"):
        await engine.sweep()
        assert half.exists()
    await engine.sweep()
    assert not half.exists()


@pytest.mark.promise("P23")
async def test_a_damaged_workspace_is_listed_refused_and_deletable(tmp_path):
    engine = engine_at(tmp_path)
    await engine.workspaces.create("good", size_mb=8)
    await engine.workspaces.create("w", size_mb=8)
    (tmp_path / "workspaces" / "w" / "meta.json").write_text("{")
    told = {one.name: one for one in await engine.workspaces.list()}
    assert told["good"].problem is None
    assert told["w"].problem is not None
    assert told["w"].problem.startswith("workspace w is damaged: meta.json")
    assert (await engine.workspaces.get("w")).problem == told["w"].problem
    for attempt in (
        engine.create(REQUEST),
        engine.workspaces.copy("w", "x"),
        engine.workspaces.resize("w", 16),
    ):
        with pytest.raises(WorkspaceDamaged):
            await attempt
    with pytest.raises(Conflict):
        await engine.workspaces.create("w")
    await engine.workspaces.delete("w")
    assert [one.name for one in await engine.workspaces.list()] == ["good"]
    assert await engine.list() == []


async def test_a_held_lock_is_busy_and_not_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("sandkasten_runtime.engine.lifecycle.workspace_claims.LOCK_WAIT_S", 0.05)
    engine = engine_at(tmp_path)
    claims = engine.workspaces._claims
    async with DirectoryStore(tmp_path / "ledger").lock("workspace:w"):
        with pytest.raises(Busy):
            async with claims.lock("w", wait_s=0.05):
                pass


async def test_a_directory_workspace_reports_its_size_as_unenforced(tmp_path):
    from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory

    engine = engine_at(tmp_path)
    engine.workspaces._claims._port = WorkspaceDirectory(tmp_path / "workspaces", images=False)
    info = await engine.create(REQUEST)
    assert [one.limit for one in info.unenforced] == ["workspace"]
    assert "is a directory" in info.unenforced[0].reason
    await engine.destroy(info.id)
    await engine.aclose()


# ---- host mounts


@pytest.fixture
def world_with_mounts(tmp_path):
    (tmp_path / "models").mkdir()
    rules = (
        MountRule("models", str(tmp_path / "models"), "/models"),
        MountRule("gone", str(tmp_path / "gone"), "/mnt/gone"),
    )
    return World(policy=Policy(mounts=rules), host_mounts=HostMountCheck(tmp_path / "data"))


async def test_a_request_gets_the_mounts_it_names(world_with_mounts, tmp_path):
    (tmp_path / "models" / "weights").write_text("of the host\n")
    look = ExecRequest("cat /models/weights")
    info = await world_with_mounts.engine.create(CreateRequest(SandboxOptions(mounts=("models",))))
    assert (await world_with_mounts.engine.exec(info.id, look)).stdout == b"of the host\n"
    assert info.mounts == (Mounted("models", "/models"),)
    assert (await world_with_mounts.another().get(info.id)).mounts == info.mounts
    plain = await world_with_mounts.engine.create(CreateRequest())
    assert ((await world_with_mounts.engine.exec(plain.id, look)).exit_code, plain.mounts) == (
        1,
        (),
    )
    await world_with_mounts.engine.aclose()


async def test_a_backend_that_cannot_show_mounts_leaves_nothing(world_with_mounts):
    async def refuse() -> None:
        raise UnsupportedByBackend("this backend cannot show files of the host")

    world_with_mounts.backend.gate.before_create = refuse
    with pytest.raises(UnsupportedByBackend):
        await world_with_mounts.engine.create(CreateRequest(SandboxOptions(mounts=("models",))))
    with pytest.raises(UnsupportedByBackend):
        await world_with_mounts.engine.run(
            RunRequest("true", runtime="sh", options=SandboxOptions(mounts=("models",)))
        )
    assert await world_with_mounts.left() == ([], [])
    await world_with_mounts.engine.aclose()


@pytest.mark.parametrize(
    ("mounts", "error"),
    [
        (("model",), PolicyDenied),
        (("/etc",), PolicyDenied),
        (("models", "../models"), PolicyDenied),
        ("models", InvalidRequest),
        ((7,), InvalidRequest),
        (("gone",), BackendUnavailable),
    ],
)
async def test_an_unavailable_mount_is_refused(world_with_mounts, mounts, error):
    with pytest.raises(error) as refused:
        await world_with_mounts.engine.create(CreateRequest(SandboxOptions(mounts=mounts)))
    assert refused.value.hint
    assert await world_with_mounts.left() == ([], [])
    with pytest.raises(error):
        await world_with_mounts.engine.run(
            RunRequest("true", runtime="sh", options=SandboxOptions(mounts=mounts))
        )
    await world_with_mounts.engine.aclose()
