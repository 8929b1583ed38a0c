"""Watching a tree: every change is reported until the watch is closed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import FileNotFound
from sandkasten_contract.patience import PATIENCE_S
from sandkasten_runtime.wire.call import CallEvent
from sandkasten_runtime.wire.messages import from_bytes_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten_contract.box import Box
    from sandkasten_runtime.wire.call import Call


@asynccontextmanager
async def watched(box: Box, **fields: object) -> AsyncIterator[Call]:
    async with box.channel.stream("fs.watch", {"path": ".", **fields}) as call:
        first = await anext(call)
        assert isinstance(first, CallEvent)
        assert first.name == "watching"
        yield call


async def until(call: Call, change: str | tuple[str, ...], path: str) -> CallEvent:
    wanted = (change,) if isinstance(change, str) else change
    seen: list[tuple[object, str]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for item in call:
                assert isinstance(item, CallEvent)
                assert item.name == "change", item
                where = from_bytes_json(item.body["path"], "path")
                seen.append((item.body["change"], where))
                if where == path and item.body["change"] in wanted:
                    return item
    except TimeoutError:
        pass
    raise AssertionError(f"no {wanted} of {path}; seen {seen}")


async def test_creation_change_and_removal_are_reported(box: Box):
    async with watched(box) as call:
        await box.run("echo one > f")
        event = await until(call, "created", box.path("f"))
        assert event.body["is_dir"] is False
        await box.run("echo two >> f")
        await until(call, "modified", box.path("f"))
        await box.remove("f")
        await until(call, "deleted", box.path("f"))


async def test_changes_deep_in_the_tree_are_reported(box: Box):
    await box.mkdir("a/b")
    async with watched(box) as call:
        await box.run("touch a/b/deep")
        await until(call, "created", box.path("a/b/deep"))


async def test_directories_created_during_the_watch_are_watched_too(box: Box):
    async with watched(box) as call:
        await box.run("mkdir new")
        event = await until(call, "created", box.path("new"))
        assert event.body["is_dir"] is True
        await box.run("touch new/inside")
        await until(call, ("created", "modified"), box.path("new/inside"))


async def test_a_file_written_through_the_protocol_is_reported(box: Box):
    async with watched(box) as call:
        await box.write("given", b"x")
        await until(call, ("created", "modified", "moved"), box.path("given"))


async def test_a_move_is_reported(box: Box):
    await box.write("from", b"")
    async with watched(box) as call:
        await box.move("from", "to")
        await until(call, ("moved", "deleted"), box.path("from"))


async def test_without_recursion_only_the_directory_itself_is_watched(box: Box):
    await box.mkdir("sub")
    async with watched(box, recursive=False) as call:
        await box.run("touch sub/unseen; touch seen")
        async with asyncio.timeout(PATIENCE_S):
            async for item in call:
                assert isinstance(item, CallEvent)
                path = from_bytes_json(item.body["path"], "path")
                assert path != box.path("sub/unseen")
                if path == box.path("seen"):
                    break


async def test_names_of_any_bytes_are_reported_exactly(box: Box):
    name = b"raw\xff\n".decode("utf-8", "surrogateescape")
    async with watched(box) as call:
        await box.write(name, b"")
        await until(call, ("created", "modified", "moved"), box.path(name))


async def test_watching_a_missing_path_is_file_not_found(box: Box):
    with pytest.raises(FileNotFound):
        await box.ask("fs.watch", path="nope")


async def test_closing_a_watch_does_not_close_the_channel(box: Box):
    for _ in range(50):
        async with watched(box):
            pass
    await box.write("f", b"x")
    assert await box.read("f") == b"x"


@pytest.mark.not_on("gvisor", reason="gVisor keeps every event, however many; none is lost")
async def test_a_slow_watcher_loses_events_and_gets_an_overflow(box: Box):
    async with watched(box) as call:
        for batch in range(10):
            await box.run(f"for i in $(seq 1500); do : > n$i; done; echo {batch} > /dev/null")
        names: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            async for item in call:
                assert isinstance(item, CallEvent)
                names.append(item.name)
                if item.name == "overflow":
                    break
    assert names[-1] == "overflow"
    assert set(names[:-1]) == {"change"}
