"""The shared database of the settings, and the node of this data directory in it.

A node is one data directory. Sandboxes belong to a node, because only the daemon on their machine
can reach them. The file `node` contains the id of the node. Its presence also means that the ledger
is in a database: an engine with another ledger would remove the sandboxes as leftovers, so it is
refused, also if no plugin of such a database is installed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import create_file
from sandkasten.disk.os_errors import translated
from sandkasten.errors import InvalidConfiguration
from sandkasten.plugins.plugin_failure import opening
from sandkasten.ports.store_plugins import STORES_GROUP, StoreContext
from sandkasten_runtime.assembly import backend_registry
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.store_catalog import active_store, remedy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_runtime.assembly.settings.resolver import Settings

_NODE_FILE: Final = "node"


@asynccontextmanager
async def shared_store(settings: Settings) -> AsyncIterator[SharedStore | None]:
    """Open the database, and close it after the block; yield None if the records are in files."""
    shared = await open_shared(settings)
    try:
        yield shared
    finally:
        if shared is not None:
            await shared.aclose()


async def open_shared(settings: Settings) -> SharedStore | None:
    """Open the database; return None if the settings name none. Raise InvalidConfiguration if the
    ledger of the data directory is not where the settings name it.
    """
    plugin = active_store(settings)
    if plugin is None:
        _check_not_in_database(settings.data_dir)
        return None
    data_dir = prepare_data_dir(settings.data_dir)
    # The file `node` is created last: if the database cannot be reached, nothing changes here.
    await asyncio.to_thread(_check_not_in_files, data_dir)
    context = StoreContext(
        settings=settings,
        node=lambda: asyncio.to_thread(_node, data_dir),
        shared_backends=backend_registry.shared_backends(settings),
        secrets_key=settings.secrets_key,
    )
    with opening(STORES_GROUP, plugin.name):
        return await plugin.open(context)


def _check_not_in_database(data_dir: Path) -> None:
    """Raise InvalidConfiguration if the ledger of a data directory is in a database."""
    if os.path.lexists(data_dir / _NODE_FILE):
        raise InvalidConfiguration(
            f"the sandboxes of {data_dir} are recorded in a database, and store.url is not set",
            hint=f"{remedy()}, or use another data_dir; if they are all gone, remove"
            f" {data_dir / _NODE_FILE}",
            setting="store.url",
        )


def _check_not_in_files(data_dir: Path) -> None:
    """Raise InvalidConfiguration if a data directory has sandboxes in a ledger of files."""
    rows = data_dir / "ledger" / "rows"
    with translated("read the ledger"):
        if (data_dir / _NODE_FILE).exists() or not rows.exists() or not os.listdir(rows):
            return
    raise InvalidConfiguration(
        f"the sandboxes of {data_dir} are recorded in files, and store.url is set",
        hint="remove them without store.url (sandkasten rm --all), or use another data_dir",
        setting="store.url",
    )


def _node(data_dir: Path) -> str:
    """Return the id of the node, created if missing."""
    path = data_dir / _NODE_FILE
    with translated("read the id of the node"):
        if not path.exists():
            create_file(path, f"node_{secrets.token_hex(8)}".encode())
        return path.read_text("ascii").strip()
