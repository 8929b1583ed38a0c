"""Watches over HTTP, from `ready` until the reader or the sandbox ends."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P21")


@asynccontextmanager
async def watching(daemon, box, query=""):
    """Return an iterator over (event, data), after `ready`."""

    async def events(reply):
        name = ""
        async for line in reply.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])

    async with daemon.http.get(f"{daemon.url}{box}/watch{query}") as reply:
        assert reply.status == 200, await reply.read()
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        found = events(reply)
        assert (await anext(found))[0] == "ready"
        yield found


async def until(events, path, kind):
    async with asyncio.timeout(PATIENCE_S):
        async for name, data in events:
            if name == "change" and data["path"] == path and data["kind"] == kind:
                return data
    raise AssertionError("the events ended")


async def test_changes_after_ready_are_reported(daemon):
    box = f"/v1/sessions/{await daemon.session()}/fs"
    async with watching(daemon, box) as events:
        await daemon.ask("POST", f"{box}/mkdir", {"path": "a"})
        await daemon.ask("POST", f"{box}/write", {"path": "a/f", "text": "1"})
        made = await until(events, "/workspace/a", "created")
        assert (made["is_dir"], made["change"]) == (True, "created")
        assert (await until(events, "/workspace/a/f", "created"))["is_dir"] is False
        await daemon.ask("DELETE", f"{box}?path=a&recursive=true")
        await until(events, "/workspace/a", "deleted")


async def test_a_real_watch_reports_changes_names_and_its_end(real_daemon):
    from sandkasten.model.commands.exec_values import ExecRequest

    the_id = await real_daemon.session()
    box = f"/v1/sessions/{the_id}/fs"
    async with watching(real_daemon, box, "?path=/workspace&recursive=true") as events:
        await real_daemon.server.engine.exec(
            the_id, ExecRequest("mkdir d; echo 1 > d/f; mv d/f d/g; printf x > $'odd\\n\\xff'")
        )
        await until(events, "/workspace/d", "created")
        async with asyncio.timeout(PATIENCE_S):
            async for name, data in events:
                assert name == "change"
                if "path_b64" in data:
                    break
        assert base64.b64decode(data["path_b64"]) == b"/workspace/odd\n\xff"
        await real_daemon.ask("DELETE", f"/v1/sessions/{the_id}")
        async with asyncio.timeout(PATIENCE_S):
            last = [one async for one in events][-1]
        assert last[0] == "error"
        gone = ("SANDBOX_LOST", "SESSION_NOT_FOUND", "SESSION_EXPIRED")
        assert last[1]["code"] in gone


# Where this machine is slow, a minute may not do for all the files.
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_flood_of_changes_is_reported_as_overflow(real_daemon):
    from sandkasten.model.commands.exec_values import ExecRequest

    the_id = await real_daemon.session()
    box = f"/v1/sessions/{the_id}/fs"
    url = f"{real_daemon.url}{box}/watch"
    async with real_daemon.http.get(url, read_bufsize=1024) as reply:
        await reply.content.readline()
        # Nobody reads meanwhile: more than the kernel's queue and all buffers hold.
        command = "i=0; while [ $i -lt 60000 ]; do : > f$i; i=$((i+1)); done"
        await real_daemon.server.engine.exec(the_id, ExecRequest(command, timeout_seconds=200))
        found = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"event: overflow" not in found:
                found = (found + await reply.content.readany())[-100_000:]


async def test_disconnecting_ends_the_watch(real_daemon):
    the_id = await real_daemon.session()
    box = f"/v1/sessions/{the_id}/fs"
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with watching(real_daemon, box):
            pass
    for _ in range(int(PATIENCE_S / 0.05)):
        if len(asyncio.all_tasks()) <= before:
            break
        await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= before


async def test_a_path_that_cannot_be_watched_is_refused_before_the_stream(daemon):
    box = f"/v1/sessions/{await daemon.session()}/fs"
    assert (await daemon.ask("GET", f"{box}/watch?path=none")).status == 404
    assert (await daemon.ask("GET", f"{box}/watch?path=/etc/passwd")).status == 403
