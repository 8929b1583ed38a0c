"""Secrets of a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from sandkasten.client.http.connection import HttpRequest
from sandkasten.client.http.json_values import given, record, value_of, values_of
from sandkasten.model.access.stored_secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.access.stored_secrets import SecretRequest

_ALL = "/v1/secrets"


class HttpSecrets:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(self, request: SecretRequest) -> Secret:
        body = given(
            name=request.name,
            value=request.value,
            hosts=list(request.hosts),
            header=request.header,
            basic=request.basic,
            query=request.query,
            body=request.body or None,
        )
        return value_of(
            Secret, await self._connection.ask(HttpRequest("POST", _ALL, body)), "secret"
        )

    async def list(self) -> Sequence[Secret]:
        reply = await self._connection.ask(HttpRequest("GET", _ALL, repeatable=True))
        return values_of(Secret, record(reply), "secrets")

    async def remove(self, name: str) -> None:
        path = f"{_ALL}/{quote(name, safe='')}"
        await self._connection.ask(HttpRequest("DELETE", path))
