"""Images and the sandboxes that use them: images in use are kept, and races end consistently.

The backend shows the host in place of any image; the ledger, the store and the rules are real.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import Busy, Conflict, InvalidImage, UnsupportedByBackend
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests.imagekit import docker_members, layer, sketch, write_tar
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.layers = LayerStore(root / "images")
        self.library = Images(self.layers)
        self.ledger = MemoryStore()
        self.engine = Engine(
            backends={"unisolated": UnisolatedBackend()},
            default_backend="unisolated",
            store=self.ledger,
            images=self.library,
            library=self.library,
            policy=Policy(),
            clock=SystemClock(),
        )

    async def bring(self, name: str, **changes) -> str:
        """Import the sketch under a name; return its id."""

        def bring() -> str:
            path = write_tar(self.root / "archive", docker_members(sketch(**changes)))
            return import_file(self.layers, Import(path, name=name))[0].id

        return await asyncio.to_thread(bring)


def there(trees: Sequence[str]) -> list[bool]:
    return [os.path.isdir(tree) for tree in trees]


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    yield made
    for info in await made.engine.list():
        await made.engine.destroy(info.id)
    await made.engine.aclose()


@pytest.mark.promise("P48")
async def test_an_image_in_use_is_not_removed_and_its_sandboxes_are_named(world):
    the_id = await world.bring("a")
    one = await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    two = await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    assert one.image == "a:latest"
    [shown] = await world.engine.images.list()
    assert set(shown.used_by) == {one.id, two.id}
    with pytest.raises(Conflict) as refused:
        await world.engine.images.remove("a")
    assert one.id in refused.value.message
    assert two.id in refused.value.message
    assert refused.value.details["sandboxes"] in ([one.id, two.id], [two.id, one.id])
    await world.engine.destroy(one.id)
    await world.engine.destroy(two.id)
    gone = await world.engine.images.remove("a")
    assert (gone.id, gone.names, gone.deleted) == (the_id, ("a:latest",), True)
    assert gone.freed_bytes > 0
    assert os.listdir(world.layers.root / "layers") == []


async def test_one_of_two_names_of_an_image_in_use_can_be_removed(world):
    await world.bring("a")
    await world.engine.images.tag("a", "b")
    box = await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    gone = await world.engine.images.remove("a")
    assert not gone.deleted
    assert (await world.engine.images.inspect("b")).used_by == (box.id,)


@pytest.mark.promise("P48")
async def test_garbage_collection_never_removes_layers_of_a_running_sandbox(world):
    old = await world.bring("a")
    box = await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    trees = (await world.library.resolve("a")).layers
    # The name goes to other content; nothing but the sandbox holds the old one.
    await world.bring("a", layers=[layer({"x": b"other"})])
    assert (await world.engine.images.collect()).images == ()
    assert there(trees) == [True] * 4
    await world.engine.destroy(box.id)
    done = await world.engine.images.collect()
    assert (done.images, len(done.layers)) == ((old,), 3)
    assert there(trees) == [False] * 4


async def test_a_removal_during_an_import_frees_its_space_later(world):
    await world.bring("a")
    with world.layers.working():
        gone = await world.engine.images.remove("a")
        assert (gone.deleted, gone.freed_bytes) == (True, 0)
        collecting = asyncio.create_task(world.engine.images.collect())
        await asyncio.sleep(0.05)
        assert not collecting.done()
    assert len((await collecting).layers) == 3


async def test_a_sandbox_whose_image_is_removed_during_create_is_refused_and_leaves_nothing(world):
    await world.bring("a")
    resolve = world.library.resolve

    async def resolve_then_lose(name, *, fetch=True):
        image = await resolve(name, fetch=fetch)
        await world.engine.images.remove("a")
        return image

    world.library.resolve = resolve_then_lose
    with pytest.raises(InvalidImage, match="was removed while"):
        await world.engine.create(CreateRequest(SandboxOptions(image="a")))
    assert await world.ledger.list() == []


@pytest.mark.promise("P48")
@pytest.mark.slow
async def test_concurrent_create_and_remove_end_consistently(world):
    """Either the sandbox exists with all its layers, or the image is gone and nothing is left."""
    outcomes = set()
    for round_ in range(24):
        await world.bring("a")

        async def remove(wait: int = round_):
            await asyncio.sleep((wait % 8) * 0.0005)
            return await world.engine.images.remove("a")

        made: Any
        gone: Any
        made, gone = await asyncio.gather(
            world.engine.create(CreateRequest(SandboxOptions(image="a"))),
            remove(),
            return_exceptions=True,
        )
        if isinstance(made, BaseException):
            assert isinstance(made, InvalidImage)
            assert not isinstance(gone, BaseException)
            outcomes.add("removed")
            assert await world.ledger.list() == []
        else:
            [record] = await world.ledger.list()
            assert len(os.listdir(world.layers.root / "layers")) == 3
            assert record.image_id[7:] in os.listdir(world.layers.root / "skeletons")
            outcomes.add("both" if not isinstance(gone, BaseException) else "kept")
            await world.engine.destroy(made.id)
        if isinstance(gone, BaseException):
            assert isinstance(gone, Conflict)
            await world.engine.images.remove("a")
        await world.engine.images.collect()
        assert os.listdir(world.layers.root / "layers") == []
    assert "removed" in outcomes or "kept" in outcomes


@pytest.mark.promise("P52")
async def test_the_callers_environment_overrides_that_of_the_image(world):
    await world.bring("a", config={"Env": ["A=image", "B=image", "bad-name=x"]})
    box = await world.engine.create(CreateRequest(SandboxOptions(image="a", env={"A": "caller"})))
    result = await world.engine.exec(box.id, ExecRequest(command="echo $A $B"))
    assert result.stdout.split() == [b"caller", b"image"]


async def test_an_engine_without_an_image_store_refuses_image_requests():
    engine = Engine(
        backends={"unisolated": UnisolatedBackend()},
        default_backend="unisolated",
        store=MemoryStore(),
        images=HostImages(),
        policy=Policy(),
        clock=SystemClock(),
    )
    with pytest.raises(UnsupportedByBackend):
        await engine.images.list()
    await engine.aclose()


async def test_garbage_collection_that_cannot_get_the_lock_is_busy(world):
    await world.bring("a")
    with world.layers.working(), pytest.raises(Busy):
        await world.library.collect(in_use=set(), wait_s=0)
