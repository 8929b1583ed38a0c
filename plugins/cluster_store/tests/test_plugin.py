"""What the distribution provides, and what it does not import before it is used."""

from __future__ import annotations

import subprocess
import sys

from sandkasten.plugins.installed import installed
from sandkasten.ports.store_plugins import STORES_GROUP, StorePlugin
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_cluster_store.store_settings import StoreSettings
from sandkasten_server.records.record_plugins import RECORDS_GROUP, RecordsPlugin
from tests.patience import FAR_TOO_LATE_S


def test_the_store_and_its_records_are_found_under_one_name():
    stores = installed(STORES_GROUP, StorePlugin)
    records = installed(RECORDS_GROUP, RecordsPlugin)
    for plugins in (stores, records):
        assert plugins.origins["postgres"].distribution == "sandkasten-cluster-store"
    [store] = [plugin for plugin in stores.plugins if plugin.name == "postgres"]
    assert store.settings == (StoreSettings, BucketOptions)


def test_settings_are_read_without_the_libraries_of_a_database_and_a_bucket():
    code = (
        "import sys; from sandkasten_cluster_store import plugin, records_plugin;"
        "print([name for name in ('asyncpg', 'aiohttp', 'yarl') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=FAR_TOO_LATE_S
    )
    assert done.stdout == b"[]\n"
