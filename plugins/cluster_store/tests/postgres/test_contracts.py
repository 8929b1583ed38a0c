"""The ledger, journal, keys and runs in PostgreSQL keep the contracts of these stores."""

from __future__ import annotations

import pytest

from sandkasten_cluster_store.postgres.postgres_journal import postgres_journal
from sandkasten_cluster_store.postgres.postgres_keys import PostgresKeys
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_cluster_store.postgres.postgres_runs import PostgresRuns
from tests.contract_cases import cases
from tests.store import test_directory, test_journal_contract, test_keys, test_runs

pytestmark = pytest.mark.promise("P98")


@pytest.fixture
async def store(open_postgres):
    return PostgresLedger(await open_postgres(), "node_1")


@pytest.fixture
async def journal(open_postgres):
    opened = postgres_journal(await open_postgres(), "node_1")
    yield opened
    await opened.aclose()


@pytest.fixture
async def open_keys(open_postgres):
    """Return a function that opens the keys, as another process would."""
    opened = []

    async def open_again():
        opened.append(await PostgresKeys.open(await open_postgres()))
        return opened[-1]

    yield open_again
    for keys in opened:
        await keys.aclose()


@pytest.fixture
async def each_runs(open_postgres):
    """Return the runs of two processes."""
    return [PostgresRuns(await open_postgres()) for _ in range(2)]


globals().update(cases(test_directory, "store"))
globals().update(cases(test_journal_contract, "journal"))
globals().update(cases(test_keys, "open_keys"))
globals().update(cases(test_runs, "each_runs"))
