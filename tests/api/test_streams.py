"""Output streams over HTTP, and what happens when the reader disconnects."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import socket
import time
from typing import Any

import pytest

from sandkasten_server.api.response import sse
from tests.api.events import Event, events
from tests.engine.injections import GO, UNTIL_GO
from tests.patience import PATIENCE_S


@pytest.fixture
async def box(daemon):
    return f"/v1/sessions/{await daemon.session()}"


async def _streamed(daemon, path, body=None, **more):
    method = "GET" if body is None else "POST"
    async with daemon.http.request(method, daemon.url + path, json=body, **more) as reply:
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [one async for one in events(reply)]


async def go(daemon, box):
    written = await daemon.ask("POST", f"{box}/fs/write", {"path": GO, "text": ""})
    assert written.status == 200


async def test_chunks_arrive_in_order_and_the_last_event_is_the_complete_result(daemon, box):
    body = {"cmd": f"echo a; {UNTIL_GO}; echo b >&2; exit 4"}
    seen: list[Any] = []
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        async for one in events(reply):
            if not seen:
                # Only then is b written: what two streams get at the same moment has no order.
                await go(daemon, box)
            seen.append(one)
    assert [one.name for one in seen] == ["chunk", "chunk", "done"]
    first, second = seen[0].data, seen[1].data
    assert (first["seq"], first["stream"], first["text"]) == (1, "stdout", "a\n")
    assert (second["seq"], second["stream"], second["text"]) == (2, "stderr", "b\n")
    assert first["chunk"] == first["text"]
    assert abs(first["timestamp"] / 1000 - time.time()) < 60
    assert seen[0].id == "1"
    done = seen[-1].data
    assert (done["exit_code"], done["output"]) == (4, "a\nb\n")
    assert first["exec_id"] == done["exec_id"]


@pytest.mark.promise("P38")
async def test_no_character_that_a_client_may_take_for_a_line_break_is_in_an_event(daemon, box):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
    body = {"cmd": ["printf", "%s", text]}
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        said = (await reply.read()).decode()
    assert said.splitlines() == said.split("\n")[:-1]
    shown = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
    assert [one.get("text", one.get("stdout")) for one in shown] == [text, text]


async def test_stream_true_requests_a_stream(daemon, box):
    seen = await _streamed(daemon, f"{box}/exec", {"cmd": "echo a", "stream": True})
    assert [one.name for one in seen] == ["chunk", "done"]


@pytest.mark.promise("P38")
async def test_the_first_byte_arrives_while_the_command_runs(daemon, box):
    body = {"cmd": f"echo early; {UNTIL_GO}; echo late"}
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        coming = events(reply)
        first = await anext(coming)
        # Only now it can go on.
        await go(daemon, box)
        rest = [one async for one in coming]
    assert (first.name, first.data["text"]) == ("chunk", "early\n")
    assert [one.name for one in rest] == ["chunk", "done"]


async def test_a_quiet_commands_stream_has_headers_and_keepalive_comments(daemon, box, monkeypatch):
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.1)
    body = {"cmd": UNTIL_GO}
    raw = b""
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        async with asyncio.timeout(PATIENCE_S):
            while raw.count(b": still here\n\n") < 3:
                raw += await reply.content.readany()
        assert b"event:" not in raw
        await go(daemon, box)
        raw += await reply.read()
    assert raw.count(b"event: done") == 1


@pytest.mark.usefixtures("patient_streams")
async def test_a_command_that_cannot_run_is_an_error_and_not_a_stream(daemon, box):
    reply = await daemon.ask("POST", f"{box}/exec/stream", {"cmd": ["nosuch"]})
    assert (reply.status, reply.json["code"]) == (404, "COMMAND_NOT_FOUND")
    reply = await daemon.ask("POST", f"{box}/exec/stream", {"cmd": "a", "timeout_ms": 10**9})
    assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")


async def test_a_session_destroyed_meanwhile_ends_the_stream_with_the_reason(daemon, box):
    body = {"cmd": "echo begun; sleep 30"}
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        seen: list[Event] = []
        async for one in events(reply):
            if not seen:
                assert (await daemon.ask("DELETE", box)).status == 200
            seen.append(one)
    assert seen[0].name == "chunk"
    last = seen[-1]
    assert (last.name, last.data.get("status")) == ("done", "lost") or last.name == "error"


@pytest.mark.promise("P14")
async def test_bytes_and_split_characters_survive_a_stream(daemon, box):
    cmd = r"printf '\303'; sleep 0.1; printf '\244\377'"
    seen = await _streamed(daemon, f"{box}/exec/stream", {"cmd": cmd})
    chunks = [one.data for one in seen[:-1]]
    assert b"".join(base64.b64decode(one["data_b64"]) for one in chunks) == b"\xc3\xa4\xff"
    assert "".join(one["chunk"] for one in chunks) == "ä�"


@pytest.mark.promise("P38")
async def test_a_disconnected_reader_continues_where_it_stopped(daemon, box):
    body = {"cmd": ["sh", "-c", "echo 1; echo 2; sleep 0.3; echo 3"], "background": True}
    eid = (await daemon.ask("POST", f"{box}/exec", body)).json["exec_id"]
    accept = {"Accept": "text/event-stream"}
    async with daemon.http.get(f"{daemon.url}{box}/execs/{eid}/output", headers=accept) as reply:
        async for one in events(reply):
            last = one.id
            break
    seen = await _streamed(
        daemon, f"{box}/execs/{eid}/output", headers={**accept, "Last-Event-ID": str(last)}
    )
    assert seen[0].id == str(int(last or 0) + 1)
    assert [one.name for one in seen][-1] == "done"
    assert "3\n" in [one.data.get("text") for one in seen]
    assert seen[-1].data["stdout"].endswith("3\n")


@pytest.mark.promise("P38")
async def test_disconnecting_a_reader_does_not_stop_the_command(daemon, box):
    body = {"cmd": ["sh", "-c", "echo begun; sleep 0.5; echo done > mark"]}
    async with daemon.http.post(f"{daemon.url}{box}/exec/stream", json=body) as reply:
        async for one in events(reply):
            eid = one.data["exec_id"]
            break
    ended = await daemon.ask("GET", f"{box}/execs/{eid}?wait_seconds=40")
    assert (ended.json["status"], ended.json["exit_code"]) == ("completed", 0)
    assert (await daemon.ask("POST", f"{box}/exec", {"cmd": "cat mark"})).json["stdout"] == "done\n"


@pytest.mark.promise("P38")
@pytest.mark.slow
async def test_abandoned_streams_leak_nothing(daemon, box, full_size):
    count = 1000 if full_size else 200
    eid = await daemon.ask("POST", f"{box}/exec", {"cmd": ["sleep", "60"], "background": True})
    path = f"{box}/execs/{eid.json['exec_id']}/output"
    body = json.dumps({"cmd": ["sh", "-c", "echo a; sleep 0.2"]}).encode()
    asks = [
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n" % path.encode(),
        b"POST %s/exec/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (box.encode(), len(body), body),
    ]

    async def leave(n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(asks[n % 2])
        await writer.drain()
        # Some before the answer, some after its first bytes, some by a reset.
        if n % 3:
            await reader.read(1)
        if n % 5 == 0:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    def held() -> tuple[int, int]:
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

    for n in range(10):
        await leave(n)
    await asyncio.sleep(1)
    before = held()
    for start in range(0, count, 50):
        await asyncio.gather(*(leave(n) for n in range(start, min(start + 50, count))))

    async def running() -> int:
        return (await daemon.ask("GET", f"{box}/stats")).json["running"]

    for _ in range(int(PATIENCE_S / 0.1)):
        gc.collect()
        left = held()
        # The commands of the abandoned streams end by themselves, a busy machine ends them later.
        # The question itself opens the audit log for a moment.
        if left <= before and await running() == 1:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"{left} tasks and descriptors, {before} before; {await running()} commands")


async def test_streams_work_on_a_real_sandbox(real_daemon):
    box = f"/v1/sessions/{await real_daemon.session()}"
    async with real_daemon.http.post(
        f"{real_daemon.url}{box}/exec/stream",
        json={"cmd": f"echo 1; {UNTIL_GO}; echo 2; sleep 0.1; echo 3"},
    ) as reply:
        async for one in events(reply):
            assert one.data["text"] == "1\n"
            eid = one.data["exec_id"]
            break
    await go(real_daemon, box)
    ended = await real_daemon.ask("GET", f"{box}/execs/{eid}?wait_seconds=40")
    assert ended.json["stdout"] == "1\n2\n3\n"
    whole = await _streamed(
        real_daemon, f"{box}/execs/{eid}/output", headers={"Accept": "text/event-stream"}
    )
    assert "".join(one.data["text"] for one in whole[:-1]) == "1\n2\n3\n"
