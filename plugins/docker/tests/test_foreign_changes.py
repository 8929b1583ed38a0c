"""Changes by other programs on the engine: reported, and foreign objects are not touched."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest

from plugins.docker.tests.site import FAR, IMAGE, left, nothing_left, opened, sh
from sandkasten.errors import Busy, Conflict, SandboxLost, SessionExpired
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_docker import resource_names
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

SPEC = CellSpec(image=Image(name=IMAGE, kind="engine"))


@pytest.fixture
async def backend(docker_engine, data):
    instance = DockerBackend(data, DockerOptions(host=docker_engine.host, workspace="volume"))
    yield instance
    for the_id in await instance.owned():
        await instance.discard(the_id)
    await instance.aclose()


async def test_volumes_of_a_crashed_create_are_found_and_removed(backend, docker_engine, data):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await cell.destroy()
    whose = (data / "docker" / "owner").read_text()
    half = new_sandbox_id()
    for name in (resource_names.volume_name(half), resource_names.home_volume_name(half)):
        labels = {
            resource_names.LABEL: resource_names.CELL,
            resource_names.LABEL_OWNER: whose,
            resource_names.LABEL_ID: half,
        }
        docker_engine.ask("POST", "/volumes/create", {"Name": name, "Labels": labels})
    assert await backend.owned() == [half]
    await backend.discard(half)
    assert left(docker_engine, data) == []


async def test_the_reaper_leaves_a_container_that_is_copied_into(backend, docker_engine, data):
    cell = await backend.create(new_sandbox_id(), SPEC)
    detection = await backend._setup.detection()
    async with detection.probe_container() as copied:
        assert await backend.owned() == [cell.id]
        assert docker_engine.ask("GET", f"/containers/{copied}/json")["Id"] == copied
    await cell.destroy()
    assert left(docker_engine, data) == []


async def test_leftovers_of_a_killed_engine_probe_are_removed(backend, docker_engine, data):
    cell = await backend.create(new_sandbox_id(), SPEC)
    whose = (data / "docker" / "owner").read_text()
    labels = {resource_names.LABEL: resource_names.PROBE, resource_names.LABEL_OWNER: whose}
    body = {"Image": IMAGE, "Cmd": ["/nothing"], "Labels": labels}
    docker_engine.ask("POST", "/containers/create", body)
    docker_engine.ask(
        "POST", "/volumes/create", {"Name": "sandkasten-probe-left", "Labels": labels}
    )
    (data / "docker" / "cells" / ".probe-left").mkdir()
    (data / "docker" / "records" / f".{new_sandbox_id()}.json").write_text("{")
    (half,) = [the_id for the_id in await backend.owned() if the_id != cell.id]
    await backend.discard(half)
    await cell.destroy()
    assert left(docker_engine, data) == []


@pytest.mark.promise("P29")
async def test_a_foreign_container_or_volume_with_our_name_is_a_conflict_and_kept(
    backend, docker_engine, data
):
    the_id = new_sandbox_id()
    foreign = (
        ("container", resource_names.container_name(the_id)),
        ("volume", resource_names.volume_name(the_id)),
    )
    for what, name in foreign:
        if what == "container":
            docker_engine.docker("create", "--name", name, IMAGE, "true")
        else:
            docker_engine.docker("volume", "create", name)
        with pytest.raises(Conflict) as refused:
            await backend.create(the_id, SPEC)
        assert name in refused.value.message
        assert refused.value.hint
        with pytest.raises(SandboxLost):
            await backend.attach(the_id)
        await backend.discard(the_id)
        assert left(docker_engine, data) == [f"{what} {name}"]
        docker_engine.docker(what, "rm", name)


async def test_a_container_stopped_or_removed_by_another_program_is_lost_and_leaves_nothing(
    docker_engine, data, monkeypatch
):
    # On a busy machine the sweep in the background removes the dead before the test asks for them.
    monkeypatch.setattr("sandkasten_runtime.engine.engine.Engine.sweep_soon", lambda self: None)
    async with opened(data, docker_engine) as sand:
        ids = [(await sand.create(FAR)).id for _ in range(2)]
        for the_id in ids:
            await sh(sand, the_id, "true")
        await asyncio.to_thread(docker_engine.docker, "rm", "-f", ids[0])
        await asyncio.to_thread(docker_engine.docker, "stop", "-t", "1", ids[1])
        for the_id in ids:
            with pytest.raises((SandboxLost, SessionExpired)):
                await sh(sand, the_id, "true")
            assert (await sand.get(the_id)).status == "lost"
        assert sorted((await sand.sweep()).dead) == sorted(ids)
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.parametrize("mode", few(["volume", "bind"]))
async def test_a_container_paused_by_another_program_is_reported_and_continues_later(
    docker_engine, data, mode, monkeypatch
):
    async with opened(data, docker_engine, mode) as sand:
        the_id, other = [(await sand.create(FAR)).id for _ in range(2)]
        await sh(sand, the_id, "X=kept")
        # One that is open already is silent until the request's own deadline.
        await sand._handles.forget(the_id)
        await asyncio.to_thread(docker_engine.docker, "pause", the_id)
        with monkeypatch.context() as soon:
            soon.setattr("sandkasten_runtime.engine.handles.ATTACH_TIMEOUT_S", 2.0)
            with pytest.raises(Busy) as refused:
                await sh(sand, the_id, "true")
        assert "unpause" in (refused.value.hint or "")
        # That is news of one sandbox, and none of the engine.
        assert sand._handles.health.errors() == []
        assert (await sh(sand, other, "echo other")).stdout == b"other\n"
        assert (await sand.get(the_id)).status == "running"
        await asyncio.to_thread(docker_engine.docker, "unpause", the_id)
        assert (await sh(sand, the_id, "echo $X")).stdout == b"kept\n"
        await asyncio.to_thread(docker_engine.docker, "pause", the_id)
        await sand.destroy(the_id)
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.promise("P59")
@pytest.mark.long(reason="`make test` has other changes by another program")
async def test_a_removed_or_damaged_runner_volume_is_restored(docker_engine, data):
    async with opened(data, docker_engine) as sand:

        async def works() -> None:
            the_id = (await sand.create(FAR)).id
            assert (await sh(sand, the_id, "echo works")).stdout == b"works\n"
            await sand.destroy(the_id)

        await works()
        (volume,) = [
            name for name in docker_engine.volumes() if name.startswith("sandkasten-runner-")
        ]
        await asyncio.to_thread(docker_engine.docker, "volume", "prune", "-f")
        assert docker_engine.volumes() == []
        await works()
        size = await asyncio.to_thread(_size, docker_engine, volume)
        for damaged in (b"\x7fELF", b"x" * size):
            await asyncio.to_thread(_put, docker_engine, volume, damaged)
            await works()
            assert await asyncio.to_thread(_size, docker_engine, volume) == size
    assert await nothing_left(docker_engine, data) == []


def _put(docker_engine, volume: str, program: bytes) -> None:
    """Write a program into a volume as the runner."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("runner")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    with _holding(docker_engine, volume) as container:
        connection = docker_engine._connection(PATIENCE_S)
        connection.request("PUT", f"/containers/{container}/archive?path=/v", archive.getvalue())
        assert connection.getresponse().status == 200
        connection.close()


def _size(docker_engine, volume: str) -> int:
    with _holding(docker_engine, volume) as container:
        connection = docker_engine._connection(PATIENCE_S)
        connection.request("GET", f"/containers/{container}/archive?path=/v/runner")
        with tarfile.open(fileobj=io.BytesIO(connection.getresponse().read())) as tar:
            size = tar.getmembers()[0].size
        connection.close()
        return size


class _holding:
    """Create a container that is never started and has the volume at /v."""

    def __init__(self, docker_engine, volume: str) -> None:
        self._docker_engine, self._volume = docker_engine, volume

    def __enter__(self) -> str:
        words = ("create", "-v", f"{self._volume}:/v", IMAGE, "true")
        self._made = self._docker_engine.docker(*words).strip()
        return self._made

    def __exit__(self, *_: object) -> None:
        self._docker_engine.docker("rm", self._made)


@pytest.mark.long(reason="`make test` has containers and volumes that are removed one by one")
async def test_a_system_prune_removes_nothing_that_is_in_use(stoppable_docker, data):
    docker_engine = stoppable_docker.reached
    async with opened(data, docker_engine) as sand:
        the_id = (await sand.create(FAR)).id
        await sh(sand, the_id, "X=kept; echo kept > file")
        words = ("system", "prune", "-f", "--volumes")
        await asyncio.to_thread(docker_engine.docker, *words)
        assert (await sh(sand, the_id, "echo $X; cat file")).stdout == b"kept\nkept\n"
        other = (await sand.create(FAR)).id
        assert (await sh(sand, other, "echo new")).stdout == b"new\n"
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.promise("P29")
async def test_two_installations_on_one_engine_do_not_touch_each_other(docker_engine, tmp_path):
    first, two = tmp_path / "one", tmp_path / "two"
    async with opened(first, docker_engine) as own_sand, opened(two, docker_engine) as foreign_sand:
        own_id = (await own_sand.create(FAR)).id
        others = (await foreign_sand.create(FAR)).id
        await sh(foreign_sand, others, "X=kept")
        for sand in (own_sand, foreign_sand):
            swept = await sand.sweep()
            assert (swept.dead, swept.orphans, swept.failed) == ((), (), ())
        stranger = DockerBackend(first, DockerOptions(host=docker_engine.host, workspace="volume"))
        assert await stranger.owned() == [own_id]
        with pytest.raises(SandboxLost):
            await stranger.attach(SandboxId(others))
        await stranger.discard(SandboxId(others))
        await stranger.aclose()
        assert (await sh(foreign_sand, others, "echo $X")).stdout == b"kept\n"
    assert await nothing_left(docker_engine, first, two) == []


async def test_containers_with_invalid_labels_are_ignored(backend, docker_engine, data):
    cell = await backend.create(new_sandbox_id(), SPEC)
    whose = (data / "docker" / "owner").read_text()
    containers = []
    for odd in ("", "../../etc", "sbx_", "sbx_" + "x" * 16, "sbx_0123456789abcdef\n", "ü" * 300):
        labels = {
            resource_names.LABEL: resource_names.CELL,
            resource_names.LABEL_OWNER: whose,
            resource_names.LABEL_ID: odd,
        }
        body = {"Image": IMAGE, "Cmd": ["true"], "Labels": labels}
        containers.append(docker_engine.ask("POST", "/containers/create", body)["Id"])
    assert await backend.owned() == [cell.id]
    await cell.destroy()
    assert len(docker_engine.containers()) == len(containers)
    await asyncio.to_thread(docker_engine.docker, "rm", *containers)
    assert left(docker_engine, data) == []
