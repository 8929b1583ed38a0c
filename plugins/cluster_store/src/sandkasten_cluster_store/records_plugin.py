"""The plugin of PostgreSQL for a server: its records in the database of the store.

Importing this module imports nothing that reads the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten_cluster_store.plugin import NAME
from sandkasten_server.records.record_plugins import RecordsPlugin

if TYPE_CHECKING:
    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_server.records.record_plugins import SharedRecords


def _open(store: SharedStore) -> SharedRecords:
    from sandkasten_cluster_store.cluster_records import ClusterRecords
    from sandkasten_cluster_store.cluster_store import ClusterStore

    assert isinstance(store, ClusterStore)
    return ClusterRecords(store)


PLUGIN: Final = RecordsPlugin(name=NAME, open=_open)
