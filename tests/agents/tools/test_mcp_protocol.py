"""The MCP server: sessions, progress, cancellation and access, with a real client."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from mcp import Client, MCPError

from sandkasten.daemon.settings.http_settings import HttpSettings
from sandkasten.daemon.settings.setting_parsers import Address
from sandkasten.errors import InvalidConfiguration
from sandkasten.mcp.mcp_http import mcp_over_http
from sandkasten.mcp.mcp_server import OneCaller, mcp_server
from tests.agents.tools.scripted import TOOLS, Log
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

pytestmark = pytest.mark.promise("P65")

KEY = "sk-" + "k" * 40
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def served(log: Log, *, idle_s: float = 60.0, host: str = "127.0.0.1", **rules):
    settings = HttpSettings(listen=Address(host, 0), **rules)
    async with mcp_over_http(TOOLS, log.caller, settings, idle_s=idle_s) as url:
        yield url


def quick(log: Log) -> Server:
    return mcp_server(TOOLS, OneCaller(log.caller()), progress_every_s=0.01)


async def test_tools_are_listed_with_schemas_and_answers_have_text_and_structure():
    log = Log()
    async with served(log) as url, Client(url) as client:
        listed = (await client.list_tools()).tools
        assert [(t.name, t.description, t.input_schema) for t in listed] == [
            (t.name, t.description, t.parameters) for t in TOOLS
        ]
        answer = await client.call_tool("echo", {"x": 1})
    body = {"ok": True, "caller": 1, "arguments": {"x": 1}}
    assert (answer.structured_content, answer.is_error) == (body, False)
    assert json.loads(getattr(answer.content[0], "text"))  # noqa: B009 == body
    await log.until("closed 1")


async def test_a_tool_that_failed_is_an_error_with_its_body():
    async with Client(quick(Log())) as client:
        answer = await client.call_tool("fail", {})
    assert answer.is_error
    assert answer.structured_content == {"ok": False, "error_code": "NO", "message": "it cannot be"}


async def test_an_unknown_tool_and_an_unexpected_failure_are_protocol_errors():
    async with Client(quick(Log()), mode="legacy") as client:
        with pytest.raises(MCPError, match="unknown tool 'rm'"):
            await client.call_tool("rm", {})
        with pytest.raises(MCPError) as caught:
            await client.call_tool("break", {})
    assert "secret" not in str(caught.value)


async def test_every_client_has_its_own_caller_that_ends_with_it():
    log = Log()
    async with served(log) as url:
        async with Client(url) as one:
            async with Client(url) as other:
                asked = [await each.call_tool("echo", {}) for each in (one, other, one)]
                assert [a.structured_content["caller"] for a in asked] == [1, 2, 1]
            await log.until("closed 2")
            assert (await one.call_tool("echo", {})).structured_content["caller"] == 1
        await log.until("closed 2", "closed 1")


async def test_a_silent_client_loses_its_sandboxes():
    log = Log()
    async with served(log, idle_s=0.2) as url, aiohttp.ClientSession(headers=ACCEPT) as http:
        async with http.post(url, json=OPENING) as opened:
            session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo"}}
        async with http.post(url, json=call, headers=session) as called:
            assert called.status == 200
        await log.until("closed 1")
        async with http.post(url, json=call, headers=session) as late:
            assert late.status == 404


async def test_open_sessions_are_closed_when_the_server_ends():
    log = Log()
    async with aiohttp.ClientSession(headers=ACCEPT) as http, served(log) as url:
        async with http.post(url, json=OPENING) as opened:
            session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo"}}
        async with http.post(url, json=call, headers=session) as called:
            assert called.status == 200
    assert log.events == ["closed 1"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_waiting_client_gets_progress_notifications(mode):
    log = Log()
    told: list[float] = []

    async def progress(
        progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        told.append(progress)
        if len(told) == 3:
            log.go_on.set()

    async with Client(quick(log), mode=mode) as client:
        answer = await client.call_tool("wait", {}, progress_callback=progress)
    assert answer.structured_content["ok"]
    assert told[:3] == sorted(told[:3])
    assert len(set(told)) == len(told)


async def test_a_call_cancelled_by_the_client_ends_and_the_session_continues():
    log = Log()
    async with served(log) as url, Client(url) as client:
        call = asyncio.create_task(client.call_tool("wait", {}))
        await log.waiting.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await log.until("cancelled 1")
        assert (await client.call_tool("echo", {})).structured_content["caller"] == 1


async def test_a_protocol_version_without_sessions_is_refused_with_the_supported_ones():
    async with served(Log()) as url:
        with pytest.RaisesGroup(pytest.RaisesGroup(MCPError)) as caught:
            async with Client(url, mode="2026-07-28") as client:
                await client.call_tool("echo", {})
    error = caught.value.exceptions[0].exceptions[0]
    assert isinstance(error, MCPError)
    assert error.code == -32022
    assert "2025-11-25" in error.data["supported"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 400),
        ({"Authorization": "Bearer " + KEY}, 401),
        ({"Mcp-Session-Id": "0" * 32}, 404),
    ],
)
async def test_requests_from_browsers_and_guessed_sessions_are_refused(headers, status):
    async with (
        served(Log()) as url,
        aiohttp.ClientSession(headers=ACCEPT) as http,
        http.post(url, json=OPENING, headers=headers) as answer,
    ):
        assert answer.status == status


@pytest.mark.parametrize(
    ("given", "status"),
    [(None, 401), ("Bearer wrong", 401), (f"Basic {KEY}", 401), (f"Bearer {KEY}", 200)],
)
async def test_a_configured_key_is_required(given, status):
    headers = {} if given is None else {"Authorization": given}
    async with (
        served(Log(), api_key=KEY) as url,
        aiohttp.ClientSession(headers=ACCEPT) as http,
        http.post(url, json=OPENING, headers=headers) as answer,
    ):
        assert answer.status == status
        assert KEY not in await answer.text()


async def test_serving_beyond_loopback_requires_a_key():
    with pytest.raises(InvalidConfiguration, match="requires a key"):
        async with served(Log(), host="0.0.0.0"):
            pass
    async with served(Log(), host="0.0.0.0", api_key=KEY) as url:
        assert url.startswith("http://0.0.0.0:")


async def test_a_body_that_is_too_large_or_never_ends_is_refused():
    async with (
        served(Log(), max_json_mb=1000 / (1 << 20), body_timeout_s=PATIENCE_S) as url,
        aiohttp.ClientSession(headers=ACCEPT) as http,
        http.post(url, json={**OPENING, "x": "y" * 2000}) as large,
    ):
        assert large.status == 413
    async with served(Log(), body_timeout_s=0.1) as url:
        host, port = url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Length: 99\r\n\r\n{".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()
