"""Large JSON bodies are parsed one at a time, with turns for the tenants."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from sandkasten_server.api.request import http_call, large_bodies
from sandkasten_server.api.request.large_bodies import AT_ONCE, LARGE_BYTES, LargeBodies
from sandkasten_server.api.request.request_body import parse_object
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P40")

LARGE = json.dumps({"path": "big", "text": "x" * LARGE_BYTES}).encode()


class Work:
    """Work that lasts until it is let go, and how many of it run at once."""

    def __init__(self):
        self.begun = []
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()
        self._go = threading.Semaphore(0)

    def let_go(self, count=1):
        self._go.release(count)

    def named(self, name):
        def work():
            with self._lock:
                self._running += 1
                self.most = max(self.most, self._running)
                self.begun.append(name)
            assert self._go.acquire(timeout=PATIENCE_S)
            with self._lock:
                self._running -= 1
            return name

        return work

    async def until_begun(self, count):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if len(self.begun) >= count:
                    return
                await asyncio.sleep(0.005)


async def settled():
    """Let every task run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def parsing(bodies, work, tenant, name):
    task = asyncio.ensure_future(bodies.parse(tenant, work.named(name)))
    await settled()
    return task


async def test_one_tenant_with_many_bodies_lets_another_have_every_second_turn():
    bodies, work = LargeBodies(), Work()
    tasks = [await parsing(bodies, work, "a", f"a{n}") for n in range(4)]
    tasks += [await parsing(bodies, work, "b", f"b{n}") for n in range(2)]
    work.let_go(6)
    assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert work.most == 1
    assert work.begun == ["a0", "b0", "a1", "b1", "a2", "a3"]


async def test_a_body_whose_client_left_gives_up_its_turn_or_keeps_it_until_the_thread_ends():
    bodies, work = LargeBodies(), Work()
    running, waiting, last = [await parsing(bodies, work, "a", name) for name in ("r", "w", "l")]
    await work.until_begun(1)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    await settled()
    # The thread of the first still works.
    assert work.begun == ["r"]
    work.let_go(2)
    assert await last == "l"
    assert (work.begun, work.most) == (["r", "l"], 1)


async def test_work_that_fails_ends_its_turn():
    bodies = LargeBodies()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await bodies.parse("a", lambda: 1 // 0)


async def test_a_tenant_sends_a_few_large_bodies_at_a_time(daemon, monkeypatch):
    """What clients begin to send and do not end is in memory: of many, most is not even read."""
    monkeypatch.setattr(large_bodies, "_WAIT_S", 0.5)
    the_id = await daemon.session()
    path = f"/v1/sessions/{the_id}/fs/write"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun = [await asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(AT_ONCE + 1)]
    places = daemon.server.large_bodies._places
    for _, writer in begun[:AT_ONCE]:
        writer.write(f"{head}Content-Length: {len(LARGE) + 9}\r\n\r\n".encode() + LARGE)
        await writer.drain()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if "default" in places and places["default"].locked():
                break
            await asyncio.sleep(0.01)
    reader, writer = begun[-1]
    writer.write(f"{head}Content-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE)
    async with asyncio.timeout(PATIENCE_S):
        assert b" 503 " in await reader.readline()
    # Small ones do not wait, and a client that leaves makes room.
    small = await daemon.ask("POST", path, {"path": "small", "text": "x"})
    assert small.status == 200
    begun[0][1].transport.abort()
    large = await daemon.ask("POST", path, json.loads(LARGE))
    assert large.status == 200
    for _, one in begun:
        one.transport.abort()


async def test_only_large_bodies_wait_for_each_other(daemon, monkeypatch):
    work = Work()

    def parse(raw):
        if len(raw) > LARGE_BYTES:
            work.named(len(raw))()
        return parse_object(raw)

    monkeypatch.setattr(http_call, "parse_object", parse)
    path = f"/v1/sessions/{await daemon.session()}/fs/write"
    json_type = {"Content-Type": "application/json"}
    sending = [
        asyncio.ensure_future(daemon.ask("POST", path, data=LARGE, headers=json_type))
        for _ in range(4)
    ]
    await work.until_begun(1)
    small = await daemon.ask("POST", path, {"path": "small", "text": "x" * (LARGE_BYTES // 2)})
    assert small.status == 200
    sending[-1].cancel()
    work.let_go(4)
    assert [one.status for one in await asyncio.gather(*sending[:-1])] == [200] * 3
    assert work.most == 1
