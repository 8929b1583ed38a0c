"""The engine calls listed in the guide are sufficient for a session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import PolicyDenied
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import Limits
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from tests import imagekit
from tests.deploy.proxy import Proxy
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from sandkasten_docker.docker_options import WorkspaceMode
    from tests.deploy.engine import Docker

pytestmark = pytest.mark.promise("P60")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "docker.md"
CALL = re.compile(r"`((?:GET|HEAD|POST|PUT|DELETE) /[^`]*)`")
ID = SandboxId("sbx_0123456789abcdef0123")


def listed() -> list[str]:
    return [
        call
        for line in GUIDE.read_text().splitlines()
        if line.startswith("| `")
        for call in CALL.findall(line)
    ]


@pytest.fixture(scope="module")
def image(engine: Docker) -> Image:
    engine.docker("import", str(imagekit.busybox_tar()), "calls:1")
    found = engine.docker("image", "inspect", "-f", "{{.Id}}", "calls:1").stdout.strip()
    return Image("calls:1", kind="engine", id=found)


async def one_session(backend: DockerBackend, image: Image) -> None:
    assert (await backend.probe()).ready
    made = await backend.create(ID, CellSpec(image=image, limits=Limits()))
    try:
        cell = await backend.attach(ID)
        stream = await cell.dial()
        await stream.aclose()
        await cell.usage()
        assert list(await backend.owned()) == [ID]
    finally:
        await made.destroy()


@pytest.mark.parametrize("mode", few(["bind", "volume", "archive"]))
async def test_a_session_needs_only_the_calls_listed_in_the_guide(
    engine: Docker, image: Image, tmp_path: Path, mode: WorkspaceMode
) -> None:
    proxy = Proxy(engine.socket, listed())
    at = tmp_path / "proxy.sock"
    backend = DockerBackend(tmp_path / "data", DockerOptions(host=f"unix://{at}", workspace=mode))
    with proxy.at(at):
        try:
            await one_session(backend, image)
        finally:
            await backend.aclose()
    assert proxy.refused == []
    assert {"GET /version", "POST /containers/create"} <= proxy.seen


async def test_a_call_that_a_proxy_refuses_is_named(
    engine: Docker, image: Image, tmp_path: Path
) -> None:
    calls = [call for call in listed() if call != "POST /containers/{id}/start"]
    proxy = Proxy(engine.socket, calls)
    at = tmp_path / "proxy.sock"
    backend = DockerBackend(
        tmp_path / "data", DockerOptions(host=f"unix://{at}", workspace="volume")
    )
    with proxy.at(at):
        try:
            with pytest.raises(PolicyDenied, match="the Docker Engine forbids it"):
                await one_session(backend, image)
        finally:
            await backend.aclose()
    assert [re.sub("[0-9a-f]{64}", "{id}", call) for call in proxy.refused] == [
        "POST /containers/{id}/start"
    ]
