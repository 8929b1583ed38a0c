"""Processes, stats, ports, quotas, leases, and concurrent streams of one connection."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten.errors import (
    Busy,
    ConnectionRefused,
    FileError,
    InvalidRequest,
    QuotaExceeded,
    SandboxLost,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.limits import Limits
from sandkasten_contract.box import Box, eventually
from sandkasten_contract.patience import PATIENCE_S
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.call import CallEvent, Data
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import decode_processes, decode_stats

MIB = 1024 * 1024


async def test_the_process_list_names_commands_and_their_execs(box: Box):
    exec_id = await box.begin(["sleep", "2001"])

    async def sleeping() -> int:
        listed = decode_processes(await box.ask("proc.list"))
        return len([one for one in listed.processes if one.cmdline == ("sleep", "2001")])

    # Begun is not yet become: for an instant it has the words of what started it.
    await eventually(sleeping, 1)
    listed = decode_processes(await box.ask("proc.list"))
    assert not listed.truncated
    (found,) = [one for one in listed.processes if one.cmdline == ("sleep", "2001")]
    assert (found.name, found.exec_id) == ("sleep", exec_id)
    assert found.pid > 1
    assert found.threads == 1
    assert found.uid == box.channel.hello.user_uid


async def test_a_process_that_ended_is_not_listed(box: Box):
    exec_id = await box.begin(["sleep", "2002"])
    await box.ask("exec.signal", exec_id=exec_id, signal=9)
    await box.wait(exec_id)
    listed = decode_processes(await box.ask("proc.list"))
    assert [one for one in listed.processes if one.cmdline == ("sleep", "2002")] == []


async def test_stats_count_running_commands(box: Box):
    # Whoever made the place may have left it a moment ago.
    await eventually(lambda: counted(box), (0, 0, 1))
    before = decode_stats(await box.ask("stats"))
    await box.begin(["sleep", "2003"])
    await box.run("true")
    after = decode_stats(await box.ask("stats"))
    assert (after.running, after.shells) == (1, 1)
    assert after.processes > before.processes
    assert after.uptime_ms >= before.uptime_ms


async def counted(box: Box) -> tuple[int, int, int]:
    seen = decode_stats(await box.ask("stats"))
    return seen.running, seen.shells, seen.connections


async def test_stats_include_the_disk_usage_of_the_workspace(box: Box):
    disks = decode_stats(await box.ask("stats")).disk
    assert box.workspace in disks
    disk = disks[box.workspace]
    assert disk.total >= disk.used
    assert disk.free <= disk.total


@pytest.mark.not_on("kubernetes", reason="a node ends a Pod whose workspace is too large")
async def test_a_full_workspace_is_a_typed_error_until_space_is_freed(limited):
    box = await limited(Limits(workspace_bytes=16 * MIB))
    try:
        await box.write("big", bytes(64 * MIB))
    except QuotaExceeded:
        pass
    else:
        # A limit this host cannot hold must be said, never silently dropped.
        unenforced = [one.limit for one in getattr(box.cell, "unenforced", ())]
        assert any("workspace" in name for name in unenforced), "the quota was not held"
        return
    assert (await box.list()).entries == ()
    ran = await box.run("head -c 67108864 /dev/zero > big")
    assert ran.exit_code != 0
    # Busybox has its own words for it.
    assert b"No space left" in ran.stderr or b"I/O error" in ran.stderr
    with pytest.raises((QuotaExceeded, FileError)):
        await box.write("more", bytes(4 * MIB))
    await box.remove("big")
    assert (await box.write("more", bytes(4 * MIB))).size == 4 * MIB


async def test_a_full_workspace_does_not_affect_another_cell(limited):
    full = await limited(Limits(workspace_bytes=16 * MIB))
    neighbour = await limited(Limits(workspace_bytes=16 * MIB))
    await full.run("head -c 67108864 /dev/zero > big")
    assert (await neighbour.write("mine", bytes(4 * MIB))).size == 4 * MIB


@pytest.mark.needs_python("the server it talks to is written in Python")
async def test_a_port_inside_is_reached_in_both_directions(box: Box):
    port = await box.echo_server()
    async with asyncio.timeout(PATIENCE_S):
        async with box.channel.stream("port.connect", {"port": port}) as call:
            first = await anext(call)
            assert isinstance(first, CallEvent)
            assert first.name == "connected"
            await call.send(b"hello")
            got = b""
            while len(got) < 5:
                item = await anext(call)
                assert isinstance(item, Data)
                got += item.data
            assert got == b"hello"
            await call.end()
            assert await call.result() == {"sent": 5, "received": 5}


@pytest.mark.needs_python("the server it talks to is written in Python")
async def test_large_data_through_a_port_arrives_completely(box: Box):
    port = await box.echo_server()
    data = bytes(range(256)) * 12_000
    async with asyncio.timeout(PATIENCE_S):
        async with box.channel.stream("port.connect", {"port": port}) as call:

            async def send() -> None:
                await call.send(data)
                await call.end()

            sending = asyncio.create_task(send())
            got = bytearray()
            async for item in call:
                if isinstance(item, Data):
                    got += item.data
            await sending
            assert await call.result() == {"sent": len(data), "received": len(data)}
    assert got == data


async def test_a_port_without_a_server_is_refused(box: Box):
    with pytest.raises(ConnectionRefused):
        await box.ask("port.connect", port=9)


@each("port", [0, -1, 65536, "80", None])
async def test_an_invalid_port_number_is_refused(box: Box, port: object):
    with pytest.raises(InvalidRequest):
        await box.ask("port.connect", port=port)


async def test_an_unknown_request_is_unsupported_and_the_channel_stays_open(box: Box):
    with pytest.raises((UnsupportedByBackend, InvalidRequest)):
        await box.ask("no.such.verb")
    assert await box.ask("ping") == {}


@pytest.mark.aspect("large")
async def test_two_hundred_and_fifty_six_streams_work_and_one_more_is_busy(box: Box):
    exec_id = await box.begin(["sleep", "2004"])
    waits = [asyncio.create_task(box.wait(exec_id)) for _ in range(256)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await box.ask("ping")
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)

    async def answers() -> bool:
        try:
            return await box.ask("ping") == {}
        except Busy:
            return False

    await eventually(answers, True)


async def test_a_cancelled_wait_frees_its_stream(box: Box):
    exec_id = await box.begin(["sleep", "2005"])
    for _ in range(600):
        wait = asyncio.create_task(box.wait(exec_id))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wait.cancel()
        await asyncio.wait([wait])
    assert (await box.run(["echo", "fine"])).stdout == b"fine\n"


async def test_a_lifetime_ends_the_cell(box: Box):
    await box.ask("lease", lifetime_ms=150)
    await lost(box)
    assert box.channel.ending == "lifetime"


@pytest.mark.promise("P30")
async def test_an_idle_cell_ends_and_a_busy_one_does_not(box: Box):
    # At work before it has a lease: the next call may be later than the idle time.
    exec_id = await box.begin(["cat"], stdin="stream")
    await box.ask("lease", idle_ms=300)
    await asyncio.sleep(0.9)
    assert (await box.wait(exec_id, timeout_ms=0)).state == "running"
    await box.ask("exec.stdin", exec_id=exec_id, data=b"", close=True)
    await lost(box)
    assert box.channel.ending == "idle"


async def test_a_lease_that_is_cleared_ends_nothing(box: Box):
    # Both are sent at once: an answer to the first may take longer than the lifetime.
    await asyncio.gather(box.ask("lease", lifetime_ms=400), box.ask("lease"))
    ran = await box.run(["sleep", "0.6"])
    assert ran.exit_code == 0


async def lost(box: Box) -> None:
    """The runner ends by itself without another message on any connection."""

    async def closed() -> bool:
        return box.channel.closed

    async def answers() -> bool:
        try:
            channel = await Channel.open(await box.cell.dial())
        except SandboxLost:
            return False
        await channel.aclose()
        return True

    try:
        await eventually(closed, True)
    except AssertionError as exc:
        raise AssertionError(f"{exc}; a new connection: {await _described(box)}") from exc
    with pytest.raises(SandboxLost):
        await box.ask("ping")
    await eventually(answers, False)


async def _described(box: Box) -> str:
    """Return what the runner of a sandbox that should have ended answers to a new connection."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            channel = await Channel.open(await box.cell.dial())
            try:
                return repr([await channel.call(verb) for verb in ("exec.list", "proc.list")])
            finally:
                await channel.aclose()
    except (SandkastenError, OSError) as exc:
        return repr(exc)
