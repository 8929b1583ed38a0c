"""Unix sockets: any path length, exact errors, nothing left waiting after a close."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.wire.unix_socket import SocketStream, connect_unix
from tests.patience import PATIENCE_S
from tests.wire.peer import sockets

if TYPE_CHECKING:
    from pathlib import Path


def listen(path: Path) -> socket.socket:
    """Bind at a path of any length, through a descriptor of its directory."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
        server.listen(1)
    finally:
        os.close(directory)
    return server


@pytest.mark.parametrize("depth", [0, 3])
async def test_a_socket_path_of_any_length_can_be_connected(tmp_path: Path, depth: int):
    folder = tmp_path.joinpath(*["d" * 60] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    with listen(folder / "sock") as server:
        before = len(os.listdir("/proc/self/fd"))
        stream = await connect_unix(str(folder / "sock"))
        peer, _ = server.accept()
        with peer:
            await stream.send(b"ping")
            assert peer.recv(4) == b"ping"
            await stream.aclose()
            assert peer.recv(1) == b""
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["missing", "d" * 150 + "/missing"])
async def test_a_missing_socket_is_an_oserror_and_leaks_nothing(tmp_path: Path, name: str):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        await connect_unix(str(tmp_path / name))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_socket_without_a_listener_is_refused(tmp_path: Path):
    listen(tmp_path / "sock").close()
    with pytest.raises(ConnectionRefusedError):
        await connect_unix(str(tmp_path / "sock"))


async def test_connecting_waits_for_a_full_backlog(tmp_path: Path):
    with listen(tmp_path / "sock") as server:
        waiting = [asyncio.create_task(connect_unix(str(tmp_path / "sock"))) for _ in range(8)]
        await asyncio.sleep(0.02)
        assert not all(one.done() for one in waiting)
        server.setblocking(False)
        peers: list[socket.socket] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(peers) < 8:
                try:
                    peers.append(server.accept()[0])
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        for stream in await asyncio.gather(*waiting):
            await stream.aclose()
        for peer in peers:
            peer.close()


async def test_large_data_passes_in_both_directions_at_once():
    one, other = sockets()
    data = bytes(range(256)) * 40_000

    async def read_all(stream: SocketStream) -> bytes:
        got = bytearray()
        while len(got) < len(data):
            got += await stream.receive(1 << 18)
        return bytes(got)

    async with asyncio.timeout(PATIENCE_S):
        half = len(data) // 2
        results = await asyncio.gather(
            one.send(data[:half], memoryview(data)[half:]),
            other.send(data),
            read_all(one),
            read_all(other),
        )
    assert results[2] == results[3] == data
    await one.aclose()
    await other.aclose()


async def test_closing_wakes_waiting_readers_and_writers():
    one, other = sockets()
    receiving = asyncio.create_task(one.receive(10))
    sending = asyncio.create_task(one.send(bytes(64 * 1024 * 1024)))
    await asyncio.sleep(0.02)
    await one.aclose()
    await one.aclose()
    async with asyncio.timeout(PATIENCE_S):
        assert await receiving == b""
        with pytest.raises(OSError, match="closed"):
            await sending
    await other.aclose()


async def test_an_idle_stream_with_data_waiting_does_not_spin_the_loop():
    one, other = sockets()
    receiving = asyncio.create_task(one.receive(10))
    await asyncio.sleep(0)
    await other.send(b"first")
    assert await receiving == b"first"
    await other.send(b"nobody asks for this")
    await asyncio.sleep(0.02)
    assert not one._watching
    assert await one.receive(100) == b"nobody asks for this"
    await one.aclose()
    await other.aclose()


async def test_a_closed_peer_is_an_end_and_then_a_broken_pipe():
    one, other = sockets()
    await other.aclose()
    assert await one.receive(10) == b""
    with pytest.raises(OSError, match="Broken pipe"):
        await one.send(b"x")
    await one.aclose()


async def test_what_arrives_while_waiting_is_handed_over_in_order():
    ours, theirs = sockets()
    pieces: list[bytes] = []
    came = asyncio.Event()

    def take(data: bytes) -> bool:
        pieces.append(data)
        came.set()
        return data != b"stop"

    await theirs.send(b"there")
    assert await ours.receive_or_hand(64, take) == b"there"
    waiting = asyncio.create_task(ours.receive_or_hand(64, take))
    for piece in (b"one", b"two", b"stop"):
        # Not before the task waits: what is there already is returned.
        await asyncio.sleep(0)
        assert not waiting.done()
        came.clear()
        await theirs.send(piece)
        async with asyncio.timeout(PATIENCE_S):
            await came.wait()
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting is None
    assert pieces == [b"one", b"two", b"stop"]
    await theirs.send(b"rest")
    await theirs.aclose()
    assert await ours.receive_or_hand(64, take) == b"rest"
    assert await ours.receive_or_hand(64, take) == b""
    await ours.aclose()


@pytest.mark.parametrize("end", ["theirs", "ours", "error"])
async def test_a_task_that_waits_for_a_handover_learns_of_the_end(end: str):
    ours, theirs = sockets()

    def take(_: bytes) -> bool:
        raise ValueError("not what was agreed")

    waiting = asyncio.create_task(ours.receive_or_hand(64, take))
    await asyncio.sleep(0)
    if end == "error":
        await theirs.send(b"data")
    else:
        await (ours if end == "ours" else theirs).aclose()
    async with asyncio.timeout(PATIENCE_S):
        if end == "error":
            with pytest.raises(ValueError, match="agreed"):
                await waiting
        else:
            assert await waiting == b""
    await ours.aclose()
    await theirs.aclose()
