"""Workspaces in a directory of the engine's machine, which only the engine reaches."""

from __future__ import annotations

import os

import pytest

from plugins.docker.tests.site import left, opened, sh
from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.hostwatch import loopwatch

pytestmark = [pytest.mark.slow, pytest.mark.root]


@loopwatch.of_the_test
def seen(directory) -> list[str]:
    return sorted(os.listdir(directory))


async def test_workspaces_are_in_the_named_directory_and_leave_nothing(
    docker_engine, data, tmp_path
):
    base = tmp_path / "sandboxes"
    base.mkdir()
    more = {"backend": "docker", "docker_workspace_dir": str(base)}
    async with opened(data, docker_engine, "auto", **more) as here:
        info = await here.create(CreateRequest())
        result = await sh(here, info.id, "id -u; echo hello > /workspace/x; echo y > ~/y; pwd")
        assert (result.exit_code, result.stdout) == (0, b"1000\n/workspace\n"), result
        assert seen(base) == [info.id]
        assert (base / info.id / "workspace" / "x").read_text() == "hello\n"
        assert [limit.limit for limit in info.unenforced if limit.limit == "workspace"]
        # Whatever it left, such as directories that are closed to their own owner.
        await sh(here, info.id, "mkdir -p a/b; ln -s /etc a/b/link; chmod 0 a/b; chmod 0 a")
    assert seen(base) == []
    assert left(docker_engine, data) == []


@pytest.mark.long(reason="`make test` removes it in the same process")
async def test_another_process_removes_a_session_with_its_directory(docker_engine, data, tmp_path):
    base = tmp_path / "sandboxes"
    base.mkdir()
    more = {"backend": "docker", "docker_workspace_dir": str(base)}
    async with opened(data, docker_engine, "auto", **more) as here:
        info = await here.create(CreateRequest())
        async with opened(data, docker_engine, "auto", **more) as other:
            await other.destroy(info.id)
        assert seen(base) == []
    assert left(docker_engine, data) == []


async def test_a_directory_that_the_engine_does_not_have_is_refused_by_name(
    docker_engine, data, tmp_path
):
    more = {"backend": "docker", "docker_workspace_dir": str(tmp_path / "missing")}
    async with opened(data, docker_engine, "auto", **more) as here:
        with pytest.raises(BackendUnavailable) as refused:
            await here.create(CreateRequest())
    assert "backends.docker.workspace_dir" in refused.value.message
    assert left(docker_engine, data) == []
