"""Output: exact counts, kept head and tail, replay by sequence number, idempotency keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten_contract.patience import PATIENCE_S
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.call import OutputChunk

if TYPE_CHECKING:
    from sandkasten_contract.box import Box


def kept(chunks: tuple[OutputChunk, ...], total: int) -> tuple[bytes, bytes]:
    """Return head and tail of one stream's chunks, checking their offsets."""
    head = tail = b""
    at = 0
    jumped = False
    for chunk in chunks:
        if chunk.offset != at:
            assert chunk.offset > at
            assert not jumped, "there may be one gap at most"
            jumped = True
        if jumped:
            tail += chunk.data
        else:
            head += chunk.data
        at = chunk.offset + len(chunk.data)
    assert at == total, "the tail must end where the output ended"
    return head, tail


def seq_text(last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, last + 1))


async def test_chunks_count_from_one_and_offsets_have_no_gap(box: Box):
    ran = await box.run(["seq", "50000"], stdout_cap=1_000_000)
    assert [chunk.seq for chunk in ran.chunks] == list(range(1, len(ran.chunks) + 1))
    assert kept(ran.chunks, ran.reply.stdout_bytes) == (seq_text(50000), b"")
    assert all(len(chunk.data) <= 65536 for chunk in ran.chunks)
    assert not ran.reply.truncated


@each("cap", [0, 1, 2, 999, 1000, 100_001])
async def test_the_cap_keeps_exactly_the_first_and_the_last_bytes(box: Box, cap: int):
    whole = seq_text(60000)
    exec_id = await box.begin(["seq", "60000"], stdout_cap=cap)
    reply = await box.wait(exec_id)
    replay = await box.output(exec_id)
    assert reply.stdout_bytes == len(whole)
    assert reply.truncated
    if cap == 0:
        assert replay.chunks == ()
        return
    head, tail = (cap + 1) // 2, cap // 2
    expected = (whole[:head], whole[len(whole) - tail :] if tail else b"")
    if tail:
        assert kept(replay.chunks, len(whole)) == expected
    else:
        assert replay.stdout == whole[:head]


async def test_output_of_exactly_the_cap_is_whole(box: Box):
    whole = seq_text(1000)
    exec_id = await box.begin(["seq", "1000"], stdout_cap=len(whole))
    assert not (await box.wait(exec_id)).truncated
    assert (await box.output(exec_id)).stdout == whole


async def test_the_caps_of_stdout_and_stderr_are_separate(box: Box):
    ran = await box.run(
        ["sh", "-c", "seq 20000; seq 20000 >&2"], stdout_cap=1000, stderr_cap=1_000_000
    )
    replay = await box.output(ran.reply.exec_id)
    assert len(replay.stdout) == 1000
    assert replay.stderr == seq_text(20000)
    assert ran.reply.stdout_bytes == ran.reply.stderr_bytes == len(seq_text(20000))


async def test_the_default_cap_is_two_hundred_thousand_bytes(box: Box):
    exec_id = await box.begin(["seq", "100000"])
    await box.wait(exec_id)
    assert len((await box.output(exec_id)).stdout) == 200_000


async def test_an_output_flood_is_counted_and_ends_with_its_reader(box: Box):
    ran = await box.run("yes | head -c 20000000")
    assert ran.reply.stdout_bytes == 20_000_000
    assert len((await box.output(ran.reply.exec_id)).stdout) == 200_000
    assert (await box.run("echo usable")).stdout == b"usable\n"


async def test_a_command_without_a_reader_is_not_blocked(box: Box):
    asked = box.fields("yes | head -c 8000000; echo end >&2")
    async with box.channel.stream("exec.start", asked, window=1) as call:
        # Not a byte is taken, far more than the credit is printed, and still it ends.
        reply = await box.wait(str(asked["exec_id"]))
        assert (reply.exit_code, reply.stdout_bytes) == (0, 8_000_000)
        assert (await call.result())["state"] == "exited"


async def test_a_reader_that_fell_behind_sees_the_gap(box: Box):
    asked = box.fields("yes | head -c 8000000", stdout_cap=100_000)
    async with asyncio.timeout(PATIENCE_S):
        async with box.channel.stream("exec.start", asked, window=1) as call:
            await box.wait(str(asked["exec_id"]))
            chunks = [item async for item in call if isinstance(item, OutputChunk)]
    at = gaps = 0
    for chunk in chunks:
        assert chunk.offset >= at
        gaps += chunk.offset > at
        at = chunk.offset + len(chunk.data)
    assert gaps >= 1
    assert at == 8_000_000


async def test_replay_since_a_number_returns_only_newer_output(box: Box):
    ran = await box.run("echo one; sleep 0.05; echo two; sleep 0.05; echo three")
    assert ran.stdout == b"one\ntwo\nthree\n"
    exec_id = ran.reply.exec_id
    assert (await box.output(exec_id, since_seq=0)).stdout == ran.stdout
    first = ran.chunks[0]
    rest = await box.output(exec_id, since_seq=first.seq)
    assert first.data + rest.stdout == ran.stdout
    assert all(chunk.seq > first.seq for chunk in rest.chunks)
    assert (await box.output(exec_id, since_seq=ran.reply.last_seq)).chunks == ()
    assert (await box.output(exec_id, since_seq=10**6)).chunks == ()


async def test_output_of_a_running_command_is_returned_at_once(box: Box):
    exec_id = await box.begin(["sh", "-c", "echo so far; sleep 1000"])
    await box.prints(exec_id, b"so far")
    now = await box.output(exec_id)
    assert (now.stdout, now.reply.state) == (b"so far\n", "running")


async def test_following_ends_with_the_command(box: Box):
    exec_id = await box.begin(["sh", "-c", "echo a; read x; echo b"], stdin="stream")
    following = asyncio.create_task(box.output(exec_id, follow=True))
    await box.prints(exec_id, b"a\n")
    await box.ask("exec.stdin", exec_id=exec_id, data=b"\n", close=True)
    ran = await following
    assert (ran.stdout, ran.reply.state) == (b"a\nb\n", "exited")


async def test_two_followers_see_the_same(box: Box):
    exec_id = await box.begin(["seq", "20000"])
    one, other = await asyncio.gather(
        box.output(exec_id, follow=True), box.output(exec_id, follow=True)
    )
    assert one.stdout == other.stdout == seq_text(20000)


async def test_the_same_exec_id_runs_once_and_is_followed(box: Box):
    asked = box.fields(["sh", "-c", "echo ran >> log; echo printed"])
    exec_id = asked["exec_id"]
    first = await box.run(["sh", "-c", "echo ran >> log; echo printed"], exec_id=exec_id)
    again = await box.run(["sh", "-c", "echo ran >> log; echo printed"], exec_id=exec_id)
    assert await box.read("log") == b"ran\n"
    assert first.stdout == again.stdout == b"printed\n"
    assert first.reply.started_ms == again.reply.started_ms


async def test_concurrent_requests_with_one_key_run_once(box: Box):
    ran = await asyncio.gather(
        *(box.run(["sh", "-c", "echo x >> log; echo out"], key="order-7") for _ in range(8))
    )
    assert await box.read("log") == b"x\n"
    assert {one.stdout for one in ran} == {b"out\n"}
    assert len({one.reply.exec_id for one in ran}) == 1


async def test_different_keys_run_separately(box: Box):
    for key in ("a", "b"):
        await box.run("echo x >> log", key=key)
    assert await box.read("log") == b"x\nx\n"


async def test_an_idempotency_key_applies_to_queued_shell_commands(box: Box):
    blocked = await box.begin("read x", stdin="stream")
    first = await box.begin("echo x >> log", key="k")
    second = await box.begin("echo x >> log", key="k")
    assert first == second
    await box.ask("exec.stdin", exec_id=blocked, data=b"\n", close=True)
    await box.wait(first)
    assert await box.read("log") == b"x\n"
