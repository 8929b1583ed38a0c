"""The number of engine calls per sandbox, and that saving calls loses nothing."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest

from plugins.docker.tests.fake_docker import FakeDocker
from sandkasten.errors import BackendUnavailable, Busy, SandboxLost
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.cell import DockerCell
from sandkasten_docker.cell_record import CellRecord
from sandkasten_docker.docker_engine.docker_client import Refused
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_runtime.images.store_packer import StorePacker
from sandkasten_runtime.linux.programs import Programs
from tests import imagekit, platform_choice
from tests.engines import lent, seen, stock
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten_docker.docker_options import WorkspaceMode
    from tests.engines.reached import Reached

ID = SandboxId("sbx_00000000ec000001")
SPEC = CellSpec(image=Image(name=stock.reference("busybox"), kind="engine"))


@pytest.fixture(scope="module")
def docker_engine() -> Reached:
    return lent.engine("private", "busybox")


@pytest.fixture(params=["bind", "volume"])
async def backend(
    request: pytest.FixtureRequest, docker_engine: Reached, tmp_path: Path
) -> AsyncIterator[DockerBackend]:
    instance = opened(docker_engine, tmp_path, request.param)
    yield instance
    await instance.discard(ID)
    await instance.aclose()
    assert seen.things(docker_engine, ID) == []


def opened(docker_engine: Reached, data_dir: Path, mode: str, **more: Any) -> DockerBackend:
    options = DockerOptions(host=docker_engine.host, workspace=cast("WorkspaceMode", mode))
    return DockerBackend(data_dir, options, **more)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the engine: the method, and the path after the version."""
    lines: list[str] = []
    real = aiohttp.ClientSession._request

    async def counted(self: Any, method: str, url: Any, **options: Any) -> Any:
        lines.append(f"{method} {str(url).split('/v1.', 1)[-1].partition('/')[2]}")
        return await real(self, method, url, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", counted)
    return lines


@pytest.mark.promise("P73")
async def test_a_sandbox_takes_few_engine_calls_to_create_and_destroy(
    backend: DockerBackend, calls: list[str]
):
    image = await backend.find_image([stock.reference("busybox")])
    assert image is not None
    spec = CellSpec(image=image)
    await (await backend.create(ID, spec)).destroy()  # the first looks at the engine
    calls.clear()
    cell = await backend.create(ID, spec)
    creating, relayed = list(calls), cell.place.listener(ID) is None
    calls.clear()
    await cell.destroy()
    removing = list(calls)
    at = f"containers/{cell.container}"
    # Volumes are made by themselves: only then an engine says whose a volume of that name is.
    volumes = ["POST volumes/create"] * (2 if relayed else 0)
    assert creating[: len(volumes)] == volumes
    # Of cgroup v1, which container it is must be known to limit the memory of its sockets.
    creating = [call for call in creating[len(volumes) :] if call != f"GET {at}/json"]
    assert creating[:2] == ["POST containers/create", f"POST {at}/start"]
    assert creating[2:3] == ([f"POST {at}/exec"] if relayed else [])
    assert len(creating) == (4 if relayed else 2)
    assert removing[0] == f"DELETE {at}"
    volumes = [f"station-sandbox-{ID}", f"station-sandbox-{ID}-home"] if relayed else []
    # An engine that has not let go of a volume yet is asked for it again.
    assert sorted(set(removing[1:])) == [f"DELETE volumes/{name}" for name in volumes]


@pytest.mark.promise("P58")
async def test_a_sandbox_without_a_record_is_found_by_its_labels(
    backend: DockerBackend, docker_engine: Reached, tmp_path: Path
):
    cell = await backend.create(ID, SPEC)
    (tmp_path / "docker" / "records" / f"{ID}.json").unlink()
    await cell.destroy()
    assert seen.things(docker_engine, ID) == []


@pytest.mark.promise("P58")
async def test_volumes_of_a_container_removed_by_another_program_are_still_found(
    docker_engine: Reached, tmp_path: Path
):
    backend = opened(docker_engine, tmp_path, "volume")
    cell = await backend.create(ID, SPEC)
    (tmp_path / "docker" / "records" / f"{ID}.json").unlink()
    docker_engine.docker("rm", "-f", ID)
    assert await backend.owned() == [ID]
    await backend.discard(cell.id)
    await backend.aclose()
    assert seen.things(docker_engine, ID) == []


@pytest.mark.promise("P59")
@pytest.mark.long(reason="`make test` loads an image into each new engine")
async def test_an_image_removed_from_the_engine_is_loaded_again(
    docker_engine: Reached, tmp_path: Path, calls: list[str]
):
    image = platform_choice.image_named("busybox")
    store = imagekit.store_with(imagekit.CACHE / "store", ("busybox", imagekit.busybox_tar()))
    backend = opened(docker_engine, tmp_path, "volume", packer=StorePacker(store))
    spec = CellSpec(image=image)
    await (await backend.create(ID, spec)).destroy()
    calls.clear()
    await (await backend.create(ID, spec)).destroy()
    assert not [call for call in calls if "images/" in call]
    reference = next(
        name for name in docker_engine.images() if name.startswith("sandkasten-store:")
    )
    docker_engine.docker("image", "rm", reference)
    await (await backend.create(ID, spec)).destroy()
    assert reference in docker_engine.images()
    # A name that somebody gives to another image does not mean that image to us.
    docker_engine.docker("tag", stock.reference("busybox"), reference)
    cell = await backend.create(ID, spec)
    used = docker_engine.ask("GET", f"/containers/{ID}/json")["Image"]
    assert used != docker_engine.ask("GET", f"/images/{reference}/json")["Id"]
    await cell.destroy()
    docker_engine.docker("image", "rm", reference)
    await backend.aclose()


@pytest.mark.promise("P09")
@pytest.mark.parametrize("mode", few(["bind", "volume"]))
async def test_a_runner_that_exits_at_once_is_reported_with_its_last_output(
    docker_engine: Reached, tmp_path: Path, mode: str
):
    broken = tmp_path / "runner"
    broken.write_text("#!/bin/sh\necho nothing works here >&2\nexit 3\n")
    broken.chmod(0o755)
    before = docker_engine.volumes()
    backend = opened(docker_engine, tmp_path / "data", mode, runner=broken)
    with pytest.raises(BackendUnavailable, match="ended right after its start.*nothing works here"):
        await backend.create(ID, SPEC)
    await backend.aclose()
    assert seen.things(docker_engine, ID) == []
    # Others who use this engine count the runners in it.
    docker_engine.docker(
        "volume", "rm", *(name for name in docker_engine.volumes() if name not in before)
    )


@pytest.mark.parametrize("question", few(["owned", "probe"]))
async def test_a_request_that_is_cancelled_at_once_leaves_nothing_unawaited(
    tmp_path: Path, question: str
):
    async with FakeDocker(tmp_path / "socket") as fake:
        backend = DockerBackend(tmp_path / "data", DockerOptions(host=fake.host))
        (tmp_path / "data" / "docker").mkdir(parents=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = asyncio.all_tasks()
            task = asyncio.ensure_future(getattr(backend, question)())
            # Until it has tasks of its own, which have not started yet, or is connected.
            while not task.done() and asyncio.all_tasks() <= {*before, task}:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            gc.collect()
        await backend.aclose()
    assert [
        str(warning.message) for warning in caught if "never awaited" in str(warning.message)
    ] == []


@pytest.mark.promise("P09")
async def test_an_engine_message_is_not_mistaken_for_the_runners_answer(
    docker_engine: Reached, tmp_path: Path
):
    own = tmp_path / "runner"
    own.write_bytes(Programs.found(None, None).runner.read_bytes() + b"ours")
    before = docker_engine.volumes()
    backend = opened(docker_engine, tmp_path / "data", "volume", runner=own)
    cell = await backend.create(ID, SPEC)
    await (await cell.dial()).aclose()
    (volume,) = [
        name for name in docker_engine.volumes() if name not in before and "-runner-" in name
    ]
    place = Path(docker_engine.ask("GET", f"/volumes/{volume}")["Mountpoint"])
    (place / "runner").rename(place / "away")
    with pytest.raises(Busy, match="does not answer: OCI runtime exec failed"):
        await cell.dial()
    (place / "away").rename(place / "runner")
    await (await cell.dial()).aclose()
    docker_engine.docker("kill", ID)
    # An engine hears of an end later than those who were inside.
    docker_engine.docker("wait", ID)
    with pytest.raises(SandboxLost):
        await cell.dial()
    await cell.destroy()
    await backend.aclose()
    docker_engine.docker("volume", "rm", volume)


async def test_a_container_that_ends_at_its_start_is_lost_also_if_its_state_is_late():
    """The engine refuses a command because the container has stopped, and calls it running."""
    states = iter([True, True, False])

    class LateDocker:
        async def run_stream(self, *_: object) -> None:
            raise Refused(409, "OCI runtime exec failed: cannot exec in a stopped container")

        async def inspect(self, _: str) -> dict[str, Any]:
            return {"State": {"Running": next(states), "ExitCode": 1}}

    place = cast("Any", SimpleNamespace(listener=lambda _: None))
    docker_engine = cast("Any", LateDocker())
    cell = DockerCell(
        ID, docker_engine, CellRecord(place), "c", cast("Any", None), cast("Any", None)
    )
    with pytest.raises(SandboxLost, match="its container has ended, status 1"):
        await cell.greet()
