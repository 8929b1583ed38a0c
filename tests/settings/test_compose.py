"""Backends that are opened lazily: failures give the reason, opened ones are closed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports import KeepsImages, backend_part, may_hold
from sandkasten_cloud.cloud_capabilities import configured
from sandkasten_cloud.e2b.e2b_capabilities import E2B
from sandkasten_cloud.e2b.e2b_options import E2bOptions
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.backends.gate.entry_keys import make_keys
from sandkasten_runtime.backends.lazy_backend import LazyBackend
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def opened(tmp_path):
    async def open_with(**environ: str):
        return await open_engine(load({"data_dir": str(tmp_path / "data")}, environ, tmp_path))

    return open_with


class Keeper(UnisolatedBackend):
    capabilities = replace(UNKNOWN, own_images=True)
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1

    async def find_image(self, names, *, fetch=False):
        return Image(names[0], kind="engine")

    async def bring_image(self, image) -> None:
        return None

    async def bring_contents(self, mounts) -> None:
        del mounts


def provider(directory: Path, real: Keeper, options: E2bOptions) -> LazyBackend:
    """Return the backend e2b with these options, which opens `real`."""
    can = configured(options, "e2b", E2B)
    return LazyBackend(
        "e2b", can, directory, lambda: real, lambda: bool(MachineRecords(directory).ids())
    )


@pytest.mark.promise("P42")
@pytest.mark.parametrize(
    ("backend", "library", "package"),
    [
        ("docker", "aiodocker", "sandkasten_docker"),
        ("e2b", "e2b", "sandkasten_cloud.e2b"),
        ("modal", "modal", "sandkasten_cloud.modal"),
    ],
)
async def test_a_missing_library_is_reported_with_a_remedy(
    opened, monkeypatch, backend, library, package
):
    enabled = {} if backend == "docker" else {f"SANDKASTEN_{backend.upper()}_ENABLED": "true"}
    enabled["E2B_API_KEY"] = "e2b_key"
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-1")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-1")
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        if not name.endswith("_options"):
            monkeypatch.delitem(sys.modules, name)
    engine = await opened(**enabled)
    found = await engine.probe(backend)
    assert (found.ready, found.remedy) == (False, install_command(backend))
    assert library in found.reason
    with pytest.raises(BackendUnavailable) as refused:
        await engine.create(CreateRequest(SandboxOptions(backend=backend)))
    assert refused.value.hint == install_command(backend)
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

    later = LazyBackend("x", UNKNOWN, tmp_path / "none", opener)
    assert await later.owned() == ()
    await later.discard(new_sandbox_id())
    await later.aclose()
    assert not may_hold(later)


async def test_a_used_backend_is_closed_and_lists_its_images(tmp_path):
    real = Keeper()
    later = LazyBackend("x", Keeper.capabilities, tmp_path, lambda: real)
    images = await backend_part(later, KeepsImages)
    assert await images.find_image(["a"]) == Image("a", kind="engine")
    with pytest.raises(SandboxLost):
        await later.attach(new_sandbox_id())
    await later.aclose()
    assert real.closed == 1


@pytest.mark.promise("P120")
@pytest.mark.parametrize("name", ["e2b", "fly", "modal"])
async def test_a_provider_is_closed_until_the_operator_enables_it(opened, tmp_path, name):
    credentials = {"E2B_API_KEY": "e2b_key", "FLY_API_TOKEN": "token", "SANDKASTEN_FLY_APP": "app"}
    engine = await opened(**credentials, MODAL_TOKEN_ID="ak-1", MODAL_TOKEN_SECRET="as-1")
    (told,) = [one for one in await engine.backends() if one.name == name]
    assert (told.ready, told.reason) == (False, f"backend {name} is not enabled")
    assert f"backends.{name}.enabled: true" in told.remedy
    # Nothing else is wrong with these requests, or is looked at.
    for options in (SandboxOptions(backend=name), SandboxOptions(backend=name, image="host")):
        with pytest.raises(BackendUnavailable, match="not enabled") as refused:
            await engine.create(CreateRequest(options))
        assert refused.value.hint == told.remedy
    await engine.sweep()
    assert not (tmp_path / "data" / name).exists()
    await engine.aclose()


@pytest.mark.promise("P120")
@pytest.mark.parametrize(
    ("name", "environ", "reason", "remedy"),
    [
        ("e2b", {}, "backends.e2b.api_key is not set", "E2B_API_KEY"),
        ("fly", {}, "backends.fly.app is not set", "fly apps create"),
        ("fly", {"SANDKASTEN_FLY_APP": "boxes"}, "backends.fly.api_token", "FLY_API_TOKEN"),
        ("modal", {}, "no token of Modal is set", "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"),
    ],
)
async def test_a_provider_without_a_required_setting_is_refused_before_anything_is_recorded(
    opened, tmp_path, monkeypatch, name, environ, reason, remedy
):
    for one in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    engine = await opened(**environ, **{f"SANDKASTEN_{name.upper()}_ENABLED": "true"})
    told = await engine.probe(name)
    assert not told.ready
    assert reason in told.reason
    assert remedy in told.remedy
    with pytest.raises(BackendUnavailable) as refused:
        await engine.create(CreateRequest(SandboxOptions(backend=name)))
    assert (refused.value.message, refused.value.hint) == (told.reason, told.remedy)
    assert (await engine.sweep()).failed == ()
    assert engine.degraded() == []
    assert await engine.list() == []
    assert not (tmp_path / "data" / name).exists()
    await engine.aclose()


@pytest.mark.promise("P120")
async def test_a_provider_whose_key_was_removed_is_asked_only_if_it_has_sandboxes(tmp_path):
    real, made = Keeper(), new_sandbox_id()
    enabled = E2bOptions(enabled=True)
    keyless = provider(tmp_path, real, enabled)
    cell = await real.create(made, CellSpec(image=Image("host")))
    MachineRecords(tmp_path).owner()
    assert await keyless.owned() == ()
    MachineRecords(tmp_path).begin(made, make_keys(made, "e2b"))
    assert list(await keyless.owned()) == [made]
    await cell.destroy()


def test_a_token_of_modal_may_be_in_a_file_or_in_its_own_configuration(tmp_path, monkeypatch):
    for one in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(one, raising=False)
    own = tmp_path / "modal.toml"
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(own))
    assert ModalOptions().missing() is not None
    assert ModalOptions(token_file=tmp_path / "token").missing() is None
    own.write_text("[default]\n")
    assert ModalOptions().missing() is None


@pytest.mark.promise("P120")
async def test_sandboxes_of_a_provider_that_was_disabled_are_reached_and_removed(tmp_path):
    real, made = Keeper(), new_sandbox_id()
    closed = provider(tmp_path, real, E2bOptions(api_key="e2b_key"))
    cell = await real.create(made, CellSpec(image=Image("host")))
    # The provider is not asked if nothing was made there.
    assert await closed.owned() == ()
    MachineRecords(tmp_path).owner()
    MachineRecords(tmp_path).begin(made, make_keys(made, "e2b"))
    assert list(await closed.owned()) == [made]
    assert await (await closed.attach(made)).usage() is not None
    with pytest.raises(BackendUnavailable, match="not enabled"):
        await closed.create(new_sandbox_id(), CellSpec(image=Image("host")))
    await cell.destroy()
    await closed.aclose()
