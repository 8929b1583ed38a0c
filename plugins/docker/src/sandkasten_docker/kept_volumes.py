"""Named workspaces as volumes of a Docker Engine that does not see our files.

Implements the verbs of `ports.KeepsWorkspaces`. A workspace is two volumes, its files and its home,
named after the installation and the workspace; the metadata is in our data directory. Needs no
program of any image: files are copied by archive calls on containers that are never started.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.workspace import plain_name
from sandkasten_docker import resource_names, session_volumes
from sandkasten_docker.container_config import ContainerMount
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated

if TYPE_CHECKING:
    from sandkasten_docker.docker_setup import DockerSetup

_AT: Final = "/volume"


class KeptVolumes:
    def __init__(self, api: DockerClient, setup: DockerSetup) -> None:
        self._api = api
        self._setup = setup

    async def supported(self) -> bool:
        place = await self._setup.settled()
        # The size of a volume is fixed when it is made; a named workspace can be resized.
        return place.mode != "archive" and not (place.sized or place.sized_volumes)

    async def copy(self, source: str, target: str) -> None:
        owner = await self._setup.owner()
        sources = await session_volumes.make_kept(self._api, owner, source)
        try:
            targets = await session_volumes.make_kept(self._api, owner, target)
            for source_volume, target_volume in zip(sources, targets, strict=True):
                await self._copy(source_volume, target_volume)
        except Refused as exc:
            await finish(self._removed_quietly(target))
            raise translated(exc, f"workspace {plain_name(source)} could not be copied") from exc
        except BaseException:
            await finish(self._removed_quietly(target))
            raise

    async def remove(self, name: str) -> None:
        owner = await self._setup.owner()
        volumes = resource_names.kept_volume_names(owner, name)
        await session_volumes.remove_volumes(self._api, *volumes)

    async def _copy(self, source: str, target: str) -> None:
        detection = await self._setup.detection()
        # Two containers: an archive call on one that does not run mounts its volumes and unmounts
        # them afterwards, so the end of a short read would take them from the write.
        async with (
            detection.probe_container(
                ContainerMount("volume", source, _AT, read_only=True)
            ) as reading,
            detection.probe_container(ContainerMount("volume", target, _AT)) as writing,
            self._api.archive_of(reading, f"{_AT}/.") as archive,
        ):
            await self._api.put_stream(writing, _AT, archive)

    async def _removed_quietly(self, name: str) -> None:
        with contextlib.suppress(SandkastenError):
            await self.remove(name)
