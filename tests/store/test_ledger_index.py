"""The index of the ledger: changes by any process are seen, and only what changed is read."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from sandkasten.disk import directory_watch
from sandkasten.disk.small_file import read_small_file
from sandkasten_runtime.store import ledger_directory, ledger_index
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.store.test_directory import record

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P97")]


@pytest.fixture
async def store(tmp_path):
    one = DirectoryStore(tmp_path / "ledger")
    yield one
    await one.aclose()


@pytest.fixture
def other(tmp_path):
    """The store of another process."""
    return DirectoryStore(tmp_path / "ledger")


@pytest.fixture
def reads(monkeypatch):
    """The ids of the rows that were read from their files."""
    seen: set[str] = set()
    real = read_small_file

    def read(path, most):
        seen.add(os.path.basename(path).partition(".")[0])
        return real(path, most)

    monkeypatch.setattr(ledger_directory, "read_small_file", read)
    return seen


async def watching(store):
    """Return what the store lists, once it watches: a process that lists once does not."""
    await store.list()
    return list(await store.list())


async def test_rows_of_another_process_are_seen_at_once(store, other):
    assert await watching(store) == []
    one, two = record(created_at=2.0), record(created_at=1.0)
    await other.put(one)
    assert list(await store.list()) == [one]
    await other.put(two)
    assert list(await store.list()) == [two, one]
    newer = replace(one, created_at=0.5, labels={"a": "b"})
    await other.put(newer)
    assert list(await store.list()) == [newer, two]
    await other.drop(newer.id)
    assert list(await store.list()) == [two]


async def test_only_changed_rows_are_read_again(store, other, reads):
    rows = [record(created_at=float(n)) for n in range(20)]
    for one in rows:
        await other.put(one)
    assert await watching(store) == rows
    reads.clear()
    listed = await store.list()
    assert listed is await store.list()
    assert reads == set()
    await other.put(rows[7])
    assert await store.list() is listed  # the same row once more
    assert reads == {rows[7].id}


async def test_without_a_watch_the_directory_is_compared(store, other, reads, monkeypatch):
    def refuse(_):
        raise OSError("no more watches")

    monkeypatch.setattr(ledger_index, "DirectoryWatch", refuse)
    monkeypatch.setattr(ledger_index, "_YOUNG_NS", 0)
    rows = [record(created_at=float(n)) for n in range(3)]
    for one in rows:
        await other.put(one)
    assert await watching(store) == rows
    reads.clear()
    changed = replace(rows[1], labels={"new": "one"})
    await other.put(changed)
    await other.drop(rows[0].id)
    reads.clear()
    assert list(await store.list()) == [changed, rows[2]]
    assert reads == {changed.id}


async def test_lost_events_are_made_up_for(store, other, monkeypatch):
    assert await watching(store) == []
    one = record()
    await other.put(one)
    monkeypatch.setattr(directory_watch.DirectoryWatch, "changed", lambda _: None)
    assert list(await store.list()) == [one]
    monkeypatch.undo()
    two = record(created_at=one.created_at + 1)
    await other.put(two)
    assert list(await store.list()) == [one, two]


async def test_a_fork_does_not_take_the_events_of_its_parent(store, other, monkeypatch):
    assert await watching(store) == []
    watch = store._index._watch
    one = record()
    await other.put(one)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert watch.changed() is None
    assert f"{one.id}.json" in watch.changed()


async def test_a_damaged_row_is_reported_until_it_is_removed(store, other):
    one = record()
    await other.put(one)
    assert await watching(store) == [one]
    path = next((other._rows).iterdir())
    path.write_bytes(b"{")
    assert list(await store.list()) == []
    assert list(await store.corrupt()) == [one.id]
    path.unlink()
    assert list(await store.list()) == []
    assert list(await store.corrupt()) == []


async def test_a_closed_store_lists_without_a_watch(store, other):
    assert await watching(store) == []
    await store.aclose()
    before = len(os.listdir("/proc/self/fd"))
    one = record()
    await other.put(one)
    assert list(await store.list()) == [one]
    assert list(await store.list()) == [one]
    assert len(os.listdir("/proc/self/fd")) == before
