"""Terminals over a WebSocket: typed into, resized, disconnected, attached again."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from sandkasten_runtime.store.record_rules import RecordingRules
from sandkasten_server.records.recording_directory import RecordingDirectory
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P38")


class Screen:
    """The output so far, and how to wait for more."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen = b""
        self.said: list[dict[str, object]] = []

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.seen:
                await self.one()

    async def exit(self) -> dict[str, object]:
        async with asyncio.timeout(PATIENCE_S):
            while not any(one["type"] == "exit" for one in self.said):
                await self.one()
        return self.said[-1]

    async def one(self) -> None:
        message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            self.seen += message.data
        elif message.type is aiohttp.WSMsgType.TEXT:
            self.said.append(json.loads(message.data))
        else:
            raise AssertionError(f"closed: {message}, said {self.said}, seen {self.seen[-500:]!r}")


async def opened(daemon, the_id, query=""):
    socket = await daemon.http.ws_connect(f"{daemon.url}/v1/sessions/{the_id}/pty?{query}")
    screen = Screen(socket)
    while not screen.said:
        await screen.one()
    assert screen.said[0]["type"] == "started"
    return screen


async def test_a_shell_is_typed_into_and_ends_with_its_status(real_daemon):
    the_id = await real_daemon.session()
    screen = await opened(real_daemon, the_id, "rows=30&cols=100")
    await screen.socket.send_bytes(b"stty size; echo a-$((40+2))\n")
    await screen.until(b"30 100")
    await screen.until(b"a-42")
    await screen.socket.send_str('{"type": "resize", "rows": 10, "cols": 50}')
    await screen.socket.send_str('{"type": "input", "data": "stty size\\n"}')
    await screen.until(b"10 50")
    await screen.socket.send_bytes(b"exit 7\n")
    ended = await screen.exit()
    assert (ended["exit_code"], ended["status"]) == (7, "completed")
    assert ended["duration_ms"] > 0
    assert (ended["timed_out"], ended["why"]) == (False, None)
    assert ended["usage"]["cpu_ms"] >= 0
    assert ended["started_at"] > 0


async def test_a_lost_terminal_connection_is_resumed(real_daemon):
    the_id = await real_daemon.session()
    first = await opened(real_daemon, the_id)
    await first.socket.send_bytes(b"X=kept; echo ready-$X\n")
    await first.until(b"ready-kept")
    exec_id = first.said[0]["exec_id"]
    await first.socket.close()
    again = await opened(real_daemon, the_id, f"exec_id={exec_id}&offset={len(first.seen)}")
    await again.socket.send_bytes(b"echo still-$X\n")
    await again.until(b"still-kept")
    assert b"ready-kept" not in again.seen
    whole = await opened(real_daemon, the_id, f"exec_id={exec_id}")
    await whole.until(b"still-kept")
    assert b"ready-kept" in whole.seen
    for one in (again, whole):
        await one.socket.close()


async def test_an_abandoned_terminal_is_hung_up(real_daemon):
    the_id = await real_daemon.session()
    screen = await opened(real_daemon, the_id, "keep_seconds=0")
    exec_id = screen.said[0]["exec_id"]
    await screen.socket.close()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            result = await real_daemon.server.engine.exec_get(the_id, exec_id, wait_s=1)
            if result.status != "running":
                break
    assert result.status in ("killed", "completed")


async def test_a_client_that_detaches_and_leaves_is_not_an_error(real_daemon, caplog):
    the_id = await real_daemon.session()
    for _ in range(5):
        screen = await opened(real_daemon, the_id)
        await screen.socket.send_str('{"type": "detach"}')
        await screen.socket.close()
    assert "request.failed" not in caplog.text


async def test_close_hangs_up_at_once_and_invalid_messages_are_answered(real_daemon):
    the_id = await real_daemon.session()
    screen = await opened(real_daemon, the_id, 'command=["sleep","1000"]')
    for nonsense in ("[]", "{", '{"type": "dance"}', '{"type": "resize", "rows": 0, "cols": 1}'):
        await screen.socket.send_str(nonsense)
        count = len(screen.said)
        while len(screen.said) == count:
            await screen.one()
        assert screen.said[-1]["code"] == "INVALID_REQUEST"
    await screen.socket.send_str('{"type": "close"}')
    assert (await screen.exit())["signal"] == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [("rows=0", 422), ("exec_id=nope", 404), ("command=ls", 422), ("unknown=1", 422)],
)
async def test_an_invalid_request_is_refused_before_the_handshake(real_daemon, query, status):
    the_id = await real_daemon.session()
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await real_daemon.http.ws_connect(f"{real_daemon.url}/v1/sessions/{the_id}/pty?{query}")
    assert refused.value.status == status


@pytest.mark.promise("P87")
async def test_a_terminal_is_recorded_once_for_all_its_viewers(real_daemon, tmp_path):
    rules = RecordingRules(enabled=True)
    kept = RecordingDirectory(tmp_path / "recordings", rules, keep_s=60.0)
    trail = real_daemon.server.engine.trail
    trail.recordings = kept
    try:
        the_id = await real_daemon.session()
        screen = await opened(real_daemon, the_id, "rows=30&cols=100")
        eid = screen.said[0]["exec_id"]
        await screen.socket.send_bytes(b"echo one-$((40+2))\n")
        await screen.until(b"one-42")
        other = await opened(real_daemon, the_id, f"exec_id={eid}")
        await other.until(b"one-42")
        assert b"one-42" in (await kept.read(the_id, eid) or b"")
        await screen.socket.send_str('{"type": "resize", "rows": 10, "cols": 50}')
        await screen.socket.send_bytes("echo zwölf-$((10+2)); exit\n".encode())
        await screen.exit()
        await other.exit()
        path = f"/v1/sessions/{the_id}/recordings"
        (entry,) = (await real_daemon.ask("GET", path)).json["recordings"]
        assert entry["exec_id"] == eid
        found = await real_daemon.ask("GET", f"{path}/{eid}")
        assert found.headers["content-type"] == "application/x-asciicast"
        head, *events = map(json.loads, found.raw.splitlines())
        assert (head["version"], head["width"], head["height"]) == (2, 100, 30)
        text = "".join(one[2] for one in events if one[1] == "o")
        assert text.count("one-42") == 1
        assert "zwölf-12" in text
        assert [one[2] for one in events if one[1] == "r"][-1] == "50x10"
        assert [one[0] for one in events] == sorted(one[0] for one in events)
        missing = await real_daemon.ask("GET", f"{path}/exe_0000000000000000")
        assert missing.status == 404
    finally:
        trail.recordings = None


async def test_recordings_are_bounded_and_the_oldest_are_removed(tmp_path):
    rules = RecordingRules(enabled=True, max_bytes=300, max_total_bytes=1000)
    kept = RecordingDirectory(tmp_path, rules, keep_s=1e9)
    for number in range(4):
        one = kept.begin(f"sbx_{number}", "exe_1", "yes")
        assert one is not None
        for _ in range(100):
            one.add(b"y" * 20)
        one.close()
    cast = await kept.read("sbx_3", "exe_1") or b""
    assert len(cast) < 600
    assert json.loads(cast.splitlines()[-1])[1:] == ["m", "the recording reached its limit"]
    await kept.prune(0.0)
    left = [number for number in range(4) if await kept.list(f"sbx_{number}")]
    assert 0 < len(left) < 4
    assert left[-1] == 3


async def test_output_after_a_gap_is_recorded_once(tmp_path):
    rules = RecordingRules(enabled=True, max_bytes=10_000, max_total_bytes=10_000)
    kept = RecordingDirectory(tmp_path, rules, keep_s=1e9)
    one = kept.begin("sbx_1", "exe_1", "sh")
    assert one is not None
    for data, offset in ((b"ab", 0), (b"wxyz", 100), (b"yz!", 102)):
        one.add(data, offset)
    one.close()
    cast = await kept.read("sbx_1", "exe_1") or b""
    assert [json.loads(line)[2] for line in cast.splitlines()[1:]] == ["ab", "wxyz", "!"]
