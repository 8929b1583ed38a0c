"""Named workspaces on an engine that does not see our files: volumes of the engine."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.site import FAR, IMAGE, left, nothing_left, opened, sh
from sandkasten.errors import BackendUnavailable, Conflict, UnsupportedByBackend, WorkspaceNotFound
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_docker.daemon_container import container_removal
from sandkasten_docker.docker_engine.docker_host import DockerHost
from sandkasten_docker.docker_options import DockerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.reached import Reached

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P22")]


def requested(name: str, backend: str = "docker", **more: Any) -> CreateRequest:
    image = IMAGE if backend == "docker" else "host"
    options = SandboxOptions(backend=backend, image=image, workspace_id=name, **more)
    return CreateRequest(options)


async def test_an_engine_without_sizes_is_refused_if_the_operator_requires_them(
    docker_engine: Reached, data: Path
):
    required = {"docker_require_workspace_limit": "true"}
    async with opened(data, docker_engine, "volume", **required) as sand:
        with pytest.raises(BackendUnavailable) as refused:
            await sand.create(FAR)
        assert "workspace_mode volume cannot enforce workspace_mb" in str(refused.value)
        assert "require_workspace_limit: false" in refused.value.hint
    assert await nothing_left(docker_engine, data) == []
    # The innocent twin: without the setting the limit is reported.
    async with opened(data, docker_engine, "volume") as sand:
        assert "workspace" in [limit.limit for limit in (await sand.create(FAR)).unenforced]


async def test_a_named_workspace_is_a_volume_that_outlives_its_sandboxes(
    docker_engine: Reached, data: Path
):
    async with opened(data, docker_engine, "volume") as sand:
        first = await sand.create(requested("notes", limits={"workspace_mb": 64}))
        assert "workspace" in [entry.limit for entry in first.unenforced]
        done = await sh(sand, first.id, "echo one > a; echo two > ~/b; ls -ld . ~ | cut -d' ' -f1")
        assert (done.exit_code, done.stderr) == (0, b"")
        with pytest.raises(Conflict, match="in use"):
            await sand.create(requested("notes"))
        await sand.destroy(first.id)
        with pytest.raises(Conflict, match="64 MB"):
            await sand.create(requested("notes", limits={"workspace_mb": 65}))
        assert len(left(docker_engine, data)) == 2
    # Another process, and a workspace that nothing has: its files and its home are still there.
    async with opened(data, docker_engine, "volume", backend="docker") as sand:
        [workspace] = await sand.workspaces.list()
        assert (workspace.name, workspace.kind, workspace.size_bytes) == (
            "notes",
            "volume",
            64 << 20,
        )
        copied = await sand.workspaces.copy("notes", "other")
        assert (copied.kind, copied.used_bytes) == ("volume", None)
        assert (await sand.workspaces.resize("notes", 65)).size_bytes == 65 << 20
        async with sand.workspace_files.lent("notes") as lender:
            assert (await sand.files.read(lender, "a")).data == b"one\n"
        for name in ("notes", "other"):
            info = await sand.create(requested(name))
            result = await sh(sand, info.id, "cat a ~/b; stat -c %u a . ~; echo more >> a")
            assert result.stdout == b"one\ntwo\n1000\n1000\n1000\n", result.stderr
            with pytest.raises(Conflict, match="cannot be deleted"):
                await sand.workspaces.delete(name)
            await sand.destroy(info.id)
        # Made without a sandbox, it is where sandboxes of the default backend can have it.
        assert (await sand.workspaces.create("new")).kind == "volume"
        for name in ("notes", "other", "new"):
            await sand.workspaces.delete(name)
        with pytest.raises(WorkspaceNotFound):
            await sand.workspaces.get("notes")
    assert await nothing_left(docker_engine, data) == []


async def test_two_sandboxes_share_a_workspace(docker_engine: Reached, data: Path):
    async with opened(data, docker_engine, "volume") as sand:
        first, two = [
            await sand.create(requested("board", workspace_mode="shared")) for _ in range(2)
        ]
        await sh(sand, first.id, "echo hello > file")
        assert (await sh(sand, two.id, "cat file")).stdout == b"hello\n"
        for info in (first, two):
            await sand.destroy(info.id)
        await sand.workspaces.delete("board")
    assert await nothing_left(docker_engine, data) == []


async def test_a_workspace_stays_where_it_was_made(docker_engine: Reached, data: Path):
    async with opened(data, docker_engine, "volume") as sand:
        await sand.destroy((await sand.create(requested("there"))).id)
        with pytest.raises(UnsupportedByBackend, match="is a volume of backend docker") as refused:
            await sand.create(requested("there", backend="local"))
        assert "backend docker" in refused.value.hint
        # The default backend is local here.
        assert (await sand.workspaces.create("here")).kind != "volume"
        with pytest.raises(UnsupportedByBackend, match="is stored on the daemon's machine"):
            await sand.create(requested("here"))
        for name in ("there", "here"):
            await sand.workspaces.delete(name)
    async with opened(data, docker_engine, "archive") as sand:
        with pytest.raises(UnsupportedByBackend, match="named workspaces"):
            await sand.create(requested("nowhere"))
    assert await nothing_left(docker_engine, data) == []


async def test_down_keeps_workspaces_unless_it_removes_volumes(docker_engine: Reached, data: Path):
    async with opened(data, docker_engine, "volume") as sand:
        await sand.destroy((await sand.create(requested("kept"))).id)
    owner = (data / "docker" / "owner").read_text()
    async with aclosing(DockerHost(DockerOptions(host=docker_engine.host))) as host:
        removal = container_removal._Gone()
        await container_removal._remove_sessions(host, owner, removal, volumes=False)
        assert len(removal.kept) == 2
        assert len(left(docker_engine, data)) == 2
        await container_removal._remove_sessions(host, owner, removal, volumes=True)
    assert await nothing_left(docker_engine, data) == []
