"""Servers inside a sandbox that has no network, reached through the daemon."""

from __future__ import annotations

import asyncio
import io

import aiohttp
import pytest

from sandkasten.model.execution import ExecRequest
from tests.api.inner_servers import ECHO, GARBAGE, PLAIN


async def listening(daemon, the_id, program, port):
    await daemon.server.engine.files.write(the_id, f"/tmp/{port}.py", program.encode())
    command = ("python3", f"/tmp/{port}.py")
    await daemon.server.engine.exec_start(the_id, ExecRequest(command))
    async with asyncio.timeout(20):
        while True:
            reply = await daemon.ask("GET", f"/v1/sessions/{the_id}/ports/{port}/")
            if reply.status != 502 or reply.json["code"] != "CONNECTION_REFUSED":
                return
            await asyncio.sleep(0.05)


@pytest.fixture
async def web(real_daemon):
    the_id = await real_daemon.session()
    await listening(real_daemon, the_id, PLAIN, 8000)
    return f"/v1/sessions/{the_id}/ports/8000"


async def test_a_request_reaches_the_server_and_its_answer_comes_back(real_daemon, web):
    reply = await real_daemon.ask(
        "POST", f"{web}/a%2Fb/c?x=1&y=%20", data=b"12345", headers={"X-Own": "kept"}
    )
    assert reply.status == 200
    told = reply.json
    assert (told["method"], told["path"], told["size"]) == ("POST", "/a%2Fb/c?x=1&y=%20", 5)
    assert told["headers"]["x-own"] == "kept"
    assert told["headers"]["host"] == "localhost:8000"
    assert told["headers"]["x-forwarded-prefix"] == web
    assert len(reply.headers.getall("Date")) == 1


async def test_neither_our_key_nor_a_cookie_goes_in_and_nothing_acts_on_our_origin(
    real_daemon, web
):
    headers = {"Cookie": "secret=1", "X-Sandkasten-Tenant": "default"}
    reply = await real_daemon.ask("GET", f"{web}/", headers=headers)
    assert not {"authorization", "cookie", "x-sandkasten-tenant"} & set(reply.json["headers"])
    assert "Set-Cookie" not in reply.headers
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert reply.headers["content-security-policy"].startswith("sandbox")
    assert "allow-same-origin" not in reply.headers["content-security-policy"]


async def test_large_bodies_pass_both_ways(real_daemon, web):
    assert len((await real_daemon.ask("GET", f"{web}/large")).raw) == 5_000_000
    sent = await real_daemon.ask("PUT", f"{web}/in", data=io.BytesIO(b"y" * 3_000_000))
    assert sent.json["size"] == 3_000_000


async def test_a_redirect_stays_below_the_port(real_daemon, web):
    reply = await real_daemon.ask("GET", f"{web}/redirect", allow_redirects=False)
    assert (reply.status, reply.headers["Location"]) == (302, f"{web}/there")


async def test_a_port_where_nobody_listens_is_refused_by_name(real_daemon):
    the_id = await real_daemon.session()
    reply = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/9/")
    assert (reply.status, reply.json["code"]) == (502, "CONNECTION_REFUSED")
    wrong = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/70000/")
    assert (wrong.status, wrong.json["code"]) == (400, "INVALID_REQUEST")


async def test_a_server_that_speaks_no_http_is_a_bad_gateway(real_daemon):
    the_id = await real_daemon.session()
    await listening(real_daemon, the_id, GARBAGE, 8002)
    reply = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/8002/")
    assert (reply.status, reply.json["code"]) == (502, "PROTOCOL_VIOLATION")


async def test_a_websocket_inside_is_carried_message_by_message(real_daemon):
    the_id = await real_daemon.session()
    await real_daemon.server.engine.files.write(the_id, "/tmp/ws.py", ECHO.encode())
    await real_daemon.server.engine.exec_start(the_id, ExecRequest(("python3", "/tmp/ws.py")))
    url = f"{real_daemon.url}/v1/sessions/{the_id}/ports/8001/chat"
    async with asyncio.timeout(20):
        while True:
            try:
                socket = await real_daemon.http.ws_connect(url)
                break
            except aiohttp.WSServerHandshakeError:
                # Not there yet.
                await asyncio.sleep(0.05)
    async with socket:
        await socket.send_str("hello ü")
        assert await socket.receive_str(timeout=10) == "hello ü"
        await socket.send_bytes(b"\x00\xff" * 50_000)
        assert await socket.receive_bytes(timeout=10) == b"\x00\xff" * 50_000


async def test_a_page_of_another_origin_cannot_open_a_websocket(real_daemon):
    the_id = await real_daemon.session()
    for origin in ("http://evil.example", "null"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await real_daemon.http.ws_connect(
                f"{real_daemon.url}/v1/sessions/{the_id}/ports/8001/", headers={"Origin": origin}
            )
        assert refused.value.status == 403
