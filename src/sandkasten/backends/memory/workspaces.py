"""Named workspaces of the fake: directories in this process's memory that outlive their places.

Implements `ports.Workspaces`; the backend looks up by `Volume.path` what it shows as /workspace.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.backends.memory.tree import Directory, Volume
from sandkasten.errors import Conflict, InvalidRequest, WorkspaceNotFound
from sandkasten.model.sandbox.cell_spec import Volume as VolumeSpec
from sandkasten.model.sandbox.workspace import (
    Measure,
    StoredWorkspace,
    checked_kept_name,
    plain_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREFIX = "memory:"


class MemoryWorkspaces:
    def __init__(self) -> None:
        self._stored: dict[str, StoredWorkspace] = {}
        self._trees: dict[str, Directory] = {}

    def tree(self, path: str) -> Directory | None:
        """What a spec's volume means here."""
        return self._trees.get(path.removeprefix(_PREFIX))

    async def names(self) -> Sequence[str]:
        return sorted(self._stored)

    async def get(self, name: str) -> StoredWorkspace:
        found = self._stored.get(checked_kept_name(name))
        if found is None:
            raise WorkspaceNotFound(
                f"there is no workspace named {plain_name(name)}",
                hint="memory workspaces end with the process that made them",
                workspace=plain_name(name),
            )
        return found

    async def create(self, name: str, size_bytes: int, created_at: float) -> StoredWorkspace:
        return self._keep(
            StoredWorkspace(name, "image", size_bytes, created_at), Directory(Volume(size_bytes))
        )

    async def open(self, name: str, *, in_use: bool) -> VolumeSpec:
        return VolumeSpec(_PREFIX + (await self.get(name)).name, "image")

    async def measure(self, name: str) -> Measure:
        await self.get(name)
        used = self._trees[name].volume.used
        return Measure(used, used)

    async def copy(self, source: str, target: str, created_at: float) -> StoredWorkspace:
        found = await self.get(source)
        tree = copy.deepcopy(self._trees[source])
        return self._keep(replace(found, name=target, created_at=created_at), tree)

    async def resize(self, name: str, size_bytes: int) -> StoredWorkspace:
        found = await self.get(name)
        if size_bytes < found.size_bytes:
            raise InvalidRequest(
                f"workspace {plain_name(name)} has {found.size_bytes} bytes "
                "and cannot be made smaller",
                hint="make a new one of that size and copy what you need",
                field="workspace_mb",
            )
        self._trees[name].volume.limit = size_bytes
        self._stored[name] = replace(found, size_bytes=size_bytes)
        return self._stored[name]

    async def remove(self, name: str) -> None:
        await self.get(name)
        del self._stored[name], self._trees[name]

    async def half_made(self) -> Sequence[str]:
        return ()

    async def clear(self, name: str) -> None:
        return None

    def _keep(self, stored: StoredWorkspace, tree: Directory) -> StoredWorkspace:
        name = checked_kept_name(stored.name)
        if name in self._stored:
            raise Conflict(f"workspace {plain_name(name)} already exists", hint="another name")
        self._stored[name], self._trees[name] = stored, tree
        return stored
