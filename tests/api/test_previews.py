"""Previews: each port of a sandbox on an origin of its own, opened by signed links."""

from __future__ import annotations

import asyncio
import io
import json
import re

import aiohttp
import pytest

from sandkasten.client.port_forward import forwarding
from sandkasten.errors import (
    ConnectionRefused,
    InvalidRequest,
    PolicyDenied,
    SandkastenError,
    StoreUnusable,
)
from sandkasten.model.access.preview_links import (
    Grant,
    PreviewTarget,
    SandboxPreviews,
    link_id_of,
    sign,
    target_of,
    verify,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.ids import SandboxId
from sandkasten_server.api.previews.preview_access import Previews, cookies_of
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.request.request_guard import PreviewHosts
from sandkasten_server.records import preview_directory
from sandkasten_server.records.preview_directory import PreviewDirectory
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.api.inner_servers import APPLICATION
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P78")
HTML = {"Accept": "text/html"}


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.time = 1_800_000_000.0

    def now(self):
        return self.time

    def boottime(self):
        return self.time


class Site:
    """A sandbox with a server on one port, as a browser reaches it."""

    def __init__(self, daemon, the_id, port):
        self.daemon, self.id, self.port = daemon, the_id, port
        self.host = f"{port}-{the_id.replace('_', '-')}.localhost:{daemon.port}"

    async def link(self, headers=None, **body):
        made = await self.daemon.ask(
            "POST", f"/v1/sessions/{self.id}/previews", {"port": self.port, **body}, headers=headers
        )
        assert made.status == 201, made.raw
        return made.json

    async def get(self, path="/", method="GET", **more):
        headers = {"Host": self.host, **more.pop("headers", {})}
        url = self.daemon.url + path
        async with self.daemon.http.request(
            method, url, headers=headers, allow_redirects=False, **more
        ) as found:
            found.raw = await found.read()
            return found

    async def cookie(self, headers=None):
        """Return the cookie that the link sets."""
        url = (await self.link(headers))["url"]
        return (await self.get(path_of(url))).headers["Set-Cookie"].partition(";")[0]


def path_of(url):
    return "/" + url.split("/", 3)[3]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def daemon(engine, tmp_path, clock):
    ports = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(), ports, clock)
    async with booked(engine, tmp_path / "data", previews=previews) as one:
        one.server.clock = clock
        yield one


@pytest.fixture
async def site(daemon):
    made = await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)
    return Site(daemon, made.json["id"], 8000)


async def serve(site):
    """Start the application and wait until it listens."""
    engine = site.daemon.server.engine
    await engine.files.write(site.id, "/tmp/application.py", APPLICATION.encode())
    await engine.exec_start(site.id, ExecRequest(("python3", "/tmp/application.py")))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with engine.connect(site.id, site.port):
                    return
            except ConnectionRefused:
                await asyncio.sleep(0.02)


@pytest.fixture
async def served(site):
    await serve(site)
    return site


async def test_a_link_sets_a_cookie_once_and_leads_to_the_address_without_it(served):
    site = served
    made = await site.link(AS_OPERATOR)
    assert made["url"].startswith(f"http://{site.host}/?sandkasten_token=")
    assert (made["public"], made["port"]) == (False, site.port)
    first = await site.get(path_of(made["url"]).replace("/?", "/a%2Fb?x=1&") + "&y=%20")
    assert (first.status, first.headers["Location"]) == (303, "/a%2Fb?x=1&y=%20")
    cookie, *attributes = first.headers["Set-Cookie"].split("; ")
    assert attributes == ["Path=/", "Max-Age=3600", "HttpOnly", "SameSite=Lax"]
    token = made["url"].rpartition("=")[2]
    assert token not in cookie

    headers = {"Cookie": f"own=1; {cookie}; more=2", "Authorization": "Basic eDp5"}
    told = await (await site.get("/a%2Fb?x=1", "POST", headers=headers, data=b"12345")).json()
    assert (told["method"], told["path"], told["size"]) == ("POST", "/a%2Fb?x=1", 5)
    inside = told["headers"]
    assert (inside["cookie"], inside["host"]) == ("own=1; more=2", site.host)
    assert (inside["x-forwarded-host"], inside["authorization"]) == (site.host, "Basic eDp5")


async def test_a_preview_is_private_until_it_is_public(served, daemon):
    site = served
    for accept, kind in (({}, "text/plain"), (HTML, "text/html")):
        refused = await site.get(headers=accept)
        assert (refused.status, refused.content_type) == (401, kind)
        assert f"sandkasten url {site.id} {site.port}".encode() in refused.raw
    made = await site.link(AS_OPERATOR, public=True)
    assert made["url"] == f"http://{site.host}/"
    assert (made["public"], made["expires_at"]) == (True, None)
    assert (await site.get()).status == 200
    assert (await site.link(AS_OPERATOR))["public"] is True
    again = await site.link(AS_OPERATOR, public=False)
    assert "sandkasten_token=" in again["url"]
    assert (await site.get()).status == 401
    audited = await daemon.ask("GET", "/v1/audit", headers=AS_OPERATOR)
    assert "session.previews" in {row["action"] for row in audited.json["entries"]}


async def test_a_public_preview_ends_at_its_time_and_survives_a_restart(site, clock, tmp_path):
    await site.link(AS_OPERATOR, public=True, ttl_seconds=60)
    stored = await PreviewDirectory.open(tmp_path / "previews")
    target = PreviewTarget(site.id, site.port)
    assert stored.is_public(target, clock.now())
    await stored.retain({site.id}, clock.now())
    assert stored.is_public(target, clock.now())
    await stored.retain(set(), clock.now())
    assert not stored.is_public(target, clock.now())
    clock.time += 61
    assert (await site.get()).status == 401


@pytest.mark.promise("P90")
async def test_rules_for_all_ports_of_a_sandbox_survive_a_restart(served, daemon, tmp_path):
    site, previews = served, daemon.server.previews
    await previews.set_rules_of(site.id, SandboxPreviews(public=False))
    assert (await site.get()).status == 403
    await previews.set_rules_of(site.id, SandboxPreviews(True, "own.example:${PORT}"))
    found = await (await site.get()).json()
    assert found["headers"]["host"] == f"own.example:{site.port}"
    assert found["headers"]["x-forwarded-host"] == site.host
    stored = await PreviewDirectory.open(tmp_path / "previews")
    assert stored.rules_of(site.id) == SandboxPreviews(True, "own.example:${PORT}")
    await stored.retain(set(), 0.0)
    assert stored.rules_of(site.id) == SandboxPreviews()
    # A port that is made private closes all of them.
    await site.link(AS_OPERATOR, public=False)
    assert (await site.get()).status == 401
    previews.rules = PreviewRules(allow_public=False)
    with pytest.raises(PolicyDenied):
        await previews.set_rules_of(site.id, SandboxPreviews(public=True))


async def test_damaged_files_of_previews_are_named_and_nothing_is_rewritten(tmp_path):
    first = await PreviewDirectory.open(tmp_path)
    changed_at = tmp_path.stat().st_mtime_ns
    assert (await PreviewDirectory.open(tmp_path)).key == first.key
    # A full disk would not let it.
    assert tmp_path.stat().st_mtime_ns == changed_at
    for name, content in (
        ("public.json", "[1]"),
        ("public.json", "{"),
        ("revoked.json", '{"a": 1}'),
        ("sandboxes.json", '{"a": {"public": 1}}'),
        ("key", "short"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(StoreUnusable, match=f"{name} is damaged"):
            await PreviewDirectory.open(tmp_path)
        if name != "key":
            (tmp_path / name).unlink()


async def test_the_operator_can_forbid_public_previews(site, daemon):
    await site.link(AS_OPERATOR, public=True)
    previews = daemon.server.previews
    previews.rules = PreviewRules(allow_public=False)
    refused = await daemon.ask(
        "POST",
        f"/v1/sessions/{site.id}/previews",
        {"port": site.port, "public": True},
        headers=AS_OPERATOR,
    )
    assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN")
    assert (await site.get()).status == 401


async def test_expired_and_false_tokens_and_cookies_are_refused_with_a_hint(served, clock):
    site = served
    url = (await site.link(AS_OPERATOR, ttl_seconds=60))["url"]
    cookie = await site.cookie(AS_OPERATOR)
    other = Site(site.daemon, site.id, site.port % 65_535 + 1)
    for wrong in ("x", "1.x", url.rpartition("=")[2][:-1] + "_", cookie.partition("=")[2]):
        refused = await site.get(f"/?sandkasten_token={wrong}")
        assert (refused.status, "Set-Cookie" in refused.headers) == (403, False)
    # Of one port, and not of another.
    assert (await other.get(path_of(url))).status == 403
    assert (await other.get(headers={"Cookie": cookie})).status == 403
    # A sibling may have set one for the whole domain.
    both = {"Cookie": f"sandkasten_preview=1.x; {cookie}"}
    assert (await site.get(headers=both)).status == 200
    clock.time += 3601
    for expired in (await site.get(path_of(url)), await site.get(headers={"Cookie": cookie})):
        assert expired.status == 401
        assert b"has expired" in expired.raw
        assert f"sandkasten url {site.id} {site.port}".encode() in expired.raw


async def test_hosts_that_name_no_sandbox_are_not_found(site, daemon):
    missing = [f"8000-sbx-{'0' * 16}", f"8000-sbx_{'0' * 16}", "nothing", "70000-x", "a.b"]
    pages = []
    for name in missing:
        found = await site.get("/v1/sessions", headers={"Host": f"{name}.localhost", **AS_OPERATOR})
        assert found.status == 404
        pages.append(found.raw)
    assert len(set(pages)) == 1
    # Another tenant's sandbox looks the same.
    key = await new_key(daemon, tenant="acme", scopes=["sessions"])
    assert (await site.get(headers=key)).raw == pages[0]
    refused = await daemon.ask(
        "POST", f"/v1/sessions/{site.id}/previews", {"port": 80}, headers=key
    )
    assert (refused.status, refused.json["code"]) == (404, "SESSION_NOT_FOUND")
    assert (await daemon.ask("DELETE", f"/v1/sessions/{site.id}", headers=AS_OPERATOR)).status < 300
    assert (await site.get()).raw == pages[0]


async def test_a_key_opens_a_preview_and_never_reaches_the_server(served, daemon):
    site = served
    key = await new_key(daemon, tenant="default", scopes=["sessions"])
    for given in (AS_OPERATOR, key):
        told = await (await site.get(headers=given)).json()
        assert "authorization" not in told["headers"]
    await site.link(AS_OPERATOR, public=True)
    revoked = {"Authorization": f"Bearer sk-{'0' * 12}-{'A' * 43}"}
    for given in (AS_OPERATOR, revoked):
        told = await (await site.get(headers={**given, "X-Sandkasten-Tenant": "default"})).json()
        assert not {"authorization", "x-sandkasten-tenant"} & set(told["headers"])
        in_other = {"X-API-KEY": given["Authorization"].removeprefix("Bearer ")}
        told = await (await site.get(headers=in_other)).json()
        assert "x-api-key" not in told["headers"]
    of_the_app = {"Authorization": "Bearer of-the-app", "X-API-KEY": "of-the-app"}
    own = await (await site.get(headers=of_the_app)).json()
    assert own["headers"]["authorization"] == "Bearer of-the-app"
    assert own["headers"]["x-api-key"] == "of-the-app"


async def test_no_route_of_the_api_is_reached_on_the_host_of_a_preview(served):
    site = served
    headers = {"Cookie": await site.cookie(AS_OPERATOR), **AS_OPERATOR}
    for path in ("/v1/sessions", "/healthz", "/metrics", "/docs"):
        told = await (await site.get(path, headers=headers)).json()
        assert told["path"] == path


async def test_other_pages_cannot_use_the_cookie(served):
    site = served
    cookie = await site.cookie(AS_OPERATOR)
    for sent, status in (
        ({}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
          "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
          "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Origin": "http://8000-sbx-0123456789abcdef.localhost:8080"}, 403),
        ({"Origin": "null"}, 403),
    ):  # fmt: skip
        headers = {name: value.format(host=site.host) for name, value in sent.items()}
        found = await site.get(headers={**headers, "Cookie": cookie})
        assert (sent, found.status) == (sent, status)


async def test_pages_of_other_origins_are_refused_without_the_help_of_the_browser(served):
    """As from a browser that knows neither SameSite nor Sec-Fetch headers: it sends the cookie."""
    site = served
    cookie = {"Cookie": await site.cookie(AS_OPERATOR)}
    other = "http://8000-sbx-0123456789abcdef.localhost:8080"
    of_page = {"Origin": other, "Referer": f"{other}/"}
    attempts = {
        "fetch": ("GET", of_page),
        "post": ("POST", {**of_page, "Content-Type": "text/plain"}),
        "form": ("POST", {**of_page, "Accept": "text/html"}),
        "form of a sandboxed frame": ("POST", {"Origin": "null", "Accept": "text/html"}),
        "preflight": ("OPTIONS", {**of_page, "Access-Control-Request-Method": "PUT"}),
        "script": ("GET", {"Referer": f"{other}/", "Accept": "*/*"}),
        "image": ("GET", {"Referer": f"{other}/a?b", "Accept": "image/png,*/*;q=0.5"}),
    }
    refused = {}
    for name, (method, headers) in attempts.items():
        refused[name] = (await site.get(method=method, headers={**headers, **cookie})).status
    assert refused == dict.fromkeys(attempts, 403)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await site.daemon.http.ws_connect(
            f"{site.daemon.url}/ws", headers={"Host": site.host, "Origin": other, **cookie}
        )
    assert caught.value.status == 403
    # Its own page, and a link on another page that a person follows.
    own = f"http://{site.host}"
    for method, headers in (
        ("POST", {"Origin": own}),
        ("GET", {"Referer": f"{own}/page", "Accept": "*/*"}),
        ("GET", {"Referer": f"{other}/", "Accept": "text/html,*/*;q=0.8"}),
        ("GET", {"Accept": "*/*"}),
    ):
        assert (await site.get(method=method, headers={**headers, **cookie})).status == 200


async def test_cookies_of_other_previews_do_not_lock_one_out(served):
    """A page may set cookies for a parent domain; the browser may send these first."""
    site = served
    own = await site.cookie(AS_OPERATOR)
    token = own.partition("=")[2]
    false = [f"sandkasten_preview=1{at:010}.{'0' * 16}.{'A' * 43}" for at in range(300)]
    for cookies in (false, [one.upper() for one in false[:9]], ["sandkasten_preview"] * 20):
        found = await site.get(headers={"Cookie": "; ".join([*cookies, own])})
        assert found.status == 200, found.raw
    # Over TLS only the name counts that no page can set for another host.
    raw = [(b"cookie", f"{own}; __Host-{own}; __HOST-sandkasten_preview=1".encode())]
    assert cookies_of(raw, tls=True) == [token]
    assert cookies_of(raw, tls=False) == [token]


async def answered(site, status, *headers):
    """Return an answer of the application with these headers."""
    return await site.get(
        "/headers", params={"q": json.dumps({"status": status, "headers": headers})}
    )


async def test_cookies_of_the_server_stay_on_its_host(served):
    site = served
    await site.link(AS_OPERATOR, public=True)
    values = ["a=b; Domain=localhost; Path=/", "sandkasten_preview=1", "=sandkasten_preview=2"]
    sent = [("Set-Cookie", value) for value in values]
    found = await answered(site, 200, *sent, ("Clear-Site-Data", '"*"'), ("X-Own", "kept"))
    assert found.headers.getall("Set-Cookie") == ["a=b; Path=/"]
    assert (found.headers["X-Own"], "Clear-Site-Data" in found.headers) == ("kept", False)
    assert "Content-Security-Policy" not in found.headers
    for given, seen in (
        (f"http://localhost:{site.port}/x?y=1", "/x?y=1"),
        ("/x", "/x"),
        ("https://other.example/x", "https://other.example/x"),
    ):
        moved = await answered(site, 302, ("Location", given))
        assert (moved.status, moved.headers["Location"]) == (302, seen)


async def test_the_redirect_of_a_link_stays_on_its_host(site):
    query = path_of((await site.link(AS_OPERATOR))["url"])[1:]
    for path, seen in (("//evil.example/", "/.//evil.example/"), ("/\\evil.example", "/%5Cevil")):
        asked = f"GET {path}{query} HTTP/1.1\r\nHost: {site.host}\r\nConnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", site.daemon.port)
        writer.write(asked.encode())
        raw = (await reader.read()).decode()
        writer.close()
        assert f"\r\nlocation: {seen}" in raw.lower().replace("%5c", "%5C")


async def test_large_bodies_and_streams_pass(served):
    site = served
    await site.link(AS_OPERATOR, public=True)
    assert len((await site.get("/large")).raw) == 3_000_000
    sent = await site.get("/in", "PUT", data=io.BytesIO(b"y" * 3_000_000))
    assert (await sent.json())["size"] == 3_000_000
    url = site.daemon.url + "/pieces"
    async with site.daemon.http.get(url, headers={"Host": site.host}) as answer:
        assert await answer.content.readexactly(5) == b"first"
        assert (await site.get("/go-on")).status == 200
        assert await answer.content.read() == b"second"


async def test_a_websocket_opens_with_the_cookie_and_closes_when_it_expires(served, clock):
    site = served
    url = site.daemon.url + "/ws"
    cookie = await site.cookie(AS_OPERATOR)
    own = {"Host": site.host, "Cookie": f"{cookie}; own=1", "Origin": f"http://{site.host}"}
    for wrong, status in (
        ({"Host": site.host}, 401),
        ({**own, "Origin": "http://evil.example"}, 403),
        ({**own, "Host": "nothing.localhost"}, 404),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await site.daemon.http.ws_connect(url, headers=wrong)
        assert refused.value.status == status
    async with site.daemon.http.ws_connect(url, headers=own) as socket:
        inside = await socket.receive_json(timeout=PATIENCE_S)
        assert (inside["cookie"], inside["host"]) == ("own=1", site.host)
        assert inside["origin"] == f"http://{site.host}"
        await socket.send_str("hello ü")
        assert await socket.receive_str(timeout=PATIENCE_S) == "hello ü"
        clock.time += 3601
        closed = await socket.receive(timeout=PATIENCE_S)
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_a_page_of_a_preview_cannot_use_the_api(engine, site):
    """Neither with the trust in loopback nor with an image."""
    async with serving(engine) as trusting:
        page = f"http://{site.host}"
        for headers, status in (
            ({}, 200),
            ({"Origin": page}, 403),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
            ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Referer": page}, 403),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors",
              "Referer": trusting.url + "/"}, 200),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
              "Sec-Fetch-Dest": "document"}, 200),
        ):  # fmt: skip
            reply = await trusting.ask("GET", "/v1/sessions", headers=headers)
            assert (headers, reply.status) == (headers, status)
        rebound = await trusting.ask("GET", "/v1/sessions", headers={"Host": "evil.example"})
        assert rebound.status == 421
        # A daemon without previews serves no API there either.
        assert (await Site(trusting, site.id, 80).get("/v1/sessions")).status == 404


async def test_a_link_names_the_domain_of_the_settings(served, daemon):
    site = served
    ports = daemon.server.previews._ports
    daemon.server.previews = Previews(
        PreviewRules("preview.example.com:8443"), ports, daemon.server.clock
    )
    url = (await site.link(AS_OPERATOR))["url"]
    host = f"{site.port}-{site.id.replace('_', '-')}.preview.example.com:8443"
    assert url.startswith(f"https://{host}/?sandkasten_token=")
    first = await site.get(path_of(url), headers={"Host": host})
    assert re.match(r"__Host-sandkasten_preview=.*; Secure$", first.headers["Set-Cookie"])
    cookie = first.headers["Set-Cookie"].partition(";")[0]
    told = await (await site.get(headers={"Host": host, "Cookie": cookie})).json()
    assert (told["headers"]["host"], "cookie" in told["headers"]) == (host, False)
    assert told["headers"]["x-forwarded-proto"] == "https"


async def test_a_port_is_forwarded_without_a_daemon(served):
    engine = served.daemon.server.engine
    failed: list[SandkastenError] = []
    async with forwarding(engine, served.id, served.port) as local:
        async with served.daemon.http.get(f"http://127.0.0.1:{local}/there") as found:
            assert (await found.json())["path"] == "/there"
        with pytest.raises(InvalidRequest, match="cannot listen on"):
            async with forwarding(engine, served.id, served.port, local):
                pass
    async with forwarding(engine, served.id, 1, failed=failed.append) as local:
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        assert await reader.read() == b""
        writer.close()
    assert [type(one) for one in failed] == [ConnectionRefused]


async def test_a_port_without_a_server_is_a_page(site):
    nothing = Site(site.daemon, site.id, 1)
    await nothing.link(AS_OPERATOR, public=True)
    found = await nothing.get(headers=HTML)
    assert (found.status, found.content_type) == (502, "text/html")


async def test_a_tunnel_carries_bytes_and_the_end_of_either_side(served):
    site = served
    url = f"{site.daemon.url}/v1/sessions/{site.id}/tunnels/{site.port}"
    async with site.daemon.http.ws_connect(url, headers=AS_OPERATOR) as socket:
        await socket.send_bytes(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        raw = b""
        async with asyncio.timeout(PATIENCE_S):
            while (message := await socket.receive()).type == aiohttp.WSMsgType.BINARY:
                raw += message.data
        assert (message.type, message.data) == (aiohttp.WSMsgType.TEXT, "end")
        assert raw.startswith(b"HTTP/1.1 200 OK")
    for path, headers, status in (
        (f"{site.id}/tunnels/1", AS_OPERATOR, 502),
        (f"{site.id}/tunnels/0", AS_OPERATOR, 400),
        (f"{site.id}/tunnels/80", {}, 401),
        ("sbx_0123456789abcdef/tunnels/80", AS_OPERATOR, 404),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await site.daemon.http.ws_connect(
                f"{site.daemon.url}/v1/sessions/{path}", headers=headers
            )
        assert refused.value.status == status


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("8000-sbx-0123456789abcdef.localhost", ("sbx_0123456789abcdef", 8000)),
        ("8000-sbx_0123456789abcdef.localhost", ("sbx_0123456789abcdef", 8000)),
        ("8000-0123456789abcdef.localhost.", ("sbx_0123456789abcdef", 8000)),
        ("65536-sbx-0123456789abcdef.localhost", None),
        ("08000-sbx-0123456789abcdef.localhost", None),
        ("a.8000-sbx-0123456789abcdef.localhost", None),
        ("localhost", None),
    ],
)
def test_a_host_name_stands_for_a_port(name, target):
    assert target_of(name, "localhost") == (target and PreviewTarget(*target))


@pytest.mark.parametrize(
    ("name", "is_preview"),
    [
        ("8000-sbx-0123456789abcdef.preview.example.com", True),
        ("other.preview.example.com", True),
        ("8000-sbx-0123456789abcdef.localhost.", True),
        ("localhost.", True),
        ("localhost", False),
        ("preview.example.com", False),
        ("api.preview.example.com", False),
        ("8000-api.preview.example.com", True),
        ("xpreview.example.com", False),
    ],
)
def test_a_host_name_below_a_domain_of_previews_does_not_name_the_api(name, is_preview):
    names_of_the_api = ("api.preview.example.com", "8000-api.preview.example.com")
    hosts = PreviewHosts("localhost", "preview.example.com")
    assert hosts.covers(name, names_of_the_api) is is_preview


def test_a_token_is_bound_to_its_key_kind_and_port():
    target = PreviewTarget(SandboxId("sbx_0123456789abcdef"), 8000)
    token = sign(b"k" * 32, "link", target, Grant(100, "0" * 16))
    assert verify(b"k" * 32, "link", target, token, 99.9) == "valid"
    assert verify(b"k" * 32, "link", target, token, 100) == "expired"
    assert verify(b"o" * 32, "link", target, token, 0) == "false"
    assert verify(b"k" * 32, "cookie", target, token, 0) == "false"
    assert verify(b"k" * 32, "link", PreviewTarget(target.sandbox_id, 80), token, 0) == "false"
    assert verify(b"k" * 32, "link", target, token.replace("100.", "200.", 1), 0) == "false"
    assert verify(b"k" * 32, "link", target, token.replace(".0", ".1", 1), 0) == "false"
    assert verify(b"k" * 32, "link", target, token, 0, series=1) == "false"


async def test_a_revoked_link_and_its_cookie_open_nothing(served, tmp_path):
    site, url = served, f"/v1/sessions/{served.id}/previews"
    made, other = await site.link(AS_OPERATOR), await site.link(AS_OPERATOR)
    cookie = (await site.get(path_of(made["url"]))).headers["Set-Cookie"].partition(";")[0]
    own = {"Host": site.host, "Cookie": cookie, "Origin": f"http://{site.host}"}
    async with site.daemon.http.ws_connect(site.daemon.url + "/ws", headers=own) as socket:
        await socket.receive_json(timeout=PATIENCE_S)
        done = await site.daemon.ask("DELETE", f"{url}/{made['link_id']}", headers=AS_OPERATOR)
        assert (done.status, done.json) == (200, {"ok": True})
        closed = await socket.receive(timeout=PATIENCE_S)
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
    for refused in (await site.get(path_of(made["url"])), await site.get(headers=own)):
        assert (refused.status, b"was revoked" in refused.raw) == (401, True)
    assert (await site.get(path_of(other["url"]))).status == 303

    last = await site.cookie(AS_OPERATOR)
    assert (await site.daemon.ask("DELETE", url, headers=AS_OPERATOR)).json == {"ok": True}
    for refused in (
        await site.get(path_of(other["url"])),
        await site.get(path_of(made["url"])),
        await site.get(headers={"Cookie": last}),
    ):
        assert (refused.status, b"was revoked" in refused.raw) == (403, True)
    stored = await PreviewDirectory.open(tmp_path / "previews")
    assert (stored.series(site.id), stored.series("sbx_other")) == (1, 0)
    assert (await site.get(headers={"Cookie": await site.cookie(AS_OPERATOR)})).status == 200
    await stored.retain(set(), 0)
    assert stored.series(site.id) == 0


async def test_links_are_revoked_by_their_tenant_and_counted(site, monkeypatch):
    url = f"/v1/sessions/{site.id}/previews"
    key = await new_key(site.daemon, tenant="acme", scopes=["sessions"])
    for path in (url, f"{url}/{'0' * 16}"):
        assert (await site.daemon.ask("DELETE", path, headers=key)).status == 404
    wrong = await site.daemon.ask("DELETE", f"{url}/x", headers=AS_OPERATOR)
    assert (wrong.status, wrong.json["code"]) == (400, "INVALID_REQUEST")
    monkeypatch.setattr(preview_directory, "MAX_REVOKED", 1)
    codes = [
        (await site.daemon.ask("DELETE", f"{url}/{one * 16}", headers=AS_OPERATOR)).status
        for one in ("0", "0", "1")
    ]
    assert codes == [200, 200, 507]


def test_a_link_is_named_by_its_url_or_its_id():
    target = PreviewTarget(SandboxId("sbx_0123456789abcdef"), 8000)
    token = sign(b"k" * 32, "link", target, Grant(100, "a" * 16))
    assert link_id_of(f"http://x.localhost/?sandkasten_token={token}") == "a" * 16
    assert link_id_of("b" * 16) == "b" * 16
    for wrong in ("", "x", "http://x.localhost/", f"http://[/?{token}", "A" * 16):
        with pytest.raises(InvalidRequest, match="is not a link"):
            link_id_of(wrong)


async def test_a_server_in_an_isolated_sandbox_is_reached(real_engine, tmp_path):
    clock = Clock()
    previews = Previews(PreviewRules(), await PreviewDirectory.open(tmp_path / "previews"), clock)
    async with serving(real_engine, previews=previews) as daemon:
        site = Site(daemon, await daemon.session(), 8000)
        await serve(site)
        headers = {"Cookie": await site.cookie()}
        told = await (await site.get("/there", headers=headers)).json()
        assert (told["path"], told["headers"]["host"]) == ("/there", site.host)
        assert "cookie" not in told["headers"]
