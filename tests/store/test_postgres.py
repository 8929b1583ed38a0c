"""Records in PostgreSQL: several daemons, locks that end with their holder, a server that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.agents.run_lifecycle import ClaimedRun, Outcome, RunLifecycle
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.persistent_stores import open_books
from sandkasten.daemon.settings.resolver import load
from sandkasten.daemon.shared_store import shared_store
from sandkasten.disk.cleanup import finish
from sandkasten.disk.process_identity import ProcessIdentity, boot_id
from sandkasten.engine.clock import SystemClock
from sandkasten.engine.owner import owner_gone
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    InvalidConfiguration,
    InvalidRequest,
    NotFound,
    StoreUnusable,
)
from sandkasten.model.access.api_keys import DEFAULT_SCOPES, make_key
from sandkasten.model.access.stored_secrets import SecretRequest
from sandkasten.model.access.tenancy import TenantQuota, TenantTally
from sandkasten.model.audit_records import AuditHead
from sandkasten.model.journal_rows import ExecRow, KeyRow, SessionRow
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.store.postgres import postgres_journal, postgres_ledger
from sandkasten.store.postgres.postgres_database import PostgresDatabase, Refresher
from sandkasten.store.postgres.postgres_files import PostgresFileStore
from sandkasten.store.postgres.postgres_journal import PostgresJournal
from sandkasten.store.postgres.postgres_keys import PostgresKeys
from sandkasten.store.postgres.postgres_ledger import PostgresLedger
from sandkasten.store.postgres.postgres_runs import PostgresRuns
from sandkasten.store.postgres.postgres_schema import postgres_migrations
from sandkasten.store.postgres.postgres_secrets import PostgresSecrets
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer, new_schema
from tests.store.test_directory import record
from tests.store.test_runs import ROW

if TYPE_CHECKING:
    from sandkasten.model.runs.run_values import RunRow
    from sandkasten.model.sandbox.ledger_record import Record

pytestmark = pytest.mark.promise("P98")

HOLDER = """
import asyncio, sys
from sandkasten.store.postgres.postgres_database import PostgresDatabase

async def main():
    database = await PostgresDatabase.open(sys.argv[1], schema=sys.argv[2])
    async with database.locks.hold("x", 0):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.01)


def session(number: int) -> SessionRow:
    return SessionRow(f"sbx_{number:016x}", "default", "host", "local", 1000.0 + number)


# ---- locks


async def test_a_lock_has_one_holder_among_all_processes(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    async with one.locks.hold("x", 0):
        with pytest.raises(Busy):
            async with other.locks.hold("x", 0.05):
                pass
        async with other.locks.hold("y", 0):
            pass
    async with other.locks.hold("x", 0):
        pass


async def test_a_waiter_gets_the_lock_when_its_holder_is_done(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    inside = most = 0

    async def work(database: PostgresDatabase) -> None:
        nonlocal inside, most
        async with database.locks.hold("x", PATIENCE_S):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work(database) for database in (one, other) * 10))
    assert most == 1


async def test_the_lock_of_a_killed_process_is_released(open_postgres, postgres_server):
    ours = await open_postgres()
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, postgres_server.url, ours.schema),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        with pytest.raises(Busy):
            async with ours.locks.hold("x", 0):
                pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        await holder.communicate()
    async with ours.locks.hold("x", PATIENCE_S):
        pass


async def test_a_holder_is_interrupted_when_its_lock_is_lost(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    held = asyncio.Event()

    async def hold() -> None:
        async with one.locks.hold("x", 0):
            held.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await held.wait()
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(BackendUnavailable, match="held a lock"):
        await holding
    # Both can hold it now: the session was opened again, and the lost one released its lock.
    for database in (other, one):
        async with database.locks.hold("x", PATIENCE_S):
            pass


async def test_a_holder_that_cleans_up_is_interrupted_once(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    held, interrupted, lost_again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with one.locks.hold("x", 0):
            held.set()
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()
                await finish(lost_again.wait())

    holding = asyncio.create_task(hold())
    for event, losses in ((held, 1), (interrupted, 2)):
        await event.wait()
        pid = await one.in_session("SELECT pg_backend_pid()")
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        await until(lambda losses=losses: one.locks.losses == losses)
    lost_again.set()
    with pytest.raises(BackendUnavailable, match="held a lock"):
        await holding


async def test_cancelled_waiter_does_not_keep_the_lock(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    for _ in range(20):
        waiting = asyncio.create_task(one.locks.hold("x", 0).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        done = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(done, asyncio.CancelledError)
        async with other.locks.hold("x", 0):
            pass


async def test_a_lock_whose_answer_came_too_late_is_not_kept(open_postgres, postgres_server):
    """The server may give the lock after the question was given up."""
    other = await open_postgres()
    one = await PostgresDatabase.open(postgres_server.url, schema=other.schema, timeout_s=0.5)
    try:
        async with one.locks.hold("x", 0):  # The statements are prepared now.
            pass
        pid = await one.in_session("SELECT pg_backend_pid()")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BackendUnavailable):
                async with one.locks.hold("x", 0):
                    pass
        finally:
            os.kill(pid, signal.SIGCONT)
        async with other.locks.hold("x", PATIENCE_S):
            pass
    finally:
        await one.aclose()


async def test_a_lock_that_was_lost_before_its_holder_knew_of_it_is_taken_again(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    take, pids = one.locks.take, []

    async def take_and_lose(key: int) -> bool:
        taken = await take(key)
        pids.append(await one.in_session("SELECT pg_backend_pid()"))
        if len(pids) == 1:
            await other.execute("SELECT pg_terminate_backend($1)", pids[0])
            await until(lambda: one.locks.losses == 1)
        return taken

    one.locks.take = take_and_lose
    async with one.locks.hold("x", PATIENCE_S):
        assert len(set(pids)) == 2
        with pytest.raises(Busy):
            async with other.locks.hold("x", 0):
                pass


# ---- schema


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


async def test_a_schema_of_a_newer_version_is_refused(open_new_schema):
    one = await open_new_schema()
    await one.execute("INSERT INTO schema_version VALUES (99, 'later')")
    with pytest.raises(StoreUnusable, match="version 99"):
        await open_new_schema()


# ---- several daemons


async def test_each_node_has_its_own_sandboxes(open_postgres):
    one = PostgresLedger(await open_postgres(), "node_1")
    other = PostgresLedger(await open_postgres(), "node_2")
    mine = record("key")
    await one.put(mine)
    assert (await other.get(mine.id), await other.find_key("key"), list(await other.list())) == (
        None,
        None,
        [],
    )
    await other.drop(mine.id)
    assert list(await one.list()) == [mine]
    assert await one.list() is await one.list()


async def test_a_clock_that_was_wrong_at_the_start_is_forgotten(open_postgres, monkeypatch):
    shared, real = frozenset({"local"}), time.time
    one = PostgresLedger(await open_postgres(), "node_0", shared=shared)
    made = replace(record("key", real() - 100.0), boot_id="another boot")
    await one.put(made)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    other = PostgresLedger(await open_postgres(), "node_1", shared=shared)

    async def ages() -> list[float]:
        found = [await other.get(made.id), *await other.list()]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return [now - row.created_boottime for row in found if row is not None]

    assert [age > 3600 for age in await ages()] == [True, True]
    monkeypatch.setattr(time, "time", real)
    assert [100 <= age < 3600 for age in await ages()] == [True, True]
    assert await other.list() is await other.list()


async def test_a_shared_sandbox_is_that_of_every_daemon(open_postgres):
    """Its row is converted: the reader has another boot, and cannot look up its creator."""
    databases = [await open_postgres() for _ in range(2)]
    one, other = (
        PostgresLedger(database, f"node_{number}", shared=frozenset({"local"}))
        for number, database in enumerate(databases)
    )
    alone = PostgresLedger(databases[1], "node_3")
    await databases[0].live_as("node_0")
    elsewhere = ProcessIdentity(7, 8, "another boot")
    made = replace(
        record("key", time.time() - 100.0),
        state=State.CREATING,
        boot_id=elsewhere.boot_id,
        owner_pid=elsewhere.pid,
        owner_start=elsewhere.start,
    )
    await one.put(made)
    assert (await alone.get(made.id), await alone.find_key("key")) == (None, None)
    (found,) = await other.list()
    assert (found, await other.find_key("key")) == (await other.get(made.id), found)
    assert found.boot_id == boot_id()
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - found.created_boottime >= 100.0
    assert not owner_gone(found)
    assert owner_gone(other.converted(made, "node_0", alive=False))
    assert owner_gone(one.converted(made, "node_0", alive=True))
    # Another daemon changes it, and removes it.
    await other.put(replace(found, state=State.RUNNING))
    (running,) = await one.list()
    assert running.state is State.RUNNING
    await one.drop(made.id)
    assert list(await other.list()) == []


async def test_a_daemon_settles_shared_sessions_of_a_dead_one(open_postgres, monkeypatch):
    monkeypatch.setattr(postgres_journal, "ALIVE", _SEEN_LATELY)
    database = await open_postgres()
    one = PostgresJournal(database, "node_1", shared=frozenset({"local"}))
    other = PostgresJournal(database, "node_2", shared=frozenset({"local"}))
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


async def test_changes_of_another_process_of_the_node_are_listed_at_once(open_postgres):
    one, other = [PostgresLedger(await open_postgres(), "node_1") for _ in range(2)]
    first, second = record(created_at=1.0), record(created_at=2.0)
    await one.put(second)
    assert list(await other.list()) == [second]
    await one.put(first)
    changed = replace(second, labels={})
    await one.put(changed)
    assert list(await other.list()) == [first, changed]
    await one.drop(first.id)
    assert list(await other.list()) == [changed]


async def test_many_changed_rows_are_read_in_parts(open_postgres, monkeypatch):
    database = await open_postgres()
    one, other = PostgresLedger(database, "node_1"), PostgresLedger(database, "node_1")
    rows = [record(created_at=float(number)) for number in range(5)]
    for row in rows:
        await one.put(row)
    monkeypatch.setattr(postgres_ledger, "_READ_AT_ONCE", 2)
    fetch, sizes = database.fetch, []

    async def counted(sql, *values):
        found = await fetch(sql, *values)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(database, "fetch", counted)
    assert list(await other.list()) == rows
    assert sizes == [5, 2, 2, 1]


async def test_an_old_list_that_is_late_does_not_replace_a_new_one(open_postgres, monkeypatch):
    database = await open_postgres()
    ledger = PostgresLedger(database, "node_1")
    first, second = record(created_at=1.0), record(created_at=2.0)
    await ledger.put(first)
    fetch, begun, go_on = database.fetch, asyncio.Event(), asyncio.Event()

    async def held(sql, *values):
        found = await fetch(sql, *values)
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(database, "fetch", held)
    late = asyncio.create_task(ledger.list())
    await begun.wait()
    await ledger.put(second)
    assert list(await ledger.list()) == [first, second]
    go_on.set()
    assert list(await late) == [first, second]


async def test_the_database_counts_the_sandboxes_of_a_tenant(open_postgres):
    database = await open_postgres()
    store = PostgresLedger(database, "node_1", shared=frozenset({"oci"}))
    other = PostgresLedger(database, "node_2", shared=frozenset({"oci"}))
    one = replace(record(), tenant="t")
    size = one.limits
    another = replace(record(), tenant="t", workspace_id="named", state=State.CREATING)
    for row in (
        one,
        another,
        replace(record(), tenant="t", state=State.LOST),
        replace(record(), tenant="t", acquired="spare"),
        replace(record(), tenant="t", acquired="internal"),
        record(),
    ):
        await store.put(row)
    await other.put(replace(record(), tenant="t"))
    two = TenantTally(2, 2 * size.memory_bytes, size.workspace_bytes)
    assert await store.tally("t") == two
    shared = replace(record(), tenant="t", backend="oci")
    await other.put(shared)
    three = TenantTally(3, 3 * size.memory_bytes, 2 * size.workspace_bytes)
    assert await store.tally("t") == three
    await store.put(replace(shared, state=State.LOST))
    assert await store.tally("t") == two
    await database.execute("UPDATE ledger SET row = '{' WHERE id = $1", another.id)
    await store.drop(one.id)
    assert await store.tally("t") == await store.tally("nobody") == TenantTally()


async def test_a_damaged_row_is_reported_and_treated_as_missing(open_postgres):
    database = await open_postgres()
    store = PostgresLedger(database, "node_1")
    good, bad = record(), record("key")
    await store.put(good)
    for damage in ("", "{", "[]", "null", '{"id": "sbx_00"}', "[" * 100_000):
        await store.put(bad)
        await database.execute("UPDATE ledger SET row = $2 WHERE id = $1", bad.id, damage)
        assert await store.get(bad.id) is None
        assert await store.find_key("key") is None
        assert list(await store.list()) == [good]
        assert list(await store.corrupt()) == [bad.id]
    await store.drop(bad.id)
    assert list(await store.corrupt()) == []


async def test_a_daemon_settles_its_own_sessions_and_reads_all(open_postgres):
    one = PostgresJournal(await open_postgres(), "node_1")
    other = PostgresJournal(await open_postgres(), "node_2")
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
    journal = PostgresJournal(database, "node_gone")
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
    here = PostgresJournal(database, "node_here")
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


async def test_a_revoked_key_stops_working_at_every_daemon(open_postgres):
    one, other = [await PostgresKeys.open(await open_postgres(), reload_s=60) for _ in range(2)]
    made = make_key()
    await one.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    await until(lambda: other.check(made.hashed, 2.0) is not None)
    await other.revoke(made.id, 3.0)
    assert other.check(made.hashed, 4.0) is None
    await until(lambda: one.check(made.hashed, 4.0) is None)
    for keys in (one, other):
        await keys.aclose()


async def test_keys_are_read_again_if_a_notice_was_lost(open_postgres):
    one, database = await open_postgres(), await open_postgres()
    keys = await PostgresKeys.open(one, reload_s=60)
    made = make_key()
    pid = await one.in_session("SELECT pg_backend_pid()")
    writer = await PostgresKeys.open(database)
    await database.execute("SELECT pg_terminate_backend($1)", pid)
    await writer.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    await until(lambda: keys.check(made.hashed, 2.0) is not None)
    for some in (keys, writer):
        await some.aclose()


async def test_a_late_answer_does_not_make_a_revoked_key_valid_again(open_postgres):
    database, other = await open_postgres(), await open_postgres()
    keys = await PostgresKeys.open(database, reload_s=60)
    made = make_key()
    await keys.add(KeyRow(made.id, "t", "n", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed)
    fetch, late, arrived = database.fetch, asyncio.Event(), []

    async def fetch_late(sql: str, *values: object):
        found = await fetch(sql, *values)
        arrived.append(sql)
        if len(arrived) == 1:
            await late.wait()
        return found

    database.fetch = fetch_late
    first = asyncio.create_task(keys.list())
    await until(lambda: arrived)
    await other.execute("UPDATE keys SET revoked_at = 2.0")
    second = asyncio.create_task(keys.list())
    # The second answer has time to overtake the first one.
    await asyncio.wait([second], timeout=0.2)
    late.set()
    await asyncio.gather(first, second)
    assert keys.check(made.hashed, 3.0) is None
    await keys.aclose()


async def test_an_unexpected_error_ends_neither_session_nor_copies(open_postgres):
    one, other = await open_postgres(), await open_postgres()
    connect = one._connect
    failed: list[bool] = []
    loaded: list[bool] = []

    async def fail_once():
        if not failed:
            failed.append(True)
            raise BufferError
        return await connect()

    async def load() -> None:
        loaded.append(True)
        if len(loaded) == 1:
            raise ValueError

    one._connect = fail_once
    refresher = Refresher(one, "x", load, every_s=60)
    notify = ("SELECT pg_notify($1, $2)", *one.notice("x"))
    await other.execute(*notify)
    await until(lambda: len(loaded) == 1)
    await other.execute(*notify)
    await until(lambda: len(loaded) == 2)
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    await until(lambda: one.locks.losses == 1)
    async with one.locks.hold("x", PATIENCE_S):
        assert failed
    await refresher.aclose()


async def test_commands_that_are_written_twice_at_once_do_not_wait_for_each_other(open_postgres):
    journals = [PostgresJournal(await open_postgres(), "node_1") for _ in range(2)]
    await journals[0].begin_session(session(1))
    rows = [ExecRow(f"ex_{n:03}", session(1).id, "t", "x", "running", 1.0) for n in range(200)]
    await asyncio.gather(
        *(
            one._note(each)
            for _ in range(5)
            for one, each in zip(journals, (rows, rows[::-1]), strict=True)
        )
    )
    assert len(await journals[0].execs(session(1).id, limit=500)) == 200


async def test_a_command_with_odd_values_does_not_keep_sessions_from_ending(open_postgres):
    journal = PostgresJournal(await open_postgres(), "node_1")
    await journal.begin_session(session(1))
    odd = ExecRow("ex_1", session(1).id, "t", "a\0b\ud800", "running", 1.0, exit_code=1 << 70)
    journal.note_exec(odd)
    await journal.end_session(session(1).id, "destroyed", 2.0)
    (kept,) = await journal.execs(session(1).id)
    assert (kept.status, kept.exit_code) == ("lost", (1 << 63) - 1)


@pytest.mark.parametrize("text", ["a\0", "\ud800"])
async def test_a_text_that_cannot_be_stored_is_an_error_of_the_request(open_postgres, text):
    database = await open_postgres()
    journal = PostgresJournal(database, "node_1")
    files = PostgresFileStore(database, SystemClock())
    for call in (files.list("t", prefix=text), journal.exec("sbx_1", text), journal.session(text)):
        with pytest.raises(InvalidRequest, match="cannot be stored"):
            await call


async def test_a_run_that_was_waited_for_leaves_nothing_in_memory(open_postgres):
    runs = PostgresRuns(await open_postgres())
    await runs.begin(ROW)
    assert not await runs.changed(ROW.id, 0, 0.01)
    assert len(runs._changes) == 0


async def test_a_claimed_run_is_neither_claimed_nor_removed_by_another_daemon(open_postgres):
    one, other = [PostgresRuns(await open_postgres()) for _ in range(2)]
    await one.begin(replace(ROW, status="completed", ended_at=10.0))
    async with one.claim(ROW.id) as ours, other.claim(ROW.id) as theirs, one.claim(ROW.id) as again:
        assert (ours, theirs, again) == (True, False, False)
        assert await other.prune(20.0) == 0
    async with other.claim("run_00000000000000ff") as ours:
        assert not ours
    assert await other.prune(5.0) == 0
    await one.note(ROW.id, "x", {"text": "a\0b\ud800"})
    assert await other.prune(20.0) == 1
    assert await one.get(ROW.id) is None
    assert list(await one.events(ROW.id)) == []


async def test_a_run_whose_claim_is_lost_is_neither_ended_nor_cleaned_up(open_postgres):
    """Another daemon may continue it already."""
    one, other = await open_postgres(), await open_postgres()
    runs, working, cleaned = PostgresRuns(one), asyncio.Event(), []

    async def clean(row: RunRow) -> dict[str, str]:
        cleaned.append(row.id)
        return {}

    async def work(_: ClaimedRun) -> Outcome:
        working.set()
        await asyncio.Event().wait()
        raise AssertionError

    await runs.begin(ROW)
    lifecycle = RunLifecycle(runs, clean, SystemClock())
    executing = asyncio.create_task(lifecycle.execute(ROW, work))
    await working.wait()
    pid = await one.in_session("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(BackendUnavailable):
        await executing
    assert cleaned == []
    left = await PostgresRuns(other).get(ROW.id)
    assert left is not None
    assert left.status == "running"
    assert [event.type for event in await runs.events(ROW.id)] == []


# ---- secrets

REQUEST = SecretRequest("TOKEN", "s3cret-value", ("api.example.com",), header="X: {value}")


async def test_secrets_are_shared_with_one_key_and_encrypted(open_postgres):
    database = await open_postgres()
    one, other = (PostgresSecrets(each, "k" * 32) for each in (database, await open_postgres()))
    stored = await one.put("acme", REQUEST)
    assert list(await other.list("acme")) == [stored]
    (opened,) = await other.open("acme", ["TOKEN"])
    assert opened.value == "s3cret-value"
    again = await other.put("acme", replace(REQUEST, value="new"))
    assert (again.placeholder, again.created_at) == (stored.placeholder, stored.created_at)
    with pytest.raises(StoreUnusable, match="cannot be decrypted"):
        await PostgresSecrets(database, "x" * 32).open("acme", ["TOKEN"])
    with pytest.raises(NotFound):
        await one.open("default", ["TOKEN"])
    # A value is bound to its tenant: a row that was moved in the database cannot be decrypted.
    await database.execute("UPDATE secrets SET tenant = 'other'")
    with pytest.raises(StoreUnusable):
        await one.open("other", ["TOKEN"])
    await one.remove("other", "TOKEN")
    with pytest.raises(NotFound):
        await one.remove("other", "TOKEN")
    with pytest.raises(InvalidConfiguration, match="key that all daemons have"):
        await PostgresSecrets(database, None).put("acme", REQUEST)


# ---- a server that is unavailable

PASSWORD = "pass-word-of-the-url"


@pytest.mark.promise("P99")
async def test_an_unavailable_server_is_a_named_error_without_the_password(tmp_path, caplog):
    url = f"postgresql://u:{PASSWORD}@/db?host={tmp_path}"
    with pytest.raises(BackendUnavailable, match="does not answer") as refused:
        await PostgresDatabase.open(url, timeout_s=2.0)
    assert "store.url" in refused.value.hint
    told = f"{refused.value!r} {refused.value} {refused.value.__cause__!r} {caplog.text}"
    assert PASSWORD not in told


@pytest.mark.promise("P99")
@pytest.mark.parametrize("query", ["sslmode=verify-full", "sslmode=x", "target_session_attrs=x"])
async def test_a_url_that_the_driver_refuses_is_not_a_server_that_is_away(
    tmp_path, monkeypatch, query
):
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?{query}"
    with pytest.raises(InvalidConfiguration, match="store.url") as refused:
        await PostgresDatabase.open(url, timeout_s=2.0)
    assert PASSWORD not in f"{refused.value!r} {refused.value.__cause__!r}"


@pytest.mark.promise("P99")
async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(durable_server):
    """The server is killed while four writers work, and started again."""
    schema, acknowledged = new_schema(), set()
    database = await PostgresDatabase.open(durable_server.url, schema=schema, timeout_s=5.0)
    ledger = PostgresLedger(database, "node_1")
    journal = PostgresJournal(database, "node_1")
    stop, refused = asyncio.Event(), 0

    async def write() -> None:
        nonlocal refused
        while not stop.is_set():
            one = record()
            try:
                await journal.begin_session(replace(session(1), id=one.id))
                await ledger.put(one)
            except BackendUnavailable:
                refused += 1
                await asyncio.sleep(0.01)
            else:
                acknowledged.add(one.id)

    writers = [asyncio.create_task(write()) for _ in range(4)]
    try:
        await until(lambda: len(acknowledged) > 20)
        durable_server.kill()
        await until(lambda: refused > 0)
        await asyncio.to_thread(durable_server.start)
        seen = len(acknowledged)
        await until(lambda: len(acknowledged) > seen + 20)
        stop.set()
        await asyncio.gather(*writers)
        assert acknowledged <= {one.id for one in await ledger.list()}
        assert acknowledged <= {row.id for row in await journal.open_sessions()}
        async with ledger.lock("x", wait_s=PATIENCE_S):
            pass
    finally:
        stop.set()
        await asyncio.gather(*writers, return_exceptions=True)
        await database.aclose()


async def test_an_engine_keeps_its_sandboxes_in_the_database(postgres_server, tmp_path):
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_SECRETS_KEY": "k" * 32}
    flags = {"data_dir": str(tmp_path / "data"), "backend": "unisolated"}
    settings = load(flags, environ, tmp_path)
    async with shared_store(settings) as shared, open_books(settings, SystemClock()) as books:
        assert shared is not None
        engine = await open_engine(settings, journal=books.journal, shared=shared)
        try:
            made = await engine.create(CreateRequest(session_key="k"))
            find = "SELECT node FROM ledger WHERE id = $1"
            assert (await shared.database.fetch(find, made.id))[0]["node"] == shared.node
            await engine.destroy(made.id)
            assert await shared.database.fetch(find, made.id) == []
            ended = await books.journal.session(made.id)
            assert ended is not None
            assert ended.status == "destroyed"
        finally:
            await engine.aclose()
    # The data directory keeps its node, and an engine without the database is refused.
    async with shared_store(settings) as again:
        assert again is not None
        assert again.node == shared.node
    with pytest.raises(InvalidConfiguration, match="recorded in a database"):
        await open_engine(load(flags, {}, tmp_path))


@pytest.fixture
def durable_server():
    with PostgresServer(durable=True) as server:
        yield server


async def test_a_create_that_lost_the_database_is_removed_without_a_restart(
    postgres_server, tmp_path, monkeypatch
):
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_SECRETS_KEY": "k" * 32}
    flags = {"data_dir": str(tmp_path / "data"), "backend": "unisolated"}
    settings = load(flags, environ, tmp_path)
    async with shared_store(settings) as shared, open_books(settings, SystemClock()) as books:
        assert shared is not None
        engine = await open_engine(settings, journal=books.journal, shared=shared)
        put = PostgresLedger.put

        async def put_new(self: PostgresLedger, row: Record) -> None:
            if row.state is not State.CREATING:
                raise BackendUnavailable("away")
            await put(self, row)

        async def away(*_: object) -> None:
            raise BackendUnavailable("away")

        try:
            with monkeypatch.context() as patched:
                patched.setattr(PostgresLedger, "put", put_new)
                patched.setattr(PostgresLedger, "drop", away)
                patched.setattr(PostgresJournal, "end_session", away)
                with pytest.raises(BackendUnavailable):
                    await engine.create(CreateRequest())
            find = "SELECT id FROM ledger WHERE node = $1"
            (left,) = await shared.database.fetch(find, shared.node)
            # The sandbox itself is gone already.
            for backend in engine._backends.values():
                assert left["id"] not in await backend.owned()
            await engine.sweep()
            assert await shared.database.fetch(find, shared.node) == []
            ended = await books.journal.session(left["id"])
            assert ended is not None
            assert ended.status == "destroyed"
        finally:
            await engine.aclose()
