"""Numbered migrations of the PostgreSQL schema, each applied in one transaction.

Several daemons may start at once: one migrates under an advisory lock, and the others wait. A
schema that a newer version has migrated raises StoreUnusable and is not changed.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import StoreUnusable
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

# For a migration, and for the wait until another daemon has migrated.
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PostgresMigration:
    version: int
    name: str
    sql: str


def postgres_migrations() -> Sequence[PostgresMigration]:
    """Return all migrations, oldest first; they are numbered without gaps."""
    migrations = []
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            migrations.append(PostgresMigration(int(number), name, entry.read_text("utf-8")))
    return sorted(migrations, key=lambda migration: migration.version)


async def migrate(connection: Any, schema: str, lock_key: int) -> None:
    """Bring the schema to the newest version."""
    wanted = postgres_migrations()
    if await _version(connection, schema) == wanted[-1].version:
        return
    await connection.execute(f"SET statement_timeout = {int(_WAIT_S * 1000)}")
    await connection.execute("SELECT pg_advisory_lock($1)", lock_key, timeout=_WAIT_S)
    try:
        present = await _version(connection, schema)
        for migration in wanted:
            if migration.version > present:
                async with connection.transaction():
                    # Asked first, because IF NOT EXISTS needs the right to create one all the same.
                    sql = "SELECT to_regnamespace($1) IS NULL"
                    if await connection.fetchval(sql, schema):
                        await connection.execute(f"CREATE SCHEMA {schema}")
                    await connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {schema}.schema_version (version bigint"
                        " PRIMARY KEY, name text NOT NULL,"
                        " applied_at timestamptz NOT NULL DEFAULT now())"
                    )
                    await connection.execute(migration.sql, timeout=_WAIT_S)
                    await connection.execute(
                        f"INSERT INTO {schema}.schema_version VALUES ($1, $2)",  # noqa: S608
                        migration.version,
                        migration.name,
                    )
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", lock_key)
        await connection.execute("RESET statement_timeout")


async def _version(connection: Any, schema: str) -> int:
    """Return the version, 0 if there is none. Raise StoreUnusable if it is newer than this
    program.
    """
    table = f"{schema}.schema_version"
    if await connection.fetchval("SELECT to_regclass($1)::text", table) is None:
        return 0
    present = int(
        await connection.fetchval(
            f"SELECT coalesce(max(version), 0) FROM {table}"  # noqa: S608
        )
    )
    newest = postgres_migrations()[-1].version
    if present > newest:
        raise StoreUnusable(
            f"the database has version {present}, and this program knows up to {newest}",
            hint="update this daemon to the version that migrated the database",
            reason="newer",
            version=present,
        )
    return present
