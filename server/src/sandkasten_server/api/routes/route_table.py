"""The list of all routes; the application serves it and the OpenAPI document describes it.

Those of plugins follow those of the core. A plugin whose routes cannot be loaded, or of which
another part has one too, is a problem, one sentence, and stops no other.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.plugins.plugin_failure import described, is_failure, summary
from sandkasten_server.api.dashboard import dashboard_routes
from sandkasten_server.api.route_plugins import ROUTES_GROUP, route_plugins
from sandkasten_server.api.routes import (
    code,
    execs,
    files,
    fs,
    health,
    images,
    oneshots,
    pause,
    ports,
    previews,
    pty,
    sessions,
    snapshots,
    stage,
    stats,
    system,
    workspaces,
)
from sandkasten_server.api.routes.access import (
    audit,
    keys,
    login,
    recordings,
    secrets,
    tenant_usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten_server.api.route import Route
    from sandkasten_server.api.route_plugins import RoutePlugin

_PLACE: Final = re.compile(r"\{[a-z_]+(:path)?\}")


def _described_routes() -> tuple[Route, ...]:
    """Return the routes of the OpenAPI document: all of them, its own included."""
    return route_table().routes


CORE: tuple[Route, ...] = (
    *health.ROUTES,
    *system.routes(_described_routes),
    *dashboard_routes.ROUTES,
    *sessions.ROUTES,
    *execs.ROUTES,
    *recordings.ROUTES,
    *code.ROUTES,
    *stats.ROUTES,
    *pause.ROUTES,
    *oneshots.ROUTES,
    *pty.ROUTES,
    *ports.ROUTES,
    *previews.ROUTES,
    *files.ROUTES,
    *stage.ROUTES,
    *keys.ROUTES,
    *login.ROUTES,
    *tenant_usage.ROUTES,
    *audit.ROUTES,
    *fs.ROUTES,
    *workspaces.ROUTES,
    *snapshots.ROUTES,
    *secrets.ROUTES,
    *images.ROUTES,
)


@dataclass(frozen=True, slots=True)
class RouteTable:
    routes: tuple[Route, ...]
    plugins: tuple[RoutePlugin, ...]
    """Those whose routes are among them."""
    problems: tuple[str, ...]
    """One sentence for each plugin that cannot be used."""


@cache
def route_table() -> RouteTable:
    """Return the routes of the core and of the plugins that are installed."""
    installed = route_plugins()
    return joined(installed.plugins, installed.problems)


def joined(plugins: Iterable[RoutePlugin], problems: Iterable[str] = ()) -> RouteTable:
    """Return the routes of the core and of these plugins."""
    loaded: dict[RoutePlugin, tuple[Route, ...]] = {}
    problems = list(problems)
    for plugin in plugins:
        try:
            loaded[plugin] = tuple(plugin.routes())
        except BaseException as exc:
            if not is_failure(exc):
                raise
            problems.append(
                f"{ROUTES_GROUP}: the routes of the {described(ROUTES_GROUP, plugin.name)} "
                f"cannot be loaded: {summary(exc)}"
            )
    owners = Counter(
        shape for routes in (CORE, *loaded.values()) for shape in set(map(_shape, routes))
    )
    usable = {}
    for plugin, routes in loaded.items():
        shared = next((route for route in routes if owners[_shape(route)] > 1), None)
        if shared is None:
            usable[plugin] = routes
        else:
            problems.append(
                f"{ROUTES_GROUP}: the {described(ROUTES_GROUP, plugin.name)} is not used: "
                f"another part has its route {shared.method} {shared.path} too"
            )
    routes = (*CORE, *(route for own in usable.values() for route in own))
    return RouteTable(routes, tuple(usable), tuple(problems))


def _shape(route: Route) -> tuple[str, str]:
    """Return method and path; the names of placeholders make no difference."""
    return route.method, _PLACE.sub(r"{\1}", route.path)
