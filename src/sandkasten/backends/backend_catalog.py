"""The plugins of backends: those of this project, and those that other distributions bring.

Each can be named in settings and requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.cloud_plugins import PLUGINS as _PROVIDERS
from sandkasten.backends.dagger.plugin import PLUGIN as _DAGGER
from sandkasten.backends.docker.plugin import PLUGIN as _DOCKER
from sandkasten.backends.kubernetes.plugin import PLUGIN as _KUBERNETES
from sandkasten.backends.local.plugin import PLUGIN as _LOCAL
from sandkasten.backends.oci.plugin import GVISOR_PLUGIN, OCI_PLUGIN
from sandkasten.backends.plugin_discovery import discover
from sandkasten.model.backends.capabilities import UNKNOWN

if TYPE_CHECKING:
    from sandkasten.model.backends.capabilities import Capabilities

_OURS: Final = (_LOCAL, OCI_PLUGIN, GVISOR_PLUGIN, _DOCKER, _KUBERNETES, _DAGGER, *_PROVIDERS)
_OTHERS: Final = discover({plugin.name for plugin in _OURS})
PLUGINS: Final = (*_OURS, *_OTHERS.plugins)
PROBLEMS: Final = _OTHERS.problems
"""One sentence for each plugin that is installed and cannot be used."""
CAPABILITIES: Final = {plugin.name: plugin.capabilities for plugin in PLUGINS}
"""By the name of the backend, without settings."""


def capabilities_of(backend: str) -> Capabilities:
    """Return what a backend can do, also for one below another (`docker/NAME`)."""
    return CAPABILITIES.get(backend.partition("/")[0], UNKNOWN)
