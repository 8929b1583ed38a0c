"""Workspaces in a directory of the engine's machine, which only the engine reaches."""

from __future__ import annotations

import os

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.docker.site import left, opened, sh
from tests.hostwatch import loopwatch

pytestmark = [pytest.mark.slow, pytest.mark.root]


@loopwatch.of_the_test
def seen(directory) -> list[str]:
    return sorted(os.listdir(directory))


async def test_workspaces_are_in_the_named_directory_and_leave_nothing(engine, data, tmp_path):
    base = tmp_path / "sandboxes"
    base.mkdir()
    more = {"backend": "docker", "docker_workspace_dir": str(base)}
    async with opened(data, engine, "auto", **more) as here:
        one = await here.create(CreateRequest())
        made = await sh(here, one.id, "id -u; echo hello > /workspace/x; echo y > ~/y; pwd")
        assert (made.exit_code, made.stdout) == (0, b"1000\n/workspace\n"), made
        assert seen(base) == [one.id]
        assert (base / one.id / "workspace" / "x").read_text() == "hello\n"
        assert [limit.limit for limit in one.unenforced if limit.limit == "workspace"]
        # Whatever it left, such as directories that are closed to their own owner.
        await sh(here, one.id, "mkdir -p a/b; ln -s /etc a/b/link; chmod 0 a/b; chmod 0 a")
    assert seen(base) == []
    assert left(engine, data) == []


@pytest.mark.long(reason="`make test` removes it in the same process")
async def test_another_process_removes_a_session_with_its_directory(engine, data, tmp_path):
    base = tmp_path / "sandboxes"
    base.mkdir()
    more = {"backend": "docker", "docker_workspace_dir": str(base)}
    async with opened(data, engine, "auto", **more) as here:
        one = await here.create(CreateRequest())
        async with opened(data, engine, "auto", **more) as other:
            await other.destroy(one.id)
        assert seen(base) == []
    assert left(engine, data) == []


async def test_a_directory_that_the_engine_does_not_have_is_refused_by_name(engine, data, tmp_path):
    more = {"backend": "docker", "docker_workspace_dir": str(tmp_path / "missing")}
    async with opened(data, engine, "auto", **more) as here:
        with pytest.raises(BackendUnavailable) as refused:
            await here.create(CreateRequest())
    assert "backends.docker.workspace_dir" in refused.value.message
    assert left(engine, data) == []
