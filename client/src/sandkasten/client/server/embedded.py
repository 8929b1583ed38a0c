"""The engine inside this process: the only way from the client to the packages of the engine.

Nothing of the engine is imported before it is needed, so that `import sandkasten` is fast and works
where the engine does not. If sandboxes are not possible here, BackendUnavailable has the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.client.server.server_pool import aclose, connect
from sandkasten.errors import BackendUnavailable, InvalidConfiguration, UnsupportedByBackend
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sandkasten.client.server.admin_transport import BooksTransport
    from sandkasten.client.server.transport import Transport
    from sandkasten.ports import Agents as AgentsPort
    from sandkasten.ports.agent_plugins import AgentsPlugin
    from sandkasten_runtime.assembly.settings.resolver import Settings


async def open_engine(place: ServerAddress) -> Transport:
    require_linux()
    # In a thread, because the first import takes as long as a hundred commands and the loop
    # may serve other requests.
    loaded = await asyncio.to_thread(_load, place)
    from sandkasten_runtime.assembly import engine_assembly

    return await engine_assembly.open_engine(loaded)


def _load(place: ServerAddress) -> Settings:
    with _require_runtime():
        from sandkasten_runtime.assembly import engine_assembly  # noqa: F401  (to have it loaded)

    return settings(place)


def settings(place: ServerAddress, config: str | None = None) -> Settings:
    """Return the settings in force for a server, with the origin of each. `config` is a file."""
    require_linux()
    flags = place.flags() if config is None else {**place.flags(), "config": config}
    with _require_runtime():
        from sandkasten_runtime.assembly.settings.resolver import load

    return with_warnings(load(flags, os.environ, Path.cwd()))


def with_warnings(loaded: Settings) -> Settings:
    """Log the warnings of the settings, each once in a process."""
    for warning in loaded.warnings:
        _warn_once(warning)
    return loaded


@cache
def _warn_once(warning: str) -> None:
    logging.getLogger("sandkasten.settings").warning("%s", warning)


def daemon_socket(place: ServerAddress) -> str:
    """Return the path of the socket where a daemon of this data directory would listen."""
    return str(settings(place).socket)


def open_books(place: ServerAddress) -> AbstractAsyncContextManager[BooksTransport]:
    """Open the records of a data directory; Conflict while a daemon serves it."""
    loaded = settings(place)
    with require_installed("the server", "server"):
        from sandkasten_server.daemon.offline_admin import offline_books

    return offline_books(loaded)


@asynccontextmanager
async def open_agents(place: ServerAddress) -> AsyncIterator[AgentsPort]:
    """Open agents that this process runs; what still runs at the end is cancelled."""
    require_linux()
    plugin, loaded = await asyncio.to_thread(_load_agents, place)
    from sandkasten.client.http.daemon_file_store import files_of_daemon
    from sandkasten.plugins.plugin_failure import opening
    from sandkasten.ports.agent_plugins import AGENTS_GROUP

    async with AsyncExitStack() as stack:
        with opening(AGENTS_GROUP, plugin.name):
            opened = await stack.enter_async_context(plugin.open(loaded, files_of_daemon))
        yield opened


def _load_agents(place: ServerAddress) -> tuple[AgentsPlugin, Settings]:
    from sandkasten.plugins.installed import installed, only
    from sandkasten.plugins.plugin_failure import REMEDY
    from sandkasten.ports.agent_plugins import AGENTS_GROUP, AgentsPlugin

    agents = installed(AGENTS_GROUP, AgentsPlugin)
    if agents.problems and not agents.plugins:
        raise InvalidConfiguration(agents.problems[0], hint=REMEDY)
    if not agents.plugins:
        raise UnsupportedByBackend("agents are not installed", hint=install_command("agents"))
    return only(agents.plugins, "agents"), settings(place)


# The client works on machines that cannot make sandboxes.
_NAME_DAEMON = "name a daemon (url=…, or SANDKASTEN_URL), or "


def _require_runtime() -> AbstractContextManager[None]:
    what = "the runtime, which makes sandboxes in this process,"
    return require_installed(what, "", instead=_NAME_DAEMON)


@contextmanager
def require_installed(what: str, extra: str, *, instead: str = "") -> Iterator[None]:
    """Raise BackendUnavailable when a distribution or library of the runtime or of one of its
    extras is missing. The hint says what else can be done `instead` of the installation.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            f"{what} is not installed (no module named {exc.name})",
            hint=f"{instead}{install_command(extra)}",
        ) from exc


def require_linux() -> None:
    if sys.platform != "linux":
        raise BackendUnavailable(
            f"the embedded engine requires Linux, and this machine runs {sys.platform}",
            hint=f"{_NAME_DAEMON}run it on a Linux machine or in a Linux virtual machine",
        )


__all__ = [
    "ServerAddress",
    "aclose",
    "connect",
    "open_agents",
    "open_books",
    "open_engine",
    "require_installed",
    "require_linux",
    "settings",
    "with_warnings",
]
