"""Hostile images and volumes that exist on an engine before us.

A client with the engine's socket is root there. These tests are about others: those who may add an
image, or create a volume through a proxy that allows nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import secrets
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.backends.docker import resource_names
from sandkasten.backends.docker.backend import DockerBackend
from sandkasten.backends.docker.docker_options import DockerOptions
from sandkasten.backends.docker.runner_volume import RunnerVolume
from sandkasten.errors import BackendUnavailable, InvalidImage
from sandkasten.linux.programs import Programs
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.wire.channel import Channel
from tests import imagekit
from tests.engines import lent, stock
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.engines.reached import Reached

LIMITS = Limits(memory_bytes=64 * MIB, workspace_bytes=16 * MIB)


@pytest.fixture(scope="module")
def engine() -> Reached:
    return lent.engine("private", "busybox")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pytest-of-docker-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def open_backend(
    engine: Reached, data_dir: Path
) -> AsyncIterator[Callable[..., DockerBackend]]:
    made: list[DockerBackend] = []

    def open_one(mode: Any = "volume") -> DockerBackend:
        made.append(DockerBackend(data_dir, DockerOptions(host=engine.host, workspace=mode)))
        return made[-1]

    yield open_one
    for one in made:
        await one.aclose()


def spec(image: str) -> CellSpec:
    return CellSpec(image=Image(name=image, kind="engine"), limits=LIMITS)


def entry(name: str, *, link: str = "", mode: int = 0o755, uid: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE
    made.linkname, made.mode, made.uid, made.gid = link, mode, uid, uid
    return made


@pytest.fixture
def modified_image(engine: Reached, data_dir: Path) -> Iterator[Callable[..., str]]:
    """An image like busybox, except for these entries."""
    tagged: list[str] = []

    def change(*entries: tarfile.TarInfo) -> str:
        replaced = {one.name for one in entries}
        path = data_dir / "image.tar"
        with tarfile.open(imagekit.busybox_tar()) as before, tarfile.open(path, "w") as after:
            for one in before:
                name = one.name.removeprefix("./").strip("/")
                if not any(name == gone or name.startswith(f"{gone}/") for gone in replaced):
                    after.addfile(one, before.extractfile(one) if one.isreg() else None)
            for one in entries:
                after.addfile(one)
        tagged.append(f"hostile:{len(tagged)}")
        engine.docker("import", str(path), tagged[-1])
        return tagged[-1]

    yield change
    for one in tagged:
        engine.docker("rmi", one)


# Run in the workspace's shell: whatever the relay is next time, it says who it is.
REPLACE = """
cd /run
mv sandkasten/bin sandkasten/old || mv sandkasten old
mkdir -p sandkasten/bin
printf '#!/bin/sh\\nid > /tmp/taken\\n' > sandkasten/bin/runner
chmod 755 sandkasten/bin/runner
"""


async def taken_over(backend: DockerBackend, image: str) -> str:
    """Return what a relay did that code in the sandbox put in place of ours."""
    cell = await backend.create(new_sandbox_id(), spec(image))
    try:
        channel = await Channel.open(await cell.dial())
        try:
            await run(channel, REPLACE)
            with contextlib.suppress(BackendUnavailable):
                await (await cell.dial()).aclose()
            return await run(channel, "cat /tmp/taken")
        finally:
            await channel.aclose()
    finally:
        await cell.destroy()


async def run(channel: Channel, command: str) -> str:
    which = {"exec_id": secrets.token_hex(8)}
    argv = ["/bin/sh", "-c", command]
    await channel.call("exec.start", {**which, "argv": argv, "follow": False})
    await channel.call("exec.wait", {**which, "timeout_ms": int(PATIENCE_S * 1000)})
    found = bytearray()
    async with channel.stream("exec.output", which) as call:
        async for item in call:
            found += getattr(item, "data", b"") if getattr(item, "source", 0) == 1 else b""
    return found.decode()


@pytest.mark.promise("P59")
async def test_an_image_whose_run_directory_links_into_the_workspace_is_refused(
    open_backend: Callable[..., DockerBackend], modified_image: Callable[..., str]
):
    backend = open_backend()
    # Once for this engine a sandbox was looked at; what an image changes comes later.
    await (await backend.create(new_sandbox_id(), spec(stock.reference("busybox")))).destroy()
    image = await asyncio.to_thread(
        modified_image, entry("run", link="/workspace"), entry("workspace")
    )
    with pytest.raises(InvalidImage, match="not for root alone: /run"):
        await taken_over(backend, image)


@pytest.mark.promise("P59")
async def test_without_volumes_the_runner_cannot_be_replaced_either(
    open_backend: Callable[..., DockerBackend], modified_image: Callable[..., str]
):
    backend = open_backend("archive")
    ours = [entry(one, mode=0o777, uid=1000) for one in ("run", "run/sandkasten")]
    image = await asyncio.to_thread(modified_image, *ours)
    assert await taken_over(backend, image) == ""


# ---- the runner's volume


def runner_volume(engine: Reached) -> str:
    program = Programs.found(None, None).runner
    name = RunnerVolume(None, program).volume  # type: ignore[arg-type]
    engine.docker("volume", "rm", "-f", name)
    return name


def fill(engine: Reached, volume: str, content: bytes, data_dir: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        one = tarfile.TarInfo("runner")
        one.size, one.mode = len(content), 0o755
        archive.addfile(one, io.BytesIO(content))
    path = data_dir / "runner.tar"
    path.write_bytes(packed.getvalue())
    image = stock.reference("busybox")
    made = engine.docker("create", "-v", f"{volume}:/v", image, "true").strip()
    engine.docker("cp", "-", f"{made}:/v", stdin=path)
    engine.docker("rm", made)


@pytest.mark.promise("P59")
async def test_a_program_of_the_same_length_is_not_mistaken_for_the_runner(
    engine: Reached, open_backend: Callable[..., DockerBackend], data_dir: Path
):
    volume = await asyncio.to_thread(runner_volume, engine)
    genuine = Programs.found(None, None).runner.read_bytes()
    other = genuine.replace(b"sandkasten-runner", b"sandkasten-rummer")
    assert other != genuine
    await asyncio.to_thread(fill, engine, volume, other, data_dir)
    cell = await open_backend().create(new_sandbox_id(), spec(stock.reference("busybox")))
    try:
        channel = await Channel.open(await cell.dial())
        seen = await run(channel, f"sha256sum < {resource_names.RUNNER_PATH}")
        await channel.aclose()
    finally:
        await cell.destroy()
    assert seen.split()[0] == hashlib.sha256(genuine).hexdigest()


@pytest.mark.promise("P59")
async def test_a_runner_volume_at_another_path_is_refused(
    engine: Reached, open_backend: Callable[..., DockerBackend], data_dir: Path
):
    volume = await asyncio.to_thread(runner_volume, engine)
    elsewhere = data_dir / "elsewhere"
    elsewhere.mkdir()
    options = ("type=none", "o=bind", f"device={elsewhere}")
    told = [word for one in options for word in ("--opt", one)]
    await asyncio.to_thread(engine.docker, "volume", "create", *told, volume)
    try:
        with pytest.raises(BackendUnavailable, match="unexpected mount point"):
            await open_backend().create(new_sandbox_id(), spec(stock.reference("busybox")))
    finally:
        await asyncio.to_thread(engine.docker, "volume", "rm", volume)


# ---- two that remove one


@pytest.mark.promise("P58")
async def test_concurrent_removals_return_only_when_the_container_is_gone(
    engine: Reached, open_backend: Callable[..., DockerBackend]
):
    backend = open_backend("bind")
    cell = await backend.create(new_sandbox_id(), spec(stock.reference("busybox")))
    removing = [asyncio.ensure_future(backend._engine.remove(cell.container)) for _ in range(4)]
    for one in asyncio.as_completed(removing):
        await one
        assert str(cell.id) not in await asyncio.to_thread(engine.containers)
        break
    await asyncio.gather(*removing)
    await backend.discard(cell.id)
