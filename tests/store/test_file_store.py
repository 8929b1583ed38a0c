"""Stored files: complete or absent, shared content, crash leftovers and expiry."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    Conflict,
    FileNotFound,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
)
from sandkasten.model.files.file_store_rules import file_key, new_file_key
from sandkasten_runtime.store.record_rules import FileRules
from sandkasten_server.records.file_store import DiskFileStore
from sandkasten_server.records.sqlite.database import Database

if TYPE_CHECKING:
    from sandkasten.ports import FileStore


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.at


@pytest.fixture
async def database(tmp_path):
    one = await Database.open(tmp_path / "a.db")
    yield one
    await one.aclose()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def store(tmp_path, database, clock):
    return await DiskFileStore.open(tmp_path / "files", database, clock)


@pytest.fixture
def kept(tmp_path):
    """Return a function that returns the digests of all content in the store, each once."""

    async def digests() -> list[str]:
        return on_disk(tmp_path)

    return digests


@pytest.fixture
def most_contents(tmp_path):
    """Return a function that counts the contents, with those that are removed later."""

    async def count() -> int:
        return len(on_disk(tmp_path))

    return count


async def pieces(*parts: bytes):
    for part in parts:
        yield part


async def whole(store: FileStore, tenant: str, key: str, **how) -> bytes:
    async with store.read(tenant, key, **how) as (_, data):
        return b"".join([piece async for piece in data])


def on_disk(tmp_path):
    return sorted(path.name for path in (tmp_path / "files").rglob("*") if path.is_file())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_stored_content_is_read_back(store, kept):
    row = await store.put("t", None, pieces(b"ab", b"cd"), metadata={"ä": "ö"})
    assert row == await store.get("t", row.key)
    assert (row.size_bytes, row.checksum) == (4, "sha256:" + digest(b"abcd"))
    assert await whole(store, "t", row.key) == b"abcd"
    assert await whole(store, "t", row.key, offset=1, limit=2) == b"bc"
    assert await whole(store, "t", row.key, offset=9) == b""
    assert await kept() == [digest(b"abcd")]
    assert await store.usage("t") == 4


async def test_content_is_shared_and_removed_with_its_last_key(store, kept):
    for tenant, key in (("t", "a"), ("t", "b"), ("u", "a")):
        await store.put(tenant, key, pieces(b"same"))
    assert await kept() == [digest(b"same")]
    await store.delete("t", "a")
    await store.delete("t", "b")
    assert await whole(store, "u", "a") == b"same"
    await store.delete("u", "a")
    assert await kept() == []
    with pytest.raises(FileNotFound):
        await store.delete("u", "a")


async def test_a_key_is_written_once_unless_overwriting_is_requested(store, kept):
    await store.put("t", "k", pieces(b"old"))
    with pytest.raises(Conflict):
        await store.put("t", "k", pieces(b"new"))
    assert await whole(store, "t", "k") == b"old"
    await store.put("t", "k", pieces(b"new"), overwrite=True)
    assert (await whole(store, "t", "k"), await kept()) == (b"new", [digest(b"new")])


async def test_of_many_concurrent_writers_one_gets_the_key(store):
    async def slowly(number: int):
        yield b"%d" % number
        await asyncio.sleep(0.01)

    results = await asyncio.gather(
        *(store.put("t", "k", slowly(n)) for n in range(20)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == ["Conflict"] * 19 + ["StoredFile"]


async def test_concurrent_put_and_delete_never_lose_content(store, kept):
    async def come_and_go(number: int) -> None:
        for _ in range(20):
            await store.put("t", f"k{number}", pieces(b"shared"), overwrite=True)
            assert await whole(store, "t", f"k{number}") == b"shared"
            await store.delete("t", f"k{number}")

    await asyncio.gather(*(come_and_go(number) for number in range(8)))
    assert await kept() == []


@pytest.mark.promise("P19")
async def test_a_write_that_fails_midway_leaves_nothing(store, kept):
    async def broken():
        yield b"half"
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        await store.put("t", "k", broken())
    with pytest.raises(InvalidRequest, match="sha256"):
        await store.put("t", "k", pieces(b"x"), expect_sha256="0" * 64)
    assert await kept() == []
    await store.put("t", "k", pieces(b"x"), expect_sha256="SHA256:".lower() + digest(b"x").upper())


async def test_bounds_hold_for_concurrent_writers(store, kept):
    store.rules = FileRules(max_bytes=100, max_total_bytes=250)
    with pytest.raises(PayloadTooLarge):
        await store.put("t", None, pieces(b"x" * 60, b"y" * 60))
    results = await asyncio.gather(
        *(store.put("t", None, pieces(bytes([n]) * 100)) for n in range(6)),
        return_exceptions=True,
    )
    assert sorted(type(one) is QuotaExceeded for one in results) == [False] * 2 + [True] * 4
    assert len(await kept()) == 2
    await store.put("u", None, pieces(b"z" * 100))


async def test_a_file_that_is_being_read_is_read_to_its_end(store):
    await store.put("t", "k", pieces(b"a" * 600_000))
    async with store.read("t", "k") as (_, data):
        first = await anext(data)
        await store.delete("t", "k")
        rest = b"".join([piece async for piece in data])
    assert first + rest == b"a" * 600_000


async def test_an_expired_file_is_removed(store, clock, kept):
    await store.put("t", "k", pieces(b"x"), expires_at=1010.0)
    store.rules = FileRules(ttl_s=5.0)
    assert (await store.put("t", "l", pieces(b"y"))).expires_at == 1005.0
    clock.at = 1007.0
    assert [one.key for one in await store.list("t")] == ["k"]
    clock.at = 1010.0
    for attempt in (store.get("t", "k"), whole(store, "t", "k")):
        with pytest.raises(FileNotFound):
            await attempt
    assert await store.prune(1010.0) == 2
    assert await kept() == []


async def test_leftovers_of_a_crash_are_removed_at_opening(tmp_path, database, clock, caplog):
    store = await DiskFileStore.open(tmp_path / "files", database, clock)
    kept = await store.put("t", "kept", pieces(b"kept"))
    lost = await store.put("t", "lost", pieces(b"lost"))
    orphan = digest(b"orphan")
    (tmp_path / "files" / "making" / "half").write_bytes(b"half")
    (tmp_path / "files" / orphan[:2]).mkdir(exist_ok=True)
    (tmp_path / "files" / orphan[:2] / orphan).write_bytes(b"orphan")
    gone = lost.checksum.removeprefix("sha256:")
    (tmp_path / "files" / gone[:2] / gone).unlink()
    again = await DiskFileStore.open(tmp_path / "files", database, clock)
    assert [one.key for one in await again.list("t")] == [kept.key]
    assert on_disk(tmp_path) == [digest(b"kept")]
    assert [record.message for record in caplog.records] == ["files.lost"]


async def test_lists_are_by_key_in_pages(store):
    for key in ("b/1", "a", "b/2", "c%", "b_"):
        await store.put("t", key, pieces(b"x"))
    assert [one.key for one in await store.list("t")] == ["a", "b/1", "b/2", "b_", "c%"]
    assert [one.key for one in await store.list("t", prefix="b/")] == ["b/1", "b/2"]
    assert [one.key for one in await store.list("t", limit=2, after="a")] == ["b/1", "b/2"]
    assert await store.list("u") == []


def test_generated_keys_sort_by_age_and_older_formats_are_read():
    one = new_file_key()
    assert file_key("files/" + one) == one
    assert len(one) == 28


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "..", "a/../b", "a\\b", "a\0", "a\n", "\udc80", "\u202e", "x" * 513],
)
def test_an_invalid_key_is_refused(key):
    with pytest.raises(InvalidRequest):
        file_key(key)


async def test_uploads_at_once_take_no_more_than_the_tenant_may_have(store, kept):
    store.rules = FileRules(max_total_bytes=1000)
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow():
        yield b"a" * 600
        arrived.set()
        await go_on.wait()

    first = asyncio.create_task(store.put("t", "first", slow()))
    await arrived.wait()
    with pytest.raises(QuotaExceeded):
        await store.put("t", "second", pieces(b"b" * 300, b"b" * 300))
    await store.put("t", "small", pieces(b"c" * 400))
    await store.put("other", "second", pieces(b"b" * 600))
    go_on.set()
    await first
    assert await store.usage("t") == 1000


async def test_files_that_are_replaced_again_and_again_take_little_space(store, most_contents):
    store.rules = FileRules(max_total_bytes=1000)
    for number in range(20):
        await store.put("t", "k", pieces(bytes([number]) * 900), overwrite=True)
        await store.put("t", "gone", pieces(bytes([number]) * 100))
        await store.delete("t", "gone")
    await store.put("other", "k", pieces(b"x" * 900))
    assert await most_contents() <= 6
    assert await whole(store, "t", "k") == bytes([19]) * 900
