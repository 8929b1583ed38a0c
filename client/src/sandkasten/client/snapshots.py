"""Snapshots: the asynchronous client and its twin.

`Sandbox.snapshot` takes one, and `Sandbox(snapshot=…)` starts from one. Every failure is a class of
`errors`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from sandkasten.client.blocking.twins import arguments_of, waiting
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect

if TYPE_CHECKING:
    from os import PathLike

    from sandkasten.client.server.transport import SnapshotsTransport
    from sandkasten.model.sandbox.snapshot import Snapshot


class AsyncSnapshots:
    """The snapshots of one server. Holds nothing open; create as many as you like."""

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._place = place_of(data_dir, backend, url, api_key)

    async def list(self) -> builtins.list[Snapshot]:
        """Return all, oldest first."""
        return builtins.list(await (await self._transport()).list())

    async def get(self, snapshot: str) -> Snapshot:
        """Return one by its id, or the newest of a name."""
        return await (await self._transport()).get(snapshot)

    async def delete(self, snapshot: str) -> None:
        """Delete one by its id, or the newest of a name. Sandboxes keep files they started with."""
        await (await self._transport()).remove(snapshot)

    async def _transport(self) -> SnapshotsTransport:
        return (await connect(self._place)).snapshots


class Snapshots:
    """The snapshots of one server. Holds nothing open; create as many as you like."""

    @arguments_of(AsyncSnapshots)
    def __init__(self, **kwargs: Any) -> None:
        self._twin = AsyncSnapshots(**kwargs)

    list = waiting(AsyncSnapshots.list)
    get = waiting(AsyncSnapshots.get)
    delete = waiting(AsyncSnapshots.delete)
