"""The schema by version: numbered SQL files, each applied in one transaction.

Blocking; used by the thread that owns the connection. A file that a newer version has migrated, or
that belongs to another program, raises StoreUnusable and is not changed.
"""

from __future__ import annotations

import sqlite3
import time
from importlib import resources
from typing import TYPE_CHECKING, Final

from sandkasten.errors import StoreUnusable
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# "SKST": distinguishes our files from those of other programs.
APPLICATION_ID: Final = 0x534B5354


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


def migrations() -> Sequence[Migration]:
    """Return all migrations, oldest first; they are numbered without gaps."""
    result = []
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            result.append(Migration(int(number), name, entry.read_text("utf-8")))
    return sorted(result, key=lambda migration: migration.version)


def migrate(connection: sqlite3.Connection, upto: int | None = None) -> int:
    """Migrate the file to the newest version, or to `upto`. Return the version it then has."""
    present = version_of(connection)
    for migration in migrations():
        if present < migration.version and (upto is None or migration.version <= upto):
            _apply(connection, migration)
            present = migration.version
    return present


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version, 0 for an empty file. Raise StoreUnusable if it is newer than this
    program or not ours.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if not tables:
        return 0
    if application != APPLICATION_ID:
        raise StoreUnusable(
            "the database belongs to another program",
            hint="choose another file with db_path",
            reason="foreign",
        )
    present = int(connection.execute("SELECT max(version) FROM schema_version").fetchone()[0])
    newest = migrations()[-1].version
    if present > newest:
        raise StoreUnusable(
            f"the database has version {present}, and this program knows up to {newest}",
            hint="run the newer sandkasten that wrote it, or restore an older backup",
            reason="newer",
            version=present,
        )
    return present


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if migration.version == 1:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(
                "CREATE TABLE schema_version"
                " (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at REAL NOT NULL)"
            )
        for statement in _statements(migration.sql):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_version VALUES (?, ?, ?)",
            (migration.version, migration.name, time.time()),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(sql: str) -> Iterator[str]:
    """Return the statements one by one, because `executescript` would commit an open
    transaction.
    """
    waiting = ""
    for line in sql.splitlines(keepends=True):
        waiting += line
        if sqlite3.complete_statement(waiting):
            yield waiting
            waiting = ""
