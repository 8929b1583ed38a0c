"""The engine inside this process: the only way from the client to the rooms below.

Nothing of the engine is imported before it is needed, so that `import sandkasten` is fast and works
where the engine does not. If sandboxes are not possible here, BackendUnavailable has the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.client.server.server_pool import aclose, connect
from sandkasten.errors import BackendUnavailable
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from sandkasten.client.server.admin_transport import BooksTransport
    from sandkasten.client.server.installer import Installer
    from sandkasten.client.server.transport import Transport
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.ports import Agents as AgentsPort


async def open_engine(place: ServerAddress) -> Transport:
    require_linux()
    # In a thread, because the first import takes as long as a hundred commands and the loop
    # may serve other requests.
    loaded = await asyncio.to_thread(_load, place)
    with require_installed():
        from sandkasten.daemon import engine_assembly

        return await engine_assembly.open_engine(loaded)


def _load(place: ServerAddress) -> Settings:
    with require_installed():
        from sandkasten.daemon import engine_assembly  # noqa: F401  (only to have it loaded)
    return settings(place)


def settings(place: ServerAddress, config: str | None = None) -> Settings:
    """Return the settings in force for a server, with the origin of each. `config` is a file."""
    require_linux()
    flags = place.flags() if config is None else {**place.flags(), "config": config}
    with require_installed():
        from sandkasten.daemon.settings.resolver import load

        return _told(load(flags, os.environ, Path.cwd()))


def _told(loaded: Settings) -> Settings:
    for warning in loaded.warnings:
        _warn_once(warning)
    return loaded


@cache
def _warn_once(warning: str) -> None:
    logging.getLogger("sandkasten.settings").warning("%s", warning)


def serve(flags: Mapping[str, str], said: Callable[[str], None]) -> None:
    """Run a daemon in this process until a signal ends it. `said` is called when it is ready."""
    require_linux()
    with require_installed():
        from sandkasten.daemon.serve import run
        from sandkasten.daemon.settings.resolver import load
    run(load(flags, os.environ, Path.cwd()), said)


def authority(place: ServerAddress) -> str:
    """Return the certificate of the authority that a daemon of this data directory has made."""
    loaded = settings(place)
    with require_installed():
        from sandkasten.daemon.http.local_authority import authority_certificate

    return authority_certificate(loaded.previews)


def open_books(place: ServerAddress) -> AbstractAsyncContextManager[BooksTransport]:
    """Open the records of a data directory; Conflict while a daemon serves it."""
    loaded = settings(place)
    with require_installed():
        from sandkasten.daemon.offline_admin import offline_books

    return offline_books(loaded)


@asynccontextmanager
async def open_agents(place: ServerAddress) -> AsyncIterator[AgentsPort]:
    """Open agents that this process runs; what still runs at the end is cancelled."""
    require_linux()
    loaded = await asyncio.to_thread(_load_agents, place)
    with require_installed():
        from sandkasten.daemon.agent_services import local_agents
    from sandkasten.client.http.daemon_file_store import files_of_daemon

    async with local_agents(loaded, files_of_daemon) as opened:
        yield opened


def _load_agents(place: ServerAddress) -> Settings:
    with require_installed():
        from sandkasten.daemon import agent_services  # noqa: F401  (only to have it loaded)
    return settings(place)


def open_installation(flags: Mapping[str, str]) -> AbstractAsyncContextManager[Installer]:
    """Open the installation of a daemon on an engine; this machine need not be Linux."""
    with require_installed():
        from sandkasten.daemon.container.installation import installation
        from sandkasten.daemon.settings.resolver import load
    return installation(_told(load(flags, os.environ, Path.cwd())))


@contextmanager
def require_installed(what: str = "the embedded engine", extra: str = "server") -> Iterator[None]:
    """Raise BackendUnavailable when a library of an optional extra is missing."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            f"{what} is not installed (no module named {exc.name})",
            hint=install_command(extra),
        ) from exc


def require_linux() -> None:
    if sys.platform != "linux":
        raise BackendUnavailable(
            f"the embedded engine requires Linux, and this machine runs {sys.platform}",
            hint="run it on a Linux machine or in a Linux virtual machine",
        )


__all__ = [
    "ServerAddress",
    "aclose",
    "authority",
    "connect",
    "open_agents",
    "open_books",
    "open_engine",
    "open_installation",
    "require_installed",
    "require_linux",
    "serve",
    "settings",
]
