"""The MCP server: sessions, progress, cancellation and access, with a real client."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from mcp import Client, MCPError
from mcp.types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp.types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    KNOWN_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
)

from plugins.tools.tests.scripted import BY_ID, TOOLS, Log
from sandkasten.errors import InvalidConfiguration
from sandkasten.settings.setting_parsers import Address
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.request import large_bodies
from sandkasten_server.api.request.large_bodies import AT_ONCE, LARGE_BYTES
from sandkasten_server.daemon.settings.http_settings import HttpSettings
from sandkasten_tools.mcp.mcp_http import mcp_over_http
from sandkasten_tools.mcp.mcp_server import OneCaller, mcp_server
from sandkasten_tools.mcp.sandboxes_by_id import SandboxesById
from sandkasten_tools.tool_provider import ToolOffer, provide_tools
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

pytestmark = pytest.mark.promise("P65")

KEY = "sk-" + "k" * 40
OPENING: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
RUNNING: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "sandbox_run", "arguments": {"code": "print(6 * 7)"}},
}
# The version without sessions.
MODERN = "2026-07-28"
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def served(log: Log, *, tools=TOOLS, idle_s: float = 60.0, host: str = "127.0.0.1", **rules):
    settings = HttpSettings(listen=Address(host, 0), **rules)
    async with mcp_over_http(tools, log.caller, settings, idle_s=idle_s) as url:
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
        async with Client(url) as first:
            async with Client(url) as other:
                answers = [await each.call_tool("echo", {}) for each in (first, other, first)]
                assert [a.structured_content["caller"] for a in answers] == [1, 2, 1]
            await log.until("closed 2")
            assert (await first.call_tool("echo", {})).structured_content["caller"] == 1
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
    updates: list[float] = []

    async def progress(
        progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        updates.append(progress)
        if len(updates) == 3:
            log.go_on.set()

    async with Client(quick(log), mode=mode) as client:
        answer = await client.call_tool("wait", {}, progress_callback=progress)
    assert answer.structured_content["ok"]
    assert updates[:3] == sorted(updates[:3])
    assert len(set(updates)) == len(updates)


async def test_a_call_cancelled_by_the_client_ends_and_the_session_continues():
    log = Log()
    async with served(log) as url, Client(url) as client:
        call = asyncio.create_task(client.call_tool("wait", {}))
        await log.waiting.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await log.until("cancelled 1")
        assert (await client.call_tool("echo", {})).structured_content["caller"] == 1


@asynccontextmanager
async def real_tools(data_dir, **rules):
    """Serve the real tools, on sandboxes that isolate nothing."""
    flags = {"data_dir": str(data_dir), "backend": "unisolated", "listen": "127.0.0.1:0"}
    settings = load(flags, {}, data_dir.parent)
    async with (
        provide_tools(settings, ToolOffer()) as tools,
        mcp_over_http(tools.shapes, tools.open_caller, settings.of(HttpSettings), **rules) as url,
    ):
        yield url


async def told(client: Client, tool: str, **arguments) -> dict:
    answer = await client.call_tool(f"sandbox_{tool}", arguments)
    assert answer.structured_content is not None
    return answer.structured_content


async def test_without_sessions_a_sandbox_is_reached_by_its_id_alone(tmp_path):
    async with (
        real_tools(tmp_path / "d") as url,
        Client(url, mode=MODERN) as first,
        Client(url, mode=MODERN) as other,
    ):
        shown = {tool.name: tool.input_schema for tool in (await first.list_tools()).tools}
        assert "sandbox_id" in shown["sandbox_exec"]["required"]
        assert "session_id" not in shown["sandbox_exec"]["properties"]
        assert "session_key" not in shown["sandbox_open"]["properties"]
        assert (await told(first, "run", code="print(6 * 7)"))["stdout"] == "42\n"
        own, foreign = await told(first, "open"), await told(other, "open")
        assert own["sandbox_id"] != foreign["sandbox_id"]
        at = {"sandbox_id": own["sandbox_id"]}
        await told(first, "fs_write", path="x", text="1", **at)
        ran = await told(first, "exec", cmd="cd /tmp; cat /workspace/x", **at)
        assert (ran["stdout"], ran["exit_code"]) == ("1", 0)
        # The shell keeps its state, although each request stands alone.
        assert (await told(first, "exec", cmd="pwd", **at))["stdout"] == "/tmp\n"
        for arguments in ({}, {"session_id": None}, {"sandbox_id": 7}):
            refused = await told(other, "exec", cmd="cat x", **arguments)
            assert (refused["code"], "sandbox_open" in refused["hint"]) == (
                "INVALID_REQUEST",
                True,
            )
        guessed = await told(other, "exec", cmd="cat x", sandbox_id="sbx_" + "0" * 16)
        assert guessed["code"] == "SESSION_NOT_FOUND"
        named = await told(other, "open", session_key="mine")
        assert named["code"] == "INVALID_REQUEST"
        assert (await told(first, "close", **at))["closed"]
        assert (await told(first, "exec", cmd="ls", **at))["code"] == "SESSION_NOT_FOUND"
        assert (await told(other, "fs_list", sandbox_id=foreign["sandbox_id"]))["entries"] == []
    # Nothing is left when the server ends.
    engine = await open_engine(
        load({"data_dir": str(tmp_path / "d"), "backend": "unisolated"}, {}, tmp_path)
    )
    assert await engine.list(all=True) == []
    await engine.aclose()


async def test_sandboxes_without_sessions_end_after_silence_and_are_limited():
    log, now = Log(), 0.0
    shared = SandboxesById(BY_ID, log.caller, idle_s=10, most=2, clock=lambda: now)
    first, second = [await shared.call("sandbox_open", {}) for _ in range(2)]
    assert (await shared.call("sandbox_open", {}))["code"] == "QUOTA_EXCEEDED"
    now = 8.0
    at = {"sandbox_id": second["sandbox_id"]}
    waiting = asyncio.create_task(shared.call("sandbox_exec", {"wait": True, **at}))
    await log.waiting.wait()
    now = 100.0
    # One of them is in use, however long ago its call began.
    assert (await shared.call("sandbox_open", {}))["ok"]
    await log.until("closed 1")
    ended = await shared.call("sandbox_exec", {"sandbox_id": first["sandbox_id"]})
    assert ended["code"] == "SESSION_NOT_FOUND"
    log.go_on.set()
    assert (await waiting)["caller"] == 2
    assert (await shared.call("sandbox_close", at))["closed"]
    assert (await shared.call("sandbox_run", {}))["caller"] == 4
    await shared.aclose()
    assert sorted(log.events) == ["closed 1", "closed 2", "closed 3", "closed 4"]


async def test_a_sandbox_without_a_session_ends_after_silence_although_no_call_follows():
    log = Log()
    async with served(log, tools=BY_ID, idle_s=0.2) as url, Client(url, mode=MODERN) as client:
        await told(client, "open")
        await log.until("closed 1")


async def test_without_sessions_a_cancelled_call_ends_and_keeps_its_sandbox():
    log = Log()
    async with served(log, tools=BY_ID) as url, Client(url, mode=MODERN) as client:
        at = {"sandbox_id": (await told(client, "open"))["sandbox_id"]}
        for tool, arguments in (("exec", at), ("run", {}), ("open", {})):
            log.waiting.clear()
            call = asyncio.create_task(told(client, tool, wait=True, **arguments))
            await log.waiting.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        # Those that had no sandbox yet are closed.
        await log.until("cancelled 1", "cancelled 2", "closed 2", "cancelled 3", "closed 3")
        assert (await told(client, "exec", **at))["caller"] == 1
    assert log.events[-1] == "closed 1"


async def test_sandboxes_that_are_being_opened_count_against_the_limit():
    log = Log()
    shared = SandboxesById(BY_ID, log.caller, idle_s=10, most=1)
    opening = asyncio.create_task(shared.call("sandbox_open", {"wait": True}))
    await log.waiting.wait()
    assert (await shared.call("sandbox_open", {}))["code"] == "QUOTA_EXCEEDED"
    log.go_on.set()
    assert (await opening)["ok"]
    await shared.aclose()
    assert log.events == ["closed 1"]


@pytest.mark.parametrize("version", few([*KNOWN_PROTOCOL_VERSIONS, "2099-01-01", "nonsense"], 2))
async def test_a_client_can_call_tools_with_every_version_it_asks_for(
    tmp_path, monkeypatch, version
):
    # What the client library requests in its handshake; the server has its own constant.
    monkeypatch.setattr("mcp.client.session.LATEST_HANDSHAKE_VERSION", version)
    handshake = version != MODERN
    async with (
        real_tools(tmp_path / "d") as url,
        Client(url, mode="legacy" if handshake else MODERN) as client,
    ):
        is_known = version in KNOWN_PROTOCOL_VERSIONS
        assert client.protocol_version == (version if is_known else LATEST_HANDSHAKE_VERSION)
        assert len((await client.list_tools()).tools) == 13
        answer = await client.call_tool("sandbox_run", {"code": "print(6 * 7)"})
        assert not answer.is_error
        assert json.loads(getattr(answer.content[0], "text"))["stdout"] == "42\n"  # noqa: B009


@pytest.mark.parametrize("version", ["2099-01-01", "nonsense"])
async def test_an_unknown_version_is_answered_with_one_whose_calls_work(tmp_path, version):
    opening = {**OPENING, "params": {**OPENING["params"], "protocolVersion": version}}
    call = RUNNING
    async with (
        real_tools(tmp_path / "d") as url,
        aiohttp.ClientSession(headers=ACCEPT) as http,
    ):
        # In the handshake.
        async with http.post(url, json=opening) as opened:
            agreed = message(await opened.text())["result"]["protocolVersion"]
            headers = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        assert agreed in HANDSHAKE_PROTOCOL_VERSIONS
        headers["MCP-Protocol-Version"] = agreed
        async with http.post(url, json=call, headers=headers) as called:
            assert message(await called.text())["result"]["structuredContent"]["stdout"] == "42\n"
        # In a header, without one.
        meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
        alone = {**call, "params": {**call["params"], "_meta": meta}}
        named = {"Mcp-Method": "tools/call", "Mcp-Name": "sandbox_run"}
        headers = {"MCP-Protocol-Version": version, **named}
        async with http.post(url, json=alone, headers=headers) as refused:
            error = message(await refused.text())["error"]
        assert error["code"] == -32022
        for supported in error["data"]["supported"]:
            async with Client(url, mode=supported) as client:
                assert (await told(client, "run", code="print(6 * 7)"))["stdout"] == "42\n"


def message(raw: str) -> dict:
    """Return the JSON-RPC message of a response, plain or as an event."""
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if '"jsonrpc"' in line]
    return json.loads(lines[-1])


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
    ("authorization", "status"),
    [(None, 401), ("Bearer wrong", 401), (f"Basic {KEY}", 401), (f"Bearer {KEY}", 200)],
)
async def test_a_configured_key_is_required(authorization, status):
    headers = {} if authorization is None else {"Authorization": authorization}
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


async def test_a_body_with_a_key_twice_or_too_many_values_is_refused():
    twice = json.dumps(OPENING).replace("{", '{"jsonrpc": "1.0", ', 1)
    many = json.dumps({**OPENING, "x": [1] * 100_001})
    headers = {**ACCEPT, "Content-Type": "application/json"}
    async with served(Log()) as url, aiohttp.ClientSession(headers=headers) as http:
        for raw, status, code in (
            (twice, 400, "INVALID_REQUEST"),
            (many, 413, "PAYLOAD_TOO_LARGE"),
            ("[]", 400, "INVALID_REQUEST"),
        ):
            async with http.post(url, data=raw) as refused:
                assert (refused.status, (await refused.json())["code"]) == (status, code)


async def test_a_few_large_bodies_are_received_at_a_time(monkeypatch):
    """As over HTTP: what clients begin to send and do not end is in memory."""
    monkeypatch.setattr(large_bodies, "_WAIT_S", 0.5)
    large = b"x" * (LARGE_BYTES + 1)
    head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Accept: application/json, text/event-stream\r\n"
    head += f"Content-Length: {len(large) + 9}\r\n\r\n"
    async with served(Log()) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(AT_ONCE + 1)]
        for _, writer in connections:
            writer.write(head.encode() + large)
            await writer.drain()
        # One of them, whichever came last, finds no place.
        lines = [asyncio.ensure_future(reader.readline()) for reader, _ in connections]
        done, _ = await asyncio.wait(lines, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [b" 503 " in line.result() for line in done] == [True]
        for line in lines:
            line.cancel()
        for _, writer in connections:
            writer.transport.abort()


async def test_a_body_that_is_too_large_or_never_ends_is_refused():
    small = HttpLimits(max_json_mb=1000 / (1 << 20), body_timeout_s=PATIENCE_S)
    async with (
        served(Log(), limits=small) as url,
        aiohttp.ClientSession(headers=ACCEPT) as http,
        http.post(url, json={**OPENING, "x": "y" * 2000}) as large,
    ):
        assert large.status == 413
    async with served(Log(), limits=HttpLimits(body_timeout_s=0.1)) as url:
        host, port = url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Length: 99\r\n\r\n{".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()
