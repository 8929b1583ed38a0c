"""One audit log of several daemons: every record once, in one chain that shows a change."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.audit_chain import check_lines, row_of_line
from sandkasten.model.audit_records import AuditFilter, AuditHead
from sandkasten_cluster_store.postgres.postgres_audit import PostgresAudit
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_runtime.store.audit_directory import AuditDirectory
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer
from tests.store.test_audit_directory import flaw_of, row

pytestmark = pytest.mark.promise("P86")
DAY_S = 86_400.0


@pytest.fixture
async def database(open_postgres):
    return await open_postgres()


@pytest.fixture
async def open_audit(database, tmp_path):
    """Return a function that opens the log as the daemon of a node does."""
    opened = []

    def open_one(node: str, **options) -> PostgresAudit:
        limits = {"max_bytes": 1 << 30, "keep_s": 1e10, **options}
        files = AuditDirectory(tmp_path / node / "audit", segment_bytes=4096)
        opened.append(PostgresAudit(database, node, files, **limits))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.aclose()


async def targets(audit: PostgresAudit, **wanted) -> list[str]:
    return [one.target for one in await audit.read(AuditFilter(**wanted))]


async def test_every_daemon_shows_the_records_of_all(open_audit):
    one, other = open_audit("node_1"), open_audit("node_2")
    one.record(row(1))
    await one.sync()
    other.record(row(2))
    await other.sync()
    await one.record_lasting(row(3))
    assert await targets(one) == ["t1", "t2", "t3"]
    found = await other.read(AuditFilter())
    assert [(each.seq, each.detail["node"]) for each in found] == [
        (1, "node_1"),
        (2, "node_2"),
        (3, "node_1"),
    ]
    assert await flaw_of(one) is None
    lines = b"".join([piece async for piece in other.lines()]).splitlines(keepends=True)
    report = check_lines(lines, [await one.sync()])
    assert (report.ok, report.records) == (True, 3)


async def test_a_record_is_copied_without_being_asked_for(open_audit, database):
    one = open_audit("node_1")
    one.record(row(1))
    count = "SELECT count(*) AS n FROM audit"
    async with asyncio.timeout(PATIENCE_S):
        while (await database.fetch(count))[0]["n"] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_records_are_read_by_every_filter(open_audit):
    one, other = open_audit("node_1"), open_audit("node_2")
    one.record(row(1, kind="exec", session_id="sbx_1", action="exec.start"))
    one.record(row(2, kind="exec", session_id="sbx_2", key_id=None))
    one.record(row(3, kind="file", session_id="sbx_1", tenant="b", target="a\0b"))
    await one.sync()
    for wanted, found in (
        (AuditFilter(), [1, 2, 3]),
        (AuditFilter(kind="exec"), [1, 2]),
        (AuditFilter(session_id="sbx_1"), [1, 3]),
        (AuditFilter(key_id="key_1"), [1, 3]),
        (AuditFilter(tenant="b"), [3]),
        (AuditFilter(action="exec.start"), [1]),
        (AuditFilter(target="t2"), [2]),
        (AuditFilter(target="a\0b"), [3]),
        (AuditFilter(since=1002.0), [2, 3]),
        (AuditFilter(since_seq=1, limit=1), [2]),
        (AuditFilter(limit=2, newest=True), [2, 3]),
        (AuditFilter(key_id='key"1\\'), []),
    ):
        assert [each.seq for each in await other.read(wanted)] == found


async def test_daemons_that_copy_at_once_make_one_chain(open_audit):
    several = [open_audit(f"node_{number}") for number in range(4)]
    for number in range(200):
        for one in several:
            one.record(row(number))
        if number % 20 == 0:
            await asyncio.gather(*(one.sync() for one in several))
    await asyncio.gather(*(one.sync() for one in several))
    report = await several[0].verify()
    assert (report.ok, report.records) == (True, 800)
    found = await several[0].read(AuditFilter(limit=1000))
    for number in range(4):
        one = [each.target for each in found if each.detail["node"] == f"node_{number}"]
        assert one == [f"t{target}" for target in range(200)]


async def test_a_daemon_that_starts_again_copies_what_is_left_and_nothing_twice(
    open_audit, tmp_path
):
    one = open_audit("node_1")
    for number in range(100):
        one.record(row(number, detail={"filler": "x" * 200}))
    await one.sync()
    await one.aclose()
    # Written by a process that had no time to copy it, for example an engine without a daemon.
    files = AuditDirectory(tmp_path / "node_1" / "audit", segment_bytes=4096)
    for number in range(100, 130):
        files.record(row(number))
    await files.aclose()
    again = open_audit("node_1")
    assert await targets(again) == [f"t{number}" for number in range(130)]


async def test_an_answer_that_was_lost_does_not_copy_twice(open_audit, monkeypatch):
    one = open_audit("node_1")
    one.record(row(1))
    append = one._append

    async def lose_the_answer(rows) -> None:
        await append(rows)
        raise BackendUnavailable("the answer was lost")

    monkeypatch.setattr(one, "_append", lose_the_answer)
    with pytest.raises(BackendUnavailable):
        await one.sync()
    monkeypatch.undo()
    one.record(row(2))
    assert await targets(one) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("sql", "flaw"),
    [
        ("UPDATE audit SET line = overlay(line PLACING 'x' FROM 30) WHERE seq = 3", (3, "changed")),
        ("DELETE FROM audit WHERE seq = 3", (3, "missing")),
        ("DELETE FROM audit WHERE seq = 5", (5, "truncated")),
        ("DELETE FROM audit WHERE seq = 1", (2, "missing")),
    ],
)
async def test_a_change_in_the_database_is_found(open_audit, database, sql, flaw):
    one = open_audit("node_1")
    for number in range(1, 6):
        one.record(row(number))
    await one.sync()
    assert await flaw_of(one) is None
    await database.execute(sql)
    if flaw is not None:
        assert await flaw_of(one) == flaw


async def test_a_chain_that_was_written_anew_is_found_by_the_daemon_that_kept_its_head(
    open_audit, database
):
    one = open_audit("node_1")
    for number in range(1, 6):
        one.record(row(number))
    await one.sync()
    await database.execute("DELETE FROM audit WHERE seq >= 4")
    found = (await database.fetch("SELECT line FROM audit WHERE seq = 3"))[0]["line"]
    last = row_of_line(bytes(found))
    await database.execute("UPDATE audit_head SET seq = 3, hash = $1", last.hash)
    assert await flaw_of(one) == (4, "truncated")
    assert await flaw_of(open_audit("node_2")) is None


async def test_a_change_in_the_files_of_a_daemon_is_found_there(open_audit, tmp_path):
    one = open_audit("node_1")
    for number in range(1, 4):
        one.record(row(number))
    await one.sync()
    (path,) = (tmp_path / "node_1" / "audit").glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"t2"', b'"t9"'))
    report = await one.verify()
    assert report.flaw is not None
    assert (report.flaw.seq, report.flaw.flaw) == (2, "changed")
    assert report.flaw.message.startswith("in the files of this daemon: ")


async def test_retention_cuts_the_start_and_the_rest_still_verifies(open_audit, database):
    one = open_audit("node_1", keep_s=100.0)
    for number in range(1, 201):
        one.record(row(number))
    # Copied late, by a daemon that was away.
    one.record(row(-500, target="late"))
    await one.sync()
    await one.prune(now=1000.0 + 250.0)
    assert (await targets(one))[0] == "t150"
    assert await flaw_of(one) is None
    report = await one.verify()
    assert (report.first_seq, report.last_seq) == (150, 202)
    small = open_audit("node_2", max_bytes=4000)
    await small.prune(now=1000.0)
    found = await database.fetch("SELECT sum(octet_length(line)) AS size FROM audit")
    assert found[0]["size"] <= 4000 + 500
    assert await flaw_of(small) is None
    size = await database.fetch("SELECT size_bytes AS size FROM audit_head")
    assert (
        size[0]["size"]
        == (await database.fetch("SELECT sum(octet_length(line)) AS size FROM audit"))[0]["size"]
    )


async def test_records_wait_in_files_while_the_database_is_unavailable(tmp_path):
    with PostgresServer(durable=True) as server:
        database = await PostgresDatabase.open(server.url, timeout_s=2.0)
        files = AuditDirectory(tmp_path / "audit")
        audit = PostgresAudit(database, "node_1", files, max_bytes=1 << 30, keep_s=DAY_S)
        try:
            server.kill()
            await audit.record_lasting(row(1))
            with pytest.raises(BackendUnavailable):
                await audit.read(AuditFilter())
            await asyncio.to_thread(server.start)
            assert await targets(audit) == ["t1"]
            assert await audit.verify([AuditHead(1, (await audit.sync()).hash)])
        finally:
            await audit.aclose()
            await database.aclose()
