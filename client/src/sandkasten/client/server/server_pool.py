"""The servers that this process uses: one for each event loop and address.

Neither the engine nor an HTTP library is imported before it is needed. A server is opened on first
use and closed with its loop; its errors are classes of `errors`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

from sandkasten.client.server.daemon_or_embedded import find_server, no_tenant
from sandkasten.client.server.transport import ServesPreviews
from sandkasten.errors import BackendUnavailable, UnsupportedByBackend

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.client.server.transport import PreviewsTransport, Transport


def previews_of(transport: Transport) -> PreviewsTransport:
    """Return the previews of a server; UnsupportedByBackend if it is not a daemon."""
    if not isinstance(transport, ServesPreviews):
        raise UnsupportedByBackend(
            "links to ports require a daemon",
            hint="start one with sandkasten up or serve, or use sandkasten forward ID PORT",
        )
    return transport.previews


class _Servers:
    """The servers of one loop, and what closes them when the loop ends."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.open: dict[ServerAddress, Transport] = {}
        self.holders: list[AsyncGenerator[None]] = []


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Servers] = (
    weakref.WeakKeyDictionary()
)
# Each thread may have a loop.
_changing = threading.Lock()
_abandoned: Final[list[_Servers]] = []


async def connect(place: ServerAddress) -> Transport:
    """Return the server on this loop, opened on first use."""
    loop = asyncio.get_running_loop()
    servers = _by_loop.get(loop)
    if servers is None:
        with _changing:
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
    with _changing:
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
    # In a thread, because the first import takes a while and the loop may serve other requests.
    named = place.url is not None
    place = await asyncio.to_thread(find_server, place)
    if place.url is None:
        no_tenant(place)
        from sandkasten.client.server.embedded import open_engine

        return await open_engine(place)
    return await asyncio.to_thread(_http, place.url, place, discovered=not named)


def _http(url: str, place: ServerAddress, *, discovered: bool) -> Transport:
    try:
        from sandkasten.client.http.http_transport import HttpTransport
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "sandkasten":
            raise
        raise BackendUnavailable(
            f"the client requires a library that is not installed ({exc.name})",
            hint=f"pip install {exc.name}",
        ) from exc
    return HttpTransport(url, place.api_key, place.tenant, discovered=discovered)


def _forget_closed_loops() -> None:
    """Drop the servers of loops that were closed without a shutdown."""
    for loop in list(_by_loop):
        if loop.is_closed():
            del _by_loop[loop]


def _forget_after_fork() -> None:
    """Drop the parent's connections in a forked child, without closing them.

    Closing them through the parent's loop would change the parent's poll set.
    """
    global _changing
    _changing = threading.Lock()
    _abandoned.extend(_by_loop.values())
    _by_loop.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
