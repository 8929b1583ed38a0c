"""The database of `store.url`, and the place of this data directory in it.

Each data directory is a node of the database: sandboxes run on the machine that made them, and only
the daemon there can reach them. The file `node` has its id. It also says that the ledger is in the
database: an engine with another ledger would take the sandboxes for leftovers and remove them, so
it is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

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

log = logging.getLogger("sandkasten.store")
_NODE_FILE: Final = "node"
SHARED: Final = ("journal", "API keys", "stored files", "secrets", "runs", "ledger")
OF_ONE_NODE: Final = (
    "sandboxes",
    "workspaces",
    "images",
    "packages",
    "previews",
    "recordings",
    "the audit log",
    "quotas of sandboxes",
)
"""What only the daemon of its data directory has, whatever the database."""


@dataclass(frozen=True, slots=True)
class SharedStore:
    database: PostgresDatabase
    node: str


@asynccontextmanager
async def shared_store(settings: Settings) -> AsyncIterator[SharedStore | None]:
    """Yield the database while the block lasts; None without `store.url`."""
    found = await open_shared(settings)
    try:
        yield found
    finally:
        if found is not None:
            await found.database.aclose()


async def open_shared(settings: Settings) -> SharedStore | None:
    """Open the database; None without `store.url`. InvalidConfiguration if the ledger of the data
    directory is elsewhere.
    """
    rules = settings.store
    if rules.url is None:
        check_ledger_of_files(settings.data_dir)
        return None
    # Most processes have no such database.
    from sandkasten.store.postgres.postgres_database import PostgresDatabase

    data_dir = prepare_data_dir(settings.data_dir)
    # Before the node is made: a database that cannot be reached changes nothing here.
    await asyncio.to_thread(_check_no_rows, data_dir)
    database = await PostgresDatabase.open(
        rules.url, max_connections=rules.max_connections, timeout_s=rules.timeout_s
    )
    try:
        return SharedStore(database, await asyncio.to_thread(_node, data_dir))
    except BaseException:
        await database.aclose()
        raise


def report_shared(settings: Settings, shared: SharedStore) -> None:
    """Log what is shared with other daemons and what is not."""
    told = {
        "database": without_password(settings.store.url or ""),
        "node": shared.node,
        "shared": ", ".join(SHARED),
        "of_this_daemon": ", ".join(OF_ONE_NODE),
    }
    log.warning("store.shared", extra={"sandkasten": told})


def check_ledger_of_files(data_dir: Path) -> None:
    """Raise InvalidConfiguration if the ledger of a data directory is in a database."""
    if os.path.lexists(data_dir / _NODE_FILE):
        raise InvalidConfiguration(
            f"the sandboxes of {data_dir} are recorded in a database, and store.url is not set",
            hint="set store.url (SANDKASTEN_STORE_URL) as for its daemon, or use another data_dir;"
            f" if they are all gone, remove {data_dir / _NODE_FILE}",
            setting="store.url",
        )


def _check_no_rows(data_dir: Path) -> None:
    rows = data_dir / "ledger" / "rows"
    with translated("read the ledger"):
        if (data_dir / _NODE_FILE).exists() or not rows.exists() or not os.listdir(rows):
            return
    raise InvalidConfiguration(
        f"{data_dir} has sandboxes that are recorded in files, and store.url is set",
        hint="remove them without store.url (sandkasten rm --all), or use another data_dir",
        setting="store.url",
    )


def _node(data_dir: Path) -> str:
    path = data_dir / _NODE_FILE
    with translated("read the id of the node"):
        if not path.exists():
            create_file(path, f"node_{secrets.token_hex(8)}".encode())
        return path.read_text("ascii").strip()
