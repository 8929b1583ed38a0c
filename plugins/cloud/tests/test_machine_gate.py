"""The gate of a provider's machine and its runner, as programs of this machine: who gets in, over
TCP and over a WebSocket, what code can reach, and how both end.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sandkasten.model.ids import SandboxId
from sandkasten_cloud import websocket_stream
from sandkasten_runtime.backends.gate import entry_keys, tls_stream
from sandkasten_runtime.backends.gate.gate_stream import GateStream
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandkasten.ports import ByteStream
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

ID = SandboxId("sbx_0123456789abcdef")
pytestmark = pytest.mark.root


@dataclass(slots=True)
class Machine:
    port: int
    keys: EntryKeys
    place: Path
    gate: subprocess.Popen[bytes]

    async def plain(self) -> ByteStream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return GateStream(reader, writer)

    @asynccontextmanager
    async def channel(
        self, keys: EntryKeys | None = None, *, wrapped: bool
    ) -> AsyncIterator[Channel]:
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    below = await self._wrapped(session) if wrapped else await self.plain()
                    break
                except ConnectionError:
                    await asyncio.sleep(0.005)
            stream = await tls_stream.enter(below, keys or self.keys, PATIENCE_S)
            channel = await Channel.open(stream)
            yield channel
            await channel.aclose()

    async def _wrapped(self, session: aiohttp.ClientSession) -> ByteStream:
        url = f"http://127.0.0.1:{self.port}/"
        return await websocket_stream.connect(session, url, {}, PATIENCE_S)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="pytest-of-machine-", dir="/var/tmp") as folder:
        place = Path(folder)
        place.chmod(0o711)
        keys, port = entry_keys.make_keys(ID, "fly"), free_port()
        home = place / "home"
        (home / "keys").mkdir(parents=True)
        for name, content in (
            ("cert.der", keys.certificate), ("key.der", keys.key), ("token", keys.token),
        ):  # fmt: skip
            (home / "keys" / name).write_bytes(content)
        programs = Programs.found(None, None)
        gate = subprocess.Popen(
            [
                programs.gate, "--machine", str(port), home, programs.runner,
                "--state-dir", home / "state", "--workspace", place / "new" / "work",
                "--run-as", "999:999", "--user", "1000:1000", "--own", place / "new" / "work",
            ],
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        yield Machine(port, keys, place, gate)
        gate.kill()
        gate.wait()
        # The runner notices.
        deadline = time.monotonic() + PATIENCE_S
        while _runners(place) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _runners(place)


def _runners(place: Path) -> list[str]:
    """Return the processes that have a path of this machine in their command line."""
    pids = []
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{place}/home/state".encode() in command_line.read_bytes():
                pids.append(command_line.parent.name)
    return pids


async def _output(channel: Channel, argv: list[str]) -> bytes:
    output = b""
    fields: dict[str, Any] = {"exec_id": os.urandom(4).hex(), "argv": argv, "follow": True}
    async with channel.stream("exec.start", fields) as call:
        async for item in call:
            if isinstance(item, OutputChunk):
                output += item.data
    return output


@pytest.mark.promise("P115")
@pytest.mark.parametrize("wrapped", [False, True], ids=["tcp", "websocket"])
async def test_the_runner_is_reached_with_key_and_token(machine: Machine, wrapped: bool):
    async with machine.channel(wrapped=wrapped) as channel:
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
        ids = await _output(channel, ["sh", "-c", "id -u; grep NoNewPrivs /proc/self/status; pwd"])
    work = str(machine.place / "new" / "work").encode()
    assert ids.split() == [b"1000", b"NoNewPrivs:", b"1", work]


@pytest.mark.parametrize("wrapped", [False, True], ids=["tcp", "websocket"])
async def test_large_files_pass_both_ways(machine: Machine, wrapped: bool):
    data = os.urandom(3 << 20)
    async with machine.channel(wrapped=wrapped) as channel:
        await channel.call("fs.write", {"path": "large"}, data=data, timeout_s=PATIENCE_S)
        async with channel.stream("fs.read", {"path": "large"}) as call:
            read = b"".join([item.data async for item in call if hasattr(item, "data")])
    assert read == data


@pytest.mark.promise("P115")
@pytest.mark.parametrize("wrapped", [False, True], ids=["tcp", "websocket"])
async def test_a_wrong_token_gets_nothing(machine: Machine, wrapped: bool):
    other = replace(machine.keys, token=bytes(entry_keys.TOKEN_BYTES))
    with pytest.raises(Exception):  # noqa: B017, PT011  (how the end is noticed depends on timing)
        async with machine.channel(other, wrapped=wrapped):
            pass
    async with machine.channel(wrapped=wrapped) as channel:
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}


@pytest.mark.promise("P115")
async def test_another_gate_is_not_accepted(machine: Machine):
    async with machine.channel(wrapped=True):
        pass
    with pytest.raises(OSError, match="certificate"):
        async with machine.channel(entry_keys.make_keys(ID, "fly"), wrapped=True):
            pass


@pytest.mark.promise("P115")
async def test_code_reaches_neither_the_key_nor_the_listener_nor_the_programs(machine: Machine):
    async with machine.channel(wrapped=False) as channel:
        gate, home = machine.gate.pid, machine.place / "home"
        for command in (
            f"cat {home}/keys/token", f"ls {home}/private", f"kill -9 {gate}",
            f"ls /proc/{gate}/fd", f"ls {home}/state/../keys", "kill -9 $PPID",
        ):  # fmt: skip
            output = await _output(channel, ["sh", "-c", command])
            assert b"ermi" in output, command
        await _output(channel, ["sh", "-c", "kill -9 -1"])
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}


async def test_a_browser_is_told_to_upgrade(machine: Machine):
    async with machine.channel(wrapped=False):
        pass
    url = f"http://127.0.0.1:{machine.port}/"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")


@pytest.mark.promise("P115")
async def test_both_programs_end_with_the_runner(machine: Machine):
    async with machine.channel(wrapped=True) as channel:
        await channel.call("lease", {"lifetime_ms": 1}, timeout_s=PATIENCE_S)
    assert await asyncio.to_thread(machine.gate.wait, PATIENCE_S) is not None
