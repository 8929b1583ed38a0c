"""An engine behind ssh: a real sshd on a machine that does not see our files."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_contract.box import Box
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from tests.engines import seen, stock
from tests.engines.engine import Engine
from tests.engines.ssh import Ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.promise("P56")

SPEC = CellSpec(image=Image(name=stock.reference("busybox"), kind="engine"))


@pytest.fixture(scope="module")
def remote_docker() -> Iterator[tuple[Engine, Ssh]]:
    with Engine(tcp="mtls", apart=True) as docker_engine:
        stock.put(docker_engine.reached, "busybox")
        with Ssh(docker_engine) as ssh:
            yield docker_engine, ssh


async def test_a_sandbox_over_ssh_survives_a_broken_tunnel(remote_docker, tmp_path, monkeypatch):
    docker_engine, ssh = remote_docker
    monkeypatch.setenv("PATH", f"{ssh.programs}{os.pathsep}{os.environ['PATH']}")
    backend = DockerBackend(tmp_path, DockerOptions(host=ssh.host))
    cell = await backend.create(new_sandbox_id(), SPEC)
    assert cell.place.mode == "volume"
    box = await Box.open(cell)
    await box.run("X=kept")
    tunnel = backend._api._tunnel
    assert tunnel is not None
    assert tunnel._process is not None
    tunnel._process.kill()
    await tunnel._process.wait()
    again = await Box.open(await backend.attach(cell.id))
    assert (await again.run("echo $X")).stdout == b"kept\n"
    await again.aclose()
    await box.aclose()
    await cell.destroy()
    process = tunnel._process
    await backend.aclose()
    assert process is not None
    assert process.returncode is not None
    assert await asyncio.to_thread(seen.things, docker_engine.reached, cell.id) == []


async def test_an_ssh_host_with_an_unknown_key_is_refused(remote_docker, tmp_path, monkeypatch):
    _, ssh = remote_docker
    # The user's own ssh, which has never seen that machine.
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = DockerBackend(tmp_path / "data", DockerOptions(host=ssh.host))
    readiness = await backend.probe()
    assert not readiness.ready
    assert "ssh" in readiness.reason
    with pytest.raises(BackendUnavailable):
        await backend.create(new_sandbox_id(), SPEC)
    await backend.aclose()
    gc.collect()  # An unclosed socket fails the test.
