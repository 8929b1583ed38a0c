"""The channel: many calls on one connection, credit both ways, cancellation, loss."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from sandkasten.errors import (
    Busy,
    Cancelled,
    FileNotFound,
    PayloadTooLarge,
    ProtocolViolation,
    QuotaExceeded,
    SandboxLost,
)
from sandkasten_runtime.wire.call import CallEvent, Data, OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import MIB, Kind, decode_credit, encode, encode_chunk
from sandkasten_runtime.wire.unix_socket import SocketStream
from tests.patience import PATIENCE_S
from tests.wire.peer import HELLO, Peer, connected, sockets


async def test_the_hello_is_read_and_kept():
    async with connected() as (channel, _):
        assert (channel.hello.generation, channel.hello.user_uid) == (1, 1000)
        assert not channel.closed


async def test_a_call_sends_its_fields_and_returns_the_result():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("fs.stat", {"path": "a"}))
        stream, body = await peer.opened()
        assert body == {"verb": "fs.stat", "path": "a"}
        await peer.say(Kind.RESULT, stream, {"size": 5})
        assert await calling == {"size": 5}


async def test_answers_may_come_in_any_order():
    async with connected() as (channel, peer):
        calls = [asyncio.create_task(channel.call("ping", {"n": n})) for n in range(50)]
        streams = [await peer.opened() for _ in calls]
        assert len({stream for stream, _ in streams}) == 50
        for stream, body in reversed(streams):
            await peer.say(Kind.RESULT, stream, {"n": body["n"]})
        assert [answer["n"] for answer in await asyncio.gather(*calls)] == list(range(50))


async def test_an_error_is_raised_as_its_class_and_the_channel_stays_open():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("fs.stat"))
        stream, _ = await peer.opened()
        await peer.say(Kind.ERROR, stream, {"code": "not_found", "message": "no", "errno": 2})
        with pytest.raises(FileNotFound, match="^no"):
            await calling
        calling = asyncio.create_task(channel.call("ping"))
        stream, _ = await peer.opened()
        await peer.say(Kind.RESULT, stream, {})
        assert await calling == {}


async def test_small_data_is_sent_together_with_the_request():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("fs.write", {"path": "f"}, data=b"hello"))
        kinds = [await peer.frame() for _ in range(3)]
        assert [frame.kind for frame in kinds] == [Kind.OPEN, Kind.DATA, Kind.END]
        assert kinds[1].body == b"hello"
        await peer.say(Kind.RESULT, kinds[0].stream, {})
        await calling


async def test_empty_data_is_sent_as_an_end_frame_only():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("fs.write", {"path": "f"}, data=b""))
        kinds = [(await peer.frame()).kind for _ in range(2)]
        assert kinds == [Kind.OPEN, Kind.END]
        await peer.say(Kind.RESULT, 1, {})
        await calling


async def test_items_come_in_order_and_end_with_the_result():
    async with (
        connected() as (channel, peer),
        channel.stream("exec.start", {"exec_id": "e"}) as call,
    ):
        stream, _ = await peer.opened()
        await peer.say(Kind.EVENT, stream, {"event": "started", "pid": 5})
        await peer.say(Kind.CHUNK, stream, encode_chunk(1, 0, 2, b"err"))
        await peer.say(Kind.DATA, stream, b"raw")
        await peer.say(Kind.RESULT, stream, {"done": True})
        assert [item async for item in call] == [
            CallEvent("started", {"event": "started", "pid": 5}),
            OutputChunk(1, 0, 2, b"err"),
            Data(b"raw"),
        ]
        assert await call.result() == {"done": True}
        assert await call.result() == {"done": True}


async def test_items_before_an_error_are_read_first():
    async with connected() as (channel, peer), channel.stream("fs.read") as call:
        stream, _ = await peer.opened()
        await peer.say(Kind.DATA, stream, b"part")
        await peer.say(Kind.ERROR, stream, {"code": "io", "message": "bad disk"})
        assert await anext(call) == Data(b"part")
        with pytest.raises(Exception, match="bad disk"):
            await anext(call)


# ---- credit towards the runner


async def test_sending_waits_for_credit():
    async with connected() as (channel, peer), channel.stream("fs.write") as call:
        stream, _ = await peer.opened()
        sending = asyncio.create_task(call.send(bytes(3 * MIB)))
        assert await data_bytes(peer, MIB) == MIB
        await asyncio.sleep(0.02)
        assert not sending.done()
        await peer.credit(stream, 100)
        assert await data_bytes(peer, 100) == 100
        await peer.credit(stream, 10 * MIB)
        assert await data_bytes(peer, 2 * MIB - 100) == 2 * MIB - 100
        await sending
        await call.end()
        await call.end()
        assert (await skip_credit(peer)).kind is Kind.END
        await peer.say(Kind.RESULT, stream, {})
        assert await call.result() == {}


async def data_bytes(peer: Peer, wanted: int) -> int:
    got = 0
    while got < wanted:
        frame = await skip_credit(peer)
        assert frame.kind is Kind.DATA
        assert len(frame.body) <= MIB
        got += len(frame.body)
    return got


async def skip_credit(peer: Peer):
    while (frame := await peer.frame()).kind is Kind.CREDIT:
        pass
    return frame


async def test_a_waiting_sender_gets_the_runners_refusal():
    async with connected() as (channel, peer), channel.stream("fs.write") as call:
        stream, _ = await peer.opened()
        sending = asyncio.create_task(call.send(bytes(3 * MIB)))
        await data_bytes(peer, MIB)
        await peer.say(Kind.ERROR, stream, {"code": "no_space", "message": "full"})
        with pytest.raises(QuotaExceeded):
            await sending


async def test_a_sender_whose_reader_has_ended_gets_no_error():
    async with connected() as (channel, peer), channel.stream("exec.start") as call:
        stream, _ = await peer.opened()
        sending = asyncio.create_task(call.send(bytes(3 * MIB)))
        await data_bytes(peer, MIB)
        await peer.say(Kind.RESULT, stream, {"exit_code": 0})
        await sending
        await call.end()
        assert await call.result() == {"exit_code": 0}


# ---- credit towards us


async def test_credit_is_granted_only_as_items_are_consumed():
    async with connected() as (channel, peer), channel.stream("fs.read", window=MIB) as call:
        stream, _ = await peer.opened()
        for _ in range(16):
            await peer.say(Kind.DATA, stream, bytes(64 * 1024))
        await asyncio.sleep(0.02)
        granted = 0
        for _ in range(16):
            await anext(call)
        while granted < MIB:
            frame = await peer.frame()
            assert frame.kind is Kind.CREDIT
            granted += decode_credit(frame.body)
        assert granted == MIB


async def test_a_wider_window_is_granted_at_once():
    async with connected() as (channel, peer), channel.stream("fs.read", window=4 * MIB):
        assert (await peer.frame()).kind is Kind.OPEN
        frame = await peer.frame()
        assert (frame.kind, decode_credit(frame.body)) == (Kind.CREDIT, 3 * MIB)


async def test_a_consumer_that_does_not_read_does_not_block_others():
    async with connected() as (channel, peer), channel.stream("fs.read") as slow:
        stream, _ = await peer.opened()
        for _ in range(64):
            await peer.say(Kind.DATA, stream, bytes(64 * 1024))
        for number in range(20):
            calling = asyncio.create_task(channel.call("ping"))
            other, _ = await peer.opened()
            await peer.say(Kind.RESULT, other, {"n": number})
            assert await calling == {"n": number}
        await peer.say(Kind.RESULT, stream, {})
        got = sum([len(item.data) async for item in slow if isinstance(item, Data)])
        assert got == 4 * MIB


async def test_unexpected_data_in_a_plain_call_is_dropped_and_credited():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("exec.start"))
        stream, _ = await peer.opened()
        paid = MIB
        for number in range(64):
            while paid < 64 * 1024:
                frame = await peer.frame()
                paid += decode_credit(frame.body)
            await peer.say(Kind.CHUNK, stream, encode_chunk(number, 0, 1, bytes(60_000)))
            paid -= 60_017
        await peer.say(Kind.RESULT, stream, {})
        assert await calling == {}


async def test_unread_events_are_dropped_and_the_loss_is_reported():
    async with connected() as (channel, peer):
        async with channel.stream("fs.watch") as call:
            stream, _ = await peer.opened()
            for number in range(20_000):
                await peer.say(Kind.EVENT, stream, {"event": "change", "n": number})
            await peer.say(Kind.RESULT, stream, {})
            # The answer to a later call shows that all of it has arrived.
            calling = asyncio.create_task(channel.call("ping"))
            other, _ = await peer.opened()
            await peer.say(Kind.RESULT, other, {})
            await calling
            items = [item async for item in call]
        names = [item.name for item in items if isinstance(item, CallEvent)]
        assert names[-1] == "overflow"
        assert names.count("overflow") == 1
        assert 1000 < len(names) < 3000


# ---- cancellation and loss


async def test_closing_a_stream_early_cancels_it_and_late_frames_are_ignored():
    async with connected() as (channel, peer):
        async with channel.stream("fs.watch", window=MIB) as call:
            stream, _ = await peer.opened()
            await peer.say(Kind.EVENT, stream, {"event": "watching"})
            await anext(call)
        frame = await peer.frame()
        assert (frame.kind, frame.stream) == (Kind.CANCEL, stream)
        await peer.say(Kind.EVENT, stream, {"event": "late"})
        await peer.say(Kind.DATA, stream, bytes(MIB))
        await peer.say(Kind.CHUNK, stream, b"not even a chunk")
        await peer.say(Kind.ERROR, stream, {"code": "cancelled", "message": "cancelled"})
        await peer.say(Kind.RESULT, stream, b"not even json")
        calling = asyncio.create_task(channel.call("ping"))
        other, _ = await peer.opened()
        await peer.say(Kind.RESULT, other, {})
        assert await calling == {}


async def test_a_finished_stream_is_not_cancelled():
    async with connected() as (channel, peer):
        async with channel.stream("ping", window=MIB) as call:
            stream, _ = await peer.opened()
            await peer.say(Kind.RESULT, stream, {})
            await call.result()
        calling = asyncio.create_task(channel.call("ping"))
        frame = await peer.frame()
        assert frame.kind is Kind.OPEN
        await peer.say(Kind.RESULT, frame.stream, {})
        await calling


async def test_a_cancelled_task_cancels_its_call():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("exec.wait"))
        stream, _ = await peer.opened()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        frame = await peer.frame()
        assert (frame.kind, frame.stream) == (Kind.CANCEL, stream)


async def test_a_call_that_times_out_is_busy_and_cancelled():
    async with connected() as (channel, peer):
        with pytest.raises(Busy, match="ping"):
            await channel.call("ping", timeout_s=0.02)
        stream, _ = await peer.opened()
        frame = await peer.frame()
        assert (frame.kind, frame.stream) == (Kind.CANCEL, stream)
        assert not channel.closed


async def test_a_task_cancelled_in_the_middle_of_a_frame_corrupts_nothing():
    async with connected() as (channel, peer):
        async with channel.stream("fs.write") as call:
            stream, _ = await peer.opened()
            await peer.credit(stream, 64 * MIB)
            sending = asyncio.create_task(call.send(bytes(32 * MIB)))
            # The peer does not read: the socket is full and a frame is out in part.
            await asyncio.sleep(0.05)
            assert not sending.done()
            sending.cancel()
            await asyncio.wait([sending])
        calling = asyncio.create_task(channel.call("ping"))
        while (frame := await peer.frame()).kind is not Kind.OPEN:
            assert frame.kind in (Kind.DATA, Kind.CANCEL, Kind.CREDIT)
        await peer.say(Kind.RESULT, frame.stream, {"fine": True})
        assert await calling == {"fine": True}


async def test_the_end_of_the_connection_is_sandbox_lost_for_every_call():
    async with connected() as (channel, peer):
        calls = [asyncio.create_task(channel.call("exec.wait")) for _ in range(10)]
        async with channel.stream("fs.read") as reading, channel.stream("fs.write") as writing:
            await writing.send(bytes(MIB))
            blocked = asyncio.create_task(writing.send(b"more"))
            for _ in range(12):
                stream, body = await peer.opened()
                if body["verb"] == "fs.read":
                    await peer.say(Kind.DATA, stream, b"before")
            await asyncio.sleep(0.02)
            await peer.hang_up()
            for call in [*calls, blocked]:
                with pytest.raises(SandboxLost):
                    await call
            assert await anext(reading) == Data(b"before")
            with pytest.raises(SandboxLost):
                await anext(reading)
        assert channel.closed
        with pytest.raises(SandboxLost):
            await channel.call("ping")
        with pytest.raises(SandboxLost):
            async with channel.stream("ping"):
                pass


async def test_each_pending_call_gets_its_own_exception():
    async with connected() as (channel, peer):
        calls = [asyncio.create_task(channel.call("exec.wait")) for _ in range(3)]
        await asyncio.sleep(0)
        await peer.hang_up()
        await asyncio.wait(calls)
        assert len({id(call.exception()) for call in calls}) == 3


async def test_closing_the_channel_cancels_calls_and_succeeds_twice():
    async with connected() as (channel, peer):
        calling = asyncio.create_task(channel.call("exec.wait"))
        await peer.opened()
        await channel.aclose()
        with pytest.raises(Cancelled):
            await calling
        await channel.aclose()
        assert channel.closed
        with pytest.raises(Cancelled):
            await channel.call("ping")


async def test_closing_while_the_socket_is_full_does_not_hang():
    async with connected() as (channel, peer), channel.stream("fs.write") as call:
        stream, _ = await peer.opened()
        await peer.credit(stream, 64 * MIB)
        sending = asyncio.create_task(call.send(bytes(32 * MIB)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE_S):
            await channel.aclose()
            with pytest.raises(Cancelled):
                await sending


async def test_no_task_outlives_the_channel():
    before = asyncio.all_tasks()
    async with connected() as (channel, peer), channel.stream("fs.write") as call:
        stream, _ = await peer.opened()
        await peer.credit(stream, 64 * MIB)
        sending = asyncio.create_task(call.send(bytes(32 * MIB)))
        await asyncio.sleep(0.02)
        sending.cancel()
        await asyncio.wait([sending])
    assert asyncio.all_tasks() == before


async def test_a_request_over_eight_mebibytes_is_refused_here():
    async with connected() as (channel, peer):
        with pytest.raises(PayloadTooLarge):
            await channel.call("exec.start", {"argv": ["x" * (8 * MIB)]})
        calling = asyncio.create_task(channel.call("ping"))
        stream, _ = await peer.opened()
        await peer.say(Kind.RESULT, stream, {})
        await calling


# ---- hello


async def test_a_silent_runner_is_lost_after_the_timeout():
    ours, theirs = sockets()
    with pytest.raises(SandboxLost, match="hello"):
        await Channel.open(ours, hello_timeout_s=0.02)
    assert await theirs.receive(1) == b""
    await theirs.aclose()


async def test_a_runner_that_hangs_up_before_its_hello_is_lost():
    ours, theirs = sockets()
    await theirs.send(b"\0\0")
    await theirs.aclose()
    with pytest.raises(SandboxLost):
        await Channel.open(ours)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 0},
        {"generation": "1"},
        {"generation": None},
        {"uid": -1},
        {"features": "all"},
        {"features": [1]},
        {"version": 1},
    ],
    ids=str,
)
async def test_a_malformed_hello_is_a_violation(change: dict[str, object]):
    ours, theirs = sockets()
    await Peer(theirs).say(Kind.HELLO, 0, {**HELLO, **change})
    with pytest.raises(ProtocolViolation):
        await Channel.open(ours)
    assert await theirs.receive(1) == b""
    await theirs.aclose()


async def test_a_newer_generation_is_accepted():
    ours, theirs = sockets()
    await Peer(theirs).say(Kind.HELLO, 0, {**HELLO, "generation": 9, "new": {}})
    channel = await Channel.open(ours)
    assert channel.hello.generation == 9
    await channel.aclose()
    await theirs.aclose()


@pytest.mark.parametrize(("kind", "stream"), [(Kind.RESULT, 0), (Kind.HELLO, 1), (Kind.DATA, 1)])
async def test_a_connection_that_does_not_start_with_a_hello_is_a_violation(
    kind: Kind, stream: int
):
    ours, theirs = sockets()
    await Peer(theirs).say(kind, stream, HELLO)
    with pytest.raises(ProtocolViolation):
        await Channel.open(ours)
    await theirs.aclose()


async def test_a_runner_that_ends_by_its_lease_announces_it():
    told: list[bool] = []
    async with connected() as (channel, peer):
        channel.when_closed(lambda: told.append(channel.cut_off))
        await peer.say(Kind.EVENT, 0, {"event": "something", "reason": "idle"})
        await peer.say(Kind.EVENT, 0, {"event": "ending", "reason": 7})
        await peer.say(Kind.EVENT, 0, {"event": "ending", "reason": "idle"})
        await peer.hang_up()
        assert await channel.wait_closed(PATIENCE_S)
        await asyncio.sleep(0)
        assert (channel.ending, channel.cut_off, told) == ("idle", True, [True])


async def test_a_channel_closed_on_this_side_was_not_cut_off():
    told: list[bool] = []
    async with connected() as (channel, _):
        channel.when_closed(lambda: told.append(channel.cut_off))
        await channel.aclose()
        await asyncio.sleep(0)
        assert (channel.cut_off, told) == (False, [False])


async def test_a_request_after_the_runners_end_does_not_hide_why_it_ended():
    ours, theirs = socket.socketpair()
    theirs.sendall(encode(Kind.HELLO, 0, json.dumps(HELLO).encode()))
    channel = await Channel.open(SocketStream(ours))
    # Without a turn of the loop in between, as after a pause of the whole machine.
    theirs.sendall(encode(Kind.EVENT, 0, b'{"event":"ending","reason":"idle"}'))
    theirs.close()
    with pytest.raises(SandboxLost):
        await channel.call("exec.list")
    assert (channel.ending, channel.cut_off) == ("idle", True)
    await channel.aclose()


async def test_a_runner_that_only_stops_reading_is_lost_soon():
    async with connected() as (channel, peer), asyncio.timeout(PATIENCE_S):
        peer.stream._sock.shutdown(socket.SHUT_RD)
        with pytest.raises(SandboxLost, match="failed"):
            await channel.call("exec.list")
