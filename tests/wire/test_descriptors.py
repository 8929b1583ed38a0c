"""Descriptors that a runner passes: asked for, unasked, too many, lost, and for calls that left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import SandboxLost
from sandkasten_runtime.wire.call import CallEvent
from sandkasten_runtime.wire.frame_codec import Kind, encode
from sandkasten_runtime.wire.unix_socket import SocketStream
from tests.patience import PATIENCE_S
from tests.wire.peer import OPENED as OPEN
from tests.wire.peer import passing

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.promise("P96")


@pytest.fixture(autouse=True)
def threads_have_ended():
    """Let no thread of one test close descriptors that another one counts."""
    yield
    for thread in threading.enumerate():
        if thread.name == "drop":
            thread.join(PATIENCE_S)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def held() -> int:
    return len(os.listdir("/proc/self/fd"))


async def first_event(call) -> CallEvent:
    async with asyncio.timeout(PATIENCE_S):
        async for item in call:
            assert isinstance(item, CallEvent)
            return item
    raise AssertionError("the call ended without an event")


async def answered(channel, peer) -> None:
    """Wait until everything that was sent before has been received."""
    async with asyncio.TaskGroup() as tasks:
        pinging = tasks.create_task(channel.call("ping", timeout_s=PATIENCE_S))
        stream, _ = await peer.opened()
        await peer.say(Kind.RESULT, stream, {})
    assert pinging.result() == {}


async def test_descriptor_arrives_with_its_event_and_is_not_inherited(file):
    async with (
        passing() as (channel, peer),
        channel.stream("fs.read", {}, descriptor=True) as call,
    ):
        assert channel.passes_descriptors
        stream, _ = await peer.opened()
        peer.answer(stream, [file])
        await first_event(call)
        got = call.take_descriptor()
        assert got is not None
        assert os.pread(got, 10, 0) == b"content"
        assert not os.get_inheritable(got)
        os.close(got)
        assert call.take_descriptor() is None


async def test_descriptors_in_frames_of_a_byte_each_reach_the_right_calls(tmp_path):
    """The first bytes of one frame and the rest of another may be received together."""
    async with passing() as (channel, peer):
        calls, streams, files = [], [], []
        for number in range(3):
            call = channel.stream("fs.read", {}, descriptor=True)
            await call.open()
            calls.append(call)
            streams.append((await peer.opened())[0])
            (tmp_path / str(number)).write_text(str(number))
            files.append(os.open(tmp_path / str(number), os.O_RDONLY))
        for stream, file in zip(streams, files, strict=True):
            frame = encode(Kind.EVENT, stream, json.dumps(OPEN).encode())
            peer.pass_with(frame[:1], [file])
            os.close(file)
            await answered_later()
            await peer.raw(frame[1:])
        for number, call in enumerate(calls):
            await first_event(call)
            got = call.take_descriptor()
            assert got is not None
            assert os.pread(got, 10, 0) == str(number).encode()
            os.close(got)
            call.leave()


async def answered_later() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("same_kernel", [True, False])
async def test_descriptors_that_were_not_asked_for_end_the_connection(file, same_kernel):
    before = held()
    async with passing(same_kernel=same_kernel) as (channel, peer):
        assert channel.passes_descriptors is same_kernel
        async with channel.stream("fs.read", {}, descriptor=True) as earlier:
            stream, _ = await peer.opened()
            await peer.say(Kind.EVENT, stream, {"event": "open"})
            await first_event(earlier)
        call = channel.stream("fs.read", {})
        await call.open()
        stream, _ = await peer.opened()
        for _ in range(20):
            peer.answer(stream, [file] * 10)
        with pytest.raises(SandboxLost, match="descriptors"):
            await call.result()
        assert call.take_descriptor() is None
        call.leave()
    await until(lambda: held() == before)


@pytest.fixture
def lingering():
    """Sockets whose last close waits for a peer that does not read; `released` once it is gone."""
    made, released = [], threading.Event()

    def make() -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            made.append(server.accept()[0])
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 16))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        return ours

    def release() -> None:
        released.set()
        for peer in made:
            peer.close()

    late = threading.Timer(3.0, release)
    late.start()
    yield make, released
    late.cancel()
    release()


@pytest.mark.parametrize("way", ["unasked", "asked", "in_place", "unread"])
async def test_closing_a_socket_that_lingers_does_not_stop_the_loop(lingering, way):
    make, released = lingering
    one, other = socket.socketpair()
    stream = SocketStream(one, same_kernel=True)
    stream.expect_descriptors(way == "asked")
    passed = [make(), make()]
    socket.send_fds(other, [b"x"], [each.fileno() for each in passed] * 2)
    for each in passed:
        each.close()
    if way == "in_place":
        with pytest.raises(ConnectionAbortedError, match="descriptors"):
            await stream.receive_into(memoryview(bytearray(10)))
    elif way != "unread":
        with pytest.raises(ConnectionAbortedError, match="descriptors"):
            await stream.receive(10)
    await stream.aclose()
    other.close()
    assert not released.is_set(), "the loop waited for the peer of a socket"


async def test_too_many_descriptors_end_the_connection_and_are_closed(file):
    before = held()
    async with (
        passing() as (channel, peer),
        channel.stream("fs.read", {}, descriptor=True) as call,
    ):
        stream, _ = await peer.opened()
        for _ in range(20):
            peer.pass_with(encode(Kind.DATA, stream, b"x"), [file] * 20)
        with pytest.raises(SandboxLost, match="too many descriptors"):
            await call.result()
    await until(lambda: held() == before)


async def test_a_connection_ends_with_its_peer_that_has_passed_itself():
    one, other = socket.socketpair()
    stream = SocketStream(one, same_kernel=True)
    stream.expect_descriptors(True)
    socket.send_fds(other, [b"x"], [other.fileno()])
    other.close()
    with pytest.raises(ConnectionAbortedError, match="not a file"):
        await stream.receive(10)
    await stream.aclose()


async def until(true: Callable[[], bool]) -> None:
    """Wait for threads that close descriptors."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  (a thread closes them, without an event)
            await asyncio.sleep(0.001)


async def test_descriptor_of_a_call_that_left_is_closed(file):
    async with passing() as (channel, peer):
        before = held()
        left = channel.stream("fs.read", {}, descriptor=True)
        await left.open()
        stream, _ = await peer.opened()
        left.leave()
        async with channel.stream("fs.read", {}, descriptor=True) as other:
            second, _ = await peer.opened()
            peer.answer(stream, [file])
            await answered(channel, peer)
            await until(lambda: held() == before)
            await peer.say(Kind.EVENT, second, OPEN)
            await first_event(other)
            assert other.take_descriptor() is None


async def test_descriptor_that_was_announced_and_never_came_is_none():
    async with (
        passing() as (channel, peer),
        channel.stream("fs.read", {}, descriptor=True) as call,
    ):
        stream, _ = await peer.opened()
        await peer.say(Kind.EVENT, stream, OPEN)
        await first_event(call)
        assert call.take_descriptor() is None


async def test_closing_the_channel_closes_what_was_not_taken(file):
    before = held()
    async with passing() as (channel, peer):
        for announced in (True, False):
            call = channel.stream("fs.read", {}, descriptor=True)
            await call.open()
            stream, _ = await peer.opened()
            body = OPEN if announced else {"event": "open"}
            peer.pass_with(encode(Kind.EVENT, stream, json.dumps(body).encode()), [file])
            await answered(channel, peer)
            call.leave()
    await until(lambda: held() == before)
