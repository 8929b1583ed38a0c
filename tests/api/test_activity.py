"""Which requests extend the life of a session: work does, reading does not."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import pytest

from sandkasten_server.api.routes.route_table import route_table
from tests.api.daemon_in_process import serving
from tests.engine.injections import World
from tests.patience import PATIENCE_S
from tests.store.memory_store import MemoryJournal

pytestmark = pytest.mark.promise("P30")

READS = {
    "/v1/sessions": "/v1/sessions?usage=true",
    "/v1/sessions/{id}": "",
    "/v1/sessions/{id}/execs": "/execs",
    "/v1/sessions/{id}/execs/{eid}": "/execs/{eid}",
    "/v1/sessions/{id}/execs/{eid}/output": "/execs/{eid}/output",
    "/v1/sessions/{id}/recordings": "/recordings",
    "/v1/sessions/{id}/recordings/{eid}": "/recordings/{eid}",
    "/v1/sessions/{id}/contexts": "/contexts",
    "/v1/sessions/{id}/stats": "/stats",
    "/v1/sessions/{id}/processes": "/processes",
    "/v1/sessions/{id}/network": "/network",
    "/v1/sessions/{id}/network/log": "/network/log",
    "/v1/sessions/{id}/fs/read": "/fs/read?path=a.txt",
    "/v1/sessions/{id}/fs/list": "/fs/list?path=.",
    "/v1/sessions/{id}/fs/stat": "/fs/stat?path=a.txt",
    "/v1/sessions/{id}/fs/watch": "/fs/watch?path=.",
}
"""Every route of a session that extends nothing, and a request to it."""

WORK = {
    "PATCH /v1/sessions/{id}",
    "DELETE /v1/sessions/{id}",
    "POST /v1/sessions",
    "POST /v1/sessions/{id}/fork",
    "POST /v1/sessions/{id}/exec",
    "POST /v1/sessions/{id}/exec/stream",
    "POST /v1/sessions/{id}/execs/{eid}/stdin",
    "POST /v1/sessions/{id}/execs/{eid}/close-stdin",
    "POST /v1/sessions/{id}/execs/{eid}/signal",
    "DELETE /v1/sessions/{id}/shells/{name}",
    "POST /v1/sessions/{id}/code",
    # It runs Python in the session.
    "GET /v1/sessions/{id}/languages",
    "POST /v1/sessions/{id}/contexts",
    "DELETE /v1/sessions/{id}/contexts/{cid}",
    "POST /v1/sessions/{id}/contexts/{cid}/restart",
    "POST /v1/sessions/{id}/contexts/{cid}/interrupt",
    "POST /v1/sessions/{id}/pause",
    "POST /v1/sessions/{id}/resume",
    "POST /v1/sessions/{id}/reclaim",
    "POST /v1/sessions/{id}/snapshots",
    # A server inside is used, also by a page that is only open.
    "ANY /v1/sessions/{id}/ports/{port}",
    "ANY /v1/sessions/{id}/ports/{port}/{rest:path}",
    "WS /v1/sessions/{id}/ports/{port}",
    "WS /v1/sessions/{id}/ports/{port}/{rest:path}",
    "WS /v1/sessions/{id}/tunnels/{port}",
    "POST /v1/sessions/{id}/previews",
    "DELETE /v1/sessions/{id}/previews",
    "DELETE /v1/sessions/{id}/previews/{link}",
    "POST /v1/sessions/{id}/files/stage",
    "POST /v1/sessions/{id}/files/publish",
    "POST /v1/sessions/{id}/fs/write",
    "PUT /v1/sessions/{id}/fs/file",
    "POST /v1/sessions/{id}/fs/mkdir",
    "POST /v1/sessions/{id}/fs/move",
    "POST /v1/sessions/{id}/fs/delete",
    "DELETE /v1/sessions/{id}/fs",
    "POST /v1/sessions/{id}/fs/upload",
    # A transfer of any size, which must not be cut off.
    "GET /v1/sessions/{id}/fs/download",
}
TYPED = {"WS /v1/sessions/{id}/pty"}


def test_every_route_of_a_session_has_a_decision():
    routes = [one for one in route_table().routes if one.path.startswith("/v1/sessions")]
    decided = {
        **{f"GET {path}": "none" for path in READS},
        **dict.fromkeys(WORK, "work"),
        **dict.fromkeys(TYPED, "input"),
    }
    assert {f"{one.method} {one.path}": one.extends for one in routes} == decided


@pytest.fixture
async def world():
    journal = MemoryJournal()
    one = World(journal=journal)
    yield one
    for info in await one.engine.list(all=True):
        await one.engine.destroy(info.id)
    await one.engine.aclose()
    await journal.aclose()


@pytest.fixture
async def daemon(world):
    async with serving(world.engine, journal=world.journal) as one:
        yield one


async def expires_at(world):
    [info] = await world.engine.list()
    return info.expires_at


async def test_reads_extend_nothing(world, daemon):
    the_id = await daemon.session(ttl_seconds=3600)
    box = f"/v1/sessions/{the_id}"
    ran = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo a > a.txt"})
    ends = await expires_at(world)
    for path, tail in READS.items():
        world.clock.ahead_s += 10
        request = tail if tail.startswith("/v1/") else box + tail
        request = request.replace("{eid}", ran.json["exec_id"])
        if path.endswith("/watch"):
            async with daemon.http.get(daemon.url + request) as stream:
                assert await stream.content.readany()
        else:
            answer = await daemon.ask("GET", request)
            assert answer.status in (200, 404, 501), (path, answer.raw)
        assert await expires_at(world) == pytest.approx(ends, abs=1), path
    world.clock.ahead_s += 10
    await daemon.ask("POST", f"{box}/exec", {"cmd": "true"})
    assert await expires_at(world) > ends + 100


async def test_session_that_was_looked_at_ends_like_the_other_one(world, daemon):
    ids = [await daemon.session(ttl_seconds=20) for _ in range(2)]
    for _ in range(4):
        world.clock.ahead_s += 6
        for tail in ("", "/execs", "/stats", "/processes", "/network/log", "/fs/list?path=."):
            await daemon.ask("GET", f"/v1/sessions/{ids[0]}{tail}")
    looked, other = [info.expires_at for info in await world.engine.list()]
    assert looked == pytest.approx(other, abs=5)


async def shell(daemon, the_id, query=""):
    socket = await daemon.http.ws_connect(f"{daemon.url}/v1/sessions/{the_id}/pty?{query}")
    return socket, (await socket.receive_json())["exec_id"]


async def ended(daemon, the_id, exec_id):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            row = await daemon.ask("GET", f"/v1/sessions/{the_id}/execs/{exec_id}")
            if row.json["status"] != "running":
                return


async def test_shell_without_input_is_no_activity_and_ends_with_its_page(world, daemon):
    the_id = await daemon.session(ttl_seconds=3600)
    ends = await expires_at(world)
    world.clock.ahead_s += 100
    socket, exec_id = await shell(daemon, the_id, "keep_seconds=86400")
    await socket.send_str('{"type": "resize", "rows": 10, "cols": 50}')
    again = await daemon.http.ws_connect(
        f"{daemon.url}/v1/sessions/{the_id}/pty?exec_id={exec_id}&keep_seconds=86400"
    )
    assert await expires_at(world) == pytest.approx(ends, abs=1)
    await socket.close()
    await again.close()
    await ended(daemon, the_id, exec_id)
    assert await expires_at(world) == pytest.approx(ends, abs=1)


TYPING = {
    "bytes": lambda socket, _, text: socket.send_bytes(text.encode()),
    "a message": lambda socket, _, text: socket.send_json({"type": "input", "data": text}),
    "stdin as JSON": lambda _, ask, text: ask({"data": text}),
    "stdin in base64": lambda _, ask, text: ask(
        {"data_b64": base64.b64encode(text.encode()).decode()}
    ),
}
"""Every way to type into a terminal."""


@pytest.mark.parametrize("way", TYPING)
async def test_shell_that_got_input_is_activity_and_waits_for_its_page(world, daemon, way):
    the_id = await daemon.session(ttl_seconds=3600)
    ends = await expires_at(world)
    socket, exec_id = await shell(daemon, the_id, "keep_seconds=86400")
    world.clock.ahead_s += 100

    async def ask(body):
        path = f"/v1/sessions/{the_id}/execs/{exec_id}/stdin"
        assert (await daemon.ask("POST", path, body)).status == 200

    await TYPING[way](socket, ask, "X=kept; echo a-$X\n")
    await until(socket, b"a-kept")
    assert await expires_at(world) > ends + 90
    await socket.close()
    again, same = await shell(daemon, the_id, f"exec_id={exec_id}&keep_seconds=0")
    assert same == exec_id
    await again.send_bytes(b"echo b-$X\n")
    await until(again, b"b-kept")
    await again.close()
    await ended(daemon, the_id, exec_id)


async def test_program_on_a_terminal_waits_for_its_client_without_input(world, daemon):
    the_id = await daemon.session(ttl_seconds=3600)
    ends = await expires_at(world)
    world.clock.ahead_s += 100
    socket, exec_id = await shell(daemon, the_id, 'command=["cat"]&keep_seconds=86400')
    assert await expires_at(world) > ends + 90
    await socket.close()
    again, same = await shell(daemon, the_id, f"exec_id={exec_id}&keep_seconds=0")
    assert same == exec_id
    await again.close()


async def until(socket, text):
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while text not in seen:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                seen += message.data
