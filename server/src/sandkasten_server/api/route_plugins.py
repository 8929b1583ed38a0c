"""Routes as a plugin: one value that can be imported without the code behind the routes.

Entry points of the group `sandkasten.routes` name them. The application knows a plugin only by this
value: which routes it has, what it opens with a daemon, and where it listens besides. Routes
of a plugin that is not installed are refused with the command that installs it
(`model/optional_extras.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import ROUTE_EXTRAS, ROUTE_PLUGINS, install_command
from sandkasten.plugins.installed import installed, problem_of
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sandkasten.plugins.installed import Installed
    from sandkasten.ports import EventSink, FileStore, Runs
    from sandkasten.settings.setting_parsers import Address
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.previews.preview_access import Previews
    from sandkasten_server.api.route import Route

ROUTES_GROUP: Final = "sandkasten.routes"
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class RouteRecords(Protocol):
    """What plugins of routes use of the records that several daemons share."""

    async def signing_key(self, name: str) -> bytes:
        """Return the key of this name that all daemons have, made at first use."""
        ...

    def runs(self) -> Runs: ...
    async def any_runs(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What a plugin gets of the daemon that opens it."""

    engine: Engine
    data_dir: Path
    """Absolute."""
    settings: Any
    """All settings of the daemon."""
    files: FileStore
    previews: Previews
    events: EventSink
    records: RouteRecords | None = None
    """Records that several daemons share; None: this daemon keeps its own in `data_dir`."""


class DaemonWork(Protocol):
    """Work that a plugin does beside the requests, until the daemon ends it."""

    def begin(self) -> None:
        """Begin: the daemon serves now."""
        ...

    async def drain(self, deadline_s: float) -> None:
        """Finish the work in progress, or leave it for the next daemon."""
        ...

    async def aclose(self) -> None:
        """End it, while the engine still works. Twice is fine."""
        ...


@dataclass(frozen=True, slots=True)
class Listener:
    """Another address of a plugin: it serves the paths of the application below a prefix."""

    address: Address
    prefix: str


@dataclass(frozen=True, slots=True)
class OpenedRoutes:
    """The parts of a plugin in one daemon."""

    routes: Sequence[Route] = ()
    """Further routes, which the OpenAPI document does not describe."""
    services: Mapping[type[Any], Any] = field(default_factory=dict)
    """What its routes find with `Server.service`, each by its class."""
    work: DaemonWork | None = None
    names: Callable[[AsgiApp, AsgiApp], AsgiApp] | None = None
    """Takes the application with all routes, and another one. Returns one that serves host names of
    this plugin with the first, and every other request with the second.
    """
    listeners: Sequence[Listener] = ()


def _no_routes() -> Sequence[Route]:
    return ()


def _no_addresses(settings: object) -> Sequence[Address]:
    return ()


@dataclass(frozen=True, slots=True)
class RoutePlugin:
    name: str
    routes: Callable[[], Sequence[Route]] = _no_routes
    """Returns the routes that every daemon serves and the OpenAPI document describes."""
    open: Callable[[RouteContext], AbstractAsyncContextManager[OpenedRoutes]] | None = None
    """Opens what a daemon needs; the block ends after the last request."""
    addresses: Callable[[Any], Sequence[Address]] = _no_addresses
    """Returns, from all settings, where clients reach these routes besides the daemon's own
    address. Each needs a key as that does.
    """
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""


@cache
def route_plugins() -> Installed[RoutePlugin]:
    return installed(ROUTES_GROUP, RoutePlugin)


def not_installed(path: str) -> UnsupportedByBackend | None:
    """Return the error for a path of a plugin that is not installed or cannot be used; None for any
    other path.
    """
    installed_plugins = route_plugins()
    plugins = {plugin.name for plugin in installed_plugins.plugins}
    for prefix, extra in ROUTE_EXTRAS.items():
        plugin = ROUTE_PLUGINS.get(prefix, extra)
        if plugin not in plugins and (path == prefix or path.startswith(prefix + "/")):
            problem = problem_of(plugin, installed_plugins.problems)
            if problem is not None:
                error = UnsupportedByBackend(
                    f"this daemon does not serve {prefix}: the plugin {plugin} cannot be used",
                    hint="on the daemon's machine: sandkasten doctor reports why",
                )
                # For the operator: it may have values of the settings.
                error.add_note(problem)
                return error
            return UnsupportedByBackend(
                f"this daemon does not serve {prefix}: the plugin {plugin} is not installed",
                hint=f"on the daemon's machine: {install_command(extra)}; then restart the daemon",
            )
    return None
