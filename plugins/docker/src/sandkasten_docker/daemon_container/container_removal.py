"""Removal of an installed daemon and the sandboxes of its installation. Twice is fine.

Sandboxes are first destroyed through the daemon, so that its journal records it; what is left is
removed by the owner label. Other installations are not touched.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten_docker.daemon_container.install_plan import (
    CERTIFICATES_VOLUME,
    CLIENT_VOLUME,
    DAEMON_SOCKET,
    DATA_DIR,
    DATA_VOLUME,
    DOCKER_ENGINE,
    DOCKER_ENGINE_NAME,
    DOCKER_ENGINE_VOLUME,
    NAME,
    NETWORK,
    STOP_S,
)
from sandkasten_docker.daemon_container.installation_values import Removed
from sandkasten_docker.docker_engine.workspace_mode import PROBE_IMAGE
from sandkasten_docker.docker_options import SHARED_VOLUME
from sandkasten_docker.resource_names import (
    CELL,
    LABEL,
    LABEL_OWNER,
    RUNNER,
    STORE_REPOSITORY,
    WORKSPACE,
)

if TYPE_CHECKING:
    from sandkasten_docker.docker_engine.docker_host import DockerHost, HostedContainer

OWNER_FILE: Final = f"{DATA_DIR}/docker/owner"
_READER: Final = "sandkasten-owner"
_END_ALL: Final = ("sandkasten", "--url", DAEMON_SOCKET, "rm", "--all", "--json")
_END_ALL_S: Final = 60.0


@dataclass(slots=True)
class _Gone:
    containers: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


async def take_down(host: DockerHost, *, keep_sessions: bool, volumes: bool) -> Removed:
    removal = _Gone()
    container = await host.container(NAME)
    owner = "" if keep_sessions else await owner_of(host, container)
    if container is not None:
        if not keep_sessions and container.state == "running":
            await host.ask(NAME, _END_ALL, _END_ALL_S)
        await host.stop(NAME, STOP_S)
        await host.remove(NAME)
        removal.containers.append(NAME)
    if not keep_sessions:
        await _remove_sessions(host, owner, removal, volumes=volumes)
        await _remove_docker_engine(host, removal)
    for name in (DATA_VOLUME, DOCKER_ENGINE_VOLUME):
        await _volume(host, name, removal, remove=volumes)
    if volumes:
        # Copies of images of the data directory, under names that only the daemon gives.
        for repository in (STORE_REPOSITORY, PROBE_IMAGE):
            for name in await host.images(repository):
                await host.remove_image(name)
    return Removed(
        tuple(sorted(removal.containers)),
        tuple(sorted(removal.volumes)),
        tuple(removal.networks),
        tuple(removal.kept),
    )


async def _remove_sessions(host: DockerHost, owner: str, removal: _Gone, *, volumes: bool) -> None:
    if owner:
        # Like the data volume: named workspaces outlive the daemon.
        workspaces = await host.volumes(f"{LABEL_OWNER}={owner}", f"{LABEL}={WORKSPACE}")
        for container in await host.labelled(f"{LABEL_OWNER}={owner}"):
            await host.remove(str(container["Id"]))
            removal.containers.append(str((container.get("Names") or ["?"])[0]).lstrip("/"))
        for name in await host.volumes(f"{LABEL_OWNER}={owner}"):
            await _volume(host, name, removal, remove=volumes or name not in workspaces)
    for name in await host.volumes(f"{LABEL}={RUNNER}"):
        # A runner volume that another installation uses is not removed: the engine refuses.
        await _volume(host, name, removal, remove=True)
    await _volume(host, SHARED_VOLUME, removal, remove=True)


async def _remove_docker_engine(host: DockerHost, removal: _Gone) -> None:
    container = await host.container(DOCKER_ENGINE_NAME)
    if container is not None and container.labels.get(LABEL) == DOCKER_ENGINE:
        await host.stop(DOCKER_ENGINE_NAME, STOP_S)
        await host.remove(DOCKER_ENGINE_NAME)
        removal.containers.append(DOCKER_ENGINE_NAME)
    for name in (CERTIFICATES_VOLUME, CLIENT_VOLUME):
        await _volume(host, name, removal, remove=True)
    if await host.remove_network(NETWORK, {LABEL: "network"}):
        removal.networks.append(NETWORK)


async def _volume(host: DockerHost, name: str, removal: _Gone, *, remove: bool) -> None:
    if await host.volume(name) is None:
        return
    removed = remove and await host.remove_volume(name)
    (removal.volumes if removed else removal.kept).append(name)


async def owner_of(host: DockerHost, container: HostedContainer | None) -> str:
    """Return the id of this installation from its data; empty if it never created a sandbox."""
    if container is not None:
        return _text(await host.read(NAME, OWNER_FILE))
    # The daemon is already removed. A container that is never started gives access to its volume;
    # any image will do, and where there are sandboxes there is one.
    cells = await host.labelled(f"{LABEL}={CELL}")
    if not cells or await host.volume(DATA_VOLUME) is None:
        return ""
    mount = {"Type": "volume", "Source": DATA_VOLUME, "Target": DATA_DIR, "ReadOnly": True}
    body = {
        "Image": str(cells[0]["ImageID"]),
        "Cmd": ["-"],
        "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
    }
    await host.remove(_READER)
    await host.create(_READER, body)
    try:
        return _text(await host.read(_READER, OWNER_FILE))
    finally:
        await host.remove(_READER)


def _text(content: bytes | None) -> str:
    return "" if content is None else content.decode(errors="replace").strip()
