"""The records of a server in the shared database of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.plugins.installed import installed
from sandkasten.plugins.plugin_failure import opening
from sandkasten_runtime.assembly.store_catalog import active_store
from sandkasten_server.records.record_plugins import RECORDS_GROUP, RecordsPlugin

if TYPE_CHECKING:
    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_server.records.record_plugins import SharedRecords


def shared_records(settings: Settings, shared: SharedStore) -> SharedRecords:
    """Return the records of the database that `shared_store` opened. Raise InvalidConfiguration if
    its plugin has none, and serves engines only.
    """
    store = active_store(settings)
    assert store is not None
    for plugin in installed(RECORDS_GROUP, RecordsPlugin).plugins:
        if plugin.name == store.name:
            with opening(RECORDS_GROUP, plugin.name):
                return plugin.open(shared)
    raise InvalidConfiguration(
        f"the store {store.name} has no records of a server: no entry point of {RECORDS_GROUP} has"
        " its name",
        hint="install the version of the plugin that belongs to this server",
        setting="store",
    )
