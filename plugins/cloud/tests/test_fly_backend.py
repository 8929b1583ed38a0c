"""Sandboxes in Fly machines, with the real gate and the real runner in machines that run: what code
can reach, how they end without a daemon, and what a daemon that was killed leaves.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    InvalidImage,
    SandboxLost,
    UnsupportedByBackend,
)
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_cloud import machine_list
from sandkasten_contract.box import Box
from tests.cloud import fly_platform
from tests.cloud.fly_server import FlyServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandkasten_cloud.backend import CloudBackend

pytestmark = [pytest.mark.promise("P117"), pytest.mark.root]

CREATE = "POST /v1/apps/{app_name}/machines"
LIST = "GET /v1/apps/{app_name}/machines"
SPEC = CellSpec(image=Image(fly_platform.IMAGE, kind="engine"))
VSOCK = """python3 -c '
import errno, socket
# Without a capability, the kernel itself refuses packet sockets with another error.
for family in (socket.AF_VSOCK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        assert exc.errno == errno.EAFNOSUPPORT, exc
    else:
        raise AssertionError(family)
print("no address family")
' 2>&1"""
KILLED = """
import asyncio, pathlib, sys
from tests.cloud import fly_platform
from plugins.cloud.tests.test_fly_backend import SPEC
from sandkasten.model.ids import SandboxId
url, host, place, sandbox_id = sys.argv[1:]

async def main():
    backend = fly_platform.open_at(url, host, pathlib.Path(place))
    await backend.create(SandboxId(sandbox_id), SPEC)
    print("made", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def image() -> Iterator[list[Path]]:
    place = Path(tempfile.mkdtemp(prefix="skfly-image-", dir="/var/tmp"))
    yield fly_platform.layers(place)
    shutil.rmtree(place)


@pytest.fixture
def server(image: list[Path]) -> Iterator[FlyServer]:
    with FlyServer(image) as opened:
        yield opened
    assert opened.violations == []


@asynccontextmanager
async def backend_on(
    server: FlyServer, place: Path, **other: object
) -> AsyncIterator[CloudBackend]:
    backend = fly_platform.open_at(server.url, server.host, place, **other)
    try:
        yield backend
    finally:
        await backend.aclose()


async def _said(box: Box, script: str) -> str:
    ran = await box.run(["sh", "-c", script])
    return b"".join(chunk.data for chunk in ran.chunks if chunk.source == 1).decode()


async def test_code_can_neither_read_the_key_nor_reach_the_provider(
    server: FlyServer, tmp_path: Path, image: list[Path]
):
    (image[0] / ".fly").mkdir(exist_ok=True)
    (image[0] / ".fly" / "api").write_text("a socket that gives tokens")
    async with backend_on(server, tmp_path) as backend:
        cell = await backend.create(new_sandbox_id(), SPEC)
        box = await Box.open(cell)
        assert await _said(box, "id -u; grep NoNewPrivs /proc/self/status | cut -f2") == "1000\n1\n"
        for path in ("/.fly/api", "/opt/sandkasten/keys/token", "/proc/1/environ"):
            assert "denied" in await _said(box, f"cat {path} 2>&1")
        assert "not permitted" in await _said(box, "kill -9 1 2>&1")
        await box.aclose()
        await cell.destroy()
    assert server.live == []


async def test_without_a_network_there_is_the_loopback_device_alone(
    server: FlyServer, tmp_path: Path
):
    devices = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '; cat /proc/net/tcp6 | wc -l"
    async with backend_on(server, tmp_path) as backend:
        closed = await Box.open(await backend.create(new_sandbox_id(), SPEC))
        # The gate listens in another network.
        assert await _said(closed, devices) == "lo\n1\n"
        # In a machine, these sockets lead to its host, whatever the network namespace is.
        assert await _said(closed, VSOCK) == "no address family\n"
        spec = CellSpec(image=SPEC.image, network=NetworkPolicy(full=True))
        full = await Box.open(await backend.create(new_sandbox_id(), spec))
        assert (await _said(full, devices)).split()[-1] != "1"
        for box in (closed, full):
            await box.aclose()
            await box.cell.destroy()


async def test_looks_at_many_sandboxes_share_one_list(
    server: FlyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine_list, "LIST_S", PATIENCE_S)
    ids = [new_sandbox_id(), new_sandbox_id()]
    async with backend_on(server, tmp_path) as backend:
        cells = [await backend.create(sandbox_id, SPEC) for sandbox_id in ids]
        server.requests.clear()
        for _ in range(5):
            assert [(await backend.attach(sandbox_id)).machine_id for sandbox_id in ids] == [
                opened.machine_id for opened in cells
            ]
            assert await backend.owned() == sorted(ids)
        assert len(server.requests) == 1
        # A machine that has ended is noticed by a connection, and then by everything else.
        await asyncio.to_thread(server.vanish, cells[0].machine_id)
        for cell in cells:
            await cell.let_go()
        attached = await backend.attach(ids[0])
        with pytest.raises(SandboxLost):
            await attached.dial()
        with pytest.raises(SandboxLost):
            await backend.attach(ids[0])
        for cell in cells:
            await cell.destroy()
        assert await backend.owned() == []


async def test_a_machine_that_was_renamed_from_inside_is_removed(server: FlyServer, tmp_path: Path):
    sandbox_id = new_sandbox_id()
    async with backend_on(server, tmp_path) as backend:
        cell = await backend.create(sandbox_id, SPEC)
        server.records[cell.machine_id].name = "else"
        with pytest.raises(SandboxLost):
            await backend.attach(sandbox_id)
        assert await backend.owned() == [sandbox_id]
        await backend.discard(sandbox_id)
        assert await backend.owned() == []
    assert server.live == []


async def test_what_fly_cannot_do_is_refused_by_name(server: FlyServer, tmp_path: Path):
    specs = (
        CellSpec(image=SPEC.image, network=NetworkPolicy(allow=("example.com",))),
        CellSpec(image=SPEC.image, profile="dev"),
        CellSpec(image=Image("host")),
    )
    async with backend_on(server, tmp_path) as backend:
        for spec in specs:
            with pytest.raises(UnsupportedByBackend, match="backend fly") as raised:
                await backend.create(new_sandbox_id(), spec)
            assert raised.value.hint
    assert server.records == {}


async def test_a_machine_ends_at_its_time_without_a_daemon(server: FlyServer, tmp_path: Path):
    # A machine that was too busy to start the sandbox within its time gets the next one.
    for lifetime_s in (1, 10, 30):
        sandbox_id = new_sandbox_id()
        async with backend_on(server, tmp_path, lifetime_s=lifetime_s) as backend:
            try:
                await (await backend.create(sandbox_id, SPEC)).let_go()
            except SandboxLost:
                continue
        break
    else:
        pytest.fail("it never started in its time")
    async with asyncio.timeout(PATIENCE_S):
        while server.live:  # noqa: ASYNC110  (another thread)
            await asyncio.sleep(0.02)
    async with backend_on(server, tmp_path) as backend:
        with pytest.raises(SandboxLost):
            await backend.attach(sandbox_id)


@pytest.mark.parametrize("how", ["cut", "half", "status"])
async def test_a_create_that_fails_leaves_nothing(server: FlyServer, tmp_path: Path, how):
    server.fail(CREATE, how, done=True, times=99)
    async with backend_on(server, tmp_path) as backend:
        with pytest.raises(BackendUnavailable):
            await backend.create(new_sandbox_id(), SPEC)
        assert await backend.owned() == []
    assert len(server.records) == 1
    assert server.live == []


async def test_an_image_without_our_programs_is_named(server: FlyServer, tmp_path: Path):
    async with backend_on(server, tmp_path, programs="/no/such") as backend:
        with pytest.raises((BackendUnavailable, SandboxLost), match="exit code 127"):
            await backend.create(new_sandbox_id(), SPEC)
        assert await backend.owned() == []


async def test_an_image_that_fly_does_not_have_is_named(server: FlyServer, tmp_path: Path):
    server.fail(CREATE, "status", status=422, message="failed to get manifest of the image")
    async with backend_on(server, tmp_path) as backend:
        with pytest.raises(InvalidImage, match="manifest"):
            await backend.create(new_sandbox_id(), SPEC)


@pytest.mark.parametrize("when", ["during", "after"])
async def test_what_a_killed_daemon_made_is_found_and_removed(
    server: FlyServer, tmp_path: Path, when
):
    sandbox_id = new_sandbox_id()
    if when == "during":
        server.fail(CREATE, "hang", done=True)
    words = [sys.executable, "-c", KILLED, server.url, server.host, str(tmp_path), sandbox_id]
    daemon = await asyncio.to_thread(subprocess.Popen, words, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    if when == "after":
        await asyncio.to_thread(daemon.stdout.readline)
    else:
        async with asyncio.timeout(PATIENCE_S):
            while not server.live:  # noqa: ASYNC110  (another thread)
                await asyncio.sleep(0.01)
    os.kill(daemon.pid, signal.SIGKILL)
    await asyncio.to_thread(daemon.communicate)
    async with backend_on(server, tmp_path) as backend:
        assert await backend.owned() == [sandbox_id]
        if when == "after":
            box = await Box.open(await backend.attach(sandbox_id))
            assert await _said(box, "echo alive") == "alive\n"
            await box.aclose()
        await backend.discard(sandbox_id)
        assert await backend.owned() == []
    assert server.live == []
    assert len(server.records) == 1
