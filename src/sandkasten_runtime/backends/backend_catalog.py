"""The plugins of backends: those of the core, and those that installed distributions bring.

Each can be named in settings and requests.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.plugins.installed import installed
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendPlugin
from sandkasten_runtime.backends.local.plugin import PLUGIN as _LOCAL
from sandkasten_runtime.backends.oci.plugin import GVISOR_PLUGIN, OCI_PLUGIN
from sandkasten_runtime.backends.plugin_rules import unusable

if TYPE_CHECKING:
    from sandkasten.model.backends.capabilities import Capabilities

CORE: Final = (_LOCAL, OCI_PLUGIN, GVISOR_PLUGIN)
_NAMES: Final = frozenset(plugin.name for plugin in CORE)
INSTALLED: Final = installed(BACKENDS_GROUP, BackendPlugin, partial(unusable, core=_NAMES))
PLUGINS: Final = (*CORE, *INSTALLED.plugins)
"""Those of the core first, and the others by their names."""
CAPABILITIES: Final = {plugin.name: plugin.capabilities for plugin in PLUGINS}
"""The capabilities by the name of the backend, without settings."""


def capabilities_of(backend: str) -> Capabilities:
    """Return what a backend can do, also for one below another (`KIND/NAME`)."""
    return CAPABILITIES.get(backend.partition("/")[0], UNKNOWN)
