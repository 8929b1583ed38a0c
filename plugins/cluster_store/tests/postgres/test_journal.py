"""The journal in PostgreSQL, used by several daemons."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from plugins.cluster_store.tests.postgres.rows import session
from sandkasten.errors import (
    InvalidRequest,
)
from sandkasten.model.audit_records import AuditHead
from sandkasten.model.journal_rows import ExecRow
from sandkasten_cluster_store.postgres import postgres_journal as journal_module
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_cluster_store.postgres.postgres_journal import postgres_journal
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_runtime.engine.clock import SystemClock
from tests.store.test_directory import record

pytestmark = pytest.mark.promise("P98")


async def test_a_daemon_settles_shared_sessions_of_a_dead_one(open_postgres, monkeypatch):
    monkeypatch.setattr(journal_module, "ALIVE", _SEEN_LATELY)
    database = await open_postgres()
    one = postgres_journal(database, "node_1", shared=frozenset({"local"}))
    other = postgres_journal(database, "node_2", shared=frozenset({"local"}))
    await database.live_as("node_1")
    await one.begin_session(session(1))
    await one.begin_session(replace(session(2), backend="oci"))
    assert await other.open_sessions() == []
    await database.execute(_DEAD, "node_1")
    assert [row.id for row in await other.open_sessions()] == [session(1).id]


_DEAD = "UPDATE nodes SET seen_at = now() - interval '1 hour' WHERE id = $1"
# Without the grace after a start of the server.
_SEEN_LATELY = (
    "EXISTS (SELECT 1 FROM nodes WHERE nodes.id = {node} AND seen_at > now() - interval '30 s')"
)


async def test_a_daemon_settles_its_own_sessions_and_reads_all(open_postgres):
    one = postgres_journal(await open_postgres(), "node_1")
    other = postgres_journal(await open_postgres(), "node_2")
    await one.begin_session(session(1))
    await other.begin_session(session(2))
    assert [row.id for row in await one.open_sessions()] == [session(1).id]
    assert [row.id for row in await other.sessions(None)] == [session(2).id, session(1).id]
    # A label that another daemon changes does not make the session its own.
    await other.begin_session(replace(session(1), labels={"a": "1"}))
    assert [row.labels for row in await one.open_sessions()] == [{"a": "1"}]
    await one.keep_audit_head(AuditHead(1, "a" * 64))
    assert await other.audit_head() is None


async def test_a_daemon_that_never_comes_back_is_forgotten(open_postgres):
    database = await open_postgres()
    journal = postgres_journal(database, "node_gone")
    shared = frozenset({"shared"})
    ledger = PostgresLedger(database, "node_gone", shared=shared)
    own, common = record(), replace(record(), backend="shared")
    for one in (own, common):
        await ledger.put(one)
        await journal.begin_session(replace(session(1), id=one.id, backend=one.backend))
    journal.note_exec(ExecRow("ex_1", own.id, "t", "x", "running", time.time()))
    await journal.flush()
    await journal.keep_audit_head(AuditHead(1, "a" * 64))
    for node in ("node_gone", "node_here"):
        await database.live_as(node)
    here = postgres_journal(database, "node_here")
    await here.prune(time.time())
    assert {row["id"] for row in await database.fetch("SELECT id FROM nodes")} == {
        "node_gone",
        "node_here",
    }
    sql = "UPDATE nodes SET seen_at = now() - interval '1000 days' WHERE id = 'node_gone'"
    await database.execute(sql)
    await here.prune(time.time())
    assert [row["id"] for row in await database.fetch("SELECT id FROM nodes")] == ["node_here"]
    assert await database.fetch("SELECT 1 FROM state") == []
    # Every daemon can reach a shared sandbox, so it stays.
    left = PostgresLedger(database, "node_here", shared=shared)
    assert [one.id for one in await left.list()] == [common.id]
    ended, open_one = await here.session(own.id), await here.session(common.id)
    assert ended is not None
    assert (ended.status, ended.reason) == ("lost", "its daemon did not come back")
    assert [row.status for row in await here.execs(own.id)] == ["lost"]
    assert open_one is not None
    assert open_one.ended_at is None


async def test_commands_that_are_written_twice_at_once_do_not_wait_for_each_other(open_postgres):
    journals = [postgres_journal(await open_postgres(), "node_1") for _ in range(2)]
    await journals[0].begin_session(session(1))
    rows = [ExecRow(f"ex_{n:03}", session(1).id, "t", "x", "running", 1.0) for n in range(200)]
    await asyncio.gather(
        *(
            one._driver.note_execs(each)
            for _ in range(5)
            for one, each in zip(journals, (rows, rows[::-1]), strict=True)
        )
    )
    assert len(await journals[0].execs(session(1).id, limit=500)) == 200


async def test_a_command_with_odd_values_does_not_keep_sessions_from_ending(open_postgres):
    journal = postgres_journal(await open_postgres(), "node_1")
    await journal.begin_session(session(1))
    odd = ExecRow("ex_1", session(1).id, "t", "a\0b\ud800", "running", 1.0, exit_code=1 << 70)
    journal.note_exec(odd)
    await journal.end_session(session(1).id, "destroyed", 2.0)
    (kept,) = await journal.execs(session(1).id)
    assert (kept.status, kept.exit_code) == ("lost", (1 << 63) - 1)


@pytest.mark.parametrize("text", ["a\0", "\ud800"])
async def test_a_text_that_cannot_be_stored_is_an_error_of_the_request(open_postgres, text):
    database = await open_postgres()
    journal = postgres_journal(database, "node_1")
    files = PostgresFileStore(database, SystemClock())
    for call in (files.list("t", prefix=text), journal.exec("sbx_1", text), journal.session(text)):
        with pytest.raises(InvalidRequest, match="cannot be stored"):
            await call
