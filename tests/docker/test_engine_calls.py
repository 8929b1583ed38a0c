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

from sandkasten.backends.docker.backend import DockerBackend
from sandkasten.backends.docker.cell import DockerCell
from sandkasten.backends.docker.cell_record import CellRecord
from sandkasten.backends.docker.docker_options import DockerOptions
from sandkasten.backends.docker.engine.engine_client import Refused
from sandkasten.errors import BackendUnavailable, Busy, SandboxLost
from sandkasten.images.store_packer import StorePacker
from sandkasten.linux.programs import Programs
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from tests import imagekit, platform_choice
from tests.docker.fake_engine import FakeEngine
from tests.engines import lent, seen, stock
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.backends.docker.docker_options import WorkspaceMode
    from tests.engines.reached import Reached

ID = SandboxId("sbx_00000000ec000001")
SPEC = CellSpec(image=Image(name=stock.reference("busybox"), kind="engine"))


@pytest.fixture(scope="module")
def engine() -> Reached:
    return lent.engine("private", "busybox")


@pytest.fixture(params=["bind", "volume"])
async def backend(
    request: pytest.FixtureRequest, engine: Reached, tmp_path: Path
) -> AsyncIterator[DockerBackend]:
    made = opened(engine, tmp_path, request.param)
    yield made
    await made.discard(ID)
    await made.aclose()
    assert seen.things(engine, ID) == []


def opened(engine: Reached, data_dir: Path, mode: str, **more: Any) -> DockerBackend:
    options = DockerOptions(host=engine.host, workspace=cast("WorkspaceMode", mode))
    return DockerBackend(data_dir, options, **more)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the engine: the method, and the path after the version."""
    told: list[str] = []
    real = aiohttp.ClientSession._request

    async def counted(self: Any, method: str, url: Any, **options: Any) -> Any:
        told.append(f"{method} {str(url).split('/v1.', 1)[-1].partition('/')[2]}")
        return await real(self, method, url, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", counted)
    return told


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
    made, relayed = list(calls), cell.place.listener(ID) is None
    calls.clear()
    await cell.destroy()
    gone = list(calls)
    at = f"containers/{cell.container}"
    # Volumes are made by themselves: only then an engine says whose a volume of that name is.
    volumes = ["POST volumes/create"] * (2 if relayed else 0)
    assert made[: len(volumes)] == volumes
    # Of cgroup v1, which container it is must be known to limit the memory of its sockets.
    made = [one for one in made[len(volumes) :] if one != f"GET {at}/json"]
    assert made[:2] == ["POST containers/create", f"POST {at}/start"]
    assert made[2:3] == ([f"POST {at}/exec"] if relayed else [])
    assert len(made) == (4 if relayed else 2)
    assert gone[0] == f"DELETE {at}"
    volumes = [f"station-sandbox-{ID}", f"station-sandbox-{ID}-home"] if relayed else []
    # An engine that has not let go of a volume yet is asked for it again.
    assert sorted(set(gone[1:])) == [f"DELETE volumes/{name}" for name in volumes]


@pytest.mark.promise("P58")
async def test_a_sandbox_without_a_record_is_found_by_its_labels(
    backend: DockerBackend, engine: Reached, tmp_path: Path
):
    cell = await backend.create(ID, SPEC)
    (tmp_path / "docker" / "records" / f"{ID}.json").unlink()
    await cell.destroy()
    assert seen.things(engine, ID) == []


@pytest.mark.promise("P58")
async def test_volumes_of_a_container_removed_by_another_program_are_still_found(
    engine: Reached, tmp_path: Path
):
    backend = opened(engine, tmp_path, "volume")
    cell = await backend.create(ID, SPEC)
    (tmp_path / "docker" / "records" / f"{ID}.json").unlink()
    engine.docker("rm", "-f", ID)
    assert await backend.owned() == [ID]
    await backend.discard(cell.id)
    await backend.aclose()
    assert seen.things(engine, ID) == []


@pytest.mark.promise("P59")
@pytest.mark.long(reason="`make test` loads an image into each new engine")
async def test_an_image_removed_from_the_engine_is_loaded_again(
    engine: Reached, tmp_path: Path, calls: list[str]
):
    image = platform_choice.image_named("busybox")
    store = imagekit.store_with(imagekit.CACHE / "store", ("busybox", imagekit.busybox_tar()))
    backend = opened(engine, tmp_path, "volume", packer=StorePacker(store))
    spec = CellSpec(image=image)
    await (await backend.create(ID, spec)).destroy()
    calls.clear()
    await (await backend.create(ID, spec)).destroy()
    assert not [one for one in calls if "images/" in one]
    given = next(name for name in engine.images() if name.startswith("sandkasten-store:"))
    engine.docker("image", "rm", given)
    await (await backend.create(ID, spec)).destroy()
    assert given in engine.images()
    # A name that somebody gives to another image does not mean that image to us.
    engine.docker("tag", stock.reference("busybox"), given)
    cell = await backend.create(ID, spec)
    used = engine.ask("GET", f"/containers/{ID}/json")["Image"]
    assert used != engine.ask("GET", f"/images/{given}/json")["Id"]
    await cell.destroy()
    engine.docker("image", "rm", given)
    await backend.aclose()


@pytest.mark.promise("P09")
@pytest.mark.parametrize("mode", few(["bind", "volume"]))
async def test_a_runner_that_exits_at_once_is_reported_with_its_last_output(
    engine: Reached, tmp_path: Path, mode: str
):
    broken = tmp_path / "runner"
    broken.write_text("#!/bin/sh\necho nothing works here >&2\nexit 3\n")
    broken.chmod(0o755)
    before = engine.volumes()
    backend = opened(engine, tmp_path / "data", mode, runner=broken)
    with pytest.raises(BackendUnavailable, match="ended right after its start.*nothing works here"):
        await backend.create(ID, SPEC)
    await backend.aclose()
    assert seen.things(engine, ID) == []
    # Others who use this engine count the runners in it.
    engine.docker("volume", "rm", *(one for one in engine.volumes() if one not in before))


@pytest.mark.parametrize("question", few(["owned", "probe"]))
async def test_a_request_that_is_cancelled_at_once_leaves_nothing_unawaited(
    tmp_path: Path, question: str
):
    async with FakeEngine(tmp_path / "socket") as fake:
        backend = DockerBackend(tmp_path / "data", DockerOptions(host=fake.host))
        (tmp_path / "data" / "docker").mkdir(parents=True)
        with warnings.catch_warnings(record=True) as told:
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
    assert [str(one.message) for one in told if "never awaited" in str(one.message)] == []


@pytest.mark.promise("P09")
async def test_an_engine_message_is_not_mistaken_for_the_runners_answer(
    engine: Reached, tmp_path: Path
):
    own = tmp_path / "runner"
    own.write_bytes(Programs.found(None, None).runner.read_bytes() + b"ours")
    before = engine.volumes()
    backend = opened(engine, tmp_path / "data", "volume", runner=own)
    cell = await backend.create(ID, SPEC)
    await (await cell.dial()).aclose()
    (volume,) = [one for one in engine.volumes() if one not in before and "-runner-" in one]
    place = Path(engine.ask("GET", f"/volumes/{volume}")["Mountpoint"])
    (place / "runner").rename(place / "away")
    with pytest.raises(Busy, match="does not answer: OCI runtime exec failed"):
        await cell.dial()
    (place / "away").rename(place / "runner")
    await (await cell.dial()).aclose()
    engine.docker("kill", ID)
    # An engine hears of an end later than those who were inside.
    engine.docker("wait", ID)
    with pytest.raises(SandboxLost):
        await cell.dial()
    await cell.destroy()
    await backend.aclose()
    engine.docker("volume", "rm", volume)


async def test_a_container_that_ends_at_its_start_is_lost_also_if_its_state_is_late():
    """The engine refuses a command because the container has stopped, and calls it running."""
    states = iter([True, True, False])

    class LateEngine:
        async def run_stream(self, *_: object) -> None:
            raise Refused(409, "OCI runtime exec failed: cannot exec in a stopped container")

        async def inspect(self, _: str) -> dict[str, Any]:
            return {"State": {"Running": next(states), "ExitCode": 1}}

    place = cast("Any", SimpleNamespace(listener=lambda _: None))
    engine = cast("Any", LateEngine())
    cell = DockerCell(ID, engine, CellRecord(place), "c", cast("Any", None), cast("Any", None))
    with pytest.raises(SandboxLost, match="its container has ended, status 1"):
        await cell.greet()
