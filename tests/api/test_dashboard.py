"""The dashboard's page and files, logins of browsers, and tickets of WebSockets."""

from __future__ import annotations

import aiohttp
import pytest
from yarl import URL

from sandkasten.errors import PolicyDenied, Unauthorized
from sandkasten_server.api.dashboard.browser_logins import (
    LOGIN_S,
    MAX_LOGINS,
    TICKET_S,
    Credentials,
    Logins,
)
from sandkasten_server.api.dashboard.dashboard_assets import read_assets
from tests.api.daemon_in_process import serving
from tests.client.http.served import KEY, served

pytestmark = pytest.mark.promise("P89")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with served(tmp_path_factory.mktemp("dashboard") / "data") as one:
        yield one


@pytest.fixture
async def daemon_without_keys(engine):
    async with serving(engine) as one:
        yield one


async def logged_in(http: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """Log in and return the header that requests need beside the cookie."""
    async with http.post("/v1/login", json={"api_key": KEY}, headers={"Origin": url}) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert KEY not in cookie + await answer.text()
    return {"X-Sandkasten-Login": told["proof"]}


def page(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True))


async def test_the_page_is_protected_compressed_and_cached(daemon):
    async with aiohttp.ClientSession(daemon.url, auto_decompress=False) as http:
        async with http.get("/", headers={"Accept-Encoding": ""}) as answer:
            headers = answer.headers
            assert answer.status == 200
            assert b"/dashboard/app.js" in await answer.read()
        policy = dict(one.split(" ", 1) for one in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        packed = {"Accept-Encoding": "gzip"}
        async with http.get("/dashboard/app.js", headers=packed) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            etag = answer.headers["ETag"]
        async with http.get("/dashboard/app.js", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        for name in ("none.js", "sources.sha256", "app.js%00"):
            async with http.get(URL(f"{daemon.url}/dashboard/{name}", encoded=True)) as answer:
                assert answer.status == 404, name


def test_a_checkout_without_built_files_has_no_assets(tmp_path):
    assert read_assets(tmp_path) == {}


async def test_a_login_acts_with_its_key_until_it_is_logged_out(daemon):
    async with page(daemon.url) as http:
        proof = await logged_in(http, daemon.url)
        own = {**proof, "Origin": daemon.url}
        async with http.get("/v1/login", headers=proof) as answer:
            assert (await answer.json())["tenant"] == "default"
        async with http.get("/v1/sessions", headers=proof) as answer:
            assert answer.status == 200
        async with http.delete("/v1/login", headers=own) as answer:
            assert answer.status == 200
        async with http.get("/v1/sessions", headers=proof) as answer:
            assert answer.status == 401


async def test_a_key_with_any_scope_can_log_in_and_ask_who_it_is(daemon):
    async with page(daemon.url) as http:
        body, bearer = {"scopes": ["files"]}, {"Authorization": f"Bearer {KEY}"}
        async with http.post("/v1/keys", json=body, headers=bearer) as answer:
            key = (await answer.json())["key"]
        own = {"Origin": daemon.url}
        async with http.post("/v1/login", json={"api_key": key}, headers=own) as answer:
            proof = {**own, "X-Sandkasten-Login": (await answer.json())["proof"]}
        async with http.get("/v1/login", headers=proof) as answer:
            assert (await answer.json())["scopes"] == ["files"]
        async with http.get("/v1/sessions", headers=proof) as answer:
            assert answer.status == 403
        async with http.delete("/v1/login", headers=proof) as answer:
            assert answer.status == 200


async def test_a_cookie_alone_and_a_proof_alone_open_nothing(daemon):
    async with page(daemon.url) as http, aiohttp.ClientSession(daemon.url) as other:
        proof = await logged_in(http, daemon.url)
        # A server on another port of this host receives the cookie.
        async with http.get("/v1/sessions") as answer:
            assert answer.status == 401
        async with http.get("/v1/sessions", headers={"X-Sandkasten-Login": "x"}) as answer:
            assert answer.status == 401
        async with other.get("/v1/sessions", headers=proof) as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_login_changes_nothing_for_another_page(daemon, headers):
    async with page(daemon.url) as http:
        proof = await logged_in(http, daemon.url)
        async with http.post("/v1/sessions", json={}, headers={**proof, **headers}) as answer:
            assert answer.status == 403


async def test_a_login_is_only_made_by_a_page_with_a_valid_key(daemon):
    async with page(daemon.url) as http:
        for key, headers, status in (
            ("sk-wrong", {"Origin": daemon.url}, 401),
            (KEY, {}, 403),
            (KEY, {"Origin": "http://evil.example"}, 403),
        ):
            async with http.post("/v1/login", json={"api_key": key}, headers=headers) as answer:
                assert (answer.status, "Set-Cookie" in answer.headers) == (status, False)


async def test_a_ticket_opens_one_websocket_and_a_cookie_none(daemon):
    async with page(daemon.url) as http:
        proof = await logged_in(http, daemon.url)
        own = {**proof, "Origin": daemon.url}
        async with http.post("/v1/sessions", json={}, headers=own) as answer:
            session = f"/v1/sessions/{(await answer.json())['id']}"
        async with http.post("/v1/tickets", headers=own) as answer:
            ticket = (await answer.json())["ticket"]
        offered = ["sandkasten", f"sandkasten.ticket.{ticket}"]
        async with http.ws_connect(f"{session}/pty", protocols=offered) as socket:
            assert socket.protocol == "sandkasten"
            assert (await socket.receive_json())["type"] == "started"
            # The login ends, and with it what it opened.
            async with http.delete("/v1/login", headers=own):
                pass
            while (await socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                pass
        for protocols in (offered, ["sandkasten"], ["sandkasten", "sandkasten.ticket.x"]):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(f"{session}/pty", protocols=protocols, headers=proof)
            assert refused.value.status == 401, protocols


async def test_without_keys_loopback_needs_no_login_and_other_pages_stay_out(daemon_without_keys):
    ask = daemon_without_keys.ask
    told = (await ask("GET", "/v1/login")).json
    assert (told["tenant"], told["requires_key"]) == ("default", False)
    ticket = (await ask("POST", "/v1/tickets")).json["ticket"]
    assert len(ticket) >= 32
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "rebound.example"}, 421),
    ):
        assert (await ask("POST", "/v1/tickets", headers=headers)).status == status
        assert (await ask("GET", "/v1/login", headers=headers)).status == status


# ---- rules


def entry(logins: Logins, now: float = 0.0) -> dict[str, str]:
    made = logins.begin("Bearer k", now)
    return {"cookie": f"a=b; sandkasten_login={made.cookie}", "x-sandkasten-login": made.proof}


def test_a_login_lends_its_key_until_it_expires():
    logins = Logins()
    headers = entry(logins)
    found = logins.credentials(headers, "GET", LOGIN_S - 1)
    assert found.headers["authorization"] == "Bearer k"
    assert logins.credentials(headers, "GET", LOGIN_S) == Credentials(headers)


def test_two_different_cookies_are_no_login():
    logins = Logins()
    headers = entry(logins)
    twice = {**headers, "cookie": headers["cookie"] + "; sandkasten_login=x"}
    assert logins.credentials(twice, "GET", 0.0) == Credentials(twice)


def test_the_cookie_of_tls_wins():
    logins = Logins()
    headers = entry(logins)
    both = {**headers, "cookie": headers["cookie"] + "; __Host-sandkasten_login=x"}
    assert logins.credentials(both, "GET", 0.0) == Credentials(both)


def test_a_change_requires_the_origin_header():
    logins = Logins()
    headers = entry(logins)
    with pytest.raises(PolicyDenied):
        logins.credentials(headers, "POST", 0.0)
    own = {**headers, "origin": "http://localhost:8080"}
    assert logins.credentials(own, "POST", 0.0).login is not None


def test_old_logins_make_room_for_new_ones():
    logins = Logins()
    first = entry(logins)
    for _ in range(MAX_LOGINS):
        entry(logins)
    assert logins.credentials(first, "GET", 0.0).login is None


def test_a_ticket_is_used_once_and_expires():
    logins = Logins()
    credentials = Credentials({"authorization": "Bearer k", "host": "h"})
    ticket, late = logins.issue(credentials, 0.0), logins.issue(credentials, 0.0)
    assert logins.redeem(ticket, {}, TICKET_S - 1).headers == {"authorization": "Bearer k"}
    with pytest.raises(Unauthorized):
        logins.redeem(ticket, {}, TICKET_S - 1)
    with pytest.raises(Unauthorized):
        logins.redeem(late, {}, TICKET_S)


def test_a_ticket_ends_with_its_login():
    logins = Logins()
    headers = entry(logins)
    found = logins.credentials(headers, "GET", 0.0)
    ticket = logins.issue(found, 0.0)
    logins.end(found.login)
    with pytest.raises(Unauthorized):
        logins.redeem(ticket, {}, 1.0)
