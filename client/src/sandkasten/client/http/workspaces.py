"""Named workspaces of a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from sandkasten.client.http.connection import HttpRequest
from sandkasten.client.http.image_json import workspace_of, workspaces_of
from sandkasten.client.http.json_values import given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.sandbox.workspace import Workspace

_ALL = "/v1/workspaces"


class HttpWorkspaces:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[Workspace]:
        return workspaces_of(await self._connection.ask(HttpRequest("GET", _ALL, repeatable=True)))

    async def get(self, name: str) -> Workspace:
        return workspace_of(
            await self._connection.ask(HttpRequest("GET", _path(name), repeatable=True))
        )

    async def create(self, name: str, *, size_mb: float | None = None) -> Workspace:
        body = given(name=name, size_mb=size_mb)
        return workspace_of(await self._connection.ask(HttpRequest("POST", _ALL, body)))

    async def copy(self, source: str, target: str) -> Workspace:
        order = HttpRequest("POST", f"{_path(source)}/copy", {"name": target}, answer_s=None)
        return workspace_of(await self._connection.ask(order))

    async def resize(self, name: str, size_mb: float) -> Workspace:
        order = HttpRequest("POST", f"{_path(name)}/resize", {"size_mb": size_mb}, answer_s=600.0)
        return workspace_of(await self._connection.ask(order))

    async def delete(self, name: str) -> None:
        await self._connection.ask(HttpRequest("DELETE", _path(name), answer_s=600.0))


def _path(name: str) -> str:
    return f"{_ALL}/{quote(name, safe='')}"
