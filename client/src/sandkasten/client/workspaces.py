"""Named workspaces: the asynchronous client and its twin.

The rules of workspaces are the engine's; every failure is a class of `errors`. Files are reached
through a sandbox that uses the workspace.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from sandkasten.client.blocking.twins import arguments_of, waiting
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect

if TYPE_CHECKING:
    from os import PathLike

    from sandkasten.client.server.transport import WorkspacesTransport
    from sandkasten.model.sandbox.workspace import Workspace


class AsyncWorkspaces:
    """The named workspaces of one server. Holds nothing open; create as many as you like."""

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._place = place_of(data_dir, backend, url, api_key)

    async def list(self) -> builtins.list[Workspace]:
        """Return all by name, without sizes; a damaged one has its problem."""
        return builtins.list(await (await self._transport()).list())

    async def get(self, name: str) -> Workspace:
        """Return one with its size, its use on the host, and the sandboxes that use it."""
        return await (await self._transport()).get(name)

    async def create(self, name: str, *, size_mb: float | None = None) -> Workspace:
        """Create an empty one; a sandbox creates a missing one by itself."""
        return await (await self._transport()).create(name, size_mb=size_mb)

    async def copy(self, source: str, target: str) -> Workspace:
        """Copy one with its content and size; Conflict while a sandbox uses the source."""
        return await (await self._transport()).copy(source, target)

    async def resize(self, name: str, size_mb: float) -> Workspace:
        """Enlarge it; Conflict while a sandbox uses it."""
        return await (await self._transport()).resize(name, size_mb)

    async def delete(self, name: str) -> None:
        """Delete it with everything in it; Conflict while a sandbox uses it."""
        await (await self._transport()).delete(name)

    async def _transport(self) -> WorkspacesTransport:
        return (await connect(self._place)).workspaces


class Workspaces:
    """The named workspaces of one server. Holds nothing open; create as many as you like."""

    @arguments_of(AsyncWorkspaces)
    def __init__(self, **kwargs: Any) -> None:
        self._twin = AsyncWorkspaces(**kwargs)

    list = waiting(AsyncWorkspaces.list)
    get = waiting(AsyncWorkspaces.get)
    create = waiting(AsyncWorkspaces.create)
    copy = waiting(AsyncWorkspaces.copy)
    resize = waiting(AsyncWorkspaces.resize)
    delete = waiting(AsyncWorkspaces.delete)
