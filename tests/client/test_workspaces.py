"""Named workspaces in the client: both spellings, and refusals."""

from __future__ import annotations

import pytest

from sandkasten import (
    AsyncSandbox,
    AsyncWorkspaces,
    Conflict,
    InvalidRequest,
    PolicyDenied,
    Sandbox,
    WorkspaceNotFound,
    Workspaces,
    run,
)


def test_a_workspace_is_named_by_either_spelling():
    # One engine for all of them: the ledger of unisolated sandboxes is in this process.
    with Sandbox(backend="unisolated", workspace="spelled") as box:
        box.exec("echo kept > file")
    with Sandbox(backend="unisolated", workspace_id="spelled") as box:
        assert box.exec("cat file").stdout == "kept\n"
        assert box.info().workspace_id == "spelled"
        with pytest.raises(Conflict):
            Sandbox(backend="unisolated", workspace="spelled", workspace_mode="shared")
    same = Sandbox(backend="unisolated", workspace="spelled", workspace_id="spelled")
    same.close()
    with pytest.raises(InvalidRequest, match="workspace and workspace_id contradict"):
        Sandbox(backend="unisolated", workspace="a", workspace_id="b")
    assert run("cat file", "sh", workspace="spelled", backend="unisolated").stdout == "kept\n"


def test_synchronous_workspaces_work():
    workspaces = Workspaces(backend="unisolated")
    made = workspaces.create("plain", size_mb=16)
    assert (made.name, made.size_bytes) == ("plain", 16 << 20)
    assert workspaces.copy("plain", "copied").size_bytes == 16 << 20
    assert workspaces.resize("copied", 32).size_bytes == 32 << 20
    assert {"plain", "copied"} <= {one.name for one in workspaces.list()}
    for name in ("plain", "copied"):
        workspaces.delete(name)
    with pytest.raises(WorkspaceNotFound):
        workspaces.get("plain")


async def test_asynchronous_workspaces_work():
    workspaces = AsyncWorkspaces(backend="unisolated")
    await workspaces.create("w")
    async with AsyncSandbox(backend="unisolated", workspace="w", workspace_mode="shared") as box:
        told = await workspaces.get("w")
        assert (told.used_by, told.shared) == ((box.id,), True)
    assert [one.name for one in await workspaces.list()] == ["w"]
    await workspaces.delete("w")


@pytest.mark.parametrize("mounts", ["models", [7], [b"x"]])
def test_mounts_are_a_list_of_names(mounts):
    with pytest.raises(InvalidRequest):
        Sandbox(backend="unisolated", mounts=mounts)


def test_a_mount_the_operator_did_not_allow_is_refused():
    with pytest.raises(PolicyDenied, match="'models' is not a mount of the policy"):
        Sandbox(backend="unisolated", mounts=["models"])
    with pytest.raises(PolicyDenied, match="cannot mount the path '/etc'"):
        run("true", "sh", mounts=["/etc"], backend="unisolated")
