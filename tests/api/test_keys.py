"""API keys over HTTP: created, checked, limited, revoked; tenants are separate."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.patience import PATIENCE_S

AS_ACME = {**AS_OPERATOR, "X-Sandkasten-Tenant": "acme"}


@pytest.fixture
async def daemon(engine, tmp_path):
    async with booked(engine, tmp_path / "data") as one:
        yield one


@pytest.mark.promise("P44")
async def test_a_key_is_shown_once_and_allows_what_its_scopes_allow(daemon, tmp_path):
    made = await daemon.ask(
        "POST",
        "/v1/keys",
        {
            "tenant": "acme",
            "name": "ci",
            "scopes": ["sessions"],
            "quota": {"max_sessions": 3, "requests_per_second": 50},
        },
        headers=AS_OPERATOR,
    )
    assert made.status == 201
    body = made.json
    key = body.pop("key")
    assert key.startswith("sk-" + body["id"].removeprefix("key_") + "-")
    listed = await daemon.ask("GET", "/v1/keys", headers=AS_OPERATOR)
    assert listed.json == {"keys": [body], "count": 1}
    assert body["quota"] == {
        "max_sessions": 3,
        "max_memory_bytes": None,
        "max_disk_bytes": None,
        "requests_per_second": 50.0,
        "max_network_connections": None,
        "max_network_bandwidth_bps": None,
        "max_network_bytes_per_day": None,
    }
    headers = {"Authorization": f"Bearer {key}"}
    assert (await daemon.ask("GET", "/v1/sessions", headers=headers)).status == 200
    for path in ("/v1/keys", "/v1/audit", "/v1/files"):
        refused = await daemon.ask("GET", path, headers=headers)
        assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN"), path
    # Nowhere on disk in clear, also not in the write-ahead log.
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


@pytest.mark.promise("P44")
async def test_a_revoked_key_stops_working_at_once(daemon):
    headers = await new_key(daemon, tenant="acme")
    key_id = (await daemon.ask("GET", "/v1/keys?tenant=acme", headers=AS_OPERATOR)).json["keys"][0][
        "id"
    ]
    assert (await daemon.ask("GET", "/v1/sessions", headers=headers)).status == 200
    gone = await daemon.ask("DELETE", f"/v1/keys/{key_id}", headers=AS_OPERATOR)
    assert (gone.status, gone.json["ok"]) == (200, True)
    assert (await daemon.ask("GET", "/v1/sessions", headers=headers)).status == 401
    again = await daemon.ask("DELETE", f"/v1/keys/{key_id}", headers=AS_OPERATOR)
    assert again.json["revoked_at"] == gone.json["revoked_at"]


async def test_an_expired_key_stops_working(daemon):
    headers = await new_key(daemon, expires_in_seconds=0.001)
    assert (await daemon.ask("GET", "/v1/sessions", headers=headers)).status == 401


@pytest.mark.parametrize("key", ["", "x", "sk-000000000000-" + "a" * 43, "ü", "k" * 5000])
async def test_every_invalid_key_gets_the_same_answer(daemon, key):
    headers = {"Authorization": f"Bearer {key}"}
    refused = await daemon.ask("GET", "/v1/sessions", headers=headers)
    assert (refused.status, refused.json["message"]) == (
        401,
        "the request has no valid key",
    )


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": ["everything"]},
        {"scopes": []},
        {"tenant": "Not A Tenant"},
        {"tenant": "../x"},
        {"name": "bell\x07"},
        {"quota": {"max_sessions": -1}},
        {"quota": {"max_sessions": True}},
        {"quota": {"unknown": 1}},
        {"expires_in_seconds": 0},
        {"unknown": 1},
    ],
)
async def test_an_invalid_key_request_is_refused(daemon, body):
    refused = await daemon.ask("POST", "/v1/keys", body, headers=AS_OPERATOR)
    assert refused.status in (400, 422)
    assert refused.json["code"] == "INVALID_REQUEST"
    assert (await daemon.ask("GET", "/v1/keys", headers=AS_OPERATOR)).json["count"] == 0


@pytest.mark.parametrize("key_id", ["key_000000000000", "x", "..%2f", "key_" + "a" * 9000])
async def test_an_unknown_key_cannot_be_revoked(daemon, key_id):
    refused = await daemon.ask("DELETE", f"/v1/keys/{key_id}", headers=AS_OPERATOR)
    assert refused.status in (404, 431, 400), refused.raw


@pytest.mark.promise("P45")
async def test_another_tenants_session_answers_like_an_unknown_one(daemon):
    mine, theirs = await new_key(daemon, tenant="a"), await new_key(daemon, tenant="b")
    made = await daemon.ask("POST", "/v1/sessions", {}, headers=mine)
    session = made.json["id"]
    unknown = "sbx_0000000000000000"
    seen = await daemon.ask("GET", f"/v1/sessions/{session}", headers=theirs)
    never = await daemon.ask("GET", f"/v1/sessions/{unknown}", headers=theirs)
    assert seen.status == never.status == 404
    assert seen.json["message"].replace(session, unknown) == never.json["message"]
    assert (await daemon.ask("GET", "/v1/sessions", headers=theirs)).json == []
    as_a = {**AS_OPERATOR, "X-Sandkasten-Tenant": "a"}
    assert (await daemon.ask("GET", f"/v1/sessions/{session}", headers=as_a)).status == 200
    refused = await daemon.ask(
        "GET", "/v1/sessions", headers={**theirs, "X-Sandkasten-Tenant": "a"}
    )
    assert refused.status == 403


@pytest.mark.promise("P44")
async def test_streams_of_a_key_end_when_it_is_revoked(daemon, monkeypatch):
    monkeypatch.setattr("sandkasten_server.api.request.request_lifecycle.RECHECK_EVERY_S", 0.1)
    headers = await new_key(daemon, tenant="acme")
    made = await daemon.ask("POST", "/v1/sessions", {}, headers=headers)
    base = f"{daemon.url}/v1/sessions/{made.json['id']}"
    listed = await daemon.ask("GET", "/v1/keys?tenant=acme", headers=AS_OPERATOR)
    async with (
        daemon.http.ws_connect(f"{base}/pty", headers=headers) as terminal,
        daemon.http.ws_connect(f"{base}/pty", headers=AS_ACME) as other,
        daemon.http.get(f"{base}/fs/watch?path=.", headers=headers) as watching,
    ):
        assert (await terminal.receive_json())["type"] == "started"
        assert watching.status == 200
        gone = await daemon.ask(
            "DELETE", f"/v1/keys/{listed.json['keys'][0]['id']}", headers=AS_OPERATOR
        )
        assert gone.status == 200
        async with asyncio.timeout(PATIENCE_S):
            while not terminal.closed:
                await terminal.receive()
            with pytest.raises(aiohttp.ClientPayloadError):
                await watching.read()
        assert terminal.close_code == 1008
        assert not other.closed
        await other.send_json({"type": "close"})
