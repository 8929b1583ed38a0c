"""Requests over a failing network: what is retried, what is not, and the errors."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import time

import pytest
from aiohttp import WSCloseCode, WSMsgType

from sandkasten.client.http import connection as connecting
from sandkasten.client.http.connection import Connection, HttpRequest
from sandkasten.client.http.http_transport import HttpTransport
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    ConnectionRefused,
    FileTrouble,
    InternalError,
    InvalidRequest,
    ProtocolViolation,
    QuotaExceeded,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.client.http.scripted import CUT, SILENCE, problem, reply, scripted
from tests.loopback_port import free_port

READ = HttpRequest("GET", "/x", repeatable=True)
ONCE = HttpRequest("POST", "/x", {"a": 1})
_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
EXEC = {"exec_id": "exe_1", "status": "completed", "exit_code": 0}


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch):
    monkeypatch.setattr(connecting, "FIRST_PAUSE_S", 0.005)


async def ask(url: str, order: HttpRequest, key: str | None = None) -> object:
    one = Connection(url, key)
    try:
        return await one.ask(order)
    finally:
        await one.aclose()


async def test_an_unreachable_daemon_is_reported_with_a_hint():
    port = free_port()
    with pytest.raises(BackendUnavailable) as caught:
        await ask(f"http://127.0.0.1:{port}", ONCE)
    assert f"127.0.0.1:{port}" in caught.value.message
    assert "sandkasten serve" in caught.value.hint


async def test_a_daemon_that_is_away_for_long_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(connecting, "QUIET_S", 0.0)
    async with scripted(reply(1), CUT, CUT, reply(2)) as server:
        one = Connection(server.url)
        assert [await one.ask(READ), await one.ask(READ)] == [1, 2]
        await one.aclose()
    shown = server.url.removeprefix("http://")
    assert [record.getMessage() for record in caplog.records] == [
        f"the connection to http://{shown} was lost; retrying",
        f"connected to http://{shown} again",
    ]


async def test_a_short_absence_of_the_daemon_is_not_logged(caplog):
    async with scripted(reply(1), CUT, reply(2)) as server:
        one = Connection(server.url)
        assert [await one.ask(READ), await one.ask(READ)] == [1, 2]
        await one.aclose()
    assert caplog.records == []


async def test_a_missing_socket_is_reported_with_a_hint(tmp_path):
    with pytest.raises(BackendUnavailable, match="no daemon answers"):
        await ask(f"unix://{tmp_path}/daemon.sock", ONCE)


@pytest.mark.promise("P44")
async def test_a_remote_daemon_is_reached_through_the_proxy_without_netrc(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("default login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with scripted(reply({"a": 1})) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://me:pw@"))
        assert await ask("http://daemon.example:8080", READ, "sk_key") == {"a": 1}
    (asked,) = proxy.asked
    assert asked.headers["host"] == "daemon.example:8080"
    assert asked.headers["authorization"] == "Bearer sk_key"
    assert asked.headers["proxy-authorization"] == "Basic bWU6cHc="


@pytest.mark.promise("P44")
async def test_a_proxy_without_a_login_does_not_get_the_key(monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with scripted(reply({"a": 1}), reply({}, 502)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("https_proxy", proxy.url)
        assert await ask("http://daemon.example:8080", ONCE, "sk_key") == {"a": 1}
        with pytest.raises(BackendUnavailable):
            await ask("https://daemon.example:8080", ONCE, "sk_key")
    plain, tunnel = proxy.asked
    assert "proxy-authorization" not in plain.headers
    assert tunnel.line == "CONNECT daemon.example:8080 HTTP/1.1"
    assert "sk_key" not in str(tunnel.headers)


async def test_a_local_daemon_is_reached_without_a_proxy(monkeypatch):
    async with scripted(reply({"a": 1})) as one:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        assert await ask(one.url, READ) == {"a": 1}


async def test_a_daemon_that_starts_meanwhile_is_reached():
    # Bound, so that no other process gets the port; without a listener it refuses connections.
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    asking = asyncio.create_task(ask(f"http://127.0.0.1:{bound.getsockname()[1]}", ONCE))
    await asyncio.sleep(0.01)

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply({"ok": 1}))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(met, sock=bound)
    async with server:
        assert await asking == {"ok": 1}


async def test_a_safe_request_is_retried_when_the_connection_breaks():
    async with scripted(CUT, CUT, reply({"ok": 1})) as server:
        assert await ask(server.url, READ) == {"ok": 1}
    assert len(server.asked) == 3


@pytest.mark.promise("P16")
async def test_an_unsafe_request_is_not_retried_and_says_so():
    async with scripted(CUT, reply({})) as server:
        with pytest.raises(BackendUnavailable, match="connection was lost") as caught:
            await ask(server.url, ONCE)
    assert len(server.asked) == 1
    assert "may have been done" in caught.value.hint


async def test_a_truncated_answer_is_an_error():
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{"
    async with scripted(half, reply({"ok": 1})) as server:
        assert await ask(server.url, READ) == {"ok": 1}


@pytest.mark.promise("P16")
async def test_retries_are_bounded():
    async with scripted(*[CUT] * 50) as server:
        with pytest.raises(BackendUnavailable):
            await ask(server.url, READ)
    # The library itself asks a GET once more, in case an idle connection was being closed.
    assert connecting.TRIES <= len(server.asked) <= 2 * connecting.TRIES


@pytest.mark.long(reason="it waits for seconds")
async def test_a_daemon_that_answered_before_is_waited_for_longer():
    async with scripted(reply({}), *[CUT] * 50) as server:
        one = Connection(server.url)
        await one.ask(ONCE)
        with pytest.raises(BackendUnavailable):
            await one.ask(READ)
        await one.aclose()
    assert len(server.asked) - 1 >= connecting.PATIENT_TRIES > connecting.TRIES


@pytest.mark.promise("P16")
async def test_retry_after_is_honoured():
    later = problem("BUSY", 503, Retry_After="1")
    async with scripted(later, reply({"ok": 1})) as server:
        began = time.monotonic()
        assert await ask(server.url, READ) == {"ok": 1}
        assert time.monotonic() - began >= 1


async def test_busy_is_not_retried_for_a_request_that_may_have_started():
    async with scripted(problem("BUSY", 503)) as server:
        with pytest.raises(Busy):
            await ask(server.url, ONCE)


async def test_a_rate_limit_is_retried_and_an_exceeded_quota_is_not():
    fast = reply({"code": "QUOTA_EXCEEDED", "message": "m", "details": {"quota": "rate"}}, 429)
    full = reply({"code": "QUOTA_EXCEEDED", "message": "m", "details": {"quota": "sessions"}}, 429)
    async with scripted(fast, reply({"ok": 1}), full) as server:
        assert await ask(server.url, ONCE) == {"ok": 1}
        with pytest.raises(QuotaExceeded):
            await ask(server.url, ONCE)
    assert len(server.asked) == 3


async def test_a_long_retry_after_is_left_to_the_caller():
    async with scripted(problem("BUSY", 503, Retry_After="3600")) as server:
        with pytest.raises(Busy):
            await ask(server.url, READ)


async def test_a_permanent_error_is_not_retried():
    async with scripted(problem("INTERNAL_ERROR", 500)) as server:
        with pytest.raises(InternalError):
            await ask(server.url, READ)


async def test_a_silent_daemon_times_out():
    async with scripted(SILENCE) as server:
        with pytest.raises(BackendUnavailable, match=r"within 0\.1 s"):
            await ask(server.url, HttpRequest("GET", "/x", repeatable=True, answer_s=0.1))


@pytest.mark.promise("P44")
async def test_a_redirect_is_not_followed_with_the_key():
    moved = reply({}, 307, Location="http://127.0.0.1:1/elsewhere")
    async with scripted(moved) as server:
        with pytest.raises(InternalError) as error:
            await ask(server.url, READ, "sk-secret")
        assert error.value.details == {"http_status": 307}


@pytest.mark.promise("P44")
async def test_a_terminal_is_not_redirected_to_another_host():
    async with scripted(reply({})) as other:
        to = f"http://localhost:{other.url.rpartition(':')[2]}/elsewhere"
        async with scripted(reply({}, 307, Location=to)) as server:
            one = Connection(server.url, "sk-secret", "tenant")
            with pytest.raises(InternalError) as error:
                await one.websocket("/x", {})
            assert error.value.details == {"http_status": 307}
            await one.aclose()
    assert other.asked == []


async def test_a_large_message_of_a_terminal_is_not_read():
    head = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    # A binary message of 1 GiB.
    message = b"\x82\x7f" + (1 << 30).to_bytes(8) + bytes(1 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = request.partition("Sec-WebSocket-Key: ")[2].split("\r\n")[0]
        digest = hashlib.sha1(f"{key}{_WEBSOCKET_GUID}".encode(), usedforsecurity=False).digest()
        accept = base64.b64encode(digest)
        writer.write(head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + message)
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        one = Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        socket = await one.websocket("/x", {})
        received = await socket.receive()
        await one.aclose()
    assert (received.type, socket.close_code) == (WSMsgType.ERROR, WSCloseCode.MESSAGE_TOO_BIG)


async def test_an_answer_that_is_not_json_is_an_error():
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with scripted(page) as server:
        with pytest.raises(ProtocolViolation, match="did not return JSON"):
            await ask(server.url, READ)


@pytest.mark.promise("P44")
async def test_the_key_is_sent_and_never_shown():
    async with scripted(reply({}), problem("UNAUTHORIZED", 401)) as server:
        await ask(server.url, READ, "sk-secret")
        assert server.asked[0].headers["authorization"] == "Bearer sk-secret"
        with pytest.raises(Exception, match="m") as caught:
            await ask(server.url, READ, "sk-secret")
    assert "sk-secret" not in f"{caught.value!r}{caught.value.__dict__}"


async def test_an_exception_of_the_callers_stream_is_raised():
    async def source():
        yield b"first"
        raise FileTrouble("the disk is gone")

    async with scripted(reply({})) as server:
        with pytest.raises(FileTrouble, match="the disk is gone"):
            await ask(server.url, HttpRequest("PUT", "/x", data=source(), repeatable=True))


async def test_a_stream_is_never_sent_twice():
    async def source():
        yield b"first"

    async with scripted(CUT, reply({})) as server:
        with pytest.raises(BackendUnavailable):
            await ask(server.url, HttpRequest("PUT", "/x", data=source(), repeatable=True))
    assert len(server.asked) == 1


async def test_text_that_is_not_utf8_is_refused_before_sending():
    async with scripted() as server:
        with pytest.raises(InvalidRequest, match="UTF-8"):
            await ask(server.url, HttpRequest("POST", "/x", {"cmd": ["\udcff"]}))
        with pytest.raises(InvalidRequest):
            await ask(server.url, HttpRequest("POST", "/x", {"timeout_seconds": float("nan")}))


@pytest.mark.promise("P16")
async def test_a_retried_command_uses_the_same_idempotency_key():
    async with scripted(CUT, reply(EXEC), reply(EXEC)) as server:
        transport = HttpTransport(server.url)
        await transport.exec("sbx_1", ExecRequest("echo"))
        await transport.exec("sbx_1", ExecRequest("echo"))
        await transport.aclose()
    keys = [json.loads(one.body)["idempotency_key"] for one in server.asked]
    assert keys[0] == keys[1] != keys[2]


async def test_a_create_is_retried_only_with_a_session_key():
    async with scripted(CUT, CUT) as server:
        transport = HttpTransport(server.url)
        with pytest.raises(BackendUnavailable):
            await transport.create(CreateRequest())
        assert len(server.asked) == 1
        with pytest.raises(BackendUnavailable):
            await transport.create(CreateRequest(session_key="k"))
        await transport.aclose()
    assert len(server.asked) > 2


@pytest.mark.promise("P38")
async def test_a_broken_stream_continues_without_repetition_or_loss():
    def event(name: str, value: object) -> bytes:
        return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()

    def chunk(seq: int) -> bytes:
        return event("chunk", {"seq": seq, "stream": "stdout", "text": f"{seq}\n"})

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    first = head + chunk(1) + b": still here\n\n" + chunk(2) + b"event: chunk\ndata: {"
    second = head + chunk(1) + chunk(2) + chunk(3) + event("done", EXEC)
    async with scripted(first, second) as server:
        transport = HttpTransport(server.url)
        found = [one async for one in transport.exec_stream("sbx_1", ExecRequest("x"))]
        await transport.aclose()
    assert [getattr(one, "seq", None) for one in found] == [1, 2, 3, None]
    keys = {json.loads(one.body)["idempotency_key"] for one in server.asked}
    assert len(keys) == 1


async def test_a_followed_command_continues_where_it_was_left():
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    seen = b'event: chunk\ndata: {"seq": 7, "stream": "stdout", "text": "x"}\n\n'
    done = f"event: done\ndata: {json.dumps(EXEC)}\n\n".encode()
    async with scripted(head + seen, head + done) as server:
        transport = HttpTransport(server.url)
        output = transport.exec_output("sbx_1", "exe_1", since_seq=5, follow=True)
        assert len([one async for one in output]) == 2
        await transport.aclose()
    assert "since_seq=5" in server.asked[0].line
    assert "since_seq=7" in server.asked[1].line


async def test_a_handshake_that_is_refused_no_more_is_repeated():
    """A server may begin to listen between a refusal and the question why."""
    switch = (
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\n"
    )
    refused = problem("CONNECTION_REFUSED", 502)
    async with scripted(refused, switch % b"x", refused, refused) as server:
        one = Connection(server.url)
        with pytest.raises(ConnectionRefused):
            await one.websocket("/x", {})
        await one.aclose()
    assert len(server.asked) == 4
