"""The network of a daemon's sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.client.http.connection import HttpRequest, session_path
from sandkasten.client.http.json_values import value_of, values_of
from sandkasten.model.sandbox.network_policy import NetworkAttempt, NetworkStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.http.connection import Connection


class HttpNetwork:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def status(self, sandbox_id: str) -> NetworkStatus:
        order = HttpRequest("GET", session_path(sandbox_id, "network"), repeatable=True)
        return value_of(NetworkStatus, await self._connection.ask(order), "network")

    async def log(self, sandbox_id: str, *, since_seq: int = 0) -> Sequence[NetworkAttempt]:
        order = HttpRequest(
            "GET",
            session_path(sandbox_id, "network/log"),
            query={"since_seq": str(since_seq)},
            repeatable=True,
        )
        return values_of(NetworkAttempt, await self._connection.ask(order), "network log")
