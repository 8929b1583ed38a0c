"""A hostile runner: the channel closes, every call fails with a typed error, nothing hangs."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import ProtocolViolation, SandboxLost, SandkastenError
from sandkasten_runtime.wire import channel as channel_module
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import (
    FROM_RUNNER,
    MIB,
    Kind,
    encode,
    encode_chunk,
    encode_credit,
)
from sandkasten_runtime.wire.json_bodies import decode_body
from tests.patience import PATIENCE_S
from tests.wire.peer import HELLO, Peer, connected, sockets

if TYPE_CHECKING:
    from collections.abc import Callable


def json_frame(kind: Kind, body: object) -> Callable[[int], bytes]:
    return lambda stream: encode(kind, stream, json.dumps(body).encode())


def raw_frame(kind: Kind, body: bytes) -> Callable[[int], bytes]:
    return lambda stream: encode(kind, stream, body)


VIOLATIONS: dict[str, Callable[[int], bytes]] = {
    "unknown kind": lambda stream: struct.pack(">IBI", 5, 77, stream),
    "client's kind": lambda stream: encode(Kind.OPEN, stream, b"{}"),
    "oversized frame": lambda stream: struct.pack(">IBI", 5 + MIB + 1, Kind.DATA, stream),
    "four gigabytes": lambda stream: struct.pack(">IBI", 2**32 - 1, Kind.RESULT, stream),
    "short length": lambda stream: struct.pack(">IBI", 3, Kind.DATA, stream),
    "second hello": lambda stream: encode(Kind.HELLO, 0, json.dumps(HELLO).encode()),
    "hello on a stream": json_frame(Kind.HELLO, HELLO),
    "result on stream zero": lambda stream: encode(Kind.RESULT, 0, b"{}"),
    "stream never opened": lambda stream: encode(Kind.RESULT, stream + 1000, b"{}"),
    "result not json": raw_frame(Kind.RESULT, b"\xff\xfe"),
    "result a list": json_frame(Kind.RESULT, [1, 2]),
    "result a number": json_frame(Kind.RESULT, 7),
    "result empty": raw_frame(Kind.RESULT, b""),
    "result deep": raw_frame(Kind.RESULT, b'{"a":' * 100_000),
    "result giant number": raw_frame(Kind.RESULT, b'{"a":' + b"9" * 900_000 + b"}"),
    "result nan": raw_frame(Kind.RESULT, b'{"a":NaN}'),
    "error without code": json_frame(Kind.ERROR, {"message": "x"}),
    "error code a number": json_frame(Kind.ERROR, {"code": 5, "message": "x"}),
    "error message a list": json_frame(Kind.ERROR, {"code": "io", "message": []}),
    "event without a name": json_frame(Kind.EVENT, {"n": 1}),
    "event name a number": json_frame(Kind.EVENT, {"event": 1}),
    "event not json": raw_frame(Kind.EVENT, b"{"),
    "chunk too short": raw_frame(Kind.CHUNK, b"short"),
    "chunk of source nine": raw_frame(Kind.CHUNK, encode_chunk(1, 0, 9, b"x")),
    "credit too long": raw_frame(Kind.CREDIT, b"12345"),
    "credit overflow": lambda stream: encode_credit(stream, 2**32 - 1) * 2,
    "more data than credit": lambda stream: encode(Kind.DATA, stream, bytes(MIB)) * 5,
    "more chunks than credit": lambda stream: (
        encode(Kind.CHUNK, stream, encode_chunk(1, 0, 1, bytes(MIB - 17))) * 5
    ),
}


async def read_on(peer: Peer) -> None:
    while True:
        await peer.frame()


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_a_violation_fails_every_call_and_closes_the_channel(what: str):
    async with connected() as (channel, peer):
        other = asyncio.create_task(channel.call("exec.wait"))
        await peer.opened()
        async with channel.stream("exec.start") as call:
            stream, _ = await peer.opened()
            # The channel may hang up in the middle of the lie.
            with suppress(OSError):
                await peer.raw(VIOLATIONS[what](stream))
            async with asyncio.timeout(PATIENCE_S):
                # The other call first: reading this one's items would grant more credit.
                with pytest.raises(ProtocolViolation):
                    await other
                with pytest.raises(ProtocolViolation):
                    await call.result()
                with pytest.raises(ProtocolViolation):
                    await channel.call("ping")
                with pytest.raises((EOFError, OSError)):
                    await read_on(peer)
        assert channel.closed


@pytest.mark.parametrize("ends", [True, False])
async def test_error_output_of_an_engine_ends_the_connection_without_a_violation(ends: bool):
    async with connected() as (channel, peer):
        channel.explain = _as_it_is
        calling = asyncio.create_task(channel.call("exec.wait"))
        await peer.opened()
        await peer.raw(b"context canceled\r\n")
        if ends:
            await peer.hang_up()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SandboxLost if ends else ProtocolViolation):
                await calling


async def _as_it_is(error: SandkastenError) -> SandkastenError:
    return error


async def test_an_unknown_error_code_fails_only_its_call():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("ping"))
        stream, _ = await peer.opened()
        await peer.say(Kind.ERROR, stream, {"code": "KeyboardInterrupt", "message": "x"})
        with pytest.raises(ProtocolViolation):
            await calling
        assert not channel.closed


async def test_a_second_result_is_ignored():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("ping"))
        stream, _ = await peer.opened()
        for body in ({"n": 1}, {"n": 2}):
            await peer.say(Kind.RESULT, stream, body)
        await peer.say(Kind.ERROR, stream, {"code": "io", "message": "x"})
        assert await calling == {"n": 1}
        calling = asyncio.create_task(channel.call("ping"))
        stream, _ = await peer.opened()
        await peer.say(Kind.RESULT, stream, {"n": 3})
        assert await calling == {"n": 3}


async def test_a_flood_for_a_closed_stream_does_not_starve_others():
    async with connected() as (channel, peer):
        async with channel.stream("fs.watch"):
            stream, _ = await peer.opened()
        stop = asyncio.Event()

        async def flood() -> None:
            lie = encode(Kind.EVENT, stream, b'{"event":"x"}') * 1000
            while not stop.is_set():
                await peer.stream.send(lie)
                await asyncio.sleep(0)

        flooding = asyncio.create_task(flood())
        turns = 0
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(200):
                await asyncio.sleep(0)
                turns += 1
        stop.set()
        await flooding
        assert turns == 200
        assert not channel.closed


async def test_many_small_frames_leave_turns_to_others(monkeypatch):
    parsed, most_in_a_row = 0, 0

    def counted(body: bytes, what: str) -> dict[str, Any]:
        nonlocal parsed
        parsed += 1
        return decode_body(body, what)

    monkeypatch.setattr(channel_module, "decode_body", counted)
    async with connected() as (channel, peer), channel.stream("fs.watch"):
        stream, _ = await peer.opened()
        await peer.raw(encode(Kind.EVENT, stream, b'{"event":"x"}') * 1000)
        async with asyncio.timeout(PATIENCE_S):
            while parsed < 1000:
                before = parsed
                await asyncio.sleep(0)
                most_in_a_row = max(most_in_a_row, parsed - before)
    assert most_in_a_row <= 128


async def test_a_runner_that_sends_without_reading_is_disconnected():
    """CREDIT is owed for what it sends; unread credit must not accumulate here."""
    ours, theirs = sockets()
    peer = Peer(theirs)
    await peer.say(Kind.HELLO, 0, HELLO)
    channel = await Channel.open(ours)
    streams = [channel.stream("fs.read") for _ in range(3)]
    for call in streams:
        await call.open()
    for _ in range(300_000):
        channel._outbox.post(b"x" * 13)
        if channel.closed:
            break
    assert channel.closed
    with pytest.raises(SandboxLost):
        await streams[0].result()
    await channel.aclose()
    await theirs.aclose()


@pytest.mark.parametrize("seed", range(60))
async def test_random_frames_never_hang_a_call(seed: int):
    chance = random.Random(seed)
    kinds = sorted(FROM_RUNNER)
    async with connected() as (channel, peer):
        calls = [asyncio.create_task(channel.call("ping")) for _ in range(3)]
        streams = [(await peer.opened())[0] for _ in calls]
        with suppress(OSError):
            for _ in range(200):
                body = chance.choice(
                    [b"", b"{}", b'{"event":"x"}', b'{"code":"io","message":"m"}', b"\0\0\0\1"]
                    + [chance.randbytes(chance.randrange(64))]
                )
                await peer.say(chance.choice(kinds), chance.choice([*streams, 0, 99]), body)
            await peer.hang_up()
        async with asyncio.timeout(PATIENCE_S):
            done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, dict | SandkastenError) for one in done)
