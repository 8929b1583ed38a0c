"""Each piece of code leaves one row in the history and its records in the audit log, however it
ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import suppress
from dataclasses import replace

import pytest

from sandkasten.errors import CommandNotFound, ContextNotFound, KernelFailed, SandkastenError
from sandkasten.model.audit_records import AuditFilter, AuditRow
from sandkasten.model.commands.code_values import CodeRequest, ContextRequest
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import SandboxId
from sandkasten.model.journal_rows import CODE_BYTES
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports.spans import caller_key
from sandkasten_runtime.engine import session_journal
from sandkasten_runtime.engine.audit_trail import CODE_CHARS
from sandkasten_runtime.engine.code import code_record
from sandkasten_runtime.engine.commands import exec_past
from sandkasten_runtime.store.audit_directory import AuditDirectory
from sandkasten_runtime.store.record_rules import RecordingRules
from sandkasten_server.records.recording_directory import RecordingDirectory
from tests.engine.injections import GO, World
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P87")]

WAITS = f"""import os, time
print('begun', flush=True)
while not os.path.exists('{GO}'): time.sleep(0.01)"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """An engine with a journal, an audit log and recordings, and a sandbox."""

    def __init__(self, path) -> None:
        self.world = World(journal=MemoryJournal())
        self.engine = self.world.engine
        self.audit = AuditDirectory(path / "audit")
        self.recordings = RecordingDirectory(path / "recordings", RecordingRules(enabled=True), 60)
        self.engine.trail.log, self.engine.trail.recordings = self.audit, self.recordings
        self.box = ""

    async def run(self, code: str, **more):
        return await self.engine.code.run(self.box, CodeRequest(code, **more))

    async def rows(self, box: str | None = None):
        rows = await self.world.journal.execs(box or self.box, limit=1000)
        return [row for row in reversed(rows) if row.kind == "cell"]

    async def told(self, cell: str):
        """Return the records of the audit log about one cell."""
        return await self.audit.read(AuditFilter(target=cell))

    async def last(self):
        """Return the newest row, and how the audit log says that it ended."""
        row = (await self.rows())[-1]
        records = await self.told(row.id)
        assert [one for one in records if "code" in one.detail] == records[:1]
        (end,) = [one for one in records if one.action == "code.end"]
        assert end.outcome == row.status
        return row, end


@pytest.fixture(scope="module")
async def site(tmp_path_factory, anyio_backend):
    one = Site(tmp_path_factory.mktemp("cells"))
    one.box = (await one.engine.create(CreateRequest(tenant="acme"))).id
    yield one
    await one.engine.aclose()
    for the_id in await one.world.backend.real.owned():
        await one.world.backend.real.discard(the_id)


async def test_code_that_ends_is_one_row_with_language_context_key_and_duration(site):
    token = caller_key.set("key_1")
    try:
        result = await site.run("print('ä')\n40 + 2", env={"SECRET_NAME": "secret value"})
    finally:
        caller_key.reset(token)
    row, end = await site.last()
    assert (row.command, row.command_bytes, row.command_sha256) == ("print('ä')\n40 + 2", 18, None)
    assert (row.status, row.error_name, row.language) == ("completed", None, "python")
    assert (row.context_id, row.key_id, row.tenant) == (result.context_id, "key_1", "acme")
    assert (row.stdout_bytes, row.stderr_bytes, row.exit_code) == (3, 0, None)
    assert row.duration_ms >= 0
    assert end.usage["stdout_bytes"] == 3
    (shown, *_) = await site.told(row.id)
    assert (shown.kind, shown.key_id, shown.tenant) == ("exec", "key_1", "acme")
    expected = {"code": row.command, "language": "python", "context": result.context_id}
    assert shown.detail == {**expected, "env": "SECRET_NAME"}
    everything = b"".join([line async for line in site.audit.lines()]).decode() + repr(row)
    assert "secret value" not in everything


async def test_an_exception_has_its_name_and_not_its_value(site):
    await site.run("raise ValueError('the value')")
    row, end = await site.last()
    assert (row.status, row.error_name) == ("error", "ValueError")
    assert end.detail["error"] == "ValueError"
    assert "the value" not in json.dumps(dict(end.detail) | {"code": ""})


async def test_timeout_interrupt_restart_and_death_of_the_kernel_are_told_apart(site):
    await site.run("while True: pass", timeout_seconds=0.2)
    assert (await site.last())[0].status == "timed_out"

    for verb, status in (("interrupt", "interrupted"), ("restart", "killed")):
        count = len(await site.rows())
        shown = asyncio.Event()
        running = asyncio.create_task(
            site.engine.code.run(site.box, CodeRequest(WAITS), lambda _, shown=shown: shown.set())
        )
        await asyncio.wait_for(shown.wait(), PATIENCE_S)
        (row,) = (await site.rows())[count:]
        assert row.status == "running"
        await getattr(site.engine.code, verb)(site.box, row.context_id)
        await running
        assert (await site.last())[0].status == status

    await site.run("import os; os._exit(3)")
    row, end = await site.last()
    assert (row.status, row.error_name, end.detail["error"]) == (
        "killed",
        "KernelDied",
        "KernelDied",
    )


async def test_a_caller_that_leaves_interrupts_its_code_and_the_row_says_so(site):
    shown = asyncio.Event()
    running = asyncio.create_task(
        site.engine.code.run(site.box, CodeRequest(WAITS), lambda _: shown.set())
    )
    await asyncio.wait_for(shown.wait(), PATIENCE_S)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert (await site.last())[0].status == "interrupted"


async def test_a_caller_that_leaves_after_the_end_leaves_the_status_of_the_code(site, monkeypatch):
    asked = asyncio.Event()

    async def slow(*_):
        asked.set()
        await asyncio.Event().wait()

    for code, status, name in (("1", "completed", None), ("1 / 0", "error", "ZeroDivisionError")):
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(code_record, "refused_between", slow)
            running = asyncio.create_task(site.engine.code.run(site.box, CodeRequest(code)))
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        row, _ = await site.last()
        assert (row.status, row.error_name) == (status, name)


async def test_code_whose_context_is_removed_is_killed(site):
    context = await site.engine.code.create(site.box, ContextRequest())
    shown = asyncio.Event()
    running = asyncio.create_task(
        site.engine.code.run(
            site.box, CodeRequest(WAITS, context=context.id), lambda _: shown.set()
        )
    )
    await asyncio.wait_for(shown.wait(), PATIENCE_S)
    await site.engine.code.remove(site.box, context.id)
    with pytest.raises(KernelFailed):
        await running
    row, _ = await site.last()
    assert (row.status, row.error_name, row.context_id) == ("killed", "KERNEL_FAILED", context.id)


async def test_code_that_was_not_run_has_the_error_of_its_call(site):
    with pytest.raises(ContextNotFound):
        await site.run("1", context=f"ctx_python_{'0' * 16}")
    row, end = await site.last()
    assert (row.status, row.error_name) == ("error", "CONTEXT_NOT_FOUND")
    assert end.detail["error"] == "CONTEXT_NOT_FOUND"


async def test_long_code_is_shortened_with_its_size_and_its_hash(site):
    code = "x = 1\n" * 10_000
    await site.run(code)
    row, _ = await site.last()
    digest = hashlib.sha256(code.encode()).hexdigest()
    assert (row.command, row.command_bytes) == (code[:CODE_BYTES], len(code))
    assert row.command_sha256 == digest
    (shown, *_) = await site.told(row.id)
    assert shown.detail["code"].startswith(code[:CODE_CHARS])
    assert len(shown.detail["code"]) < CODE_CHARS + 20
    assert (shown.detail["code_bytes"], shown.detail["code_sha256"]) == (str(len(code)), digest)


async def test_a_secret_in_code_is_not_in_the_audit_log(site):
    await site.run("token = 'sk-0123456789abcdef0123456789'")
    row, _ = await site.last()
    (shown, *_) = await site.told(row.id)
    assert shown.detail["code"] == "token = [redacted]"


async def test_a_recording_has_text_and_the_names_of_other_forms(site):
    await site.run(
        "print('printed')\n"
        "data = {'image/png': 'iVBO' + 'Rw0K', 'text/html': '<b>', 'text/plain': 'a plot'}\n"
        "display(data, raw=True)\n"
        "1 / 0"
    )
    row, _ = await site.last()
    head, *events = map(
        json.loads, (await site.recordings.read(site.box, row.id)).decode().splitlines()
    )
    text = "".join(one[2] for one in events)
    assert head["title"] == row.command
    assert text.startswith("printed\na plot\n[html, png]\n")
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "iVBORw0K" not in text


async def test_the_kernel_is_one_readable_row_and_shows_no_messages(site):
    context = (await site.run("1")).context_id
    row = await site.world.journal.exec(site.box, context)
    assert (row.kind, row.command, row.status) == ("kernel", "python kernel", "running")
    assert (row.language, row.context_id) == ("python", context)
    (entry,) = [one for one in await site.engine.execs(site.box) if one.exec_id == context]
    assert (entry.kind, entry.stdout_bytes, entry.output_kept) == ("kernel", 0, False)
    assert (await site.engine.exec_get(site.box, context)).output == b""
    output = [one async for one in site.engine.exec_output(site.box, context)]
    assert [one.exec_id for one in output] == [context]
    assert await site.recordings.read(site.box, context) is None
    with pytest.raises(SandkastenError, match="does not accept input"):
        await site.engine.exec_stdin(site.box, context, b'{"op": "run"}\n')
    words = [one.cmdline for one in await site.engine.processes(site.box) if one.exec_id == context]
    assert not any("import json" in word for line in words for word in line)


async def test_only_code_that_runs_counts_as_running(site):
    await site.run("1")
    history = site.engine._history
    assert history.running(site.box) == []
    shown = asyncio.Event()
    running = asyncio.create_task(
        site.engine.code.run(site.box, CodeRequest(WAITS), lambda _: shown.set())
    )
    await asyncio.wait_for(shown.wait(), PATIENCE_S)
    assert [row.command for row in history.running(site.box)] == [WAITS]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert history.running(site.box) == []


async def test_code_of_a_process_that_died_is_lost_and_recorded_by_the_next_one(site):
    shown = asyncio.Event()
    count = len(await site.rows())
    running = asyncio.create_task(
        site.engine.code.run(site.box, CodeRequest(WAITS), lambda _: shown.set())
    )
    await asyncio.wait_for(shown.wait(), PATIENCE_S)
    (row,) = (await site.rows())[count:]
    another = site.world.another()
    another.trail.log = site.audit
    await another.recover()
    lost = await site.world.journal.exec(site.box, row.id)
    assert (lost.status, lost.command) == ("lost", WAITS)
    (end,) = [one for one in await site.told(row.id) if one.action == "code.end"]
    assert (end.outcome, end.detail["recovered"], end.detail["code"]) == ("lost", "true", WAITS)
    await another.aclose()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_a_journal_the_audit_log_has_the_code_for_other_processes(tmp_path):
    world = World()
    audit = AuditDirectory(tmp_path / "audit")
    world.engine.trail.log = audit
    box = (await world.engine.create(CreateRequest())).id
    await world.engine.code.run(box, CodeRequest("a = 1\na"))
    another = world.another()
    another.trail.log = audit
    for engine in (world.engine, another):
        entries = await engine.execs(box)
        (cell,) = [one for one in entries if one.kind == "cell"]
        assert (cell.command, cell.status, cell.language) == ("a = 1\na", "completed", "python")
        assert [one.command for one in entries if one.kind == "kernel"] == ["python kernel"]
    await another.aclose()
    await world.engine.aclose()
    for the_id in await world.backend.real.owned():
        await world.backend.real.discard(the_id)


async def test_a_command_that_could_not_start_is_not_in_the_history_of_the_audit_log(tmp_path):
    world = World()
    world.engine.trail.log = audit = AuditDirectory(tmp_path / "audit")
    box = (await world.engine.create(CreateRequest())).id
    with pytest.raises(CommandNotFound):
        await world.engine.exec(box, ExecRequest(("no-such-program",)))
    await world.engine.exec(box, ExecRequest(("true",)))
    ends = [
        one.outcome for one in await audit.read(AuditFilter(kind="exec")) if "end" in one.action
    ]
    assert ends == ["COMMAND_NOT_FOUND", "completed"]
    record = await world.store.get(SandboxId(box))
    assert record is not None
    rows = await exec_past.audited(audit, record, 100)
    assert [(one.command, one.status) for one in rows] == [("true", "completed")]
    await world.engine.aclose()


@pytest.mark.parametrize("by", ["recovery", "watch"])
async def test_an_adopted_sandbox_keeps_the_commands_and_code_of_the_audit_log(tmp_path, by):
    """They ran without a journal. The daemon has a journal that does not have the sandbox."""
    world = World()
    audit = AuditDirectory(tmp_path / "audit")
    before = world.engine
    before.trail.log = audit
    box = (await before.create(CreateRequest())).id
    other = (await before.create(CreateRequest())).id
    await before.exec(other, ExecRequest(("true",)))
    await before.exec(box, ExecRequest(("sh", "-c", "echo one; exit 3")))
    await before.code.run(box, CodeRequest("a = 1\na"))
    await before.code.run(box, CodeRequest("1 / 0"))
    foreign = AuditRow(0, world.clock.now(), "another", None, "exec.end", "exe_1", "completed")
    foreign = replace(foreign, detail={"command": "x"}, kind="exec", session_id=box)
    audit.record(foreign)
    audit.record(replace(foreign, target="exe_2", tenant="default", outcome="COMMAND_NOT_FOUND"))
    known = await before.execs(box)
    assert [one.command for one in known if one.kind == "cell"] == ["a = 1\na", "1 / 0"]
    await before.aclose()

    world.journal = MemoryJournal()
    after = world.another()
    after.trail.log = AuditDirectory(tmp_path / "audit")
    # Without recovery: the daemon ran already when another process made the sandbox.
    await (after.recover() if by == "recovery" else after._watch.round())
    entries = await after.execs(box)
    assert [_shown(one) for one in entries] == [_shown(one) for one in known]
    # The sandbox has ended, and the journal alone remembers.
    await after.destroy(box)
    rows = {row.command: row for row in await world.journal.execs(box)}
    assert not {"x", "true"} & rows.keys()
    row = rows["sh -c 'echo one; exit 3'"]
    assert (row.status, row.exit_code, row.stdout_bytes) == ("completed", 3, 4)
    assert row.cpu_ms is not None
    assert rows["1 / 0"].error_name == "ZeroDivisionError"
    await after.aclose()
    for the_id in await world.backend.real.owned():
        await world.backend.real.discard(the_id)


def _shown(entry):
    return entry.exec_id, entry.kind, entry.command, entry.status, entry.error_name


async def test_at_most_the_newest_commands_of_a_sandbox_are_adopted(tmp_path, monkeypatch):
    world = World()
    audit = AuditDirectory(tmp_path / "audit")
    world.engine.trail.log = audit
    box = (await world.engine.create(CreateRequest())).id
    for number in range(5):
        await world.engine.exec(box, ExecRequest(("echo", str(number))))
    await world.engine.aclose()
    monkeypatch.setattr(session_journal, "MOST_LISTED", 3)
    world.journal = MemoryJournal()
    after = world.another()
    after.trail.log = AuditDirectory(tmp_path / "audit")
    await after.recover()
    rows = [row.command for row in reversed(await world.journal.execs(box)) if row.command]
    assert rows == ["echo 2", "echo 3", "echo 4"]
    await after.aclose()
    for the_id in await world.backend.real.owned():
        await world.backend.real.discard(the_id)


async def test_without_journal_and_audit_log_this_process_remembers_its_code(world, box):
    await world.engine.code.run(box, CodeRequest("1 / 0"))
    (cell,) = [one for one in await world.engine.execs(box) if one.kind == "cell"]
    assert (cell.command, cell.status, cell.error_name) == ("1 / 0", "error", "ZeroDivisionError")


async def test_a_terminal_is_one_row_also_if_its_caller_leaves(site):
    async with site.engine.terminal(site.box, command=("echo", "to its end")) as terminal:
        await terminal.result()
    async with site.engine.terminal(site.box, command=("sleep", "600")):
        pass
    async with asyncio.timeout(PATIENCE_S):
        while True:
            rows = [
                row
                for row in await site.world.journal.execs(site.box, limit=1000)
                if row.command in ("echo 'to its end'", "sleep 600")
            ]
            if all(row.status != "running" for row in rows):
                break
            await asyncio.sleep(0.01)
    assert [row.status for row in rows] == ["killed", "completed"]
    for row in rows:
        records = await site.told(row.id)
        assert [one.detail["command"] for one in records if "command" in one.detail] == [
            row.command
        ]
        assert [one.outcome for one in records if one.action == "exec.end"] == [row.status]
