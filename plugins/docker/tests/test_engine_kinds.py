"""Engines with mapped ids, without volumes, and images without a shell."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.access.stored_secrets import OpenSecret, Secret
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.inspection import Inspection
from sandkasten.model.sandbox.network_policy import NetworkCeiling, NetworkPolicy
from sandkasten_contract.box import Box
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from tests.engines import lent, seen, stock
from tests.engines.engine import Engine
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.engines.reached import Reached

_FIRST = 300_000
# The machine's own /etc is private; an engine wants a user there whose ids it may give away.
_MAP = (
    "grep -q ^mapped: /etc/passwd || echo mapped:x:990:990::/:/bin/false >>/etc/passwd;"
    "grep -q ^mapped: /etc/group || echo mapped:x:990: >>/etc/group;"
    f"echo mapped:{_FIRST}:65536 | tee /etc/subuid >/etc/subgid;"
    'exec "$@"'
)


class Mapping(Engine):
    def _command(self) -> list[str]:
        # Root of its containers is somebody else, who must be able to come to their files.
        self.folder.chmod(0o711)
        words = super()._command()
        return ["/bin/sh", "-c", _MAP, "sh", *words, "--userns-remap", "mapped:mapped"]


@pytest.fixture(scope="module")
def mapping_docker() -> Iterator[Reached]:
    with Mapping() as docker_engine:
        stock.put(docker_engine.reached, "busybox")
        yield docker_engine.reached


@pytest.fixture(scope="module")
def docker_without_shell() -> Reached:
    """An engine with an image that has one program and no shell."""
    return lent.engine("private", "empty")


@pytest.fixture
async def mapped_backend(mapping_docker: Reached, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    instance = DockerBackend(tmp_path, DockerOptions(host=mapping_docker.host))
    yield instance
    for the_id in await instance.owned():
        await instance.discard(the_id)
    await instance.aclose()


def spec(profile: str = "hardened", image: str = "busybox") -> CellSpec:
    return CellSpec(
        image=Image(name=stock.reference(image), kind="engine"),
        profile="dev" if profile == "dev" else "hardened",
    )


async def test_an_engine_with_user_namespaces_gets_volumes_and_mapped_ids(
    mapped_backend, mapping_docker
):
    cell = await mapped_backend.create(new_sandbox_id(), spec())
    assert cell.place.mode == "volume"
    box = await Box.open(cell)
    await box.run("sleep 77 & echo mine > /workspace/file")
    assert (await box.run("id -u; cat /workspace/file")).stdout == b"1000\nmine\n"
    owners = seen_ids(mapping_docker, cell.container)
    assert owners
    assert all(owner >= _FIRST for owner in owners)
    await box.aclose()
    await cell.destroy()
    assert seen.things(mapping_docker, cell.id) == []


async def test_the_dev_profile_is_root_inside_and_unprivileged_on_the_host(
    mapped_backend, mapping_docker
):
    cell = await mapped_backend.create(new_sandbox_id(), spec("dev"))
    box = await Box.open(cell)
    result = await box.run("id -u; echo made > /etc/made && cat /etc/made; echo $HOME")
    assert result.stdout == b"0\nmade\n/root\n"
    assert all(owner >= _FIRST for owner in seen_ids(mapping_docker, cell.container))
    await box.aclose()
    await cell.destroy()
    assert seen.things(mapping_docker, cell.id) == []


@pytest.mark.promise("P75", "P77")
@pytest.mark.long(reason="`make test` has mapped ids and the network apart")
async def test_a_container_with_mapped_ids_has_a_network_by_rule(mapped_backend, mapping_docker):
    """And secrets: the egress process knows them, and the certificates can be read."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stored = Secret("TOKEN", ("good.test",), "holder-0123456789", 0.0, 0.0, header="X: {value}")
    cell_spec = replace(
        spec("dev"),
        network=NetworkPolicy(allow=(f"good.test:{port}",)),
        ceiling=NetworkCeiling(reachable=("127.0.0.1",), hosts={"good.test": ("127.0.0.1",)}),
        inspection=Inspection(all=False, secrets=(OpenSecret(stored, "the-value"),)),
    )
    cell = await mapped_backend.create(new_sandbox_id(), cell_spec)
    box = await Box.open(cell)
    assert (await box.run(f"nc good.test {port} </dev/null")).stdout == b"hello\n"
    assert (await box.run(f"nc evil.test {port} </dev/null")).stdout == b""
    script = f"printf 'GET / HTTP/1.1\\r\\nHost: good.test:{port}\\r\\nX: %s\\r\\n\\r\\n' $TOKEN"
    refused = await box.run(f"{script} | nc good.test {port}")
    assert b"Secret TOKEN is sent only over TLS" in refused.stdout
    assert b"-END CERTIFICATE-" in (await box.run("cat $SSL_CERT_FILE")).stdout
    assert "the-value" not in seen.told(mapping_docker, cell.id)
    await box.aclose()
    await cell.destroy()
    server.close()
    assert seen.things(mapping_docker, cell.id) == []


async def test_the_dev_profile_is_refused_without_user_namespaces(docker_engine, tmp_path):
    backend = DockerBackend(tmp_path, DockerOptions(host=docker_engine.host))
    with pytest.raises(UnsupportedByBackend, match="root of the Docker Engine's own machine"):
        await backend.create(new_sandbox_id(), spec("dev"))
    assert list(await backend.owned()) == []
    await backend.aclose()


@pytest.mark.parametrize("mode", few(["volume", "bind", "archive"]))
async def test_an_image_without_a_shell_runs_its_own_programs(mode, docker_without_shell, tmp_path):
    backend = DockerBackend(tmp_path, DockerOptions(host=docker_without_shell.host, workspace=mode))
    cell = await backend.create(new_sandbox_id(), spec(image="empty"))
    box = await Box.open(cell)
    assert (await box.run(["/prog"])).exit_code == 0
    await box.aclose()
    await cell.destroy()
    await backend.aclose()
    assert seen.things(docker_without_shell, cell.id) == []


def seen_ids(docker_engine: Reached, container: str) -> set[int]:
    """Return the owners of its processes on the host."""
    lines = docker_engine.docker("top", container, "-eo", "pid,uid").splitlines()[1:]
    return {int(line.split()[1]) for line in lines}
