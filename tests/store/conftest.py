"""A PostgreSQL server for this folder, started by the first test that needs it."""

from __future__ import annotations

import pytest

from sandkasten.store.postgres.postgres_database import PostgresDatabase
from tests.postgres_server import PostgresServer, new_schema

# Emptying the tables is much faster than a new schema for each test.
_EMPTY = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *("ledger", "state", "sessions", "execs", "traffic", "keys"),
        *("runs", "files", "contents", "secrets", "nodes", "audit"),
    )
)
_EMPTY += "; UPDATE shards SET node = '', fence = 0, until = '-infinity'"
_EMPTY += "; UPDATE audit_head SET seq = 0, hash = repeat('0', 64), size_bytes = 0"


@pytest.fixture(scope="session")
def postgres_server():
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def open_postgres(request):
    """Return a function that opens an empty database, as another process would. A test that does
    not call it needs no server.
    """
    opened: list[PostgresDatabase] = []

    async def open_another() -> PostgresDatabase:
        server = request.getfixturevalue("postgres_server")
        one = await PostgresDatabase.open(server.url, schema="test", max_connections=4)
        if not opened:
            await one.execute(_EMPTY)
        opened.append(one)
        return one

    yield open_another
    for one in opened:
        await one.aclose()


@pytest.fixture
async def open_new_schema(postgres_server):
    """Return a function that opens a schema of this test alone."""
    schema, opened = new_schema(), []

    async def open_another() -> PostgresDatabase:
        opened.append(await PostgresDatabase.open(postgres_server.url, schema=schema))
        return opened[-1]

    yield open_another
    for one in opened:
        await one.aclose()
