"""The database connection: batches, failures, versions, and unusable files."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
import threading

import pytest

from sandkasten.errors import Conflict, InternalError, QuotaExceeded, StoreUnusable
from sandkasten.model.journal_rows import ExecRow, SessionRow
from sandkasten_server.records.sqlite.database import Database
from sandkasten_server.records.sqlite.schema import migrate, migrations, version_of
from sandkasten_server.records.sqlite.sqlite_journal import sqlite_journal
from sandkasten_server.records.write_behind import WriteBehind
from tests.patience import PATIENCE_S


@pytest.fixture
async def database(tmp_path):
    one = await Database.open(tmp_path / "a.db")
    yield one
    await one.aclose()


async def statements(database: Database) -> list[str]:
    """Return a list that is filled with every statement from now on."""
    seen: list[str] = []
    await database.read(lambda connection: connection.set_trace_callback(seen.append))
    return seen


def insert(name: str):
    def work(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO state VALUES (?, 'x')", (name,))
        return name

    return work


async def names(database: Database) -> list[str]:
    return await database.read(
        lambda c: [r[0] for r in c.execute("SELECT name FROM state WHERE value = 'x'")]
    )


class Held:
    """The database thread is stopped during the block, so that requests queue up."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._go = threading.Event()
        self._standing = threading.Event()

    async def __aenter__(self) -> None:
        def stand(_: sqlite3.Connection) -> None:
            self._standing.set()
            assert self._go.wait(PATIENCE_S)

        self._task = asyncio.ensure_future(self._database.read(stand))
        await asyncio.to_thread(self._standing.wait)

    async def __aexit__(self, *_: object) -> None:
        self._go.set()
        await self._task


async def test_writers_that_wait_together_share_one_transaction(database):
    seen = await statements(database)
    async with Held(database):
        writes = [database.submit(insert(f"n{i}"), lasting=True) for i in range(100)]
    assert await asyncio.gather(*writes) == [f"n{i}" for i in range(100)]
    assert seen.count("COMMIT") == 1
    assert len(await names(database)) == 100


async def test_a_failing_write_does_not_affect_others_in_its_batch(database):
    def refuse(connection: sqlite3.Connection) -> None:
        insert("half")(connection)
        raise Conflict("no")

    async with Held(database):
        writes = [
            database.submit(insert("a")),
            database.submit(refuse),
            database.submit(insert("a")),
            database.submit(insert("b")),
        ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in results] == [str, Conflict, InternalError, str]
    assert sorted(await names(database)) == ["a", "b"]


async def test_a_batch_that_the_disk_refuses_is_retried_one_by_one(database):
    def large(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO state VALUES ('large', ?)", ("x" * 10_000_000,))

    await database.read(lambda c: c.execute("PRAGMA max_page_count = 200").fetchall())
    async with Held(database):
        writes = [database.submit(work) for work in (insert("a"), large, insert("b"))]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert (results[0], results[2]) == ("a", "b")
    refused = results[1]
    assert isinstance(refused, QuotaExceeded)
    assert refused.details["quota"] == "disk"
    assert sorted(await names(database)) == ["a", "b"]


async def test_a_reader_sees_all_earlier_writes(database):
    writing = database.submit(insert("first"))
    assert await names(database) == ["first"]
    assert writing.done()


async def test_a_cancelled_caller_does_not_undo_its_write(database):
    async with Held(database):
        leaving = asyncio.ensure_future(database.write(insert("kept")))
        await asyncio.sleep(0)
        leaving.cancel()
    assert await names(database) == ["kept"]


async def test_durable_batches_are_synced_and_others_are_not(database):
    seen = await statements(database)
    await database.write(insert("a"))
    assert not any("synchronous" in one for one in seen)
    await database.write(insert("b"), lasting=True)
    assert "PRAGMA synchronous = FULL" in seen
    await database.write(insert("c"))
    assert seen[-6:-4].count("PRAGMA synchronous = NORMAL") == 1


@pytest.mark.promise("P34")
async def test_a_second_connection_is_refused_in_this_process_and_in_others(database):
    with pytest.raises(StoreUnusable) as told:
        await Database.open(database.path)
    assert told.value.details["reason"] == "held"
    await database.write(insert("a"))
    code = (
        "import sqlite3, sys\n"
        "try: sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM state')\n"
        "except sqlite3.OperationalError as exc: print(exc)\n"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(database.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "database is locked\n"


async def test_a_closed_database_is_an_error(tmp_path):
    one = await Database.open(tmp_path / "a.db")
    await one.aclose()
    await one.aclose()
    with pytest.raises(InternalError, match="closed"):
        await one.write(insert("a"))
    again = await Database.open(tmp_path / "a.db")
    await again.aclose()


async def test_the_database_file_is_accessible_to_its_owner_only(database):
    assert database.path.stat().st_mode & 0o777 == 0o600


def test_migrations_are_numbered_without_gaps():
    assert [one.version for one in migrations()] == list(range(1, len(migrations()) + 1))


@pytest.mark.promise("P34")
async def test_a_database_of_version_1_is_migrated_and_keeps_its_rows(tmp_path):
    path = tmp_path / "old.db"
    old = sqlite3.connect(path, isolation_level=None)
    assert migrate(old, upto=1) == 1
    tables = {row[0] for row in old.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert "sessions" in tables
    assert "keys" not in tables
    old.execute(
        "INSERT INTO sessions VALUES ('sbx_1', 't', 'i', 'b', 1.5, 'running', NULL, NULL, '{}',"
        " NULL, NULL, '')"
    )
    old.close()
    database = await Database.open(path)
    row = SessionRow("sbx_1", "t", "i", "b", 1.5, "running")
    assert await sqlite_journal(database).session("sbx_1") == row
    assert await database.read(version_of) == migrations()[-1].version
    await database.aclose()


@pytest.mark.promise("P34")
async def test_kernels_that_were_commands_are_kernels_after_the_migration(tmp_path):
    path = tmp_path / "old.db"
    old = sqlite3.connect(path, isolation_level=None)
    migrate(old, upto=4)
    row = (
        "INSERT INTO execs VALUES"
        " ('sbx_1', ?, 't', ?, 'completed', 1.5, 0, NULL, 1, 1, 1, 9, 9, NULL, NULL)"
    )
    kernel = "ctx_python_default_0123456789abcdef"
    old.execute(row, (kernel, "python3 -c 'import json'"))
    old.execute(row, ("exe_1", "echo ctx_python_1"))
    old.close()
    database = await Database.open(path)
    journal = sqlite_journal(database)
    found = await journal.exec("sbx_1", kernel)
    assert found is not None
    assert (found.kind, found.command, found.language) == ("kernel", "python kernel", "python")
    assert (found.context_id, found.stdout_bytes, found.status) == (kernel, 0, "completed")
    other = await journal.exec("sbx_1", "exe_1")
    assert other is not None
    assert (other.kind, other.command, other.stdout_bytes) == ("command", "echo ctx_python_1", 9)
    await database.aclose()


@pytest.mark.promise("P34")
async def test_a_newer_database_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "new.db"
    await (await Database.open(path)).aclose()
    newer = sqlite3.connect(path)
    newer.execute("INSERT INTO schema_version VALUES (999, 'later', 0)")
    newer.commit()
    newer.close()
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(StoreUnusable) as told:
        await Database.open(path)
    assert (told.value.details["reason"], told.value.details["version"]) == ("newer", 999)
    assert hashlib.sha256(path.read_bytes()).digest() == before


async def test_a_failed_migration_keeps_the_previous_version(tmp_path, monkeypatch):
    from sandkasten_server.records.sqlite import schema

    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    migrate(connection, upto=1)
    broken = schema.Migration(2, "broken", "CREATE TABLE half (x);\nNONSENSE;\n")
    known = [migrations()[0], broken]
    monkeypatch.setattr(schema, "migrations", lambda: known)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection)
    assert version_of(connection) == 1
    assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall() == []
    connection.close()


async def test_another_programs_database_is_refused(tmp_path):
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreUnusable) as told:
        await Database.open(path)
    assert told.value.details["reason"] == "foreign"


async def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    (tmp_path / "no.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreUnusable) as told:
        await Database.open(tmp_path / "no.db")
    assert told.value.details["reason"] == "damaged"


@pytest.mark.parametrize("clean", [True, False])
async def test_damage_is_detected_at_open_after_an_unclean_close(tmp_path, clean):
    path = tmp_path / "a.db"
    database = await Database.open(path)
    for number in range(50):
        await database.write(insert(f"{number} " + "x" * 3000))
    await database.aclose()
    raw = bytearray(path.read_bytes())
    if not clean:
        plain = sqlite3.connect(path)
        plain.execute("UPDATE state SET value = 'no' WHERE name = 'clean'")
        plain.commit()
        plain.close()
        raw = bytearray(path.read_bytes())
    page = 4096
    last = len(raw) // page - 1
    raw[last * page : last * page + 100] = b"\xff" * 100
    path.write_bytes(raw)
    if clean:
        await (await Database.open(path)).aclose()
        return
    with pytest.raises(StoreUnusable) as told:
        await Database.open(path)
    assert told.value.details["reason"] == "damaged"


async def test_deferred_rows_are_written_soon_and_only_the_newest_of_each(database):
    journal = sqlite_journal(database)
    seen = await statements(database)
    for number in range(500):
        journal.note_exec(ExecRow("exe_1", "sbx_1", "t", "c", "completed", 1.0, exit_code=number))
    found: list[tuple[int]] = []
    for _ in range(int(PATIENCE_S / 0.01)):
        found = await database.read(lambda c: c.execute("SELECT exit_code FROM execs").fetchall())
        if found:
            break
        await asyncio.sleep(0.01)
    assert found == [(499,)]
    assert sum(one.startswith("\nINSERT INTO execs") for one in seen) == 1


async def test_a_command_with_odd_values_does_not_keep_others_from_being_written(database):
    journal = sqlite_journal(database)
    journal.note_exec(ExecRow("exe_1", "sbx_1", "t", "c", "completed", 1.0))
    journal.note_exec(
        ExecRow("exe_2", "sbx_1", "t", "a\0b\ud800", "completed", 2.0, exit_code=1 << 70)
    )
    await journal.flush()
    odd, plain = await journal.execs("sbx_1")
    assert (odd.id, odd.exit_code, plain.id) == ("exe_2", (1 << 63) - 1, "exe_1")


async def test_deferred_rows_that_cannot_be_written_wait_and_are_bounded(database):
    trouble = True
    written: list[int] = []

    def write(rows):
        if trouble:
            raise Conflict("not now")
        written.extend(rows)

    behind: WriteBehind[int, int] = WriteBehind(
        lambda rows: database.submit(lambda _: write(rows)), most=10
    )
    for number in range(25):
        behind.put(number, number)
        with pytest.raises(Conflict):
            await behind.flush()
    assert behind.forgotten == 15
    behind.put(24, 240)
    trouble = False
    await behind.flush()
    assert written == [*range(15, 24), 240]


async def test_a_cancelled_flush_leaves_the_write_to_its_other_callers():
    writing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    behind: WriteBehind[int, int] = WriteBehind(lambda _: writing)
    behind.put(1, 1)
    first, second = (asyncio.create_task(behind.flush()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    writing.set_result(None)
    await second
    assert first.cancelled()
