"""What the engine records in its journal: sessions, their ends, and commands."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    CommandNotFound,
    QuotaExceeded,
    SessionExpired,
    SessionNotFound,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from tests.engine.injections import GO, UNTIL_GO, World
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal

pytestmark = pytest.mark.anyio


class FullJournal(MemoryJournal):
    """A journal whose disk fills up on request."""

    def __init__(self) -> None:
        super().__init__()
        self.full: set[str] = set()

    def _check(self, verb: str) -> None:
        if verb in self.full:
            raise QuotaExceeded("no space left")

    async def begin_session(self, row):
        self._check("begin")
        await super().begin_session(row)

    async def session_runs(self, session_id):
        self._check("runs")
        await super().session_runs(session_id)

    async def end_session(self, session_id, status, at, reason=""):
        self._check("end")
        await super().end_session(session_id, status, at, reason)


async def until(check) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await check():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.promise("P33")
async def test_a_session_is_in_the_journal_before_the_ledger_and_runs_afterwards(journaled):
    seen: list[tuple[str | None, str | None]] = []
    put, runs = journaled.store.put, journaled.journal.session_runs

    async def watched_put(record):
        row = await journaled.journal.session(record.id)
        seen.append((record.state.value, None if row is None else row.status))
        await put(record)

    async def watched_runs(session_id):
        seen.append(("session_runs", (await journaled.store.get(session_id)).state.value))
        await runs(session_id)

    journaled.store.put, journaled.journal.session_runs = watched_put, watched_runs
    request = CreateRequest(
        SandboxOptions(labels={"a": "1"}, workspace_id="w"),
        session_key="k@x",
        tenant="acme",
        key_id="key_1",
    )
    info = await journaled.engine.create(request)
    assert seen == [
        ("creating", "creating"),
        ("running", "creating"),
        ("session_runs", "running"),
    ]
    row = await journaled.journal.session(info.id)
    assert (row.tenant, row.status, row.session_key, row.workspace_id) == (
        "acme",
        "running",
        "k@x",
        "w",
    )
    assert (row.labels, row.key_id, row.created_at) == ({"a": "1"}, "key_1", info.created_at)


async def test_a_destroyed_session_is_reported_to_its_own_tenant_only(journaled):
    info = await journaled.engine.create(CreateRequest(tenant="acme"))
    await journaled.engine.check_owner(info.id, "acme")
    await journaled.engine.destroy(info.id)
    row = await journaled.journal.session(info.id)
    assert (row.status, row.reason) == ("destroyed", "")
    assert row.ended_at is not None
    with pytest.raises(SessionExpired) as gone:
        await journaled.engine.check_owner(info.id, "acme")
    assert gone.value.details["status"] == "destroyed"
    for tenant in ("default", "other"):
        with pytest.raises(SessionNotFound) as unknown:
            await journaled.engine.check_owner(info.id, tenant)
        assert unknown.value.details == {}
    with pytest.raises(SessionExpired):
        await journaled.engine.destroy(info.id)


@pytest.mark.promise("P33")
async def test_the_end_is_recorded_before_the_row_is_removed(journaled):
    info = await journaled.engine.create(CreateRequest())
    drop = journaled.store.drop
    statuses: list[str] = []

    async def watched(sandbox_id, record=None):
        statuses.append((await journaled.journal.session(sandbox_id)).status)
        await drop(sandbox_id, record)

    journaled.store.drop = watched
    await journaled.engine.destroy(info.id)
    assert statuses == ["destroyed"]


async def test_a_create_that_fails_ends_in_the_journal_with_the_reason(journaled):
    async def fail() -> None:
        raise BackendUnavailable("the host is full")

    journaled.backend.gate.before_create = fail
    with pytest.raises(BackendUnavailable):
        await journaled.engine.create(CreateRequest())
    (row,) = await journaled.journal.sessions(None)
    assert (row.status, row.reason) == ("destroyed", "it could not be made: the host is full")
    assert await journaled.left() == ([], [])


@pytest.mark.promise("P34")
async def test_a_full_journal_starts_no_session_and_keeps_no_sandbox():
    journal: Any = FullJournal()
    world = World(journal=journal)
    for verb in ("begin", "runs"):
        journal.full = {verb}
        with pytest.raises(QuotaExceeded):
            await world.engine.create(CreateRequest())
        assert await world.left() == ([], [])
    journal.full = set()
    info: Any = await world.engine.create(CreateRequest())
    journal.full = {"end"}
    # A full disk must not keep a sandbox alive; its end is written when there is room again.
    await world.engine.destroy(info.id)
    assert await world.left() == ([], [])
    assert (await journal.session(info.id)).ended_at is None
    with pytest.raises(SessionExpired):
        await world.engine.check_owner(info.id, "default")
    journal.full = set()
    await world.engine._watch.round()
    assert (await journal.session(info.id)).status == "destroyed"
    await world.engine.aclose()


async def test_a_one_shot_is_recorded_as_a_destroyed_session():
    journal = MemoryJournal()
    world = World(journal=journal, pool=PoolRules(max_per_kind=1, idle_s=90))
    for _ in range(3):
        request = RunRequest("exit 3", runtime="sh", tenant="acme", key_id="key_1")
        assert (await world.engine.run(request)).exit_code == 3
        await asyncio.sleep(0.02)
    await world.engine.aclose()
    rows = await journal.sessions(None)
    assert [(row.tenant, row.status, row.key_id) for row in rows] == [
        ("acme", "destroyed", "key_1")
    ] * 3
    for row in rows:
        (command,) = await journal.execs(row.id)
        assert (command.status, command.exit_code, command.tenant) == ("completed", 3, "acme")


async def test_a_command_is_recorded_at_its_start_and_end(journaled):
    engine, journal = journaled.engine, journaled.journal
    info = await engine.create(CreateRequest(tenant="acme"))
    running = asyncio.create_task(engine.exec(info.id, ExecRequest(f"{UNTIL_GO}; exit 4")))

    async def begun() -> bool:
        return bool(await journal.execs(info.id))

    await until(begun)
    (row,) = await journal.execs(info.id)
    assert (row.command, row.status, row.tenant) == (f"{UNTIL_GO}; exit 4", "running", "acme")
    await engine.files.write(info.id, GO, b"")
    result = await running
    (row,) = await journal.execs(info.id)
    assert (row.id, row.status, row.exit_code) == (result.exec_id, "completed", 4)
    assert (row.shell, row.started_at) == ("default", result.started_at)
    assert row.duration_ms == result.duration_ms
    result = await engine.exec(info.id, ExecRequest(("echo", "a b", "x" * 5000)))
    row = await journal.exec(info.id, result.exec_id)
    assert row.command.startswith("echo 'a b' xxx")
    assert len(row.command) == 4096
    assert (row.shell, row.stdout_bytes) == (None, 5005)


async def test_a_command_that_could_not_run_is_not_recorded(journaled):
    info = await journaled.engine.create(CreateRequest())
    with pytest.raises(CommandNotFound):
        await journaled.engine.exec(info.id, ExecRequest(("no-such-program",)))
    assert [row.status for row in await journaled.journal.execs(info.id)] == []


@pytest.mark.promise("P32")
async def test_a_background_command_is_recorded_until_its_end(journaled):
    info = await journaled.engine.create(CreateRequest())
    started = [
        await journaled.engine.exec_start(
            info.id, ExecRequest(("sh", "-c", f"{UNTIL_GO}; sleep 0.0{n}"))
        )
        for n in (3, 2, 1)
    ]

    async def over() -> bool:
        rows = await journaled.journal.execs(info.id)
        return len(rows) == 3 and all(row.status == "completed" for row in rows)

    assert {row.status for row in await journaled.journal.execs(info.id)} == {"running"}
    await journaled.engine.files.write(info.id, GO, b"")
    await until(over)
    rows = {row.id: row for row in await journaled.journal.execs(info.id)}
    assert {one.exec_id for one in started} == set(rows)


@pytest.mark.promise("P38")
async def test_a_terminal_is_recorded_from_its_start_to_its_end(journaled):
    info = await journaled.engine.create(CreateRequest())
    command = ("sh", "-c", f"{UNTIL_GO}; exit 3")
    exec_id = await journaled.engine.terminals.start(info.id, command=command)
    (row,) = await journaled.journal.execs(info.id)
    assert (row.id, row.status, row.command) == (exec_id, "running", shlex.join(command))
    await journaled.engine.files.write(info.id, GO, b"")

    async def ended() -> bool:
        (row,) = await journaled.journal.execs(info.id)
        return row.status == "completed" and row.exit_code == 3

    await until(ended)


@pytest.mark.promise("P32")
async def test_a_command_whose_caller_disconnected_is_recorded_until_its_end(journaled):
    info = await journaled.engine.create(CreateRequest())
    waiting = asyncio.create_task(
        journaled.engine.exec(info.id, ExecRequest(f"echo a; {UNTIL_GO}"))
    )
    streamed = ExecRequest(("sh", "-c", f"echo b; {UNTIL_GO}"))
    async for _ in journaled.engine.exec_stream(info.id, streamed):
        break
    queued = asyncio.create_task(journaled.engine.exec(info.id, ExecRequest("echo queued")))

    async def all_begun() -> bool:
        return len(await journaled.engine.execs(info.id)) == 3

    await until(all_begun)
    for task in (waiting, queued):
        task.cancel()
    await journaled.engine.files.write(info.id, GO, b"")

    async def over() -> bool:
        rows = await journaled.journal.execs(info.id)
        return len(rows) == 3 and all(row.status == "completed" for row in rows)

    await until(over)


async def test_running_commands_of_a_session_that_ends_are_lost(journaled):
    info = await journaled.engine.create(CreateRequest())
    started = await journaled.engine.exec_start(info.id, ExecRequest(("sleep", "60")))
    await journaled.engine.destroy(info.id)
    assert (await journaled.journal.exec(info.id, started.exec_id)).status == "lost"
    assert await journaled.left() == ([], [])


async def test_a_repeated_idempotency_key_is_recorded_as_one_command(journaled):
    info = await journaled.engine.create(CreateRequest())
    request = ExecRequest(("echo", "x"), idempotency_key="once")
    first = await journaled.engine.exec(info.id, request)
    again = await journaled.engine.exec(info.id, request)
    assert first.exec_id == again.exec_id
    (row,) = await journaled.journal.execs(info.id)
    assert (row.id, row.status) == (first.exec_id, "completed")


async def test_without_a_journal_a_destroyed_sandbox_is_unknown(world, box):
    await world.engine.destroy(box)
    with pytest.raises(SessionNotFound):
        await world.engine.check_owner(box, "default")


async def test_a_key_whose_sandbox_crashed_gets_a_new_one_and_the_old_one_is_marked(journaled):
    request = CreateRequest(session_key="k")
    old = await journaled.engine.create(request)
    await journaled.backend.cells[old.id].real.crash()
    await asyncio.sleep(0.01)
    new = await journaled.engine.create(request)
    assert (new.created, new.id != old.id) == (True, True)
    assert (await journaled.journal.session(old.id)).status == "crashed"
    assert (await journaled.store.get(new.id)).state is State.RUNNING


async def test_a_background_command_emits_the_same_event_as_any_other(journaled):
    info = await journaled.engine.create(CreateRequest())
    await journaled.engine.exec(info.id, ExecRequest(("sh", "-c", "echo 12; exit 3")))
    began = await journaled.engine.exec_start(info.id, ExecRequest(("sh", "-c", "echo 12; exit 3")))

    def finished() -> list[dict[str, object]]:
        return [fields for event, fields in journaled.events.seen if event == "exec.finished"]

    async def told() -> bool:
        return len(finished()) == 2

    await until(told)
    waited, alone = finished()
    assert alone["exec"] == began.exec_id
    different = {"exec", "seconds"}
    assert {k: v for k, v in alone.items() if k not in different} == {
        "sandbox": info.id,
        "status": "completed",
        "exit_code": 3,
        "stdout_bytes": 3,
        "stderr_bytes": 0,
    }
    assert waited.keys() == alone.keys()
