"""The port proxy: servers inside a sandbox without a network."""

from __future__ import annotations

import asyncio
import base64
import io

import aiohttp
import pytest
from websockets.client import ClientProtocol

from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_server.api.proxy.proxy_redirects import kept_inside
from tests.api.inner_servers import ECHO, FRAGMENTS, GARBAGE, HOSTILE, PLAIN
from tests.api.raw import say
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P39")


async def listening(daemon, the_id, program, port):
    await daemon.server.engine.files.write(the_id, f"/tmp/{port}.py", program.encode())
    command = ("python3", f"/tmp/{port}.py")
    await daemon.server.engine.exec_start(the_id, ExecRequest(command))
    async with asyncio.timeout(PATIENCE_S):
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


async def test_a_request_reaches_the_inner_server_and_its_answer_is_returned(real_daemon, web):
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


async def test_keys_and_cookies_are_not_forwarded_and_pages_are_sandboxed(real_daemon, web):
    headers = {"Cookie": "secret=1", "X-Sandkasten-Tenant": "default"}
    reply = await real_daemon.ask("GET", f"{web}/", headers=headers)
    assert not {"authorization", "cookie", "x-sandkasten-tenant"} & set(reply.json["headers"])
    assert "Set-Cookie" not in reply.headers
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert reply.headers["content-security-policy"].startswith("sandbox")
    assert "allow-same-origin" not in reply.headers["content-security-policy"]


async def test_large_bodies_pass_in_both_directions(real_daemon, web):
    assert len((await real_daemon.ask("GET", f"{web}/large")).raw) == 5_000_000
    sent = await real_daemon.ask("PUT", f"{web}/in", data=io.BytesIO(b"y" * 3_000_000))
    assert sent.json["size"] == 3_000_000


async def test_a_redirect_stays_below_the_port(real_daemon, web):
    reply = await real_daemon.ask("GET", f"{web}/redirect", allow_redirects=False)
    assert (reply.status, reply.headers["Location"]) == (302, f"{web}/there")


async def test_a_port_without_a_listener_is_a_typed_error(real_daemon):
    the_id = await real_daemon.session()
    reply = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/9/")
    assert (reply.status, reply.json["code"]) == (502, "CONNECTION_REFUSED")
    wrong = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/70000/")
    assert (wrong.status, wrong.json["code"]) == (400, "INVALID_REQUEST")


async def test_a_server_that_does_not_speak_http_is_a_bad_gateway(real_daemon):
    the_id = await real_daemon.session()
    await listening(real_daemon, the_id, GARBAGE, 8002)
    reply = await real_daemon.ask("GET", f"/v1/sessions/{the_id}/ports/8002/")
    assert (reply.status, reply.json["code"]) == (502, "PROTOCOL_VIOLATION")


async def test_a_websocket_inside_is_proxied_message_by_message(real_daemon):
    the_id = await real_daemon.session()
    await real_daemon.server.engine.files.write(the_id, "/tmp/ws.py", ECHO.encode())
    await real_daemon.server.engine.exec_start(the_id, ExecRequest(("python3", "/tmp/ws.py")))
    url = f"{real_daemon.url}/v1/sessions/{the_id}/ports/8001/chat"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                socket = await real_daemon.http.ws_connect(url)
                break
            except aiohttp.WSServerHandshakeError:
                # Not there yet.
                await asyncio.sleep(0.05)
    async with socket:
        await socket.send_str("hello ü")
        assert await socket.receive_str(timeout=PATIENCE_S) == "hello ü"
        await socket.send_bytes(b"\x00\xff" * 50_000)
        assert await socket.receive_bytes(timeout=PATIENCE_S) == b"\x00\xff" * 50_000


async def test_a_page_of_another_origin_cannot_open_a_websocket(real_daemon):
    the_id = await real_daemon.session()
    for origin in ("http://evil.example", "null"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await real_daemon.http.ws_connect(
                f"{real_daemon.url}/v1/sessions/{the_id}/ports/8001/", headers={"Origin": origin}
            )
        assert refused.value.status == 403


@pytest.fixture
async def hostile(real_daemon):
    the_id = await real_daemon.session()
    await listening(real_daemon, the_id, HOSTILE, 8003)
    return f"/v1/sessions/{the_id}/ports/8003"


async def answered(daemon, base, raw, **more):
    said = base64.urlsafe_b64encode(raw).decode()
    async with asyncio.timeout(PATIENCE_S):
        return await daemon.ask("GET", f"{base}/say/{said}", allow_redirects=False, **more)


async def test_an_answer_without_a_length_ends_with_its_connection(real_daemon, hostile):
    reply = await answered(real_daemon, hostile, b"HTTP/1.0 200 OK\r\n\r\nall of it")
    assert (reply.status, reply.raw) == (200, b"all of it")
    reply = await answered(real_daemon, hostile, b"")
    assert (reply.status, reply.json["code"]) == (502, "PROTOCOL_VIOLATION")


@pytest.mark.parametrize("path", ["never", "quiet"])
async def test_the_inner_connection_is_closed_when_the_client_disconnects(
    real_daemon, hostile, path
):
    engine, the_id = real_daemon.server.engine, hostile.split("/")[3]
    asked = f"GET {hostile}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    await asyncio.gather(*(say(real_daemon.port, asked, give_up_s=1) for _ in range(5)))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = await engine.exec(the_id, ExecRequest("grep -c ' 01 ' /proc/net/tcp"))
            if told.stdout.strip() == b"0":
                return
            await asyncio.sleep(0.1)


async def test_interim_answers_are_bounded(real_daemon, hostile):
    async with asyncio.timeout(PATIENCE_S):
        reply = await real_daemon.ask("GET", f"{hostile}/interim")
    assert (reply.status, reply.json["code"]) == (502, "PROTOCOL_VIOLATION")


@pytest.mark.parametrize(
    ("head", "status", "body"),
    [
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", 204, b""),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n\r\n",
            200,
            b"abc",
        ),
        (b"HTTP/1.1 999 OK\r\nContent-Length: 1\r\n\r\na", 502, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: a\x01b\r\n\r\n", 502, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: \x7f\r\n\r\n", 502, None),
    ],
)
async def test_an_unusual_answer_is_normalised_or_refused(
    real_daemon, hostile, caplog, head, status, body
):
    reply = await answered(real_daemon, hostile, head)
    assert reply.status == status
    assert body is None or reply.raw == body
    assert "request.failed" not in caplog.text


@each(
    ("given", "seen"),
    [
        ("/there?x=1#y", "{base}/there?x=1#y"),
        ("there", "{base}/say/there"),
        ("../../../../../keys", "{base}/keys"),
        ("/../../../../../v1/keys", "{base}/v1/keys"),
        ("/%2e%2E/..%2f/%2e./x", "{base}/x"),
        ("\\\\127.0.0.1:{port}\\v1\\keys", "{base}/v1/keys"),
        ("http://127.0.0.1:{port}/v1/sessions", "{base}/v1/sessions"),
        ("http://u:p@localhost:{port}/v1", "{base}/v1"),
        ("http://localhost:8003/x", "{base}/x"),
        ("//other.example/x", "//other.example/x"),
        ("https://other.example/../x", "https://other.example/../x"),
        ("https:/v1/keys", None),
        ("http://127.1:{port}/v1/keys", None),
        ("http://2130706433:{port}/v1/keys", None),
        ("http://0x7f.1:{port}/v1/keys", None),
        ("http://127.0.0.0X1:{port}/v1/keys", None),
        ("http://127.0x.1:{port}/v1/keys", None),
        ("http://0177.0.0.1:{port}/v1/keys", None),
        ("http://127.0.0.01.:{port}/v1/keys", None),
        ("http://%31%32%37.0.0.1:{port}/v1/keys", None),
        ("http://loc%61lhost:{port}/v1/keys", None),
        ("http://127。0。0。1:{port}/v1/keys", None),
        ("http://１２７.0.0.1:{port}/v1/keys", None),
        ("http:\\\\127.1:{port}\\v1\\keys", None),
        ("//127.1:{port}/v1/keys", None),
        ("http://other.example\\@127.0.0.1:{port}/v1/keys", None),
        ("http://[::1%lo]:{port}/v1/keys", None),
        ("http://[::1]x:{port}/v1/keys", None),
        ("http://127.0.0.1..:{port}/v1/keys", None),
        ("http://127.0.0.1.:{port}/v1/keys", "{base}/v1/keys"),
        ("http://LOCALHOST.:0{port}/v1/keys", "{base}/v1/keys"),
        ("http://a.localhost:{port}/v1/keys", "{base}/v1/keys"),
        ("http://127.9.9.9:{port}/v1/keys", "{base}/v1/keys"),
        ("http://0.0.0.0:{port}/v1/keys", "{base}/v1/keys"),
        ("http://[0:0::1]:{port}/v1/keys", "{base}/v1/keys"),
        ("http://[::]:{port}/v1/keys", "{base}/v1/keys"),
        ("http://[::ffff:127.0.0.1]:{port}/v1/keys", "{base}/v1/keys"),
        ("http://[::FFFF:7f00:1]:{port}/v1/keys", "{base}/v1/keys"),
        ("http://192.0.2.7:{port}/x", "http://192.0.2.7:{port}/x"),
        ("http://[2001:db8::7]/x", "http://[2001:db8::7]/x"),
    ],
)
async def test_a_redirect_never_leads_to_the_daemon_itself(real_daemon, hostile, given, seen):
    where = given.replace("{port}", str(real_daemon.port)).encode()
    raw = b"HTTP/1.1 307 Go\r\nContent-Length: 0\r\nLocation: " + where + b"\r\n\r\n"
    reply = await answered(real_daemon, hostile, raw)
    assert reply.headers.get("location") == (
        seen and seen.replace("{base}", hostile).replace("{port}", str(real_daemon.port))
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("ours", ["box.example", "box.example:443", "box.example:80"])
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("https:/v1/keys", None),
        ("HTTPS:v1/keys", None),
        ("http:///v1/keys", None),
        ("https:\\v1\\keys", None),
        (" ht\ttps:/v1/keys", None),
        ("http://:8080/v1/keys", None),
        ("https://?x", None),
        ("//box.example/v1/keys", "/p/v1/keys"),
        ("https://box.example/v1/keys", "/p/v1/keys"),
        ("http://box.example:443/v1/keys", "/p/v1/keys"),
        ("https://BOX.example:80/v1/keys", "/p/v1/keys"),
        ("///v1/keys", "/p/v1/keys"),
        ("/a b", "/p/a b"),
        ("https://box.example:8443/x", "https://box.example:8443/x"),
        ("https://other.example/x", "https://other.example/x"),
        ("mailto:a@box.example", "mailto:a@box.example"),
    ],
)
def test_a_redirect_is_read_as_a_client_over_tls_reads_it(given, seen, ours, scheme):
    found = kept_inside(
        given, port=8003, path="/a", prefix="/p", own_addresses=(ours,), scheme=scheme
    )
    assert found == seen


def test_a_redirect_to_the_inner_servers_own_address_stays_below_the_port():
    for port, given in ((80, "http://localhost/x"), (8003, "http://127.0.0.1:8003/x")):
        found = kept_inside(
            given,
            port=port,
            path="/",
            prefix="/p",
            own_addresses=("box.example:8080",),
            scheme="https",
        )
        assert found == "/p/x"


@pytest.mark.parametrize(
    ("given", "ours", "seen"),
    [
        ("http://10.0.0.5:18080/x", ("box.example", "10.0.0.5:18080"), "/p/x"),
        ("http://localhost:18080/x", ("box.example", "10.0.0.5:18080"), "/p/x"),
        ("http://[fd00:0::5]:18080/x", ("box.example", "[fd00::5]:18080"), "/p/x"),
        ("http://[::ffff:10.0.0.5]:18080/x", ("10.0.0.5:18080",), "/p/x"),
        ("http://box.example./x", ("box.example",), "/p/x"),
        ("/x", ("10.5:18080",), "/p/x"),
        ("http://10.0.0.5:18080/x", ("10.5:18080",), None),
    ],
)
def test_a_redirect_is_compared_with_every_address_of_the_daemon(given, ours, seen):
    found = kept_inside(given, port=8003, path="/", prefix="/p", own_addresses=ours, scheme="http")
    assert found == seen


async def test_the_path_of_a_port_may_be_percent_encoded(real_daemon, hostile):
    for odd, seen in (
        (hostile.replace("ports", "%70orts") + "/a%2Fb", b"/a%2Fb"),
        (hostile.replace("8003", "%38003") + "/a", b"/a"),
        (hostile + "%2Fa", b"/a"),
    ):
        asked = f"GET {odd} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        heard = await say(real_daemon.port, asked.encode())
        assert (heard.status, heard.raw.rpartition(b"\r\n\r\n")[2]) == (200, seen)


async def test_a_websocket_with_a_fragment_in_its_path_works(real_daemon, hostile):
    asked = (
        f"GET {hostile}/a#b HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await say(real_daemon.port, asked.encode())).status == 502


async def test_a_handshake_that_is_noise_without_an_end_is_refused(real_daemon, hostile):
    asked = (
        f"GET {hostile}/noise HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await say(real_daemon.port, asked.encode(), give_up_s=20)).status == 502


async def test_an_answer_to_connect_ends_with_its_head(real_daemon, hostile):
    said = base64.urlsafe_b64encode(b"HTTP/1.1 200 OK\r\n\r\nnot HTTP").decode()
    asked = f"CONNECT {hostile}/say/{said} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    heard = await say(real_daemon.port, asked.encode(), give_up_s=20)
    assert (heard.status, heard.closed, b"not HTTP" in heard.raw) == (200, True, False)


# Thousands of turns of the loop, each of which a busy machine lets wait.
@pytest.mark.timeout(300)
async def test_a_fragmented_message_is_reassembled_without_blocking_others(
    real_daemon, monkeypatch
):
    the_id = await real_daemon.session()
    await listening(real_daemon, the_id, FRAGMENTS, 8004)
    turns, read = 0, []

    async def look():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    real = ClientProtocol.receive_data

    def receive_data(self, data):
        read.append((len(data), turns))
        real(self, data)

    monkeypatch.setattr(ClientProtocol, "receive_data", receive_data)
    looking = asyncio.create_task(look())
    url = f"{real_daemon.url}/v1/sessions/{the_id}/ports/8004/"
    async with asyncio.timeout(5 * PATIENCE_S), real_daemon.http.ws_connect(url) as socket:
        assert await socket.receive_bytes() == b"ab"
    looking.cancel()
    # Piece by piece, and others have a turn in between.
    assert sum(size for size, _ in read) > 200_000
    assert max(size for size, _ in read) <= 8192
    assert len({at for _, at in read}) > len(read) // 2
