"""Secrets: the asynchronous client and its twin.

A value goes in and never comes out again. Sandboxes use a secret by its name
(`network={"secrets": [...]}`) and see its placeholder.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from sandkasten.client.blocking.twins import arguments_of, waiting
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect
from sandkasten.model.access.stored_secrets import SecretRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from sandkasten.client.server.transport import SecretsTransport
    from sandkasten.model.access.stored_secrets import Secret


class AsyncSecrets:
    """The secrets of one server. Holds nothing open; create as many as you like."""

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._place = place_of(data_dir, backend, url, api_key)

    async def set(
        self,
        name: str,
        value: str,
        *,
        hosts: str | Sequence[str],
        header: str | None = None,
        basic: str | None = None,
        query: str | None = None,
        body: bool = False,
    ) -> Secret:
        """Store a secret, or replace the one with this name.

        Exactly one of the last four names where the value goes in requests to the hosts: a `header`
        such as `Authorization: Bearer {value}`, the user of `basic` authentication, a parameter of
        the `query`, or wherever a `body` has the placeholder.
        """
        listed = [hosts] if isinstance(hosts, str) else builtins.list(hosts)
        request = SecretRequest(name, value, listed, header, basic, query, body)
        return await (await self._transport()).set(request)

    async def list(self) -> builtins.list[Secret]:
        """Return all by name, without values."""
        return builtins.list(await (await self._transport()).list())

    async def remove(self, name: str) -> None:
        """Remove one; running sandboxes keep it."""
        await (await self._transport()).remove(name)

    async def _transport(self) -> SecretsTransport:
        return (await connect(self._place)).secrets


class Secrets:
    """The secrets of one server. Holds nothing open; create as many as you like."""

    @arguments_of(AsyncSecrets)
    def __init__(self, **kwargs: Any) -> None:
        self._twin = AsyncSecrets(**kwargs)

    set = waiting(AsyncSecrets.set)
    list = waiting(AsyncSecrets.list)
    remove = waiting(AsyncSecrets.remove)
