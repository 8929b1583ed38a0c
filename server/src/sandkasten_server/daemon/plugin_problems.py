"""Plugins that cannot be used, of every group of entry points that a daemon asks for.

Each problem is one sentence, which names the group, the plugin and its distribution. Imports the
values that entry points name, and opens none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.plugins.installed import installed
from sandkasten.ports.agent_plugins import AGENTS_GROUP, AgentsPlugin
from sandkasten.ports.backend_plugins import BACKENDS_GROUP
from sandkasten.ports.settings_plugins import SETTINGS_GROUP
from sandkasten.ports.store_plugins import STORES_GROUP
from sandkasten.ports.telemetry_plugins import TELEMETRY_GROUP
from sandkasten_runtime.assembly.settings import resolver
from sandkasten_runtime.assembly.telemetry_catalog import telemetry_plugins
from sandkasten_runtime.images.image_plugins import IMAGES_GROUP
from sandkasten_runtime.images.installed_parts import InstalledParts
from sandkasten_server.api import route_plugins
from sandkasten_server.api.routes import route_table
from sandkasten_server.records.record_plugins import RECORDS_GROUP, RecordsPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def _with_sections() -> Iterable[str]:
    """Return the problems of all plugins that may declare settings: two may contradict."""
    return resolver.INSTALLED.problems


def _records() -> Iterable[str]:
    return installed(RECORDS_GROUP, RecordsPlugin).problems


def _images() -> Iterable[str]:
    return InstalledParts().problems


def _local_agents() -> Iterable[str]:
    return installed(AGENTS_GROUP, AgentsPlugin).problems


def _telemetry() -> Iterable[str]:
    return telemetry_plugins().problems


def _routes() -> Iterable[str]:
    return route_table.route_table().problems


GROUPS: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    BACKENDS_GROUP: _with_sections,
    SETTINGS_GROUP: _with_sections,
    STORES_GROUP: _with_sections,
    RECORDS_GROUP: _records,
    IMAGES_GROUP: _images,
    AGENTS_GROUP: _local_agents,
    TELEMETRY_GROUP: _telemetry,
    route_plugins.ROUTES_GROUP: _routes,
}
"""What finds the problems of each group; the group of commands belongs to the command line."""


def plugin_problems() -> tuple[str, ...]:
    """Return one sentence for each plugin that is installed and cannot be used."""
    return tuple(problem for find in dict.fromkeys(GROUPS.values()) for problem in find())
