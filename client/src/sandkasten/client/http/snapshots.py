"""Snapshots of a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from sandkasten.client.http.connection import HttpRequest, session_path
from sandkasten.client.http.json_values import given, value_of, values_of
from sandkasten.model.sandbox.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.sandbox.snapshot import SnapshotRequest

_ALL = "/v1/snapshots"


class HttpSnapshots:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[Snapshot]:
        answer = await self._connection.ask(HttpRequest("GET", _ALL, repeatable=True))
        return values_of(Snapshot, answer, "snapshots")

    async def get(self, text: str) -> Snapshot:
        order = HttpRequest("GET", _path(text), repeatable=True)
        return value_of(Snapshot, await self._connection.ask(order), "snapshot")

    async def create(self, text: str, request: SnapshotRequest) -> Snapshot:
        body = given(
            name=request.name,
            labels=None if request.labels is None else dict(request.labels),
            keep_last=request.keep_last,
        )
        order = HttpRequest("POST", session_path(text, "snapshots"), body, answer_s=None)
        return value_of(Snapshot, await self._connection.ask(order), "snapshot")

    async def remove(self, text: str) -> None:
        await self._connection.ask(HttpRequest("DELETE", _path(text), answer_s=600.0))


def _path(text: str) -> str:
    return f"{_ALL}/{quote(text, safe='')}"
