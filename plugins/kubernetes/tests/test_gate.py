"""The gate and the runner of a Pod, as programs of this machine: who gets in, and how both end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.network_policy import NetworkCeiling, NetworkPolicy
from sandkasten_runtime.backends.gate import entry_keys, gate_stream
from sandkasten_runtime.linux import egress
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

ID = SandboxId("sbx_0123456789abcdef")


@dataclass(slots=True)
class Entry:
    port: int
    keys: EntryKeys
    place: Path
    gate: subprocess.Popen[bytes]
    runner: subprocess.Popen[bytes]

    async def connect(self, keys: EntryKeys | None = None) -> gate_stream.GateStream:
        """Connect as soon as the gate listens."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await gate_stream.connect(
                        "127.0.0.1", self.port, keys or self.keys, PATIENCE_S
                    )
                except ConnectionRefusedError:
                    await asyncio.sleep(0.005)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Entry]]:
    """Return a function that starts a gate and a runner; addresses must be closed before."""
    entries: list[Entry] = []

    def open_entry(*closed_to: str) -> Entry:
        entries.append(_entry(tmp_path, closed_to))
        return entries[-1]

    yield open_entry
    for entry in entries:
        for process in (entry.gate, entry.runner):
            process.kill()
            process.wait()


@pytest.fixture
def entry(opened: Callable[..., Entry]) -> Entry:
    return opened()


def _entry(tmp_path: Path, closed_to: tuple[str, ...]) -> Entry:
    keys = entry_keys.make_keys(ID, "kubernetes")
    for name in ("keys", "private"):
        (tmp_path / name).mkdir()
    for name, content in (
        ("cert.der", keys.certificate), ("key.der", keys.key), ("token", keys.token),
        ("network-token", keys.network_token),
    ):  # fmt: skip
        (tmp_path / "keys" / name).write_bytes(content)
    programs, port = Programs.found(None, None), free_port()
    # The runner first: it waits for the gate.
    runner = subprocess.Popen(
        [
            programs.runner, "--receive", tmp_path / "hand-over",
            "--state-dir", tmp_path / "state", "--workspace", tmp_path,
        ],
        env={"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
    )  # fmt: skip
    gate = subprocess.Popen(
        [
            programs.gate, "--pod", str(port), tmp_path / "keys", tmp_path / "hand-over",
            tmp_path / "private" / "listener", *closed_to,
        ]
    )  # fmt: skip
    return Entry(port, keys, tmp_path, gate, runner)


async def _output(channel: Channel, argv: list[str]) -> bytes:
    output = b""
    fields: dict[str, Any] = {"exec_id": "one", "argv": argv, "follow": True}
    async with channel.stream("exec.start", fields) as call:
        async for item in call:
            if isinstance(item, OutputChunk) and item.source == 1:
                output += item.data
    return output


@pytest.mark.promise("P101")
async def test_the_daemon_reaches_the_runner_with_key_and_token(entry: Entry):
    channel = await Channel.open(await entry.connect())
    assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
    variables = await _output(channel, ["env"])
    assert b"PATH=" in variables
    assert b"KUBERNETES" not in variables
    await channel.aclose()
    # The socket of the hand-over serves one connection.
    assert not (entry.place / "hand-over").exists()


async def test_a_large_body_passes_both_ways(entry: Entry):
    channel = await Channel.open(await entry.connect())
    size = 8 << 20
    written = await _output(channel, ["head", "-c", str(size), "/dev/zero"])
    assert len(written) > 0
    assert not written.strip(b"\0")
    await channel.aclose()


@pytest.mark.promise("P101")
async def test_a_wrong_token_gets_nothing(entry: Entry):
    other = replace(entry.keys, token=bytes(entry_keys.TOKEN_BYTES))
    stream = await entry.connect(other)
    try:
        received = await asyncio.wait_for(stream.receive(1), PATIENCE_S)
    except OSError:
        received = b""
    assert received == b""
    await stream.aclose()
    # The gate goes on for others.
    await (await Channel.open(await entry.connect())).aclose()


@pytest.mark.promise("P101")
async def test_another_gate_is_not_accepted(entry: Entry):
    with pytest.raises(ssl.SSLError):
        await entry.connect(entry_keys.make_keys(ID, "kubernetes"))


@pytest.mark.promise("P101")
async def test_clients_that_say_nothing_keep_no_other_out(entry: Entry):
    channel = await Channel.open(await entry.connect())
    # More than the gate serves at once.
    silent = [socket.create_connection(("127.0.0.1", entry.port)) for _ in range(300)]
    try:
        await (await Channel.open(await entry.connect())).aclose()
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
        await channel.aclose()
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.promise("P107")
async def test_nothing_runs_before_the_network_is_closed(opened: Callable[..., Entry]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        entry = opened(f"127.0.0.1:{server.getsockname()[1]}")
        stream = await entry.connect()
        hello = asyncio.ensure_future(stream.receive(1))
        # The gate tries again and again, and reaches it.
        for _ in range(3):
            (await asyncio.to_thread(server.accept))[0].close()
        assert not hello.done()
        assert not (entry.place / "hand-over").exists()
        assert not (entry.place / "private" / "listener").exists()
    assert await asyncio.wait_for(hello, PATIENCE_S)
    await stream.aclose()


@pytest.mark.promise("P101")
async def test_each_ends_with_the_other(entry: Entry):
    await (await Channel.open(await entry.connect())).aclose()
    # As the kubelet does when the Pod is removed.
    entry.gate.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(entry.runner.wait, PATIENCE_S) == 0
    # A Pod whose containers all ended well has no reason for its end.
    assert await asyncio.to_thread(entry.gate.wait, PATIENCE_S) == 128 + signal.SIGTERM


async def test_the_gate_ends_with_the_runner(entry: Entry):
    channel = await Channel.open(await entry.connect())
    entry.runner.kill()
    assert await asyncio.to_thread(entry.gate.wait, PATIENCE_S) == 0
    await channel.aclose()


async def test_a_connection_to_a_gate_that_does_not_answer_is_closed_too(entry: Entry):
    stream = await entry.connect()
    connection = stream._writer.get_extra_info("socket")
    entry.gate.send_signal(signal.SIGSTOP)
    try:
        await stream.aclose()
        assert connection.fileno() == -1
    finally:
        entry.gate.send_signal(signal.SIGCONT)


def test_the_runner_copies_itself_whole(tmp_path: Path):
    program = Programs.found(None, None).runner
    subprocess.run([program, "--install", tmp_path / "runner"], check=True)
    assert (tmp_path / "runner").read_bytes() == program.read_bytes()
    assert os.access(tmp_path / "runner", os.X_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["runner"]


def _egress(place: Path) -> subprocess.Popen[bytes]:
    """Start the egress process of a Pod beside its gate."""
    policy = NetworkPolicy(allow=("example.com",))
    ceiling = NetworkCeiling(servers=("127.0.0.1:1",))
    (place / "egress.json").write_text(json.dumps(egress.config(policy, ceiling)))
    words = ["--pod", str(place / "egress.json"), str(place / "network"), str(free_port())]
    return subprocess.Popen([Programs.found(None, None).egress, *words])


async def _asked(entry: Entry, command: dict[str, object]) -> Any:
    stream = await entry.connect(entry.keys.to_network())
    await stream.send(json.dumps(command).encode() + b"\n")
    answer = await asyncio.wait_for(stream.receive(4096), PATIENCE_S)
    await stream.aclose()
    return json.loads(answer)


@pytest.mark.promise("P111")
async def test_the_runner_waits_for_the_egress_process_which_ends_with_the_gate(
    opened: Callable[..., Entry], tmp_path: Path
):
    (tmp_path / "network").mkdir()
    entry = opened("--network", str(tmp_path / "network"))
    greeted = asyncio.ensure_future(Channel.open(await entry.connect()))
    while not (tmp_path / "network" / "life").exists():  # noqa: ASYNC110  (another process)
        await asyncio.sleep(0.005)
    # The gate waits, and has not offered the runner its listener.
    assert not (tmp_path / "hand-over").exists()
    assert not greeted.done()
    process = _egress(tmp_path)
    try:
        await (await greeted).aclose()
        reply = await _asked(entry, {"after": 0})
        assert (reply["opened"], reply["records"]) == (0, [])
        entry.gate.kill()
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.promise("P111")
async def test_the_token_of_the_network_opens_nothing_without_one(entry: Entry):
    stream = await entry.connect(entry.keys.to_network())
    try:
        received = await asyncio.wait_for(stream.receive(1), PATIENCE_S)
    except OSError:
        received = b""
    assert received == b""
    await stream.aclose()
