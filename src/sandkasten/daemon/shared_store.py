"""The database of `store.url`, and the node of this data directory in it.

A node is one data directory. Sandboxes belong to a node, because only the daemon on their machine
can reach them. The file `node` contains the id of the node. Its presence also means that the ledger
is in the database: an engine with another ledger would remove the sandboxes as leftovers, so it is
refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.daemon import backend_registry
from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.settings.store_settings import without_password
from sandkasten.disk.atomic_file import create_file
from sandkasten.disk.os_errors import translated
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.store.postgres.postgres_database import PostgresDatabase
    from sandkasten.store.postgres.shard_leases import ShardLeases

log = logging.getLogger("sandkasten.store")
_NODE_FILE: Final = "node"
# For the log; docs/guides/several-daemons.md has the same list.
_SHARED: Final = (
    "API keys",
    "history",
    "stored files",
    "secrets",
    "runs",
    "audit log",
    "previews",
    "network bytes of tenants",
)
_OF_ONE_NODE: Final = (
    "other sandboxes and quotas of them",
    "other workspaces",
    "images",
    "packages",
    "recordings",
)


@dataclass(frozen=True, slots=True)
class SharedStore:
    database: PostgresDatabase
    node: str
    backends: frozenset[str] = frozenset()
    """Backends whose sandboxes every daemon of the database can reach."""
    leases: ShardLeases | None = None
    """Which of these sandboxes this daemon looks after."""


@asynccontextmanager
async def shared_store(settings: Settings) -> AsyncIterator[SharedStore | None]:
    """Open the database, and close it after the block; yield None without `store.url`."""
    found = await open_shared(settings)
    try:
        yield found
    finally:
        if found is not None:
            await found.database.aclose()


async def open_shared(settings: Settings) -> SharedStore | None:
    """Open the database; return None without `store.url`. Raise InvalidConfiguration if the ledger
    of the data directory is not where the settings say.
    """
    rules = settings.store
    if rules.url is None:
        _check_not_in_database(settings.data_dir)
        return None
    # Imported here: most processes use no such database.
    from sandkasten.store.postgres.postgres_database import PostgresDatabase
    from sandkasten.store.postgres.shard_leases import ShardLeases

    data_dir = prepare_data_dir(settings.data_dir)
    # The file `node` is created last: if the database cannot be reached, nothing changes here.
    await asyncio.to_thread(_check_not_in_files, data_dir)
    database = await PostgresDatabase.open(
        rules.url, max_connections=rules.max_connections, timeout_s=rules.timeout_s
    )
    try:
        node = await asyncio.to_thread(_node, data_dir)
        backends = backend_registry.shared_backends(settings)
        leases = ShardLeases(node) if backends else None
        await database.live_as(node, leases)
        return SharedStore(database, node, backends, leases)
    except BaseException:
        await database.aclose()
        raise


def report_shared(settings: Settings, shared: SharedStore) -> None:
    """Log what is shared with other daemons and what is not."""
    event = {
        "database": without_password(settings.store.url or ""),
        "node": shared.node,
        "shared": ", ".join(
            (*_SHARED, *(f"sandboxes and workspaces of {one}" for one in shared.backends))
        ),
        "of_this_daemon": ", ".join(_OF_ONE_NODE),
    }
    if settings.bucket is not None:
        event["bucket"] = settings.bucket.location
    log.info("store.shared", extra={"sandkasten": event})


def _check_not_in_database(data_dir: Path) -> None:
    """Raise InvalidConfiguration if the ledger of a data directory is in a database."""
    if os.path.lexists(data_dir / _NODE_FILE):
        raise InvalidConfiguration(
            f"the sandboxes of {data_dir} are recorded in a database, and store.url is not set",
            hint="set store.url (SANDKASTEN_STORE_URL) as for its daemon, or use another data_dir;"
            f" if they are all gone, remove {data_dir / _NODE_FILE}",
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
