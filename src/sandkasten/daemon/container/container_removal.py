"""Removal of an installed daemon and the sandboxes of its installation. Twice is fine.

Sandboxes are first destroyed through the daemon, so that its journal records it; what is left is
removed by the owner label. Other installations are not touched.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.backends.docker.docker_options import SHARED_VOLUME
from sandkasten.backends.docker.engine.workspace_mode import PROBE_IMAGE
from sandkasten.backends.docker.resource_names import (
    CELL,
    LABEL,
    LABEL_OWNER,
    RUNNER,
    STORE_REPOSITORY,
    WORKSPACE,
)
from sandkasten.daemon.container.install_plan import (
    CERTIFICATES_VOLUME,
    CLIENT_VOLUME,
    DAEMON_SOCKET,
    DATA_DIR,
    DATA_VOLUME,
    ENGINE,
    ENGINE_NAME,
    ENGINE_VOLUME,
    NAME,
    NETWORK,
    STOP_S,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.installation_values import Removed

if TYPE_CHECKING:
    from sandkasten.backends.docker.engine.engine_host import EngineHost, HostedContainer

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


async def take_down(host: EngineHost, *, keep_sessions: bool, volumes: bool) -> Removed:
    gone = _Gone()
    seen = await host.container(NAME)
    owner = "" if keep_sessions else await owner_of(host, seen)
    if seen is not None:
        if not keep_sessions and seen.state == "running":
            await host.ask(NAME, _END_ALL, _END_ALL_S)
        await host.stop(NAME, STOP_S)
        await host.remove(NAME)
        gone.containers.append(NAME)
    if not keep_sessions:
        await _remove_sessions(host, owner, gone, volumes=volumes)
        await _remove_engine(host, gone)
    for name in (DATA_VOLUME, ENGINE_VOLUME):
        await _volume(host, name, gone, remove=volumes)
    if volumes:
        # Copies of images of the data directory, under names that only the daemon gives.
        for repository in (STORE_REPOSITORY, PROBE_IMAGE):
            for name in await host.images(repository):
                await host.remove_image(name)
    return Removed(
        tuple(sorted(gone.containers)),
        tuple(sorted(gone.volumes)),
        tuple(gone.networks),
        tuple(gone.kept),
    )


async def _remove_sessions(host: EngineHost, owner: str, gone: _Gone, *, volumes: bool) -> None:
    if owner:
        # Like the data volume: named workspaces outlive the daemon.
        kept = await host.volumes(f"{LABEL_OWNER}={owner}", f"{LABEL}={WORKSPACE}")
        for one in await host.labelled(f"{LABEL_OWNER}={owner}"):
            await host.remove(str(one["Id"]))
            gone.containers.append(str((one.get("Names") or ["?"])[0]).lstrip("/"))
        for name in await host.volumes(f"{LABEL_OWNER}={owner}"):
            await _volume(host, name, gone, remove=volumes or name not in kept)
    for name in await host.volumes(f"{LABEL}={RUNNER}"):
        # A runner volume that another installation uses is not removed: the engine refuses.
        await _volume(host, name, gone, remove=True)
    await _volume(host, SHARED_VOLUME, gone, remove=True)


async def _remove_engine(host: EngineHost, gone: _Gone) -> None:
    seen = await host.container(ENGINE_NAME)
    if seen is not None and seen.labels.get(LABEL) == ENGINE:
        await host.stop(ENGINE_NAME, STOP_S)
        await host.remove(ENGINE_NAME)
        gone.containers.append(ENGINE_NAME)
    for name in (CERTIFICATES_VOLUME, CLIENT_VOLUME):
        await _volume(host, name, gone, remove=True)
    if await host.remove_network(NETWORK, {LABEL: "network"}):
        gone.networks.append(NETWORK)


async def _volume(host: EngineHost, name: str, gone: _Gone, *, remove: bool) -> None:
    if await host.volume(name) is None:
        return
    removed = remove and await host.remove_volume(name)
    (gone.volumes if removed else gone.kept).append(name)


async def owner_of(host: EngineHost, seen: HostedContainer | None) -> str:
    """Return the id of this installation from its data; empty if it never created a sandbox."""
    if seen is not None:
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
