"""Named workspaces of shared backends in PostgreSQL. Implements `ports.Workspaces`.

A backend that every daemon can reach keeps the files, so every daemon needs the record. Other
workspaces are on the machine of one daemon, and so are their records (`local`). If a name is in
both, the shared workspace is meant, at every daemon. The caller holds the lock of the name, which
is a lock of the database too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import Conflict, InvalidRequest, WorkspaceNotFound
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.workspace import (
    Measure,
    StoredWorkspace,
    checked_kept_name,
    plain_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.ports import Workspaces
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase


class PostgresWorkspaces:
    def __init__(
        self, database: PostgresDatabase, local: Workspaces, shared: frozenset[str]
    ) -> None:
        """`shared`: the backends whose workspaces every daemon can reach."""
        self._database = database
        self._local = local
        self._shared = shared

    async def names(self) -> Sequence[str]:
        rows = await self._database.fetch("SELECT name FROM workspaces")
        return sorted({row["name"] for row in rows}.union(await self._local.names()))

    async def get(self, name: str) -> StoredWorkspace:
        return await self._found(name) or await self._local.get(name)

    async def create(
        self, name: str, size_bytes: int, created_at: float, *, keeper: str = ""
    ) -> StoredWorkspace:
        if keeper not in self._shared:
            return await self._local.create(name, size_bytes, created_at, keeper=keeper)
        stored = StoredWorkspace(checked_kept_name(name), "volume", size_bytes, created_at, keeper)
        await self._insert(stored)
        return stored

    async def open(self, name: str, *, in_use: bool) -> Volume:
        if await self._found(name) is None:
            return await self._local.open(name, in_use=in_use)
        return Volume(name, "volume")

    async def measure(self, name: str) -> Measure:
        if await self._found(name) is None:
            return await self._local.measure(name)
        return Measure(None, None)

    async def copy(self, source: str, target: str, created_at: float) -> StoredWorkspace:
        stored = await self._found(source)
        if stored is None:
            return await self._local.copy(source, target, created_at)
        stored = StoredWorkspace(
            checked_kept_name(target), "volume", stored.size_bytes, created_at, stored.keeper
        )
        await self._insert(stored)
        return stored

    async def resize(self, name: str, size_bytes: int) -> StoredWorkspace:
        stored = await self._found(name)
        if stored is None:
            return await self._local.resize(name, size_bytes)
        if size_bytes < stored.size_bytes:
            raise InvalidRequest(
                f"workspace {plain_name(name)} has {stored.size_bytes} bytes "
                "and cannot be made smaller",
                hint="make a new one of that size and copy what you need",
                field="workspace_mb",
            )
        sql = "UPDATE workspaces SET size_bytes = $2 WHERE name = $1"
        if not await self._database.execute(sql, name, size_bytes):
            raise _no_such(name)
        return StoredWorkspace(name, "volume", size_bytes, stored.created_at, stored.keeper)

    async def remove(self, name: str) -> None:
        if not await self._database.execute("DELETE FROM workspaces WHERE name = $1", name):
            await self._local.remove(name)

    async def half_made(self) -> Sequence[str]:
        """Return those of this machine: a row is written in one step."""
        return await self._local.half_made()

    async def clear(self, name: str) -> None:
        await self._local.clear(name)

    async def _found(self, name: str) -> StoredWorkspace | None:
        sql = "SELECT keeper, size_bytes, created_at FROM workspaces WHERE name = $1"
        row = await self._database.fetch_one(sql, name)
        if row is None:
            return None
        return StoredWorkspace(name, "volume", row["size_bytes"], row["created_at"], row["keeper"])

    async def _insert(self, stored: StoredWorkspace) -> None:
        sql = (
            "INSERT INTO workspaces (name, keeper, size_bytes, created_at) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (name) DO NOTHING"
        )
        row = (stored.name, stored.keeper, stored.size_bytes, stored.created_at)
        if not await self._database.execute(sql, *row):
            raise Conflict(
                f"there is a workspace named {plain_name(stored.name)} already",
                hint="choose another name, or delete it first",
                workspace=plain_name(stored.name),
            )


def _no_such(name: str) -> WorkspaceNotFound:
    return WorkspaceNotFound(
        f"there is no workspace named {plain_name(name)}",
        hint="list them with: sandkasten workspace ls",
        workspace=plain_name(name),
    )
