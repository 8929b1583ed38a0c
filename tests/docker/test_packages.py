"""Packages on an engine: mounted where it shares our files, otherwise refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.docker.site import nothing_left, opened, sh
from tests.engines import lent, stock
from tests.packages.wheels import wheel

if TYPE_CHECKING:
    from tests.engines.reached import Reached

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P55")]


@pytest.fixture
def engine() -> Reached:
    return lent.engine("private", "debian")


async def test_packages_are_mounted_on_a_local_engine_and_refused_on_a_remote_one(
    engine: Reached, tmp_path: Path
):
    wheel(tmp_path / "w", "epsilon", "5.0")
    # Where the engine has the very same files as we.
    data = Path(engine.shares) / tmp_path.name
    wish = CreateRequest(
        SandboxOptions(backend="docker", image=stock.reference("debian"), pip_packages=("epsilon",))
    )
    more = {"packages_find_links": str(tmp_path / "w")}
    async with opened(data, engine, "bind", **more) as sand:
        info = await sand.create(wish)
        look = "python3 -c 'import epsilon; print(epsilon.VERSION)'; touch /opt/sandkasten/python/x"
        result = await sh(sand, info.id, look)
        assert result.stdout == b"5.0\n"
        assert b"Read-only file system" in result.stderr
    assert await nothing_left(engine, data) == []
    async with opened(tmp_path / "data", engine, "volume", **more) as sand:
        with pytest.raises(
            UnsupportedByBackend, match="host mounts are not supported here"
        ) as refused:
            await sand.create(wish)
        assert "workspace_mode bind" in refused.value.hint
        assert await sand.list(all=True) == []
    assert await nothing_left(engine, tmp_path / "data") == []
