"""The plugin of PostgreSQL: the store of an engine, which needs no server.

Importing this module imports nothing that opens the database, and not its library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.ports.store_plugins import StorePlugin
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_cluster_store.store_settings import StoreSettings

if TYPE_CHECKING:
    from sandkasten.ports.store_plugins import SectionValues, SharedStore, StoreContext

NAME: Final = "postgres"


def _is_active(settings: SectionValues) -> bool:
    return settings.of(StoreSettings).url is not None


async def _open(context: StoreContext) -> SharedStore:
    from sandkasten_cluster_store.cluster_store import open_cluster_store

    return await open_cluster_store(context)


PLUGIN: Final = StorePlugin(
    name=NAME, is_active=_is_active, open=_open, settings=(StoreSettings, BucketOptions)
)
