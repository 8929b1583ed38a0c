"""Backends that are opened lazily: failures give the reason, opened ones are closed."""

from __future__ import annotations

import sys

import pytest

from sandkasten.daemon.backend_registry import LazyBackend, LazyImageBackend
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.settings.resolver import load
from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports import Closes, Discards, KeepsImages, StartsSlowly
from tests.unisolated.backend import UnisolatedBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
def opened(tmp_path):
    async def open_with(**environ: str):
        return await open_engine(load({"data_dir": str(tmp_path / "data")}, environ, tmp_path))

    return open_with


class Keeper(UnisolatedBackend):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1

    def may_fetch(self, *, in_full):
        return False

    async def find_image(self, names, *, fetch=False):
        return Image(names[0], kind="engine")

    async def bring_image(self, image) -> None:
        return None

    async def bring_contents(self, mounts) -> None:
        del mounts


@pytest.mark.promise("P42")
async def test_a_missing_library_is_reported_with_a_remedy(opened, monkeypatch):
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    for name in [one for one in sys.modules if one.startswith("sandkasten.backends.docker.")]:
        if not name.endswith((".options", ".names")):
            monkeypatch.delitem(sys.modules, name)
    engine = await opened()
    found = await engine.probe("docker")
    assert (found.ready, found.remedy) == (False, install_command("docker"))
    assert "aiodocker" in found.reason
    with pytest.raises(BackendUnavailable) as refused:
        await engine.create(CreateRequest(SandboxOptions(backend="docker")))
    assert refused.value.hint == install_command("docker")
    assert await engine.list() == []
    await engine.aclose()


async def test_an_unusable_docker_variable_is_reported_when_docker_is_requested(opened):
    engine = await opened(DOCKER_HOST="tcp://far.example:2375")
    found = await engine.probe("docker")
    assert not found.ready
    assert "plain tcp" in found.reason
    assert "TLS" in found.remedy
    with pytest.raises(BackendUnavailable, match="plain tcp"):
        await engine.create(CreateRequest(SandboxOptions(backend="docker")))
    assert (await engine.sweep()).failed == ()
    await engine.aclose()


async def test_a_backend_that_was_never_used_is_neither_opened_nor_closed(tmp_path):
    def opener():
        raise AssertionError

    later = LazyBackend("x", tmp_path / "none", opener)
    assert await later.owned() == ()
    await later.discard(new_sandbox_id())
    await later.aclose()
    assert isinstance(later, Closes)
    assert isinstance(later, Discards)
    assert not isinstance(later, KeepsImages)


async def test_a_used_backend_is_closed_and_lists_its_images(tmp_path):
    real = Keeper()
    later = LazyImageBackend("x", tmp_path, lambda: real)
    assert isinstance(later, KeepsImages)
    assert isinstance(later, StartsSlowly)
    assert later.create_timeout_s() is None
    real.create_timeout_s = lambda: 90.0  # type: ignore[attr-defined]
    assert later.create_timeout_s() == 90.0
    assert await later.find_image(["a"]) == Image("a", kind="engine")
    with pytest.raises(SandboxLost):
        await later.attach(new_sandbox_id())
    await later.aclose()
    assert real.closed == 1
