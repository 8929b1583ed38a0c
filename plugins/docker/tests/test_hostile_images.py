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

from sandkasten.errors import BackendUnavailable, InvalidImage
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_docker import resource_names
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_docker.runner_volume import RunnerVolume
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.wire.channel import Channel
from tests import imagekit
from tests.engines import lent, stock
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.engines.reached import Reached

LIMITS = Limits(memory_bytes=64 * MIB, workspace_bytes=16 * MIB)


@pytest.fixture(scope="module")
def docker_engine() -> Reached:
    return lent.engine("private", "busybox")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pytest-of-docker-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def open_backend(
    docker_engine: Reached, data_dir: Path
) -> AsyncIterator[Callable[..., DockerBackend]]:
    backends: list[DockerBackend] = []

    def open_one(mode: Any = "volume") -> DockerBackend:
        backends.append(
            DockerBackend(data_dir, DockerOptions(host=docker_engine.host, workspace=mode))
        )
        return backends[-1]

    yield open_one
    for instance in backends:
        await instance.aclose()


def spec(image: str) -> CellSpec:
    return CellSpec(image=Image(name=image, kind="engine"), limits=LIMITS)


def entry(name: str, *, link: str = "", mode: int = 0o755, uid: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE
    member.linkname, member.mode, member.uid, member.gid = link, mode, uid, uid
    return member


@pytest.fixture
def modified_image(docker_engine: Reached, data_dir: Path) -> Iterator[Callable[..., str]]:
    """An image like busybox, except for these entries."""
    tagged: list[str] = []

    def change(*entries: tarfile.TarInfo) -> str:
        replaced = {member.name for member in entries}
        path = data_dir / "image.tar"
        with tarfile.open(imagekit.busybox_tar()) as before, tarfile.open(path, "w") as after:
            for member in before:
                name = member.name.removeprefix("./").strip("/")
                if not any(
                    name == removed or name.startswith(f"{removed}/") for removed in replaced
                ):
                    after.addfile(member, before.extractfile(member) if member.isreg() else None)
            for member in entries:
                after.addfile(member)
        tagged.append(f"hostile:{len(tagged)}")
        docker_engine.docker("import", str(path), tagged[-1])
        return tagged[-1]

    yield change
    for reference in tagged:
        docker_engine.docker("rmi", reference)


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
    output = bytearray()
    async with channel.stream("exec.output", which) as call:
        async for item in call:
            output += getattr(item, "data", b"") if getattr(item, "source", 0) == 1 else b""
    return output.decode()


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
    planted = [entry(name, mode=0o777, uid=1000) for name in ("run", "run/sandkasten")]
    image = await asyncio.to_thread(modified_image, *planted)
    assert await taken_over(backend, image) == ""


# ---- the runner's volume


def runner_volume(docker_engine: Reached) -> str:
    program = Programs.found(None, None).runner
    name = RunnerVolume(None, program).volume  # type: ignore[arg-type]
    docker_engine.docker("volume", "rm", "-f", name)
    return name


def fill(docker_engine: Reached, volume: str, content: bytes, data_dir: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("runner")
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))
    path = data_dir / "runner.tar"
    path.write_bytes(packed.getvalue())
    image = stock.reference("busybox")
    container = docker_engine.docker("create", "-v", f"{volume}:/v", image, "true").strip()
    docker_engine.docker("cp", "-", f"{container}:/v", stdin=path)
    docker_engine.docker("rm", container)


@pytest.mark.promise("P59")
async def test_a_program_of_the_same_length_is_not_mistaken_for_the_runner(
    docker_engine: Reached, open_backend: Callable[..., DockerBackend], data_dir: Path
):
    volume = await asyncio.to_thread(runner_volume, docker_engine)
    genuine = Programs.found(None, None).runner.read_bytes()
    other = genuine.replace(b"sandkasten-runner", b"sandkasten-rummer")
    assert other != genuine
    await asyncio.to_thread(fill, docker_engine, volume, other, data_dir)
    cell = await open_backend().create(new_sandbox_id(), spec(stock.reference("busybox")))
    try:
        channel = await Channel.open(await cell.dial())
        answer = await run(channel, f"sha256sum < {resource_names.RUNNER_PATH}")
        await channel.aclose()
    finally:
        await cell.destroy()
    assert answer.split()[0] == hashlib.sha256(genuine).hexdigest()


@pytest.mark.promise("P59")
async def test_a_runner_volume_at_another_path_is_refused(
    docker_engine: Reached, open_backend: Callable[..., DockerBackend], data_dir: Path
):
    volume = await asyncio.to_thread(runner_volume, docker_engine)
    elsewhere = data_dir / "elsewhere"
    elsewhere.mkdir()
    options = ("type=none", "o=bind", f"device={elsewhere}")
    words = [word for option in options for word in ("--opt", option)]
    await asyncio.to_thread(docker_engine.docker, "volume", "create", *words, volume)
    try:
        with pytest.raises(BackendUnavailable, match="unexpected mount point"):
            await open_backend().create(new_sandbox_id(), spec(stock.reference("busybox")))
    finally:
        await asyncio.to_thread(docker_engine.docker, "volume", "rm", volume)


# ---- two that remove one


@pytest.mark.promise("P58")
async def test_concurrent_removals_return_only_when_the_container_is_gone(
    docker_engine: Reached, open_backend: Callable[..., DockerBackend]
):
    backend = open_backend("bind")
    cell = await backend.create(new_sandbox_id(), spec(stock.reference("busybox")))
    removing = [asyncio.ensure_future(backend._api.remove(cell.container)) for _ in range(4)]
    for removal in asyncio.as_completed(removing):
        await removal
        assert str(cell.id) not in await asyncio.to_thread(docker_engine.containers)
        break
    await asyncio.gather(*removing)
    await backend.discard(cell.id)
