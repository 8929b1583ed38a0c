"""Packing stored images for an engine, and loading them into a real one."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import tarfile
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import Busy, InvalidImage, QuotaExceeded
from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.images import store_packer
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_config import ImageConfig
from sandkasten_runtime.images.layers import layer_tar
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.store_packer import StorePacker
from tests import imagekit
from tests.engines import lent
from tests.imagekit import MACHINE, docker_members, layer, sketch, write_tar
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.reached import Reached

pytestmark = pytest.mark.anyio

REFERENCE = "sandkasten-store:abc"


@pytest.fixture
def import_sketch(store, tmp_path):
    """Import a sketch as `a:1`; return the image as the engine passes it to a backend."""

    async def bring(where: LayerStore | None = None, **changes: Any) -> Image:
        where = store if where is None else where
        path = write_tar(tmp_path / "archive", docker_members(sketch(**changes)))
        import_file(where, Import(path, name="a:1"))
        return await Images(where).resolve("a:1")

    return bring


async def packed(store: LayerStore, image: Image) -> bytes:
    return b"".join([piece async for piece in StorePacker(store).archive(image, REFERENCE)])


def opened(archive: bytes) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """Return the entry of the table of contents, the configuration, and the layers in order."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {one.name: tar.extractfile(one) for one in tar}
        contents = {name: file.read() for name, file in members.items() if file is not None}
    [entry] = json.loads(contents["manifest.json"])
    config = contents[entry["Config"]]
    assert entry["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    return entry, json.loads(config), [contents[one] for one in entry["Layers"]]


def names_in(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as inner:
        return inner.getnames()


async def test_a_packed_archive_has_one_name_every_layer_and_the_skeleton_on_top(
    store, import_sketch
):
    image = await import_sketch(
        config={"Env": ["A=1"], "User": "7", "Entrypoint": ["/e"], "Cmd": ["c"]}
    )
    entry, config, layers = opened(await packed(store, image))
    assert entry["RepoTags"] == [REFERENCE]
    assert len(layers) == len(image.layers) == 4
    digests = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    assert config["rootfs"] == {"type": "layers", "diff_ids": digests}
    assert (config["architecture"], config["os"]) == (MACHINE, "linux")
    assert config["config"] == {"Env": ["A=1"], "Labels": {"sandkasten.image": image.id}}
    assert {"work", "workspace", "home/sandbox", "etc/passwd"} <= set(names_in(layers[-1]))


async def test_whiteouts_are_packed_as_engines_require(store, import_sketch):
    _, _, layers = opened(await packed(store, await import_sketch()))
    assert names_in(layers[1]) == ["d", "d/.wh..wh..opq", ".wh.old", "d/above"]


async def test_owners_are_those_on_disk(store, tmp_path):
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        srv = tarfile.TarInfo("srv")
        srv.type, srv.mode, srv.uid, srv.gid = tarfile.DIRTYPE, 0o755, 12, 60_000
        tar.addfile(srv)
    import_file(store, Import(tmp_path / "in.tar", name="a:1"))
    _, _, layers = opened(await packed(store, await Images(store).resolve("a:1")))
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as tar:
        srv = tar.getmember("srv")
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as tar:
        work = tar.getmember("workspace")
    assert (srv.uid, srv.gid) == (12, 60_000)
    assert (work.uid, work.gid) == (1000, 1000)


@pytest.mark.promise("P48")
async def test_the_same_image_gives_the_same_bytes_in_every_store(store, import_sketch, tmp_path):
    image = await import_sketch()
    first = await packed(store, image)
    assert await packed(store, image) == first
    other = LayerStore(tmp_path / "other")
    elsewhere = await import_sketch(other)
    # A skeleton is made when an image comes in; when that was is not part of the image.
    os.utime(f"{elsewhere.layers[-1]}/workspace", (7, 7))
    assert await packed(other, elsewhere) == first


async def test_a_repeated_layer_is_sent_once(store, import_sketch):
    same = layer({"x": b"1"})
    image = await import_sketch(layers=[same, layer({"y": b"2"}), same])
    archive = await packed(store, image)
    entry, config, _ = opened(archive)
    # The upper one hides the lower one, which is left out; the last is our skeleton.
    assert len(config["rootfs"]["diff_ids"]) == len(set(entry["Layers"])) == 3
    assert [names_in(archive).count(name) for name in entry["Layers"]] == [1, 1, 1]


async def test_two_layers_with_equal_content_are_sent_once(store, import_sketch):
    one, two = {"x": b"1", "y": b"2"}, {"y": b"2", "x": b"1"}
    image = await import_sketch(layers=[layer(one), layer(two)])
    assert image.layers[0] != image.layers[1]
    archive = await packed(store, image)
    entry, _, _ = opened(archive)
    assert entry["Layers"][0] == entry["Layers"][1]
    assert names_in(archive).count(entry["Layers"][0]) == 1


@pytest.mark.promise("P48")
async def test_pieces_are_small_and_one_layer_at_a_time_is_on_disk(store, import_sketch):
    large = [layer({f"f{n}": os.urandom(3 << 20)}) for n in range(3)]
    image = await import_sketch(layers=large)
    most = 0
    async for piece in StorePacker(store).archive(image, REFERENCE):
        assert len(piece) <= store_packer.PIECE_BYTES
        files = [one.stat().st_size for one in (store.root / "making").rglob("*") if one.is_file()]
        most = max(most, sum(files))
    assert (3 << 20) < most < (4 << 20)
    assert os.listdir(store.root / "making") == []


async def test_nothing_is_packed_before_it_is_read(store, import_sketch, monkeypatch):
    image = await import_sketch(layers=[layer({f"f{n}": bytes(3 << 20)}) for n in range(3)])
    begun: list[str] = []
    real = layer_tar.write_layer

    def counted(tree: str, *rest: Any, **more: Any) -> None:
        begun.append(tree)
        real(tree, *rest, **more)

    monkeypatch.setattr(store_packer, "write_layer", counted)
    archive = StorePacker(store).archive(image, REFERENCE)
    await anext(archive)
    await asyncio.sleep(0.05)
    assert begun == [image.layers[0]]
    await archive.aclose()


async def test_a_reader_that_stops_leaves_no_files(store, import_sketch):
    image = await import_sketch(layers=[layer({"f": bytes(5 << 20)})])
    archive = StorePacker(store).archive(image, REFERENCE)
    await anext(archive)
    with pytest.raises(Busy):
        await Images(store).collect(in_use=set(), wait_s=0)
    await archive.aclose()
    assert os.listdir(store.root / "making") == []
    await Images(store).collect(in_use=set(), wait_s=0)


@pytest.mark.promise("P48")
async def test_a_cancelled_reader_ends_the_thread_and_leaves_nothing(
    store, import_sketch, monkeypatch
):
    image = await import_sketch(layers=[layer({f"f{n}": bytes(2 << 20) for n in range(8)})])
    within, go = threading.Event(), threading.Event()
    went_by: list[int] = []
    real = layer_tar.write_layer

    def slow(tree: str, out: Any, progress: Any, **more: Any) -> None:
        def held(amount: int) -> None:
            within.set()
            go.wait(PATIENCE_S)
            progress(amount)
            went_by.append(amount)

        real(tree, out, held, **more)

    monkeypatch.setattr(store_packer, "write_layer", slow)
    reading = asyncio.create_task(packed(store, image))
    assert await asyncio.to_thread(within.wait, PATIENCE_S)
    reading.cancel()
    await asyncio.sleep(0.05)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert went_by == []
    assert os.listdir(store.root / "making") == []
    await Images(store).collect(in_use=set(), wait_s=0)


async def test_packing_on_a_full_disk_is_an_error_and_leaves_nothing(
    store, import_sketch, monkeypatch
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    image = await import_sketch()
    monkeypatch.setattr(store_packer, "write_layer", full)
    with pytest.raises(QuotaExceeded):
        await packed(store, image)
    assert os.listdir(store.root / "making") == []


async def test_an_image_that_cannot_be_packed_is_refused_as_invalid(store, import_sketch):
    image = await import_sketch()
    for odd in (
        Image("host"),
        Image("x", kind="engine"),
        replace(image, layers=("/nowhere", *image.layers)),
        replace(image, layers=image.layers * 40),
    ):
        with pytest.raises(InvalidImage):
            await packed(store, odd)


# ---- a real engine


@pytest.fixture(scope="module")
def dockerd() -> Reached:
    """The engine of the run, which other tests share: nothing of ours may stay in it."""
    return lent.engine("private")


@pytest.fixture(autouse=True)
def _remove_packed_image(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "dockerd" in request.fixturenames:
        request.getfixturevalue("dockerd").run_docker("image", "rm", "--force", REFERENCE)


async def say(dockerd: Reached, *words: str) -> str:
    return await asyncio.to_thread(dockerd.docker, *words)


async def load(dockerd: Reached, store: LayerStore, image: Image) -> None:
    process = await asyncio.create_subprocess_exec(
        *("docker", "--host", dockerd.host, "load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    async for piece in StorePacker(store).archive(image, REFERENCE):
        process.stdin.write(piece)
        await process.stdin.drain()
    process.stdin.close()
    said, _ = await process.communicate()
    assert process.returncode == 0, said


@pytest.mark.promise("P48")
async def test_an_engine_loads_a_packed_image_with_the_files_of_a_sandbox(dockerd, store, tmp_path):
    busybox = imagekit.busybox_tar().read_bytes()
    below = layer({"old": b"1", "d": None, "d/below": b"2", "proc": "/bin"})
    above = layer({".wh.old": b"", "d": None, "d/.wh..wh..opq": b"", "d/above": b"3"})
    image = sketch(layers=[busybox, below, above], config={"Env": ["A=seen"], "User": "7"})
    import_file(store, Import(write_tar(tmp_path / "in", docker_members(image)), name="a:1"))
    await load(dockerd, store, await Images(store).resolve("a:1"))

    async def run(command: str) -> str:
        wanted = ("run", "--rm", "--network=none", "--user=1000:1000", REFERENCE, "/bin/sh", "-c")
        return await say(dockerd, *wanted, command)

    assert (await run("id -un; readlink /work; echo $A")).split() == [
        "sandbox",
        "workspace",
        "seen",
    ]
    assert (await run("ls -d /old || echo gone; ls /d")).split()[-2:] == ["gone", "above"]
    assert (await run("stat -c %u:%a /workspace /home/sandbox /tmp")).split() == [
        "1000:755",
        "1000:755",
        "0:1777",
    ]
    # The skeleton's directory, and not the image's link to its own programs.
    assert (await run("test -L /proc || echo real")).strip() == "real"
    told = json.loads(await say(dockerd, "image", "inspect", REFERENCE))[0]
    found = store.find("a:1")
    assert found is not None
    assert told["Config"]["Labels"] == {"sandkasten.image": found.id}
    assert not told["Config"]["User"]
    assert not told["Config"]["Entrypoint"]
    # Loaded again it is the same, so nothing of the engine's grows.
    await load(dockerd, store, await Images(store).resolve("a:1"))
    assert json.loads(await say(dockerd, "image", "inspect", REFERENCE))[0]["Id"] == told["Id"]


@pytest.mark.timeout(300)
@pytest.mark.long(reason="it loads an image of 127 layers; `make test` loads small ones")
async def test_an_engine_loads_an_image_with_the_maximum_number_of_layers(dockerd, store):
    deepest = store_packer.MAX_DOCKER_LAYERS - 1

    def put() -> None:
        layers = [layer({f"f{n}": str(n).encode()}) for n in range(deepest)]
        with store.working():
            ids = [store.add_layer(io.BytesIO(one)).diff_id for one in layers]
            store.put_image(ids, ImageConfig(), ["deep:1"])

    await asyncio.to_thread(put)
    image = await Images(store).resolve("deep:1")
    assert len(image.layers) == store_packer.MAX_DOCKER_LAYERS
    await load(dockerd, store, image)
    made = await say(dockerd, "create", "--network=none", REFERENCE, "/f0")
    await say(dockerd, "rm", made.strip())
