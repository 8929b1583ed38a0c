"""The engine inside this process: the one door from the client to everything below it.

Nothing of the engine is imported before a sandbox is asked for, so that `import sandkasten`
is cheap and works where the engine does not. One engine serves each event loop and place; it
is closed with its loop. Where sandboxes cannot be made, BackendUnavailable says why.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from sandkasten.client.transport import Transport
    from sandkasten.daemon.settings import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """Which engine: where its data lies. None leaves it to environment, file and default."""

    data_dir: str | None = None
    backend: str | None = None

    def flags(self) -> dict[str, str]:
        given = {"data_dir": self.data_dir, "backend": self.backend}
        return {name: value for name, value in given.items() if value is not None}


class _Engines:
    """The engines of one loop, and what closes them when the loop ends."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.open: dict[Place, Transport] = {}
        self.holders: list[AsyncGenerator[None]] = []


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Engines] = (
    weakref.WeakKeyDictionary()
)
_abandoned: Final[list[_Engines]] = []


async def connect(place: Place) -> Transport:
    """The engine of this loop for this place, opened on first use."""
    loop = asyncio.get_running_loop()
    engines = _by_loop.get(loop)
    if engines is None:
        _forget_closed_loops()
        engines = _by_loop.setdefault(loop, _Engines())
    opened = engines.open.get(place)
    if opened is not None:
        return opened
    async with engines.opening:
        opened = engines.open.get(place)
        if opened is None:
            opened = await _open(place)
            engines.open[place] = opened
            holder = _hold(engines, place, opened)
            await anext(holder)
            engines.holders.append(holder)
    return opened


async def aclose() -> None:
    """Close the engines of this loop now; sandboxes live on. The next `connect` opens anew."""
    engines = _by_loop.pop(asyncio.get_running_loop(), None)
    for holder in engines.holders if engines is not None else ():
        await holder.aclose()


async def _hold(engines: _Engines, place: Place, engine: Transport) -> AsyncGenerator[None]:
    """Closes the engine when its loop winds down.

    A loop offers no other hook: `asyncio.run` and every runner like it close the asynchronous
    generators that were begun on the loop, after the last task and before the loop itself.
    """
    try:
        yield
    finally:
        engines.open.pop(place, None)
        await engine.aclose()


async def _open(place: Place) -> Transport:
    _require_linux()
    # In a thread, because the first import takes as long as a hundred commands and the loop
    # may be somebody's server.
    loaded = await asyncio.to_thread(_load, place)
    with _installed():
        from sandkasten.daemon.compose import open_engine

        return await open_engine(loaded)


def _load(place: Place) -> Settings:
    with _installed():
        from sandkasten.daemon import compose  # noqa: F401  (only to have it loaded)
    return settings(place)


def settings(place: Place) -> Settings:
    """The settings in force for a place, with the origin of each."""
    _require_linux()
    with _installed():
        from sandkasten.daemon.settings import load

        return load(place.flags(), os.environ, Path.cwd())


def serve(flags: Mapping[str, str], said: Callable[[str], None]) -> None:
    """Be a daemon in this process until a signal ends it. `said` hears when it is ready."""
    _require_linux()
    with _installed():
        from sandkasten.daemon.serve import run
        from sandkasten.daemon.settings import load
    run(load(flags, os.environ, Path.cwd()), said)


@contextmanager
def _installed() -> Iterator[None]:
    """The client alone can be installed without what the engine needs."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            f"the embedded engine is not installed (no module named {exc.name})",
            hint="pip install 'sandkasten[server]'",
        ) from exc


def _require_linux() -> None:
    if sys.platform != "linux":
        raise BackendUnavailable(
            f"the embedded engine needs the Linux kernel, and this is {sys.platform}",
            hint="run it on a Linux machine or in a Linux virtual machine",
        )


def _forget_closed_loops() -> None:
    """A loop closed without winding down leaves its engines behind; they are of no more use."""
    for loop in list(_by_loop):
        if loop.is_closed():
            del _by_loop[loop]


def _forget_after_fork() -> None:
    """The child's copies of the parent's connections are kept unclosed and unused:

    closing them through the parent's loop would reach into the parent's poll set.
    """
    _abandoned.extend(_by_loop.values())
    _by_loop.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
