"""A client that leaves a streamed answer ends it, on every route, and no other client waits.

Each case opens an answer that would never end and leaves it. `/healthz` is then asked on another
connection. What counts is how many pieces were sent from the moment the client left: until the
probe was answered, and until the handler had ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import ConnectionRefused
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten_agents.lazy_agents import LazyAgents
from sandkasten_agents.routes import runs
from sandkasten_e2b.connect_codec import STREAM, envelope
from sandkasten_e2b.e2b_assembly import open_e2b
from sandkasten_e2b.e2b_dialect import STREAMS
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.previews.preview_access import Previews
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.route import JSON
from sandkasten_server.api.routes import images, stats
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_server.records.preview_directory import PreviewDirectory
from tests.api.daemon_in_process import OpenAgents
from tests.api.daemon_with_database import AS_OPERATOR, booked
from tests.api.streamed_routes import LARGE_JSON, PREVIEW, STREAMED
from tests.e2b_requests import TOKENS
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.promise("P40")

# Sent after the client left: the piece under way, and what was in the buffers of a WebSocket.
MOST_PIECES = 8
MB = 1 << 20
# Content that is no JSON, in one piece: small, or bounded and in memory already.
WHOLE = {
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/"),
    ("GET", "/dashboard/{name}"),
    ("GET", "/v1/sessions/{id}/recordings/{eid}"),
    ("HEAD", "/v1/files/{key:path}"),
}
# They stream what they receive, and have nothing to send.
RECEIVES = {"/e2b/process.Process/StreamInput"}

# Answers every request with bytes that never end, and every WebSocket with messages. On the second
# port it does not wait for a request.
ENDLESS_SERVER = """
import base64, hashlib, socket, threading
def accept_all(port, serve):
    server = socket.create_server(("127.0.0.1", port))
    while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
def send(sock, piece):
    while True: sock.sendall(piece)
def serve(sock):
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += sock.recv(4096)
    key = [l[19:] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key: ")]
    if key:
        accept = hashlib.sha1(key[0] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: "
            b"Upgrade\\r\\nSec-WebSocket-Accept: " + base64.b64encode(accept) + b"\\r\\n\\r\\n")
        piece = b"\\x82\\x7e\\xff\\xff" + b"x" * 65535
    else:
        sock.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        piece = b"x" * 65536
    send(sock, piece)
threading.Thread(target=accept_all, args=(8001, lambda sock: send(sock, b"x" * 65536))).start()
accept_all(8000, serve)
"""
CHANGES = "while :; do : > w/a; rm w/a; done"


class World:
    """A daemon with one sandbox, and the requests of the cases."""

    def __init__(self, daemon: Any, the_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon = daemon
        self.id = the_id
        self.box = f"/v1/sessions/{the_id}"
        self.monkeypatch = monkeypatch

    async def run(self, command: str) -> None:
        result = await self.daemon.server.engine.exec(self.id, ExecRequest(command))
        assert result.exit_code == 0, result.stderr

    async def start(self, *command: str) -> str:
        started = await self.daemon.server.engine.exec_start(self.id, ExecRequest(command))
        return str(started.exec_id)

    async def server(self) -> None:
        await self.start("python3", "-c", ENDLESS_SERVER)
        for port in (8000, 8001):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(ConnectionRefused):
                        async with self.daemon.server.engine.connect(self.id, port):
                            break
                    await asyncio.sleep(0.02)

    async def large_file(self) -> None:
        await self.run("truncate -s 1T big")

    def request(
        self, method: str, path: str, body: bytes = b"", kind: str = JSON, **more: str
    ) -> bytes:
        headers = {"Host": "localhost", **AS_OPERATOR, "Content-Type": kind, **more}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def get(self, path: str, **headers: str) -> bytes:
        return self.request("GET", path, b"", JSON, **headers)

    def events(self, method: str, path: str, **body: object) -> bytes:
        sent = json.dumps(body).encode() if body else b""
        return self.request(method, path, sent, Accept="text/event-stream")

    def socket(self, path: str) -> bytes:
        return self.get(
            path,
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key=base64.b64encode(b"0" * 16).decode(),
        )

    def e2b(self, method: str, path: str, body: object = None) -> bytes:
        tokens = {"E2b_Sandbox_Id": self.id, "X_Access_Token": TOKENS.token(self.id)}
        if path.startswith(("/process.", "/filesystem.")):
            return self.request(method, f"/e2b{path}", envelope(body), STREAM, **tokens)
        sent = b"" if body is None else json.dumps(body).encode()
        return self.request(method, path, sent, **tokens)


async def endless(*_: object) -> AsyncIterator[bytes]:
    """The worst source: there is always more, and it never waits."""
    while True:
        yield b"data: " + b"x" * 1000 + b"\n\n"


# ---- the cases: each returns a request whose answer never ends


async def exec_(world: World) -> bytes:
    return world.events("POST", f"{world.box}/exec", cmd="yes", stream=True)


async def exec_stream(world: World) -> bytes:
    return world.events("POST", f"{world.box}/exec/stream", cmd="yes")


async def exec_output(world: World) -> bytes:
    return world.events("GET", f"{world.box}/execs/{await world.start('yes')}/output")


async def code(world: World) -> bytes:
    source = "while True: print('x' * 1000)"
    return world.events("POST", f"{world.box}/code", code=source)


async def oneshot(world: World) -> bytes:
    return world.events("POST", "/v1/run", code="yes", runtime="bash")


async def port_below(world: World) -> bytes:
    await world.server()
    return world.get(f"{world.box}/ports/8000/below")


async def port(world: World) -> bytes:
    await world.server()
    return world.get(f"{world.box}/ports/8000")


async def port_socket_below(world: World) -> bytes:
    await world.server()
    return world.socket(f"{world.box}/ports/8000/below")


async def port_socket(world: World) -> bytes:
    await world.server()
    return world.socket(f"{world.box}/ports/8000")


async def tunnel(world: World) -> bytes:
    await world.server()
    return world.socket(f"{world.box}/tunnels/8001")


async def terminal(world: World) -> bytes:
    return world.socket(f'{world.box}/pty?command=["yes"]')


async def preview(world: World) -> bytes:
    await world.server()
    made = await world.daemon.ask(
        "POST", f"{world.box}/previews", {"port": 8000}, headers=AS_OPERATOR
    )
    _, _, host, path = made.json["url"].split("/", 3)
    async with world.daemon.http.get(
        f"{world.daemon.url}/{path}", headers={"Host": host}, allow_redirects=False
    ) as found:
        cookie = found.headers["Set-Cookie"].partition(";")[0]
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode()


async def stored_file(world: World) -> bytes:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(MB)

    await world.daemon.server.stores.files.put("default", "big", content())
    return world.get("/v1/files/big")


async def audit_log(world: World) -> bytes:
    class Endless:
        lines = staticmethod(endless)

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

    log = world.daemon.server.stores.audit
    world.daemon.server.stores.audit = Endless()
    return world.get("/v1/audit/export")


async def download(world: World) -> bytes:
    await world.large_file()
    return world.get(f"{world.box}/fs/download?path=big")


async def download_range(world: World) -> bytes:
    await world.large_file()
    return world.get(f"{world.box}/fs/download?path=big", Range="bytes=1000-")


async def download_tar(world: World) -> bytes:
    await world.large_file()
    return world.get(f"{world.box}/fs/download?path=.")


async def download_http_1_0(world: World) -> bytes:
    return (await download(world)).replace(b"HTTP/1.1", b"HTTP/1.0")


async def download_pipelined(world: World) -> bytes:
    return await download(world) + world.get("/healthz")


async def large_json(world: World) -> bytes:
    await world.run("tr '\\0' '\\1' < /dev/zero | head -c 10000000 > large")
    return world.get(f"{world.box}/fs/read?path=large")


async def watch(world: World) -> bytes:
    await world.run("mkdir w")
    await world.start("sh", "-c", CHANGES)
    return world.get(f"{world.box}/fs/watch?path=w")


async def network_log(world: World) -> bytes:
    world.monkeypatch.setattr(stats, "_events", endless)
    return world.get(f"{world.box}/network/log?follow=true")


async def workspace_download(world: World) -> bytes:
    made = await world.daemon.ask(
        "POST", "/v1/workspaces", {"name": "w", "size_mb": 20}, headers=AS_OPERATOR
    )
    assert made.status == 201, made.raw
    body = {"workspace_id": "w"}
    made = await world.daemon.ask("POST", "/v1/sessions", body, headers=AS_OPERATOR)
    world.id = made.json["id"]
    await world.large_file()
    return world.get("/v1/workspaces/w/fs/download?path=big")


async def pull(world: World) -> bytes:
    world.monkeypatch.setattr(images, "_progress_of", endless)
    return world.events("POST", "/v1/images/pull", name="mine")


async def build(world: World) -> bytes:
    world.monkeypatch.setattr(images, "_progress_of", endless)
    return world.events("POST", "/v1/images/build", name="datascience")


def run_events(path: str) -> Callable[[World], Awaitable[bytes]]:
    async def ask(world: World) -> bytes:
        async def found(_: object) -> None:
            pass

        world.daemon.server.services[LazyAgents] = OpenAgents(object())
        world.monkeypatch.setattr(runs, "_stream", endless)
        world.monkeypatch.setattr(runs, "_workflow_run", found)
        return world.events("GET", path)

    return ask


async def e2b_start(world: World) -> bytes:
    return world.e2b("POST", "/process.Process/Start", {"process": {"cmd": "yes"}})


async def e2b_connect(world: World) -> bytes:
    await world.start("yes")
    [one] = [one for one in await world.daemon.server.engine.processes(world.id) if one.exec_id]
    return world.e2b("POST", "/process.Process/Connect", {"process": {"pid": one.pid}})


async def e2b_watch(world: World) -> bytes:
    await world.run("mkdir w")
    await world.start("sh", "-c", CHANGES)
    return world.e2b("POST", "/filesystem.Filesystem/WatchDir", {"path": "/workspace/w"})


async def e2b_file(world: World) -> bytes:
    await world.large_file()
    return world.e2b("GET", "/e2b/files?path=/workspace/big")


async def e2b_file_at_the_root(world: World) -> bytes:
    await world.large_file()
    return world.e2b("GET", "/files?path=/workspace/big")


async def e2b_compressed_file(world: World) -> bytes:
    asked = await e2b_file(world)
    return asked.replace(b"\r\n", b"\r\nAccept-Encoding: gzip\r\n", 1)


async def e2b_code(world: World) -> bytes:
    return world.e2b("POST", "/e2b/execute", {"code": "while True: print('x' * 1000)"})


CASES: list[tuple[tuple[str, str], Callable[[World], Awaitable[bytes]]]] = [
    (("POST", "/v1/sessions/{id}/exec"), exec_),
    (("POST", "/v1/sessions/{id}/exec/stream"), exec_stream),
    (("GET", "/v1/sessions/{id}/execs/{eid}/output"), exec_output),
    (("POST", "/v1/sessions/{id}/code"), code),
    (("POST", "/v1/run"), oneshot),
    (("ANY", "/v1/sessions/{id}/ports/{port}/{rest:path}"), port_below),
    (("ANY", "/v1/sessions/{id}/ports/{port}"), port),
    (("WS", "/v1/sessions/{id}/ports/{port}/{rest:path}"), port_socket_below),
    (("WS", "/v1/sessions/{id}/ports/{port}"), port_socket),
    (("WS", "/v1/sessions/{id}/tunnels/{port}"), tunnel),
    (("WS", "/v1/sessions/{id}/pty"), terminal),
    (("GET", "/v1/files/{key:path}"), stored_file),
    (("GET", "/v1/audit/export"), audit_log),
    (("GET", "/v1/sessions/{id}/fs/download"), download),
    (("GET", "/v1/sessions/{id}/fs/download"), download_range),
    (("GET", "/v1/sessions/{id}/fs/download"), download_tar),
    (("GET", "/v1/sessions/{id}/fs/download"), download_http_1_0),
    (("GET", "/v1/sessions/{id}/fs/download"), download_pipelined),
    (("GET", "/v1/sessions/{id}/fs/watch"), watch),
    (("GET", "/v1/sessions/{id}/network/log"), network_log),
    (("GET", "/v1/workspaces/{id}/fs/download"), workspace_download),
    (("POST", "/v1/images/pull"), pull),
    (("POST", "/v1/images/build"), build),
    (("GET", "/runs/{run_id}/events"), run_events("/runs/a/events")),
    (("GET", "/workflow-runs/{run_id}/events"), run_events("/workflow-runs/a/events")),
    (("GET", "/v1/runs/{run_id}/events"), run_events("/v1/runs/a/events")),
    (("GET", "/v1/workflow-runs/{run_id}/events"), run_events("/v1/workflow-runs/a/events")),
    (("POST", "/e2b/process.Process/Start"), e2b_start),
    (("POST", "/e2b/process.Process/Connect"), e2b_connect),
    (("POST", "/e2b/filesystem.Filesystem/WatchDir"), e2b_watch),
    (("GET", "/e2b/files"), e2b_file),
    (("GET", "/e2b/files"), e2b_compressed_file),
    (("GET", "/files"), e2b_file_at_the_root),
    (("POST", "/e2b/execute"), e2b_code),
    (LARGE_JSON, large_json),
    (PREVIEW, preview),
]


@pytest.fixture
async def world(
    engine: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    ports = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(), ports, SystemClock())
    async with (
        open_e2b(b"k" * 32, {}) as routes,
        booked(engine, tmp_path / "data", more=routes, previews=previews) as daemon,
    ):
        made = await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)
        yield World(daemon, made.json["id"], monkeypatch)


async def test_every_route_that_streams_has_a_case() -> None:
    async with open_e2b(b"k" * 32, {}) as e2b:
        streamed = {
            (route.method, route.path)
            for route in (*route_table().routes, *e2b)
            if (route.gives != (JSON,) or route.dialect is STREAMS or route.method == "WS")
            and route.path not in RECEIVES
        }
        known = {(route.method, route.path) for route in (*route_table().routes, *e2b)} | {
            LARGE_JSON,
            PREVIEW,
        }
    assert streamed - WHOLE <= STREAMED <= known
    assert {route for route, _ in CASES} == STREAMED


@pytest.mark.parametrize(
    ("route", "ask"), CASES, ids=[f"{ask.__name__}-{route[1]}" for route, ask in CASES]
)
async def test_a_client_that_leaves_ends_its_stream_and_keeps_no_other_client_waiting(
    world: World, route: tuple[str, str], ask: Callable[[World], Awaitable[bytes]]
) -> None:
    daemon, request = world.daemon, await ask(world)
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=MB)
    address = writer.get_extra_info("sockname")
    writer.write(request)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read(12) in (b"HTTP/1.1 200", b"HTTP/1.1 206", b"HTTP/1.1 101")
        while (stream := daemon.streams.of[address]).pieces < 3:
            await reader.read(4096)
    assert stream.route == route
    leave(writer)
    before = stream.pieces
    reply = await daemon.ask("GET", "/healthz")
    assert reply.status == 200
    assert stream.pieces - before <= MOST_PIECES
    async with asyncio.timeout(PATIENCE_S):
        await stream.ended.wait()
    assert stream.pieces - before <= MOST_PIECES


def leave(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, as a process that is killed in the middle of a download."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_head_request_is_answered_by_the_headers_of_the_stream(world: World) -> None:
    asked = (await audit_log(world)).replace(b"GET", b"HEAD", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.daemon.port)
    address = writer.get_extra_info("sockname")
    # The connection is free for the next request.
    for _ in range(2):
        writer.write(asked)
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            stream = world.daemon.streams.of[address]
            await stream.ended.wait()
        assert stream.pieces == 1
    writer.close()
