"""The schema in PostgreSQL: who makes it, and which version it has."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import (
    StoreUnusable,
)
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_journal import postgres_journal
from sandkasten_cluster_store.postgres.postgres_schema import postgres_migrations
from tests.postgres_server import new_schema

pytestmark = pytest.mark.promise("P98")


async def test_daemons_that_start_at_once_migrate_once(open_new_schema):
    opened = await asyncio.gather(*(open_new_schema() for _ in range(4)))
    found = await opened[0].fetch("SELECT version FROM schema_version")
    assert [row["version"] for row in found] == [one.version for one in postgres_migrations()]


async def test_a_user_that_may_create_no_schema_uses_the_one_it_was_given(
    open_postgres, postgres_server
):
    admin, name = await open_postgres(), new_schema()
    await admin.execute(f"CREATE ROLE {name} LOGIN")
    await admin.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    url = postgres_server.url.replace("//tester@", f"//{name}@")
    guest = await PostgresDatabase.open(url, schema=name)
    assert await guest.fetch("SELECT 1 FROM schema_version")
    await guest.aclose()


async def test_kernels_that_were_commands_are_kernels_after_the_migration(open_new_schema):
    database = await open_new_schema()
    kernel = "ctx_python_default_0123456789abcdef"
    insert = (
        "INSERT INTO execs (session_id, id, tenant, command, status, started_at, stdout_bytes,"
        " stderr_bytes) VALUES ('sbx_1', $1, 't', 'echo', 'completed', 1, 9, 9)"
    )
    for one in (kernel, "exe_1"):
        await database.execute(insert, one)
    (migration,) = [one for one in postgres_migrations() if one.name == "cells"]
    await database.execute(migration.sql[migration.sql.index("UPDATE") :])
    journal = postgres_journal(database, "node_1")
    found = await journal.exec("sbx_1", kernel)
    assert found is not None
    assert (found.kind, found.command, found.language) == ("kernel", "python kernel", "python")
    assert (found.context_id, found.stdout_bytes, found.status) == (kernel, 0, "completed")
    other = await journal.exec("sbx_1", "exe_1")
    assert other is not None
    assert (other.kind, other.command, other.stdout_bytes) == ("command", "echo", 9)
    await journal.aclose()


async def test_a_schema_of_a_newer_version_is_refused(open_new_schema):
    one = await open_new_schema()
    await one.execute("INSERT INTO schema_version VALUES (99, 'later')")
    with pytest.raises(StoreUnusable, match="version 99"):
        await open_new_schema()
