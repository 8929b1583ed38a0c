"""Runs in files and in PostgreSQL: torn writes, claims, and lists."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from sandkasten.errors import Busy, Conflict, QuotaExceeded, RunNotFound
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.runs.run_values import RunRow, RunUsage
from sandkasten_runtime.store.run_directory import RunDirectory

ROW = RunRow(
    id="run_0000000000000001",
    kind="workflow",
    name="tidy",
    created_at=1.0,
    tenant="acme",
    input={"wörter": ["a", None, 2.5]},
    usage=RunUsage(3, 2, 10, 20),
    quota=TenantQuota(max_sessions=2),
    source="id: tidy\n",
    state={"at": "second", "context": {"steps": {}}},
)


@pytest.fixture
def runs(tmp_path):
    return RunDirectory(tmp_path / "runs")


@pytest.fixture
def each_runs(tmp_path):
    """Return the runs of two processes."""
    return [RunDirectory(tmp_path / "runs") for _ in range(2)]


@pytest.mark.promise("P46")
async def test_a_run_survives_a_round_trip(each_runs):
    runs, _ = each_runs
    await runs.begin(ROW)
    assert await runs.get(ROW.id) == ROW
    ended = replace(ROW, status="failed", ended_at=9.0, error={"code": "X", "message": "m"})
    await runs.save(ended)
    assert await runs.get(ROW.id) == ended
    with pytest.raises(Conflict):
        await runs.begin(ROW)


async def test_an_unknown_run_is_not_found(each_runs):
    runs, _ = each_runs
    for strange in ("run_1", "../escape", "", "a" * 65, "run/../x", "."):
        assert await runs.get(strange) is None
        assert list(await runs.events(strange)) == []
        with pytest.raises(RunNotFound):
            await runs.save(replace(ROW, id=strange))
        with pytest.raises(RunNotFound):
            await runs.note(strange, "x", {})
    assert list(await runs.list(None)) == []
    assert await runs.prune(10**12) == 0


@pytest.mark.promise("P69")
async def test_a_torn_write_of_a_run_keeps_the_old_row(runs, tmp_path, monkeypatch):
    await runs.begin(ROW)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QuotaExceeded):
        await runs.save(replace(ROW, status="completed"))
    monkeypatch.undo()
    assert await RunDirectory(tmp_path / "runs").get(ROW.id) == ROW
    assert sorted(os.listdir(tmp_path / "runs" / ROW.id)) == ["row.json"]


@pytest.mark.promise("P69")
async def test_a_torn_event_is_removed_and_its_number_reused(runs, tmp_path):
    await runs.begin(ROW)
    first = await runs.note(ROW.id, "run.started", {"text": "ein\nzwei\u2028drei"})
    path = tmp_path / "runs" / ROW.id / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"seq": 2, "at": 1.0, "type": "to')
    assert list(await runs.events(ROW.id)) == [first]
    # A process that never wrote to it, and the one that did before.
    for number, writer in ((2, RunDirectory(tmp_path / "runs")), (3, runs)):
        assert (await writer.note(ROW.id, "later", {})).seq == number
    assert [one.seq for one in await runs.events(ROW.id)] == [1, 2, 3]
    assert [one.seq for one in await runs.events(ROW.id, since_seq=1, limit=1)] == [2]


@pytest.mark.parametrize("cut", [1, 7, 40])
async def test_truncating_the_event_file_anywhere_leaves_complete_events(runs, tmp_path, cut):
    await runs.begin(ROW)
    for number in range(5):
        await runs.note(ROW.id, "step", {"n": number})
    path = tmp_path / "runs" / ROW.id / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    kept = [one.seq for one in await runs.events(ROW.id)]
    assert kept == [1, 2, 3, 4]
    assert (await runs.note(ROW.id, "step", {})).seq == 5


async def test_concurrent_writers_use_each_event_number_once(each_runs):
    runs, other = each_runs
    await runs.begin(ROW)
    await asyncio.gather(*(one.note(ROW.id, "x", {}) for one in (runs, other) * 10))
    assert [one.seq for one in await runs.events(ROW.id)] == list(range(1, 21))


async def test_a_claim_has_one_holder_and_ends_with_its_process(runs, tmp_path):
    await runs.begin(ROW)
    path = tmp_path / "runs" / ROW.id / "claim"
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(fd, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(  # noqa: ASYNC220  (it is there before the test goes on)
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    async with runs.claim(ROW.id) as ours:
        assert not ours
    holder.kill()
    holder.communicate()
    async with runs.claim(ROW.id) as ours, RunDirectory(tmp_path / "runs").claim(ROW.id) as others:
        assert (ours, others) == (True, False)
    async with runs.claim("run_00000000000000ff") as ours:
        assert not ours


async def test_a_list_is_newest_first_by_tenant_kind_and_status_in_pages(each_runs):
    runs, _ = each_runs
    rows = [
        replace(
            ROW,
            id=f"run_{number:016x}",
            created_at=float(number // 2),
            tenant="acme" if number != 3 else "other",
            kind="agent" if number % 2 else "workflow",
            status="completed" if number > 4 else "running",
        )
        for number in range(7)
    ]
    for row in rows:
        await runs.begin(row)
    mine = [row.id for row in (rows[6], rows[5], rows[4], rows[2], rows[1], rows[0])]
    assert [row.id for row in await runs.list("acme")] == mine
    assert len(await runs.list(None)) == 7
    first = await runs.list("acme", limit=4)
    rest = await runs.list("acme", limit=4, before=first[-1].id)
    assert [row.id for row in (*first, *rest)] == mine
    assert [row.id for row in await runs.list("acme", kind="agent")] == [rows[5].id, rows[1].id]
    assert [row.id for row in await runs.list("other", status="running")] == [rows[3].id]
    # A run of somebody else is no place in one's own list.
    assert list(await runs.list("acme", before=rows[3].id)) == []


async def test_a_waiter_gets_events_of_every_process_and_the_end(each_runs):
    runs, other = each_runs
    await runs.begin(ROW)
    assert not await runs.changed(ROW.id, 0, 0.01)
    waiting = [asyncio.create_task(one.changed(ROW.id, 0, 30)) for one in (runs, other)]
    await asyncio.sleep(0)
    await runs.note(ROW.id, "x", {})
    assert await asyncio.gather(*waiting) == [True, True]
    assert not await runs.changed(ROW.id, 1, 0.01)
    waiting = [asyncio.create_task(one.changed(ROW.id, 1, 30)) for one in (runs, other)]
    await runs.save(replace(ROW, status="completed", ended_at=2.0))
    assert await asyncio.gather(*waiting) == [True, True]


async def test_only_runs_that_ended_long_ago_are_removed(runs, tmp_path):
    rows = {
        "run_a": replace(ROW, id="run_a", status="completed", ended_at=10.0),
        "run_b": replace(ROW, id="run_b", status="failed", ended_at=30.0),
        "run_c": replace(ROW, id="run_c", created_at=1.0),
        "run_d": replace(ROW, id="run_d", status="lost", ended_at=10.0),
    }
    for row in rows.values():
        await runs.begin(row)
    (tmp_path / "runs" / "run_e").mkdir()
    (tmp_path / "runs" / "run_f").mkdir()
    os.utime(tmp_path / "runs" / "run_f", (1, 1))
    async with runs.claim("run_d"):
        assert await runs.prune(20.0) == 2
    assert sorted(os.listdir(tmp_path / "runs")) == ["run_b", "run_c", "run_d", "run_e"]
    assert await runs.get("run_a") is None


async def test_a_follower_reads_only_new_events(runs, tmp_path):
    await runs.begin(ROW)
    for number in range(30):
        await runs.note(ROW.id, "step", {"n": number})
    path = tmp_path / "runs" / ROW.id / "events.jsonl"
    assert [one.seq for one in await runs.events(ROW.id, limit=20)] == list(range(1, 21))
    # What lies before the mark is not looked at again: it could not even be read.
    raw = path.read_bytes()
    path.write_bytes(b"\0" * 40 + raw[40:])
    assert [one.seq for one in await runs.events(ROW.id, since_seq=20)] == list(range(21, 31))
    assert list(await runs.events(ROW.id, since_seq=5)) == []
    path.write_bytes(raw)
    assert [one.seq for one in await runs.events(ROW.id, since_seq=28)] == [29, 30]


async def test_a_page_of_large_runs_is_short_and_the_next_one_continues(runs, monkeypatch):
    monkeypatch.setattr("sandkasten_runtime.store.run_directory.PAGE_BYTES", 25_000)
    for number in range(5):
        row = replace(ROW, id=f"run_{number}", created_at=float(number), output="x" * 10_000)
        await runs.begin(row)
    seen, before = [], None
    while page := await runs.list("acme", before=before):
        assert len(page) <= 2
        before = page[-1].id
        seen += [row.id for row in page]
    assert seen == [f"run_{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.promise("P69")
async def test_a_run_that_cannot_be_read_without_descriptors_is_not_treated_as_missing(
    runs, tmp_path
):
    await runs.begin(ROW)
    long_ago = 1.0
    os.utime(tmp_path / "runs" / ROW.id, (long_ago, long_ago))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Threads of the loop are there already, so that nothing but the file is wanting.
    await runs.get(ROW.id)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        runs._briefs.clear()
        with pytest.raises(Busy):
            await runs.get(ROW.id)
        with pytest.raises(Busy):
            await runs.prune(0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)
    assert await runs.get(ROW.id) == ROW


async def test_a_list_of_large_runs_is_short_and_the_next_page_continues(each_runs):
    runs, _ = each_runs
    names = [f"run_{n:016x}" for n in range(12)]
    for at, one in enumerate(names):
        large = {"task": "x" * (1 << 20)}
        await runs.begin(replace(ROW, id=one, created_at=float(at), input=large))
    seen: list[str] = []
    while rows := await runs.list(None, before=seen[-1] if seen else None):
        assert len(rows) <= 8
        seen += [row.id for row in rows]
    assert seen == names[::-1]
