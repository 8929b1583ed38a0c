"""The runner's own volume in an engine: filled once, mounted read-only in every sandbox.

Works with any engine and any image: it needs only an archive copy into a container that is never
started. The volume is named after the runner's content, so that a sandbox keeps the runner it was
created with. Raises BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable
from sandkasten_docker import resource_names, session_volumes
from sandkasten_docker.container_config import ContainerMount
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten_docker.docker_engine.workspace_mode import WorkspaceModes

_RUNNER = "runner"


class RunnerVolume:
    """`others` are programs beside the runner, by their name in the volume."""

    def __init__(
        self, api: DockerClient, runner: Path, others: Mapping[str, Path] | None = None
    ) -> None:
        self._api = api
        self._path = runner
        self._others = others or {}
        self._filling = asyncio.Lock()
        self._filled = False

    @cached_property
    def _program(self) -> bytes:
        return _read(self._path)

    @cached_property
    def _programs(self) -> dict[str, bytes]:
        others = {name: _read(path) for name, path in self._others.items()}
        return {_RUNNER: self._program, **others}

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(self._programs.values())).hexdigest()

    @property
    def volume(self) -> str:
        return resource_names.runner_volume_name(self.digest)

    @property
    def mount(self) -> ContainerMount:
        return ContainerMount("volume", self.volume, resource_names.BIN_DIR, read_only=True)

    async def ensure(self, detection: WorkspaceModes) -> bool:
        """Make sure that the volume holds the complete runner; return whether it had to be
        filled.
        """
        await asyncio.to_thread(lambda: self.digest)
        async with self._filling:
            try:
                # No owner label: every installation with this very runner may use it.
                volume = await self._api.make_volume(
                    self.volume, {resource_names.LABEL: resource_names.RUNNER}
                )
                if volume.get("Driver", "local") != "local" or volume.get("Options"):
                    raise _not_plain(self.volume)
                mount = ContainerMount("volume", self.volume, resource_names.BIN_DIR)
                async with detection.probe_container(mount) as container:
                    # Compare the whole content, not the size: other users of the engine can make
                    # such a volume too, and its content is the first process of every sandbox.
                    if await self._there(container):
                        return False
                    for name, program in self._programs.items():
                        packed = session_volumes.archive(program, layer=False, name=name)
                        await self._api.put(container, resource_names.BIN_DIR, packed)
                    return True
            except Refused as exc:
                raise translated(exc, "the runner could not be given to the Docker Engine") from exc

    async def ensure_once(self, detection: WorkspaceModes) -> None:
        """Like `ensure`, once per object."""
        if not self._filled:
            await self.ensure(detection)
            self._filled = True

    async def _there(self, container: str) -> bool:
        for name, program in self._programs.items():
            path = f"{resource_names.BIN_DIR}/{name}"
            try:
                if await self._api.content_of(container, path, len(program)) != program:
                    return False
            except Refused as exc:
                if exc.not_there:
                    return False
                raise
        return True

    async def put_into(self, container: str) -> None:
        """Without volumes: put the runner and its directories into the container's own layer."""
        try:
            await self._api.put(container, "/", session_volumes.archive(self._program, layer=True))
        except Refused as exc:
            raise translated(exc, "the runner could not be put into the container") from exc


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise BackendUnavailable(
            f"{path.name} is missing: {exc.strerror or exc}",
            hint="run make setup, or install the wheel for this machine",
        ) from exc


def _not_plain(volume: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"the Docker Engine has a volume {volume} that has an unexpected mount point",
        hint=f"another program created it; remove it: docker volume rm {volume}",
    )
