"""Copies of our directories in a Docker Engine that does not see our files: one volume per content.

Only content that never changes is copied, such as a set of packages. A volume is complete when it
has a marker, which is written last; an incomplete one is filled again. Volumes whose source is gone
are removed when another one is filled; the engine keeps those that a container has. Raises
BackendUnavailable, Conflict, QuotaExceeded and UnsupportedByBackend.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.disk.file_lock import locked
from sandkasten.disk.os_errors import translated as os_translated
from sandkasten.disk.tree_tar import packed
from sandkasten.errors import BackendUnavailable, Conflict, SandkastenError, UnsupportedByBackend
from sandkasten.model.sandbox.cell_spec import USER_ID
from sandkasten_docker import resource_names
from sandkasten_docker.container_config import ContainerMount, labels
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten_docker.cell_record import DockerDirectory
    from sandkasten_docker.docker_setup import DockerSetup

_MARKER: Final = ".sandkasten-complete"
# Where the volume is in the container that is only made to fill it.
_POINT: Final = "/content"


class ContentVolumes:
    def __init__(self, api: DockerClient, setup: DockerSetup, home: DockerDirectory) -> None:
        self._api = api
        self._setup = setup
        self._home = home
        self._complete: set[str] = set()

    async def mounts(self, wanted: Sequence[HostMount], user: int) -> tuple[ContainerMount, ...]:
        """Return the mounts of a container; what must be copied for them is copied."""
        place = self._setup.place
        if place.same:
            return tuple(bound_mount(mount, user) for mount in wanted)
        if any(not mount.content for mount in wanted):
            raise UnsupportedByBackend(
                "host mounts are not supported here: the Docker Engine does not see our files",
                hint="run the daemon on the Docker Engine's machine, with workspace_mode bind",
            )
        if place.mode == "archive":
            return ()
        return tuple([await self._mount(mount) for mount in wanted])

    async def bring(self, wanted: Sequence[HostMount]) -> None:
        """Make the copies that a container will need, before its creation has a deadline."""
        place = await self._setup.settled()
        if not place.same and place.mode != "archive":
            for mount in wanted:
                if mount.content:
                    await self._mount(mount)

    async def put_into(self, container: str, wanted: Sequence[HostMount]) -> None:
        """Without volumes: copy them into the container's own layer, as root's."""
        for mount in wanted:
            try:
                with os_translated("read a directory of a mount", BackendUnavailable):
                    archive = packed(Path(mount.source), mount.target.strip("/"))
                    await self._api.put_stream(container, "/", archive)
            except Refused as exc:
                raise translated(exc, f"{mount.target} could not be copied") from exc

    async def _mount(self, wanted: HostMount) -> ContainerMount:
        owner = await self._setup.owner()
        name = resource_names.content_volume_name(owner, wanted.content)
        if name not in self._complete or await self._api.volume(name) is None:
            try:
                async with locked(self._home.root / "copying"):
                    await self._ensure(name, owner, wanted)
            except Refused as exc:
                raise translated(exc, f"{wanted.target} could not be copied") from exc
            self._complete.add(name)
        return ContainerMount("volume", name, wanted.target, read_only=True)

    async def _ensure(self, name: str, owner: str, wanted: HostMount) -> None:
        volume_labels = {
            **labels(resource_names.CONTENT, owner),
            resource_names.LABEL_SOURCE: wanted.source,
        }
        volume = await self._api.make_volume(name, volume_labels)
        # An engine returns an existing volume, whatever made it and whatever it contains.
        owned = (volume.get("Labels") or {}).get(resource_names.LABEL_OWNER) == owner
        if not owned or volume.get("Driver", "local") != "local" or volume.get("Options"):
            raise Conflict(
                f"the Docker Engine has a volume named {name} already, which is not ours",
                hint=f"remove it (docker volume rm {name})",
            )
        detection = await self._setup.detection()
        async with detection.probe_container(ContainerMount("volume", name, _POINT)) as container:
            if await self._is_complete(container):
                return
            with os_translated("read a directory of a mount", BackendUnavailable):
                await self._api.put_stream(container, _POINT, packed(Path(wanted.source)))
            await self._api.put(container, _POINT, _marker())
        await self._prune(owner)

    async def _is_complete(self, container: str) -> bool:
        try:
            content = await self._api.content_of(container, f"{_POINT}/{_MARKER}", 0)
        except Refused as exc:
            if exc.not_there:
                return False
            raise
        return content == b""

    async def _prune(self, owner: str) -> None:
        label_filters = (
            f"{resource_names.LABEL}={resource_names.CONTENT}",
            f"{resource_names.LABEL_OWNER}={owner}",
        )
        # What cannot be removed now is removed another time.
        with contextlib.suppress(Refused, SandkastenError):
            for volume in await self._api.volumes(*label_filters):
                source = (volume.get("Labels") or {}).get(resource_names.LABEL_SOURCE, "")
                if not await asyncio.to_thread(os.path.isdir, source):
                    with contextlib.suppress(Refused):
                        await self._api.remove_volume(str(volume["Name"]))


def bound_mount(mount: HostMount, user: int) -> ContainerMount:
    if mount.below:
        # The engine follows links on its way, and a sandbox that writes there can make some.
        raise UnsupportedByBackend(
            "backend docker shows a host mount as a whole",
            hint="name the mount without a directory, or use backend local or oci",
        )
    if mount.owner is not None and mount.owner.uid != user:
        raise UnsupportedByBackend(
            f"{mount.target} belongs to user {mount.owner.uid} and the sandbox runs as user "
            f"{user}: backend docker cannot shift ids",
            hint=f"give the directory to user {USER_ID} and use the hardened profile, or use "
            "backend local or oci",
        )
    return ContainerMount("bind", mount.source, mount.target, read_only=mount.owner is None)


def _marker() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(_MARKER))
    return buffer.getvalue()
