"""Secrets over HTTP: stored encrypted, never returned, separate for each tenant."""

from __future__ import annotations

import json
import logging

import pytest

from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.network.tls_api import VALUE

BODY = {
    "name": "TOKEN",
    "value": VALUE,
    "hosts": ["api.example.com"],
    "header": "Authorization: Bearer {value}",
}


@pytest.fixture
async def daemon(engine, tmp_path):
    async with booked(engine, tmp_path / "data") as one:
        yield one


@pytest.mark.promise("P77")
async def test_a_secret_is_stored_encrypted_and_never_returned(daemon, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    made = await daemon.ask("POST", "/v1/secrets", BODY, headers=AS_OPERATOR)
    assert made.status == 200, made.json
    assert made.json["placeholder"].startswith("sandkasten_TOKEN_")
    assert "value" not in made.json
    listed = await daemon.ask("GET", "/v1/secrets", headers=AS_OPERATOR)
    assert listed.json == {"secrets": [made.json], "count": 1}
    # Again: another value and host, the same placeholder.
    again = {**BODY, "value": "another-value", "hosts": ["*.example.org:443"]}
    replaced = await daemon.ask("POST", "/v1/secrets", again, headers=AS_OPERATOR)
    assert replaced.json["placeholder"] == made.json["placeholder"]
    assert replaced.json["hosts"] == ["*.example.org:443"]
    audit = await daemon.ask("GET", "/v1/audit", headers=AS_OPERATOR)
    assert VALUE not in json.dumps(audit.json)
    assert VALUE not in caplog.text
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert VALUE.encode() not in path.read_bytes(), path
            assert b"another-value" not in path.read_bytes(), path
    removed = await daemon.ask("DELETE", "/v1/secrets/TOKEN", headers=AS_OPERATOR)
    assert removed.json == {"name": "TOKEN", "ok": True}
    gone = await daemon.ask("DELETE", "/v1/secrets/TOKEN", headers=AS_OPERATOR)
    assert (gone.status, gone.json["code"]) == (404, "NOT_FOUND")


async def test_tenants_and_scopes_are_separate(daemon):
    acme = await new_key(daemon, tenant="acme", scopes=["secrets", "sessions"])
    other = await new_key(daemon, tenant="other", scopes=["secrets"])
    user = await new_key(daemon, tenant="acme", scopes=["sessions"])
    assert (await daemon.ask("POST", "/v1/secrets", BODY, headers=acme)).status == 200
    assert (await daemon.ask("GET", "/v1/secrets", headers=other)).json["count"] == 0
    assert (await daemon.ask("DELETE", "/v1/secrets/TOKEN", headers=other)).status == 404
    for method, path in (("GET", "/v1/secrets"), ("DELETE", "/v1/secrets/TOKEN")):
        refused = await daemon.ask(method, path, headers=user)
        assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN")
    assert (await daemon.ask("GET", "/v1/secrets", headers=acme)).json["count"] == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"value": "short"}, "value"),
        ({"value": "with\nline break"}, "value"),
        ({"value": VALUE + "é"}, "value"),
        ({"hosts": ["192.0.2.7"]}, "hosts"),
        ({"hosts": ["GET api.example.com/x"]}, "hosts"),
        ({"header": "Authorization: Bearer"}, "header"),
        ({"header": "Host: {value}"}, "header"),
        ({"header": "X: {value}\r\nY: z"}, "header"),
        ({"header": None}, "header"),
        ({"basic": "me"}, "header"),
        ({"header": None, "basic": "a:b"}, "basic"),
        ({"header": None, "query": "a&b"}, "query"),
    ],
)
async def test_a_secret_that_makes_no_sense_is_refused_without_its_value(daemon, change, field):
    refused = await daemon.ask("POST", "/v1/secrets", {**BODY, **change}, headers=AS_OPERATOR)
    assert (refused.status, refused.json["code"]) == (400, "INVALID_REQUEST"), refused.json
    assert refused.json["details"]["field"] == field
    assert VALUE not in json.dumps(refused.json)


async def test_a_malformed_body_does_not_show_its_value(daemon):
    for change in ({"name": "no name"}, {"value": [VALUE]}, {"unknown": VALUE}, {"hosts": VALUE}):
        refused = await daemon.ask("POST", "/v1/secrets", {**BODY, **change}, headers=AS_OPERATOR)
        assert refused.status in (400, 422), refused.json
        assert VALUE not in json.dumps(refused.json)
