"""Files that a runner passes as descriptors: a hostile runner, lost descriptors, short files."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import pytest

from sandkasten.errors import ProtocolViolation, SandkastenError
from sandkasten_runtime.engine.storage.open_file import opened
from sandkasten_runtime.wire.frame_codec import Kind
from tests.patience import PATIENCE_S
from tests.wire.peer import PassingPeer, passing

pytestmark = pytest.mark.promise("P96")

SIZE = 300_000


def entry(size: int = SIZE) -> dict[str, Any]:
    return {
        "path": "/workspace/f", "name": "f", "type": "file", "size": size, "mode": 0o644,
        "mtime_unix": 1, "uid": 1000, "gid": 1000,
    }  # fmt: skip


def announcement(descriptor: int, size: int = SIZE) -> dict[str, Any]:
    found = os.fstat(descriptor)
    identity = {"device": found.st_dev, "inode": found.st_ino}
    return {"event": "open", "entry": entry(size), "descriptor": identity}


async def streamed(peer: PassingPeer, content: bytes, size: int | None = None) -> dict[str, Any]:
    """Answer the next request with the content and return its fields."""
    stream, fields = await peer.opened()
    await peer.say(
        Kind.EVENT,
        stream,
        {"event": "open", "entry": entry(len(content) if size is None else size)},
    )
    await peer.say(Kind.DATA, stream, content)
    await peer.say(Kind.RESULT, stream, {"size": len(content), "bytes": len(content)})
    return fields


def held(*files: str) -> int:
    """Count the descriptors of files whose names begin so; other threads may open other files."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(name.startswith(files or "/memfd:content") for name in names)


async def read(channel, offset: int = 0, most: int = SIZE) -> bytes:
    async with asyncio.timeout(PATIENCE_S), opened(channel, {"path": "f"}, hold=False) as file:
        return await file.content(offset, most)


@pytest.fixture
def file():
    """A file in memory: the disk of the tests may be an overlay."""
    descriptor = os.memfd_create("content")
    os.write(descriptor, os.urandom(SIZE))
    yield descriptor
    os.close(descriptor)


async def test_passed_file_is_read_here(file):
    before = held()
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel, 10, 1000))
        stream, fields = await peer.opened()
        assert (fields["descriptor"], fields["hold"]) == (True, False)
        peer.answer(stream, [file], announcement(file))
        await peer.say(Kind.RESULT, stream, {"size": SIZE, "bytes": 0})
        assert await asking == os.pread(file, 1000, 10)
    assert held() == before


@pytest.mark.parametrize("size", [SIZE, 100, 0])
async def test_file_that_became_shorter_is_a_shorter_content(file, size):
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel))
        stream, _ = await peer.opened()
        os.truncate(file, size)
        peer.answer(stream, [file], announcement(file))
        assert await asking == os.pread(file, SIZE, 0)


async def test_announced_size_does_not_decide_how_much_is_read(file):
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel, most=SIZE + 5))
        stream, _ = await peer.opened()
        peer.answer(stream, [file], announcement(file, 2**62))
        assert await asking == os.pread(file, SIZE, 0)


def hostile(kind: str, tmp_path) -> int:
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        return os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    return os.open({"directory": tmp_path, "device": "/dev/zero"}[kind], os.O_RDONLY)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "another", "none"])
async def test_descriptor_that_cannot_be_used_is_closed_and_the_content_asked_for(
    kind, file, tmp_path
):
    files = (str(tmp_path), "/dev/zero", "/memfd:other", "/memfd:content")
    before = held(*files)
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel))
        stream, _ = await peer.opened()
        if kind == "none":
            peer.answer(stream, [], announcement(file))
        elif kind == "another":
            other = os.memfd_create("other")
            peer.answer(stream, [other], announcement(file))
            os.close(other)
        else:
            bad = hostile(kind, tmp_path)
            peer.answer(stream, [bad], announcement(bad))
            os.close(bad)
        fields = await streamed(peer, b"streamed")
        assert "descriptor" not in fields
        assert await asking == b"streamed"
        # And not tried again on this connection.
        assert not channel.passes_descriptors
        asking = asyncio.create_task(read(channel))
        assert "descriptor" not in await streamed(peer, b"again")
        assert await asking == b"again"
    async with asyncio.timeout(PATIENCE_S):
        while held(*files) > before:  # noqa: ASYNC110  (a thread closes it, without an event)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("identity", [True, 7, {}, {"device": -1, "inode": 1}, {"device": "x"}])
async def test_invalid_announcement_is_a_violation(identity, file):
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel))
        stream, _ = await peer.opened()
        peer.answer(stream, [file], {**announcement(file), "descriptor": identity})
        with pytest.raises(ProtocolViolation):
            await asking


async def test_more_content_than_the_size_is_a_violation():
    """What is collected in memory is bounded by the size that came first."""
    async with passing(same_kernel=False) as (channel, peer):
        asking = asyncio.create_task(read(channel))
        assert "descriptor" not in await streamed(peer, bytes(SIZE), size=1000)
        with pytest.raises(ProtocolViolation, match="more of a file than its size"):
            await asking


async def pieces_of(channel, got: bytearray, *, cut: bool) -> None:
    """Read pieces; with `cut`, close the connection after the first."""
    async with asyncio.timeout(PATIENCE_S), opened(channel, {"path": "f"}, hold=True) as file:
        async for piece in file.pieces(0, None):
            got += piece
            if cut:
                await channel.aclose()


@pytest.mark.parametrize("cut", [False, True])
async def test_pieces_end_the_held_stream_and_fail_with_the_connection(cut, file):
    size = 5 << 20
    os.truncate(file, size)
    before = held()
    async with passing() as (channel, peer):
        got = bytearray()
        asking = asyncio.create_task(pieces_of(channel, got, cut=cut))
        stream, fields = await peer.opened()
        assert fields["hold"] is True
        peer.answer(stream, [file], announcement(file, size))
        if cut:
            with pytest.raises(SandkastenError):
                await asking
            assert 0 < len(got) < size
            assert got == os.pread(file, len(got), 0)
        else:
            while (await peer.frame()).kind is not Kind.END:
                pass
            await peer.say(Kind.RESULT, stream, {"size": size, "bytes": 0})
            await asking
            assert got == os.pread(file, size, 0)
    assert held() == before


async def test_reader_that_is_cancelled_closes_the_file_when_its_thread_has_read(file):
    size = 64 << 20
    os.truncate(file, size)
    before = held()
    async with passing() as (channel, peer):
        asking = asyncio.create_task(read(channel, most=size))
        stream, _ = await peer.opened()
        peer.answer(stream, [file], announcement(file, size))
        while held() == before:  # noqa: ASYNC110  (until the descriptor has arrived)
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    async with asyncio.timeout(PATIENCE_S):
        while held() > before:  # noqa: ASYNC110  (a thread closes it, without an event)
            await asyncio.sleep(0.001)
