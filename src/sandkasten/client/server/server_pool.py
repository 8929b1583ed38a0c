"""The servers of this process: one for each event loop and address.

Neither the engine nor an HTTP library is imported before it is needed. A server is opened on first
use and closed with its loop; its errors are classes of `errors`.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sandkasten.client.server.transport import Transport


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server: a daemon's address, or the data directory of an engine in this process.

    None leaves it to environment, file and default.
    """

    data_dir: str | None = None
    backend: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tenant: str | None = None
    """Whom an operator acts for; a key's own tenant by default."""

    def flags(self) -> dict[str, str]:
        given = {"data_dir": self.data_dir, "backend": self.backend}
        return {name: value for name, value in given.items() if value is not None}


def place_of(
    data_dir: str | PathLike[str] | None = None,
    backend: str | None = None,
    url: str | None = None,
    api_key: str | None = None,
) -> ServerAddress:
    """Return the server that arguments or the environment name; arguments win."""
    if url is not None and data_dir is not None:
        raise InvalidRequest(
            "url and data_dir exclude each other",
            hint="url is for a daemon, data_dir for sandboxes of this process; give one of them",
            field="url",
        )
    tenant = os.environ.get("SANDKASTEN_TENANT") or None
    if url is None and data_dir is None:
        url = os.environ.get("SANDKASTEN_URL") or None
    if url is None:
        if api_key is not None:
            raise InvalidRequest(
                "api_key requires url",
                hint="give the daemon's address as url, or in SANDKASTEN_URL",
                field="api_key",
            )
        return ServerAddress(None if data_dir is None else fspath(data_dir), backend, tenant=tenant)
    if api_key is None and not url.startswith("unix:"):
        # A process that can open the socket has the operator's rights; a key only reduces them.
        api_key = os.environ.get("SANDKASTEN_API_KEY") or None
    return ServerAddress(url=url, api_key=api_key, tenant=tenant)


class _Servers:
    """The servers of one loop, and what closes them when the loop ends."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.open: dict[ServerAddress, Transport] = {}
        self.holders: list[AsyncGenerator[None]] = []


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Servers] = (
    weakref.WeakKeyDictionary()
)
_abandoned: Final[list[_Servers]] = []


async def connect(place: ServerAddress) -> Transport:
    """Return the server on this loop, opened on first use."""
    loop = asyncio.get_running_loop()
    servers = _by_loop.get(loop)
    if servers is None:
        _forget_closed_loops()
        servers = _by_loop.setdefault(loop, _Servers())
    opened = servers.open.get(place)
    if opened is not None:
        return opened
    async with servers.opening:
        opened = servers.open.get(place)
        if opened is None:
            opened = await open_transport(place)
            servers.open[place] = opened
            servers.holders.append(await held(opened, servers.open, place))
    return opened


async def aclose() -> None:
    """Close the servers of this loop; sandboxes live on. The next `connect` reopens them."""
    servers = _by_loop.pop(asyncio.get_running_loop(), None)
    for holder in servers.holders if servers is not None else ():
        await holder.aclose()


async def held(
    server: Transport,
    among: dict[ServerAddress, Transport] | None = None,
    place: ServerAddress | None = None,
) -> AsyncGenerator[None]:
    """Return a generator that closes the server when it is closed, dropped, or its loop ends.

    A loop offers no other hook: `asyncio.run` and similar runners close the asynchronous generators
    that were started on the loop, after the last task and before the loop itself.
    """

    async def hold() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if among is not None and place is not None:
                among.pop(place, None)
            await server.aclose()

    holder = hold()
    await anext(holder)
    return holder


async def open_transport(place: ServerAddress) -> Transport:
    """Open a connection that the caller closes."""
    if place.url is None:
        no_tenant(place)
        from sandkasten.client.server.embedded import open_engine

        return await open_engine(place)
    # In a thread, because the first import takes a while and the loop may serve other requests.
    return await asyncio.to_thread(_http, place.url, place)


def no_tenant(place: ServerAddress) -> None:
    """Refuse SANDKASTEN_TENANT without a daemon: there is only one tenant here."""
    if place.tenant is not None:
        raise InvalidRequest(
            "SANDKASTEN_TENANT requires a daemon",
            hint="give its address with --url or SANDKASTEN_URL, or unset the variable",
            field="tenant",
        )


def _http(url: str, place: ServerAddress) -> Transport:
    try:
        from sandkasten.client.http.http_transport import HttpTransport
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"the client requires a library that is not installed ({exc.name})",
            hint=f"pip install {exc.name}",
        ) from exc
    return HttpTransport(url, place.api_key, place.tenant)


def _forget_closed_loops() -> None:
    """Drop the servers of loops that were closed without a shutdown."""
    for loop in list(_by_loop):
        if loop.is_closed():
            del _by_loop[loop]


def _forget_after_fork() -> None:
    """Drop the parent's connections in a forked child, without closing them.

    Closing them through the parent's loop would change the parent's poll set.
    """
    _abandoned.extend(_by_loop.values())
    _by_loop.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
