"""Hostile HTTP clients: each attack is refused with a typed error, and the daemon survives."""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import re
import resource
import socket
from dataclasses import replace

import aiohttp
import pytest

from sandkasten.errors import QuotaExceeded
from sandkasten.model.access.tenancy import SCOPES, Principal, TenantQuota
from sandkasten.model.journal_rows import KeyRow
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api import http_app
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.request.rate_limit import Rates
from sandkasten_server.api.routes.route_table import route_table
from tests.api.daemon_in_process import serving
from tests.api.raw import say
from tests.patience import PATIENCE_S

KEY = "sk-0123456789abcdef-not-to-be-told"
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
async def keyed_daemon(engine):
    keeper = Doorkeeper(clock=SystemClock(), api_key=KEY)
    async with serving(engine, doorkeeper=keeper) as one:
        yield one


@pytest.fixture
async def impatient_daemon(engine):
    """A daemon with short timeouts."""
    rules = HttpLimits(header_timeout_s=0.5, body_timeout_s=0.5, write_timeout_s=0.5)
    async with serving(engine, rules=rules) as one:
        yield one


# ---- keys


@pytest.mark.promise("P43")
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        KEY,
        "Bearer " + "x" * 20_000,
        "Bearer schl\u00fcssel",
        f"Bearer {KEY} {KEY}",
    ],
)
async def test_missing_wrong_empty_huge_and_odd_keys_are_unauthorized(keyed_daemon, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in ("/v1/sessions", "/v1/nothing", "/v1/sessions/sbx_0000000000000000/exec"):
        reply = await keyed_daemon.ask("GET", path, headers=headers)
        assert (reply.status, reply.json["code"]) == (401, "UNAUTHORIZED")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.promise("P43")
async def test_a_key_sent_twice_is_unauthorized(keyed_daemon):
    head = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    key = b"Authorization: Bearer %s\r\n" % KEY.encode()
    assert (await say(keyed_daemon.port, head + key + b"\r\n")).status == 200
    assert (await say(keyed_daemon.port, head + key + key + b"\r\n")).status == 401


@pytest.mark.promise("P44")
async def test_a_key_is_neither_logged_nor_returned(keyed_daemon, caplog):
    caplog.set_level(logging.DEBUG)
    for key in (KEY, KEY[:-1] + "X"):
        header = {"Authorization": f"Bearer {key}"}
        for path in ("/v1/sessions", f"/v1/{key}", f"/v1/sessions?{key}={key}"):
            reply = await keyed_daemon.ask("GET", path, headers=header)
            if path == "/v1/sessions":
                assert key.encode() not in reply.raw
        await keyed_daemon.ask("POST", "/v1/sessions", {"image": 1}, headers=header)
    await say(
        keyed_daemon.port, b"GET / HTTP/1.1\r\nAuthorization: Bearer %s\r\n\0\r\n" % KEY.encode()
    )
    told = [str(record.__dict__) for record in caplog.records if record.name != "asyncio"]
    assert [line for line in told if KEY[:-1] in line] == []


async def test_the_scope_of_a_key_is_its_limit(engine):
    row = KeyRow("k1", "t1", "n", frozenset({"files"}), 0.0, TenantQuota())
    keeper = Doorkeeper(clock=SystemClock(), keys=_OneKey(row))  # type: ignore[arg-type]
    async with serving(engine, doorkeeper=keeper) as daemon:
        header = {"Authorization": "Bearer any"}
        reply = await daemon.ask("GET", "/v1/sessions", headers=header)
        assert (reply.status, reply.json["details"]) == (403, {"scope": "sessions"})
        other = {**header, "X-Sandkasten-Tenant": "t2"}
        assert (await daemon.ask("GET", "/v1/sessions", headers=other)).status == 403


# ---- where it says it comes from


@pytest.mark.promise("P43")
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example"])
async def test_a_foreign_host_is_refused_before_the_key_is_checked(keyed_daemon, host):
    for path in ("/v1/sessions", "/healthz", "/nothing"):
        reply = await keyed_daemon.ask("GET", path, headers={"Host": host})
        assert (reply.status, reply.json["code"]) == (421, "FORBIDDEN")


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"Host:\r\n",
        b"Host: a\r\nHost: localhost\r\n",
        b"Host: evil.example@localhost\r\n",
        b"Host: localhost/evil\r\n",
        b"Host: localhost:port\r\n",
    ],
)
async def test_a_missing_or_repeated_host_is_refused(daemon, lines):
    start = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n"
    heard = await say(daemon.port, start + lines + b"\r\n")
    assert heard.status == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "a\u00e4"])
async def test_a_foreign_origin_is_refused_before_the_key_is_checked(keyed_daemon, origin):
    reply = await keyed_daemon.ask("GET", "/v1/sessions", headers={"Origin": origin})
    assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN")


async def test_our_own_origin_and_an_allowed_one_are_accepted(engine):
    rules = HttpLimits(allowed_origins=("https://app.example",), allowed_hosts=("box.example",))
    async with serving(engine, rules=rules) as daemon:
        for origin in (daemon.url, "https://app.example"):
            reply = await daemon.ask("GET", "/v1/sessions", headers={"Origin": origin})
            assert reply.status == 200
        assert (await daemon.ask("GET", "/healthz", headers={"Host": "box.example"})).status == 200


@pytest.mark.promise("P43")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
    ],
)
async def test_websockets_are_refused_in_the_same_way(keyed_daemon, headers, status, caplog):
    url = f"{keyed_daemon.url}/v1/sessions/sbx_0000000000000000/pty"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await keyed_daemon.http.ws_connect(url, headers=headers)
    assert refused.value.status == status
    assert "handshake" not in caplog.text


# ---- bodies


async def test_plain_text_and_forms_are_never_parsed_as_json(daemon):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = await daemon.ask(
            "POST", "/v1/sessions", data=b"{}", headers={"Content-Type": kind} if kind else {}
        )
        assert reply.status == 415, kind
    assert (await daemon.ask("GET", "/v1/sessions")).json == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b"[" * 90_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"ttl_seconds": NaN}',
        b'{"ttl_seconds": Infinity}',
        b'{"image": "\\ud800"}',
        b'{"image": "\xff"}',
        b'\xef\xbb\xbf{"image": "a"}',
        b"{}{}",
        b'{"image": "a\nb"}',
        b'{"image": "a", "image": "b"}',
        b'{"limits": {"pids_limit": 1, "pids_limit": 2}}',
    ],
    ids=itertools.count(),
)
async def test_a_body_that_is_not_a_json_object_is_refused(daemon, body):
    reply = await daemon.ask("POST", "/v1/sessions", data=body, headers=JSON)
    assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "body",
    [
        b'{"imagee": "a"}',
        b'{"ttl_seconds": -1}',
        b'{"ttl_seconds": true}',
        b'{"ttl_seconds": "5"}',
        b'{"ttl_seconds": 1e999}',
        b'{"ttl_seconds": 99999999999999999999999999999999999999}',
        b'{"limits": {"pids_limit": false}}',
        b'{"limits": {"pids_limit": null}}',
        b'{"env": {"A": 1}}',
        b'{"mounts": "x"}',
        b'{"image": 1}',
    ],
)
async def test_an_invalid_field_is_named(daemon, body):
    reply = await daemon.ask("POST", "/v1/sessions", data=body, headers=JSON)
    assert (reply.status, reply.json["code"]) == (422, "INVALID_REQUEST")
    assert reply.json["details"]["field"]


async def test_a_body_with_too_many_values_is_refused(daemon):
    raw = b'{"cmd":[' + b"1," * 500_000 + b"1]}"
    path = "/v1/sessions/sbx_0000000000000000/exec"
    reply = await daemon.ask("POST", path, data=raw, headers=JSON)
    assert (reply.status, reply.json["code"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_only_the_first_invalid_field_is_reported(daemon):
    path = "/v1/sessions/sbx_0000000000000000/exec"
    for body, field in (
        ({"cmd": [1] * 30_000}, "cmd.list[str].0"),
        ({"cmd": "a", "env": dict.fromkeys(map(str, range(4000)), 1)}, "env.0"),
        ({"cmd": "a", **dict.fromkeys(map(str, range(30_000)), 1)}, "0"),
        ({"cmd": "a", "pty": dict.fromkeys(map(str, range(30_000)), 1)}, "pty.bool"),
    ):
        reply = await daemon.ask("POST", path, body)
        assert (reply.status, reply.json["details"]) == (422, {"field": field})


async def test_a_list_or_an_object_that_is_too_long_is_refused(daemon):
    path = "/v1/sessions/sbx_0000000000000000/exec"
    for body in (
        {"cmd": [""] * 32_769},
        {"cmd": "a", "env": dict.fromkeys(map(str, range(4097)), "")},
    ):
        reply = await daemon.ask("POST", path, body)
        assert (reply.status, reply.json["code"]) == (422, "INVALID_REQUEST")
        assert "at most" in reply.json["message"]


async def test_a_query_with_too_many_parameters_is_refused(daemon):
    reply = await daemon.ask("GET", "/v1/sessions?" + "&".join(f"a{n}" for n in range(65)))
    assert (reply.status, reply.json["code"]) == (422, "INVALID_REQUEST")


async def test_an_invalid_query_parameter_is_named(daemon):
    box = f"/v1/sessions/{await daemon.session()}"
    for query in ("wait_seconds=x", "wait_seconds=-1", "wait_seconds=nan", "wait_seconds=1e999"):
        reply = await daemon.ask("GET", f"{box}/execs/exe_1?{query}")
        assert (reply.status, reply.json["details"]["field"]) == (422, "wait_seconds")
    for query in ("nonsense=1", "wait_seconds=1&wait_seconds=2"):
        assert (await daemon.ask("GET", f"{box}/execs/exe_1?{query}")).status == 422


@pytest.mark.parametrize(
    "the_id", ["..%2fx", "../x", "a;rm", "x" * 10_000, "%00", "sbx_zzzz", "sbx_%0a", "~", "*"]
)
async def test_a_malformed_id_answers_like_an_unknown_one(daemon, the_id):
    for rest in ("", "/stats", "/execs"):
        line = f"GET /v1/sessions/{the_id}{rest} HTTP/1.1".encode()
        heard = await say(daemon.port, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert heard.status == 404, heard.raw[:300]


@pytest.mark.promise("P40")
async def test_a_body_too_large_is_refused_without_keeping_it(engine):
    rules = HttpLimits(max_json_mb=1)
    async with serving(engine, rules=rules) as daemon:
        head = (
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        told = await say(daemon.port, head + b"Content-Length: 999999999999\r\n\r\n", until=b"}")
        assert told.status == 413

        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        before = _resident()
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        heard = await say(daemon.port, chunked, *[piece] * 2000)
        assert heard.status == 413
        assert _resident() - before < 32 << 20
        digits = b"Content-Length: " + b"9" * 400 + b"\r\n\r\n"
        assert (await say(daemon.port, head + digits)).status in (400, 413)


async def test_a_file_of_ten_megabytes_fits_a_json_body(daemon):
    body = b'{"labels": {"a": "' + b"x" * 14_000_000 + b'"}}'
    reply = await daemon.ask("POST", "/v1/sessions", data=io.BytesIO(body), headers=JSON)
    assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")


LONG = "a" * 300_000
_MOST_ANSWER = 100_000
# They take long.
_NOT_TRIED = {"/v1/images/pull", "/v1/images/build"}


def _string_fields():
    """Yield each field of a JSON body that may be a string, with its route and what else the body
    must have.
    """
    for route in route_table().routes:
        if route.body is None or route.path in _NOT_TRIED:
            continue
        fields = {field.alias or name: field for name, field in route.body.model_fields.items()}
        required = {name: "x" for name, field in fields.items() if field.is_required()}
        for name, field in fields.items():
            if "str" in str(field.annotation):
                yield route.method, route.path, {**required, name: LONG}


@pytest.mark.promise("P40")
async def test_no_error_repeats_a_long_value_of_a_client(daemon):
    """An error is encoded at once, and kept in memory for a client that does not read it."""
    box = await daemon.session()
    tried, large = 0, []
    for method, path, body in _string_fields():
        path = path.replace("{id}", box)
        reply = await daemon.ask(method, re.sub(r"\{[a-z_:]+\}", "x", path), body)
        tried += 1
        if reply.status >= 400 and len(reply.raw) > _MOST_ANSWER:
            long = [name for name, value in body.items() if value is LONG]
            large.append((method, path, long, reply.status, len(reply.raw)))
    assert large == []
    assert tried > 60


async def test_a_choice_by_labels_is_bounded_before_each_label_is_compared(daemon):
    labels = ",".join(f"k{number}=v" for number in range(1000))
    for path in ("/v1/sessions", "/v1/run"):
        body = {"backend": f"docker/{labels}", "code": "1"}
        if path == "/v1/sessions":
            body = {"backend": body["backend"], "session_key": "one"}
        reply = await daemon.ask("POST", path, body)
        assert (reply.status, reply.json["details"]) == (400, {"field": "backend"})


# ---- taking one's time

# In tenths of a second: only the daemon can end it before we give up.
LONGER_THAN_ANYBODY_WAITS = 2 * int(10 * PATIENCE_S)


async def test_a_silent_client_is_disconnected(impatient_daemon):
    heard = await say(impatient_daemon.port)
    assert heard.closed
    assert heard.raw == b""


async def test_a_client_that_never_ends_its_headers_is_disconnected(impatient_daemon):
    drip: list[bytes | float] = [b"GET /healthz HTTP/1.1\r\n"]
    for _ in range(LONGER_THAN_ANYBODY_WAITS):
        drip += [b"A: b\r\n", 0.1]
    heard = await say(impatient_daemon.port, *drip)
    assert heard.closed
    assert heard.status == 408


async def test_a_second_request_that_never_ends_is_disconnected(impatient_daemon):
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    heard = await say(impatient_daemon.port, whole, 0.1, b"GET /healthz HT")
    assert heard.closed
    assert heard.raw.count(b"HTTP/1.1 ") == 2
    assert b" 408 " in heard.raw


async def test_empty_lines_do_not_keep_a_connection_open(impatient_daemon):
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    drip: list[bytes | float] = [whole, 0.05]
    for _ in range(LONGER_THAN_ANYBODY_WAITS):
        drip += [b"\r\n", 0.1]
    heard = await say(impatient_daemon.port, *drip)
    assert heard.closed


async def test_a_client_whose_body_stops_or_drips_is_disconnected(impatient_daemon):
    stopped = await say(impatient_daemon.port, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert (stopped.status, stopped.closed) == (408, True)
    drip: list[bytes | float] = [HEAD + b"Content-Length: 1000\r\n\r\n{"]
    for _ in range(LONGER_THAN_ANYBODY_WAITS):
        drip += [b" ", 0.1]
    dripped = await say(impatient_daemon.port, *drip)
    assert (dripped.status, dripped.closed) == (408, True)


async def test_a_client_that_keeps_sending_after_the_answer_is_disconnected(impatient_daemon):
    drip: list[bytes | float] = [HEAD.replace(b"application/json", b"text/plain")]
    drip.append(b"Content-Length: 100000\r\n\r\n")
    for _ in range(LONGER_THAN_ANYBODY_WAITS):
        drip += [b" ", 0.1]
    heard = await say(impatient_daemon.port, *drip)
    assert (heard.status, heard.closed) == (415, True)


@pytest.mark.promise("P40")
async def test_the_real_deadlines_are_ten_seconds(daemon):
    rules = daemon.server.rules
    assert rules == HttpLimits()
    assert rules.header_timeout_s <= 10
    assert rules.body_timeout_s <= 10


@pytest.mark.promise("P40")
async def test_a_client_that_reads_nothing_is_disconnected(impatient_daemon):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", impatient_daemon.port))
        await loop.sock_sendall(
            sock, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
        )
        for _ in range(int(PATIENCE_S / 0.1)):
            await asyncio.sleep(0.1)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                break
        else:
            pytest.fail("the connection is still there")


@pytest.mark.promise("P38")
async def test_a_client_that_reads_nothing_of_a_terminal_is_disconnected(impatient_daemon):
    the_id = await impatient_daemon.session()
    asked = (
        f"GET /v1/sessions/{the_id}/pty?command=%5B%22yes%22%5D HTTP/1.1\r\nHost: localhost\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", impatient_daemon.port))
        await loop.sock_sendall(sock, asked.encode())
        for _ in range(int(PATIENCE_S / 0.1)):
            await asyncio.sleep(0.1)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                break
        else:
            pytest.fail("the connection is still there")


# ---- headers


async def test_too_many_and_too_large_headers_are_refused(daemon):
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    many = b"".join(b"x-%d: a\r\n" % n for n in range(200))
    assert (await say(daemon.port, start + many + b"\r\n")).status == 431
    large = b"x: " + b"a" * 100_000 + b"\r\n"
    assert (await say(daemon.port, start + large + b"\r\n")).status == 431
    url = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await say(daemon.port, url)).status == 431
    before = _resident()
    endless = await say(daemon.port, start + b"x: ", *[b"a" * 65536] * 1000)
    assert endless.status == 431
    assert _resident() - before < 32 << 20


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x01B: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n",
    ],
    ids=itertools.count(),
)
async def test_input_that_is_not_http_is_answered_and_closed(daemon, raw):
    heard = await say(daemon.port, raw)
    assert heard.closed
    assert heard.status == 400
    assert b'"INVALID_REQUEST"' in heard.raw
    assert (await daemon.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize("target", ["a" * 9000, "\xff"])
async def test_a_websocket_request_that_its_parser_refuses_is_answered(daemon, target, caplog):
    asked = (
        f"GET /v1/sessions/sbx_0000000000000000/pty?{target} HTTP/1.1\r\nHost: localhost\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    heard = await say(daemon.port, asked.encode("latin-1"))
    assert (heard.status, heard.closed) == (400, True)
    assert "Traceback" not in caplog.text


async def test_pipelined_requests_are_answered_in_order(daemon):
    asked = b"".join(b"GET /nothing/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(300))
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    heard = await say(daemon.port, asked + last)
    found = [int(n) for n in re.findall(rb"there is nothing at /nothing/(\d+)\"", heard.raw)]
    assert found[::2] == list(range(300))
    assert b'"status":"ok"' in heard.raw


@pytest.mark.parametrize("pad", [b" ", b"\t", b"  \t "])
async def test_white_space_around_the_value_of_a_header_is_ignored(keyed_daemon, pad):
    lines = (
        b"Host:%slocalhost%s\r\nAuthorization:%sBearer " + KEY.encode() + b"%s\r\n"
        b"Content-Type:%sapplication/json%s\r\nContent-Length:%s2%s\r\n"
        b"Connection:%sclose%s\r\nX-Request-Id:%sa%s\r\n"
    )
    heard = await say(
        keyed_daemon.port, b"POST /v1/keys HTTP/1.1\r\n" + lines % ((pad,) * 12) + b"\r\n[]"
    )
    assert (heard.status, heard.closed) == (400, True)
    assert b"the body is not a JSON object" in heard.raw
    assert b"x-request-id: a\r\n" in heard.raw
    asked = (
        b"GET /v1/sessions/sbx_0000000000000000/pty HTTP/1.1\r\nHost: localhost%s\r\n"
        b"Authorization: Bearer " + KEY.encode() + b"%s\r\nUpgrade: websocket%s\r\n"
        b"Connection: Upgrade%s\r\nSec-WebSocket-Version: 13%s\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==%s\r\n\r\n"
    )
    assert (await say(keyed_daemon.port, asked % ((pad,) * 6))).status == 404


async def test_a_request_id_cannot_inject_anything_into_the_answer(daemon):
    for given in ("a\tb", "x" * 65, "<b>", "ä", "a b"):
        reply = await daemon.ask("GET", "/healthz", headers={"X-Request-Id": given})
        assert reply.headers["X-Request-Id"].startswith("req_")
    reply = await daemon.ask("GET", "/healthz", headers={"X-Request-Id": "mine-1"})
    assert reply.headers["X-Request-Id"] == "mine-1"


async def test_a_wrong_method_is_refused_with_the_allowed_ones(daemon):
    reply = await daemon.ask("PUT", "/v1/sessions")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, POST")


async def test_an_unexpected_failure_reveals_nothing(daemon, monkeypatch, caplog):
    async def broken(*_args, **_more):
        raise ValueError("a secret of somebody")

    monkeypatch.setattr(daemon.server.engine, "run", broken)
    reply = await daemon.ask("POST", "/v1/run", {"code": "1"})
    assert (reply.status, reply.json["code"]) == (500, "INTERNAL_ERROR")
    assert b"secret" not in reply.raw
    assert reply.json["request_id"] in [getattr(r, "request_id", None) for r in caplog.records]


# ---- how often


class _OneKey:
    def __init__(self, row: KeyRow) -> None:
        self.row = row

    def check(self, hashed: bytes, now: float) -> KeyRow:
        return self.row


@pytest.mark.promise("P40")
async def test_a_tenant_over_its_rate_gets_a_retry_after(engine, monkeypatch):
    # However slowly they come, for the daemon they come at once.
    monkeypatch.setattr(http_app, "Rates", lambda: Rates(lambda: 100.0))
    quota = TenantQuota(requests_per_second=2)
    row = KeyRow("k1", "t1", "n", SCOPES, 0.0, quota)
    keys = _OneKey(row)
    keeper = Doorkeeper(clock=SystemClock(), keys=keys)  # type: ignore[arg-type]
    async with serving(engine, doorkeeper=keeper) as daemon:
        header = {"Authorization": "Bearer any"}
        replies = [await daemon.ask("GET", "/v1/sessions", headers=header) for _ in range(12)]
        assert [one.status for one in replies[:4]] == [200] * 4
        refused = [one for one in replies if one.status == 429]
        assert refused
        assert refused[0].json["code"] == "QUOTA_EXCEEDED"
        assert refused[0].json["details"]["quota"] == "rate"
        assert int(refused[0].headers["Retry-After"]) >= 1
        keys.row = replace(row, tenant="t2")
        assert (await daemon.ask("GET", "/v1/sessions", headers=header)).status == 200
        assert (await daemon.ask("GET", "/healthz", headers=header)).status == 200


def test_a_rate_limit_applies_over_time_and_refills():
    now = [100.0]
    rates = Rates(lambda: now[0])
    fast = Principal(tenant="t", quota=TenantQuota(requests_per_second=10))
    taken = 0
    for _ in range(10_000):
        now[0] += 0.001
        try:
            rates.take(fast)
        except QuotaExceeded:
            continue
        taken += 1
    assert 100 <= taken <= 121
    now[0] += 60
    for _ in range(20):
        rates.take(fast)
    with pytest.raises(QuotaExceeded):
        rates.take(fast)
    never = Principal(tenant="u", quota=TenantQuota(requests_per_second=0))
    rates.take(never)
    with pytest.raises(QuotaExceeded):
        rates.take(never)


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
