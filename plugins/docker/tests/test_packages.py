"""Packages on an engine: mounted where it shares our files, otherwise copied into a volume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.site import nothing_left, opened, sh
from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.engines import lent, stock
from tests.packages.wheels import wheel

if TYPE_CHECKING:
    from tests.engines.reached import Reached

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P55")]
LOOK = "python3 -c 'import epsilon; print(epsilon.VERSION)'; touch /opt/sandkasten/python/x"


@pytest.fixture
def docker_engine() -> Reached:
    return lent.engine("private", "debian")


def requested(*packages: str, **more: Any) -> CreateRequest:
    options = SandboxOptions(
        backend="docker", image=stock.reference("debian"), pip_packages=packages, **more
    )
    return CreateRequest(options)


def copies(docker_engine: Reached, data: Path) -> list[str]:
    """Return the volumes with copies that this installation has made."""
    owner = (data / "docker" / "owner").read_text()
    wanted = ("label=sandkasten=content", f"label=sandkasten.owner={owner}")
    return docker_engine.docker("volume", "ls", "-q", "-f", wanted[0], "-f", wanted[1]).split()


@pytest.mark.long(reason="`make test` has packages on the other backends")
async def test_packages_are_mounted_where_the_engine_sees_our_files(
    docker_engine: Reached, tmp_path: Path
):
    wheel(tmp_path / "w", "epsilon", "5.0")
    # Where the engine has the very same files as we.
    data = Path(docker_engine.shares) / tmp_path.name
    more = {"packages_find_links": str(tmp_path / "w")}
    async with opened(data, docker_engine, "bind", **more) as sand:
        info = await sand.create(requested("epsilon"))
        result = await sh(sand, info.id, LOOK)
        assert result.stdout == b"5.0\n"
        assert b"Read-only file system" in result.stderr
    assert copies(docker_engine, data) == []
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.long(reason="`make test` has it for an engine that does")
async def test_packages_are_copied_to_an_engine_that_does_not_see_our_files(
    docker_engine: Reached, tmp_path: Path
):
    wheel(tmp_path / "w", "epsilon", "5.0")
    data = tmp_path / "data"
    more = {"packages_find_links": str(tmp_path / "w")}
    async with opened(data, docker_engine, "volume", **more) as sand:
        for _ in range(2):
            info = await sand.create(requested("epsilon"))
            result = await sh(sand, info.id, LOOK)
            assert result.stdout == b"5.0\n", result.stderr
            assert b"Read-only file system" in result.stderr
            await sand.destroy(info.id)
        [volume] = copies(docker_engine, data)
    # As a process leaves it that dies while it copies: the volume exists, and is not complete.
    labels = json.loads(docker_engine.docker("volume", "inspect", "-f", "{{json .Labels}}", volume))
    docker_engine.docker("volume", "rm", volume)
    docker_engine.docker(
        "volume", "create", *(f"--label={k}={v}" for k, v in labels.items()), volume
    )
    # And one whose packages were removed here.
    labels["sandkasten.source"] = str(tmp_path / "gone")
    docker_engine.docker(
        "volume", "create", *(f"--label={k}={v}" for k, v in labels.items()), "old"
    )
    async with opened(data, docker_engine, "volume", **more) as sand:
        info = await sand.create(requested("epsilon"))
        assert (await sh(sand, info.id, LOOK)).stdout == b"5.0\n"
        assert copies(docker_engine, data) == [volume]
    docker_engine.docker("volume", "rm", volume)
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.long(reason="`make test` has it for an engine with volumes")
async def test_packages_are_in_the_container_where_the_engine_has_no_volumes(
    docker_engine: Reached, tmp_path: Path
):
    wheel(tmp_path / "w", "epsilon", "5.0")
    data = tmp_path / "data"
    more = {"packages_find_links": str(tmp_path / "w")}
    async with opened(data, docker_engine, "archive", **more) as sand:
        info = await sand.create(requested("epsilon"))
        result = await sh(sand, info.id, LOOK)
        assert result.stdout == b"5.0\n", result.stderr
        assert b"Permission denied" in result.stderr
    assert await nothing_left(docker_engine, data) == []


async def test_a_host_mount_is_refused_where_the_engine_does_not_see_our_files(
    docker_engine: Reached, tmp_path: Path
):
    """It shows a directory as it is now, which no copy does."""
    (tmp_path / "shown").mkdir()
    more = {"policy_mounts": f"docs={tmp_path / 'shown'}:/docs"}
    async with opened(tmp_path / "data", docker_engine, "volume", **more) as sand:
        with pytest.raises(UnsupportedByBackend, match="host mounts are not supported") as refused:
            await sand.create(requested(mounts=("docs",)))
        assert "workspace_mode bind" in refused.value.hint
        assert await sand.list(all=True) == []
    assert await nothing_left(docker_engine, tmp_path / "data") == []
