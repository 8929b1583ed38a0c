"""The ledger on disk: records survive, and damage never raises."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from dataclasses import replace

import pytest

from sandkasten.errors import Busy, InternalError, QuotaExceeded
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.sandbox.ledger_record import Record
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import Limits, Unenforced
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from sandkasten_runtime.store.ledger_rows import decode_row, encode_row
from tests.store.memory_store import MemoryStore

pytestmark = pytest.mark.anyio


def record(key: str | None = None, created_at: float = 1_700_000_000.25, **more) -> Record:
    return Record(
        id=new_sandbox_id(),
        state=State.RUNNING,
        backend="local",
        image="host",
        profile="hardened",
        limits=Limits(cpus=0.5, pids=17),
        created_at=created_at,
        created_boottime=12.5,
        boot_id="b",
        idle_timeout_s=30,
        lifetime_s=60,
        session_key=key,
        labels={"team": "größe\n"},
        env_names=("A", "B"),
        owner_pid=7,
        owner_start=8,
        unenforced=(Unenforced("pids", "no cgroup", "run as root"),),
        warnings=("alias",),
        **more,
    )


@pytest.fixture(params=["directory", "memory"])
async def store(request, tmp_path):
    return DirectoryStore(tmp_path / "ledger") if request.param == "directory" else MemoryStore()


async def test_a_record_survives_a_round_trip(store):
    one = record("key")
    await store.put(one)
    assert await store.get(one.id) == one
    assert await store.find_key("key") == one
    assert list(await store.list()) == [one]


async def test_a_row_is_decoded_only_if_another_process_wrote_it(tmp_path):
    mine, other = DirectoryStore(tmp_path / "ledger"), DirectoryStore(tmp_path / "ledger")
    one = record("key")
    await mine.put(one)
    assert await mine.get(one.id) is one
    assert await other.get(one.id) == one
    await other.put(replace(one, labels={}))
    assert await mine.get(one.id) == replace(one, labels={})
    await other.drop(one.id)
    assert await mine.get(one.id) is None
    assert mine._written == {}


async def test_the_last_put_wins(store):
    one = record()
    await store.put(one)
    await store.put(replace(one, state=State.DESTROYING))
    found = await store.get(one.id)
    assert found is not None
    assert found.state is State.DESTROYING


async def test_a_dropped_record_is_gone_and_dropping_twice_succeeds(store):
    one = record("key")
    await store.put(one)
    await store.drop(one.id)
    await store.drop(one.id)
    assert await store.get(one.id) is None
    assert await store.find_key("key") is None
    assert list(await store.list()) == []


async def test_dropping_an_old_holder_of_a_key_leaves_the_new_one(store):
    old, new = record("key"), record("key")
    await store.put(old)
    await store.drop(old.id)
    await store.put(new)
    await store.drop(old.id)
    assert await store.find_key("key") == new


async def test_a_lock_is_held_by_one_and_refused_at_once_without_waiting(store):
    async with store.lock("x"):
        with pytest.raises(Busy):
            async with store.lock("x", wait_s=0):
                pass
        async with store.lock("y", wait_s=0):
            pass
    async with store.lock("x", wait_s=0):
        pass


async def test_waiters_of_a_lock_enter_one_after_the_other(store):
    inside, most = 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with store.lock("x"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(one() for _ in range(50)))
    assert most == 1


async def test_rows_are_private(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    await store.put(record("key"))
    for path in (tmp_path / "ledger").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"id": "sbx_00"}',
        b"[" * 100_000,
        b'{"id":' + b"9" * 10_000 + b"}",
        b" " * 2_000_000,
    ],
)
async def test_a_damaged_row_is_reported_and_treated_as_missing(tmp_path, damage):
    store = DirectoryStore(tmp_path / "ledger")
    good, bad = record(), record("key")
    await store.put(good)
    await store.put(bad)
    (tmp_path / "ledger" / "rows" / f"{bad.id}.json").write_bytes(damage)
    assert await store.get(bad.id) is None
    assert await store.find_key("key") is None
    assert list(await store.list()) == [good]
    assert list(await store.corrupt()) == [bad.id]
    await store.drop(bad.id)
    assert list(await store.corrupt()) == []


async def test_every_field_of_the_wrong_kind_is_damage(tmp_path):
    whole = json.loads(encode_row(record("key")))
    for name in whole:
        with pytest.raises(ValueError, match=r".*"):
            decode_row(json.dumps({**whole, name: [["odd"]]}).encode())


async def test_a_row_of_a_newer_version_is_read_without_unknown_fields():
    one = record("key")
    row = json.loads(encode_row(one))
    row["something_new"] = {"a": 1}
    row["limits"]["gpu"] = 1
    assert decode_row(json.dumps(row).encode()) == one


async def test_a_row_under_another_name_is_damage(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    one = record()
    await store.put(one)
    rows = tmp_path / "ledger" / "rows"
    other = new_sandbox_id()
    (rows / f"{one.id}.json").rename(rows / f"{other}.json")
    assert await store.get(other) is None
    assert list(await store.corrupt()) == [other]


@pytest.mark.parametrize("left", [State.CREATING, State.RUNNING])
async def test_later_row_is_valid_if_its_writer_died_before_it_removed_the_earlier(tmp_path, left):
    store = DirectoryStore(tmp_path / "ledger")
    rows = tmp_path / "ledger" / "rows"
    one = replace(record("key"), state=left)
    await store.put(one)
    (old,) = rows.iterdir()
    content = old.read_bytes()
    ending = replace(one, state=State.DESTROYING)
    await store.put(ending)
    assert [path.name for path in rows.iterdir()] == [f"{one.id}.destroying"]
    old.write_bytes(content)
    assert await store.get(one.id) == ending
    assert list(await store.list()) == [ending]
    await store.drop(one.id)
    assert list(rows.iterdir()) == []


async def test_a_row_is_never_written_over_while_its_sandbox_comes_and_goes(tmp_path, monkeypatch):
    """A file system writes to the disk at once what replaces a file."""
    store = DirectoryStore(tmp_path / "ledger")
    replaced = []
    real = os.replace

    def watched(source: str, target: str) -> None:
        replaced.extend([target] if os.path.exists(target) else [])
        real(source, target)

    monkeypatch.setattr(os, "replace", watched)
    one = replace(record(), acquired="spare")
    for row in (
        replace(one, state=State.CREATING),
        replace(one, state=State.RUNNING),
        replace(one, state=State.RUNNING, acquired="pool"),
        replace(one, state=State.DESTROYING, acquired="pool"),
    ):
        one = row
        await store.put(one)
        assert await store.get(one.id) == one
    assert replaced == []


async def test_foreign_files_in_the_ledger_are_not_touched(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    for name in ("README", "x.json", ".sbx.json.tmp", "sbx_..json"):
        (tmp_path / "ledger" / "rows" / name).write_text("{}")
    assert list(await store.list()) == []
    assert list(await store.corrupt()) == []


async def test_a_write_that_fails_leaves_the_old_row_and_no_temporary_file(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path / "ledger")
    one = record()
    await store.put(one)

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(QuotaExceeded) as refused:
        await store.put(replace(one, state=State.LOST))
    assert "free space" in refused.value.hint
    monkeypatch.undo()
    assert await store.get(one.id) == one
    assert [p.name for p in (tmp_path / "ledger" / "rows").iterdir()] == [f"{one.id}.json"]


@pytest.mark.promise("P29")
async def test_partial_writes_of_a_killed_writer_are_removed_and_live_ones_kept(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    child = await asyncio.create_subprocess_exec("true")
    await child.wait()
    here = os.stat("/proc/self/ns/pid").st_ino
    rows, keys = (tmp_path / "ledger" / name for name in ("rows", "keys"))
    dead = [place / f".{here}-{child.pid}-00000000.part" for place in (rows, keys)]
    elsewhere = rows / f".1-{child.pid}-00000001.part"
    forgotten = rows / f".1-{child.pid}-00000002.part"
    ours = rows / f".{here}-{os.getpid()}-00000003.part"
    for path in (*dead, elsewhere, forgotten, ours):
        path.write_text("{")
    os.utime(forgotten, (0, 0))
    assert list(await store.corrupt()) == []
    assert sorted([*rows.iterdir(), *keys.iterdir()]) == sorted([elsewhere, ours])


async def test_a_ledger_that_cannot_be_created_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InternalError):
        DirectoryStore(tmp_path / "file" / "ledger")


@pytest.mark.slow
async def test_a_reader_sees_the_old_row_or_the_new_one_and_never_a_part(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    one = replace(record(), warnings=("w" * 50_000,))
    await store.put(one)
    stop = asyncio.Event()

    def read() -> int:
        other, seen = DirectoryStore(tmp_path / "ledger"), 0
        while not stop.is_set():
            assert other._read(SandboxId(one.id)) is not None
            seen += 1
        return seen

    reading = asyncio.create_task(asyncio.to_thread(read))
    for _ in range(300):
        await store.put(one)
        await asyncio.sleep(0)
    stop.set()
    assert await reading > 0


@pytest.mark.promise("P34")
async def test_a_process_without_free_descriptors_is_busy(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path)
    was = os.open

    def none_left(path, *more, **named):
        if str(tmp_path) in os.fsdecode(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return was(path, *more, **named)

    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(Busy):
        await store.put(record())
