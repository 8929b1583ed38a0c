"""The plugins of shared databases that are installed, and the one that the settings make active."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.optional_extras import install_command
from sandkasten.plugins.plugin_failure import opening
from sandkasten.ports.store_plugins import STORES_GROUP
from sandkasten_runtime.assembly.settings import resolver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.ports.store_plugins import SectionValues, StorePlugin


def store_plugins() -> Sequence[StorePlugin]:
    """Return the plugins whose settings are read: those that can be used."""
    return resolver.INSTALLED.stores


def active_store(settings: SectionValues) -> StorePlugin | None:
    """Return the plugin whose database the settings name; None if the records are in files. Raise
    InvalidConfiguration if there are several.
    """
    active = [plugin for plugin in store_plugins() if _is_active(plugin, settings)]
    if len(active) > 1:
        names = " and ".join(plugin.name for plugin in active)
        raise InvalidConfiguration(
            f"the settings name databases of {names}, and records can be in one only",
            hint="leave out the settings of all but one of them",
            setting="store",
        )
    return active[0] if active else None


def _is_active(plugin: StorePlugin, settings: SectionValues) -> bool:
    with opening(STORES_GROUP, plugin.name):
        return plugin.is_active(settings)


def remedy() -> str:
    """Return how to reach records that are in a database which no setting names."""
    how = "set store.url (SANDKASTEN_STORE_URL) as for its daemon"
    if store_plugins():
        return how
    return f"{install_command('postgres')}, and {how}"
