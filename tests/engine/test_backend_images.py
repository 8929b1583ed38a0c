"""Images on a backend with its own: the store first, then the backend, never the host image.

The unisolated backend with a few images of its own; the store, the ledger and the rules are real.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    ImageNotFound,
    InternalError,
    InvalidImage,
    PolicyDenied,
    RegistryUnavailable,
    UnsupportedByBackend,
)
from sandkasten.model.backends.named_backends import NamedBackendRules
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.network_policy import CLOSED
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports import KeepsImages, backend_part
from sandkasten_runtime.backends.lazy_backend import LazyBackend
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_names import canonical_name
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests.imagekit import docker_members, sketch, write_tar
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend, standing_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec

pytestmark = pytest.mark.anyio


class Keeper(UnisolatedBackend):
    """The unisolated backend with its own images; records requests."""

    name = "docker"
    capabilities = replace(standing_for("docker"), own_images=True)

    def __init__(self, *images: str) -> None:
        super().__init__()
        self.images = {canonical_name(one): f"sha256:{n:064x}" for n, one in enumerate(images)}
        self.sought: list[tuple[str, ...]] = []
        self.shown: list[Image] = []
        self.brought: list[str] = []

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        self.sought.append(tuple(names))
        for one in map(canonical_name, names):
            if one in self.images:
                return Image(one, kind="engine", id=self.images[one])
        return None

    async def bring_image(self, image: Image) -> None:
        self.brought.append(image.name)

    async def bring_contents(self, mounts) -> None:
        del mounts

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Any:
        self.shown.append(spec.image)
        return await super().create(sandbox_id, spec)


class West(Keeper):
    name = "docker/west"


class World:
    def __init__(self, root: Path, *images: str, policy: Policy | None = None, **said: Any) -> None:
        self.root = root
        self.layers = LayerStore(root / "images")
        self.library = Images(self.layers, **said)
        self.keeper = Keeper(*images)
        self.ledger = MemoryStore()
        self.engine = Engine(
            backends={
                "docker": self.keeper,
                "docker/west": West(),
                "unisolated": UnisolatedBackend(),
            },
            default_backend="docker",
            store=self.ledger,
            images=self.library,
            library=self.library,
            policy=policy or Policy(),
            clock=SystemClock(),
        )

    async def bring(self, name: str) -> str:
        """Import the sketch under a name; return its id."""

        def bring() -> str:
            path = write_tar(self.root / "archive", docker_members(sketch()))
            return import_file(self.layers, Import(path, name=name))[0].id

        return await asyncio.to_thread(bring)

    async def shown(self, image: str | None = None) -> Image:
        """Return the image of a sandbox that requests this."""
        await self.engine.create(CreateRequest(SandboxOptions(image=image)))
        return self.keeper.shown[-1]


@pytest.fixture
async def opened(tmp_path):
    worlds: list[World] = []

    def open_world(*images: str, **said: Any) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), *images, **said))
        worlds[-1].root.mkdir()
        return worlds[-1]

    yield open_world
    for world in worlds:
        for info in await world.engine.list():
            await world.engine.destroy(info.id)
        await world.engine.aclose()


@pytest.mark.promise("P50")
async def test_a_stored_image_takes_precedence_over_the_backends_own(opened):
    world = opened("python:3.11-slim")
    the_id = await world.bring("python:3.11-slim")
    for name in ("python", "python:3.11-slim", the_id):
        image = await world.shown(name)
        assert (image.kind, image.id, len(image.layers)) == ("layers", the_id, 4)
    assert world.keeper.sought == []


@pytest.mark.promise("P50")
async def test_an_image_missing_from_the_store_is_searched_in_the_backend_under_every_alias(opened):
    world = opened("python:3.11-slim", "alpine")
    image = await world.shown("python")
    assert (image.name, image.kind) == ("python:3.11-slim", "engine")
    assert world.keeper.sought == [("python:latest", "python:3.11-slim")]
    info = await world.engine.create(CreateRequest(SandboxOptions(image="alpine")))
    assert info.image == "alpine:latest"
    assert info.warnings == ()


@pytest.mark.promise("P50")
async def test_an_image_that_exists_nowhere_names_both_places_and_a_remedy(opened):
    world = opened()
    with pytest.raises(ImageNotFound) as refused:
        await world.shown("python")
    assert "in the store nor in the Docker Engine of backend docker" in refused.value.message
    assert "looked for python:latest or python:3.11-slim" in refused.value.message
    for way in ("sandkasten image build", "docker pull python:3.11-slim", "docker.pull: missing"):
        assert way in refused.value.hint
    with pytest.raises(InvalidImage):
        await world.shown("debian:12")
    assert await world.ledger.list() == []


@pytest.mark.promise("P50")
async def test_a_missing_image_of_a_named_engine_has_a_hint_with_its_setting(opened):
    world = opened(policy=Policy(named_backends={"docker/west": NamedBackendRules()}))
    request = CreateRequest(SandboxOptions(image="python", backend="docker/west"))
    with pytest.raises(ImageNotFound) as refused:
        await world.engine.create(request)
    for way in ("(docker pull python:3.11-slim)", "backends.docker.engines.west.pull: missing"):
        assert way in refused.value.hint


@pytest.mark.promise("P50")
async def test_the_host_image_is_not_a_fallback_on_a_backend_with_its_own_images(opened):
    world = opened()
    with pytest.raises(InvalidImage):
        await world.shown("bash")
    elsewhere = await world.engine.create(
        CreateRequest(SandboxOptions(image="bash", backend="unisolated"))
    )
    assert elsewhere.image == "host"
    assert elsewhere.warnings


@pytest.mark.promise("P50")
async def test_requesting_the_host_image_by_name_is_unsupported(opened):
    world = opened("host", aliases={"mine": "host"})
    for name in ("host", "mine"):
        with pytest.raises(UnsupportedByBackend) as refused:
            await world.shown(name)
        assert "local backend" in refused.value.hint
    assert world.keeper.sought == []


async def test_a_request_without_an_image_gets_the_default(opened):
    assert (await opened("ubuntu:22.04").shown()).name == "ubuntu:22.04"
    chosen = opened("ubuntu:22.04", "mine:2", policy=Policy(default_image="mine:2"))
    assert (await chosen.shown()).name == "mine:2"
    lost = opened("ubuntu:22.04", policy=Policy(default_image="mine:2"))
    with pytest.raises(InvalidImage) as refused:
        await lost.shown()
    assert "mine:2" in refused.value.message
    assert "default_image" in refused.value.hint


async def test_a_one_shot_runs_on_the_image_of_its_runtime(opened):
    world = opened("python:3.11-slim", "ubuntu:22.04")
    assert (
        await world.engine.run(
            RunRequest(runtime="sh", code="true", options=SandboxOptions(image="linux"))
        )
    ).ok
    assert world.keeper.shown[-1].name == "ubuntu:22.04"
    result = await world.engine.run(RunRequest(runtime="bash", code="echo hi"))
    assert result.image == "ubuntu:22.04"
    with pytest.raises(InvalidImage, match="sandbox-runtime:base"):
        await world.engine.run(RunRequest(runtime="sh", code="true"))


@pytest.mark.promise("P50")
async def test_the_allow_list_applies_to_the_backends_images(opened):
    world = opened("python:latest", "python:3.11-slim", "evil:1", allowed=["python:3.11-slim"])
    with pytest.raises(PolicyDenied):
        await world.shown("evil:1")
    # Allowed for what it stands for: an image that is only called like it is not let in.
    assert (await world.shown("python")).name == "python:3.11-slim"
    assert world.keeper.sought == [("python:3.11-slim",)]
    # The default one is not on the list, and neither is what would be meant instead of it.
    with pytest.raises(PolicyDenied):
        await world.shown()


async def test_the_operators_alias_hides_an_image_of_that_name(opened):
    world = opened("python:latest", "mine:1", aliases={"python": "mine:1"})
    assert (await world.shown("python")).name == "mine:1"


async def test_the_store_pulls_only_what_the_backend_does_not_have(opened, monkeypatch):
    world = opened("here:1", pull="missing")
    asked: list[str] = []

    async def refused(name: str, *_: object) -> None:
        asked.append(name)
        raise RegistryUnavailable("no registry", hint="")

    monkeypatch.setattr(world.library._sources, "pull_for_request", refused)
    assert (await world.shown("here:1")).kind == "engine"
    assert asked == []
    with pytest.raises(RegistryUnavailable):
        await world.shown("gone:1")
    assert asked == ["gone:1"]


@pytest.mark.promise("P48")
async def test_garbage_is_collected_while_a_sandbox_uses_an_image_of_the_backend(opened):
    world = opened("alpine")
    await world.bring("a")
    await world.shown("alpine")
    [record] = await world.ledger.list()
    assert (record.image, record.image_id) == ("alpine:latest", "")
    removed = await world.engine.images.remove("a")
    assert removed.deleted
    assert removed.freed_bytes > 0
    assert world.layers.layers() == []


@pytest.mark.promise("P48")
async def test_a_stored_image_is_kept_while_a_backend_uses_it(opened):
    world = opened()
    the_id = await world.bring("a")
    info = await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    [image] = await world.engine.images.list()
    assert (image.id, image.used_by) == (the_id, (info.id,))


async def test_build_steps_are_refused_on_a_backend_with_its_own_images(opened):
    world = opened()
    await world.bring("a")
    image = await world.library.resolve("a")
    with pytest.raises(UnsupportedByBackend, match="backend docker does not support reading"):
        async with world.engine.bench.run(
            image, ("true",), cwd="/", env={}, network=CLOSED, pip=(), on_line=print
        ):
            pass
    assert world.keeper.shown == []


async def test_a_backend_that_is_opened_later_has_the_images_that_it_declares(tmp_path):
    opened: list[Keeper] = []

    def opener() -> Keeper:
        opened.append(Keeper("alpine"))
        return opened[-1]

    later = LazyBackend("docker", Keeper.capabilities, tmp_path / "docker", opener)
    assert later.capabilities.own_images
    assert opened == []
    found = await (await backend_part(later, KeepsImages)).find_image(["nothing", "alpine"])
    assert found is not None
    assert found.name == "alpine:latest"
    assert len(opened) == 1
    wrong = LazyBackend("x", Keeper.capabilities, tmp_path / "x", UnisolatedBackend)
    with pytest.raises(InternalError):
        await backend_part(wrong, KeepsImages)
