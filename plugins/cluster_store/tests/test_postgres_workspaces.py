"""Records of named workspaces in PostgreSQL are the same at every daemon."""

from __future__ import annotations

import pytest

from sandkasten.errors import Conflict, InvalidRequest, WorkspaceNotFound
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.workspace import Measure
from sandkasten_cluster_store.postgres.postgres_workspaces import PostgresWorkspaces
from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory

pytestmark = pytest.mark.promise("P110")
SHARED = frozenset({"kubernetes"})


@pytest.fixture
async def daemons(open_postgres, tmp_path):
    """The workspaces of two daemons."""
    return [
        PostgresWorkspaces(
            await open_postgres(), WorkspaceDirectory(tmp_path / name, images=False), SHARED
        )
        for name in ("one", "other")
    ]


async def test_every_daemon_has_the_record_of_a_shared_backend(daemons):
    one, other = daemons
    made = await one.create("notes", 1 << 20, 5.0, keeper="kubernetes")
    assert await other.get("notes") == made
    assert (made.kind, made.keeper) == ("volume", "kubernetes")
    assert await other.names() == ["notes"]
    assert await other.open("notes", in_use=False) == Volume("notes", "volume")
    assert await other.measure("notes") == Measure(None, None)
    with pytest.raises(Conflict):
        await other.create("notes", 1 << 20, 6.0, keeper="kubernetes")
    assert (await other.copy("notes", "copy@acme", 7.0)).size_bytes == 1 << 20
    assert (await one.resize("copy@acme", 2 << 20)).size_bytes == 2 << 20
    with pytest.raises(InvalidRequest):
        await other.resize("copy@acme", 1 << 20)
    for name in ("notes", "copy@acme"):
        await other.remove(name)
        with pytest.raises(WorkspaceNotFound):
            await one.get(name)
    with pytest.raises(WorkspaceNotFound):
        await one.remove("notes")


async def test_other_workspaces_stay_with_their_daemon(daemons):
    one, other = daemons
    await one.create("here", 1 << 20, 5.0)
    await one.create("there", 1 << 20, 5.0, keeper="docker")
    assert await one.names() == ["here", "there"]
    assert await other.names() == []
    assert (await one.copy("here", "again", 6.0)).kind == "directory"
    assert (await one.resize("here", 2 << 20)).size_bytes == 2 << 20
    assert (await one.open("here", in_use=False)).kind == "directory"
    assert await one.half_made() == []
    # A shared workspace of the same name is meant everywhere.
    await other.create("here", 3 << 20, 7.0, keeper="kubernetes")
    assert (await one.get("here")).keeper == "kubernetes"
    await one.remove("here")
    assert (await one.get("here")).keeper == ""
