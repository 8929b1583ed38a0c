"""The contract of every journal. Add a kind to `journal` to test it, or take the tests of this
module with a fixture of that name (`tests.contract_cases`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.audit_records import AuditHead
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.journal_rows import CODE_BYTES, ExecRow, SessionRow
from sandkasten.model.sandbox.network_refusals import Refusal
from sandkasten_server.records.sqlite.database import Database
from sandkasten_server.records.sqlite.sqlite_journal import sqlite_journal
from tests.store.memory_store import MemoryJournal

if TYPE_CHECKING:
    from sandkasten.ports import Journal

pytestmark = pytest.mark.promise("P34")

YEARS_S = 10 * 365 * 86_400.0


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    opened: Journal
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            database = await Database.open(tmp_path / "journal.db")
            stack.push_async_callback(database.aclose)
            opened = sqlite_journal(database)
        else:
            opened = MemoryJournal()
        stack.push_async_callback(opened.aclose)
        yield opened


def session(number: int, *, tenant: str = "default", at: float | None = None) -> SessionRow:
    return SessionRow(
        id=f"sbx_{number:016x}",
        tenant=tenant,
        image="host",
        backend="local",
        created_at=1000.0 + number if at is None else at,
    )


def command(number: int, *, status: str = "running") -> ExecRow:
    return ExecRow(
        id=f"exec_{number:016x}",
        session_id=session(1).id,
        tenant="default",
        command="sleep 1",
        status=status,  # type: ignore[arg-type]
        started_at=1000.0 + number,
    )


async def ids(journal: Journal, tenant: str | None, **how: object) -> list[str]:
    return [row.id for row in await journal.sessions(tenant, **how)]  # type: ignore[arg-type]


async def test_a_session_starts_runs_and_ends_once(journal):
    row = replace(
        session(1),
        session_key="k",
        workspace_id="w",
        labels={"team": "ä"},
        key_id="key_1",
    )
    await journal.begin_session(row)
    assert await journal.session(row.id) == row
    await journal.session_runs(row.id)
    assert await journal.session(row.id) == replace(row, status="running")
    await journal.end_session(row.id, "crashed", 1100.0, "it was killed")
    await journal.end_session(row.id, "destroyed", 1200.0)
    await journal.session_runs(row.id)
    ended = replace(row, status="crashed", ended_at=1100.0, reason="it was killed")
    assert await journal.session(row.id) == ended


async def test_a_session_that_was_never_started_is_unknown_and_cannot_end(journal):
    await journal.session_runs(session(1).id)
    await journal.end_session(session(1).id, "lost", 1.0)
    assert await journal.session(session(1).id) is None
    assert await journal.sessions(None) == []


async def test_starting_a_session_again_replaces_its_row_until_it_has_ended(journal):
    row = replace(session(1), status="running", labels={"a": "1"})
    await journal.begin_session(row)
    await journal.begin_session(replace(row, labels={"a": "2"}))
    assert (await journal.session(row.id)).labels == {"a": "2"}
    await journal.end_session(row.id, "destroyed", 1100.0)
    await journal.begin_session(replace(row, labels={"a": "3"}))
    found = await journal.session(row.id)
    assert (found.status, found.labels) == ("destroyed", {"a": "2"})


async def test_sessions_are_listed_newest_first_by_tenant_and_status(journal):
    for number in range(1, 5):
        await journal.begin_session(session(number, tenant="a" if number % 2 else "b"))
    await journal.end_session(session(3).id, "expired", 2000.0)
    assert await ids(journal, None) == [session(n).id for n in (4, 3, 2, 1)]
    assert await ids(journal, "a") == [session(3).id, session(1).id]
    assert await ids(journal, "a", status="expired") == [session(3).id]
    assert await ids(journal, "b", status="expired") == []
    assert await ids(journal, "c") == []
    assert {row.id for row in await journal.open_sessions()} == {session(n).id for n in (1, 2, 4)}


async def test_pages_contain_every_session_once_also_with_equal_timestamps(journal):
    for number in range(7):
        await journal.begin_session(session(number, at=1000.0 + number // 3))
    whole = await ids(journal, None)
    assert len(whole) == 7
    pages: list[str] = []
    before = None
    while page := await ids(journal, None, limit=2, before=before):
        pages += page
        before = page[-1]
    assert pages == whole
    assert await ids(journal, None, before="sbx_ffffffffffffffff") == []


async def test_a_command_is_recorded_updated_and_ended_with_its_session(journal):
    await journal.begin_session(session(1))
    journal.note_exec(command(1))
    journal.note_exec(command(2))
    await journal.flush()
    done = replace(
        command(1),
        status="completed",
        exit_code=3,
        duration_ms=12,
        cpu_ms=4,
        peak_memory_bytes=1 << 33,
        stdout_bytes=5,
        stderr_bytes=6,
        why="OOM",
        shell="default",
    )
    journal.note_exec(done)
    await journal.flush()
    assert await journal.execs(session(1).id) == [command(2), done]
    assert await journal.exec(session(1).id, done.id) == done
    assert await journal.exec(session(2).id, done.id) is None
    await journal.end_session(session(1).id, "crashed", 1100.0)
    assert await journal.exec(session(1).id, done.id) == done
    assert (await journal.exec(session(1).id, command(2).id)).status == "lost"


async def test_a_cell_is_kept_with_everything_that_is_known_of_it(journal):
    refused = Refusal("example.com", 443, "default", "allow it", "192.0.2.1")
    cell = replace(
        command(1),
        id="cel_0123456789abcdef",
        command="x = 1\nprint('ä')",
        status="error",
        kind="cell",
        language="python",
        context_id="ctx_python_default_0123456789abcdef",
        command_bytes=17,
        command_sha256="0" * 64,
        error_name="ValueError",
        key_id="key_1",
        network=ExecNetwork((refused,)),
    )
    # What a sandbox chose, and no database takes as it is.
    long = replace(command(2), command="y" * 100_000, error_name="a\udc80")
    await journal.begin_session(session(1))
    journal.note_exec(cell)
    journal.note_exec(long)
    await journal.flush()
    assert await journal.exec(session(1).id, cell.id) == cell
    kept = await journal.exec(session(1).id, long.id)
    if not isinstance(journal, MemoryJournal):
        assert (len(kept.command), kept.error_name) == (CODE_BYTES, "a?")


async def test_a_command_recorded_just_before_the_end_is_not_left_running(journal):
    await journal.begin_session(session(1))
    journal.note_exec(command(1))
    await journal.end_session(session(1).id, "destroyed", 1100.0)
    await journal.flush()
    assert (await journal.exec(session(1).id, command(1).id)).status == "lost"


async def test_commands_are_paged_newest_first(journal):
    await journal.begin_session(session(1))
    for number in range(5):
        journal.note_exec(command(number, status="completed"))
    await journal.flush()
    first = await journal.execs(session(1).id, limit=2)
    assert [row.id for row in first] == [command(4).id, command(3).id]
    rest = await journal.execs(session(1).id, before=first[-1].id)
    assert [row.id for row in rest] == [command(n).id for n in (2, 1, 0)]
    assert await journal.execs(session(1).id, before="exec_ffffffffffffffff") == []


async def test_the_newest_hash_of_the_audit_log_is_kept(journal):
    assert await journal.audit_head() is None
    await journal.keep_audit_head(AuditHead(1, "a" * 64))
    await journal.keep_audit_head(AuditHead(2, "b" * 64))
    assert await journal.audit_head() == AuditHead(2, "b" * 64)


async def test_rows_past_their_retention_are_removed_and_open_ones_kept(journal):
    await journal.begin_session(session(1))
    await journal.begin_session(session(2))
    journal.note_exec(command(1))
    await journal.end_session(session(1).id, "destroyed", 1100.0)
    await journal.flush()
    assert await journal.prune(1101.0) == 0
    assert await journal.prune(1100.0 + YEARS_S) >= 1
    assert await journal.session(session(1).id) is None
    assert await journal.execs(session(1).id) == []
    assert (await journal.session(session(2).id)).status == "creating"


async def test_traffic_is_counted_by_day_and_never_twice(journal):
    await journal.begin_session(session(1))
    one, other = session(1).id, session(2).id
    for day, total in ((10, 100), (10, 250), (10, 250), (11, 300), (10, 200), (11, 290)):
        await journal.note_traffic(one, "acme", day, total)
    await journal.note_traffic(other, "acme", 11, 7)
    await journal.note_traffic(session(3).id, "default", 11, 1000)
    assert [await journal.traffic("acme", day) for day in (9, 10, 11)] == [0, 250, 57]
    assert await journal.traffic("default", 11) == 1000


async def test_a_late_record_does_not_revive_an_ended_command(journal):
    await journal.begin_session(session(1))
    done = replace(command(1), status="completed", exit_code=0)
    journal.note_exec(done)
    await journal.flush()
    await journal.end_session(session(1).id, "destroyed", 1100.0)
    journal.note_exec(command(2))
    await journal.flush()
    assert (await journal.exec(session(1).id, command(2).id)).status == "lost"
    assert await journal.exec(session(1).id, command(1).id) == done
