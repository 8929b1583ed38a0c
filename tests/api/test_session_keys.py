"""A create with the `session_key` of a living session gets it, or a CONFLICT that says why not."""

from __future__ import annotations

from typing import Any

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.model.sandbox.session_joins import OPTION_RULES
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests.api.daemon_in_process import serving

ASKED: dict[str, Any] = {
    "session_key": "k",
    "ttl_seconds": 60,
    "idle_timeout_seconds": 60,
    "lifetime_seconds": 600,
    "env": {"A": "a secret"},
    "labels": {"team": "x"},
    "limits": {"mem_limit_mb": 64},
    "profile": "hardened",
    "backend": "unisolated",
    "isolation": "standard",
    "network": "none",
    "hostname": "box",
    "workspace_id": "w",
    "workspace_mode": "exclusive",
    "pip_packages": [],
    "npm_packages": [],
    "mounts": [],
    "image": "host",
}
# Other values, and the field of the error; those that nothing here has are in `test_session_joins`.
OTHER: dict[str, tuple[Any, str]] = {
    "ttl_seconds": (90, "ttl_seconds"),
    "idle_timeout_seconds": (90, "ttl_seconds"),
    "lifetime_seconds": (700, "lifetime_seconds"),
    "env": ({"A": "a new value"}, "env"),
    "labels": ({"team": "y"}, "labels.team"),
    "limits": ({"mem_limit_mb": 65}, "limits.mem_limit_mb"),
    "hostname": ("other", "hostname"),
    "workspace_id": ("v", "workspace_id"),
    "workspace_mode": ("shared", "workspace_mode"),
    "pip_packages": (["pandas"], "pip_packages"),
    "npm_packages": (["lodash"], "npm_packages"),
}
REFUSED_EARLIER = {"image", "profile", "backend", "isolation", "network", "mounts", "gpus"}
REFUSED_EARLIER |= {"snapshot"}


@pytest.fixture
async def daemon(tmp_path):
    engine = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "unisolated")))
    async with serving(engine) as one:
        yield one
    for info in await engine.list(all=True):
        await engine.destroy(info.id)
    await engine.aclose()


def test_every_option_has_an_example():
    assert set(OTHER) | REFUSED_EARLIER == set(OPTION_RULES)
    assert set(OTHER) <= set(ASKED)


@pytest.mark.promise("P16")
async def test_the_same_request_and_one_without_options_join(daemon):
    first = (await daemon.ask("POST", "/v1/sessions", ASKED)).json
    for body in (ASKED, {"session_key": "k"}, {**ASKED, "ttl_seconds": 30, "labels": {}}):
        again = await daemon.ask("POST", "/v1/sessions", body)
        assert (again.status, again.json["id"], again.json["created"]) == (201, first["id"], False)


@pytest.mark.promise("P124")
@pytest.mark.parametrize("name", OTHER)
async def test_another_value_of_an_option_is_a_conflict(daemon, name):
    made = (await daemon.ask("POST", "/v1/sessions", ASKED)).json
    value, field = OTHER[name]
    told = [name] if name != "idle_timeout_seconds" else ["ttl_seconds", name]
    body = {**ASKED, name: value}
    if name == "idle_timeout_seconds":
        del body["ttl_seconds"]
        told = [name]
    elif name == "ttl_seconds":
        del body["idle_timeout_seconds"]
    refused = await daemon.ask("POST", "/v1/sessions", body)
    assert refused.status == 409, refused.raw
    details = refused.json["details"]
    assert (refused.json["code"], details["reason"]) == ("CONFLICT", "session_options")
    assert details["sandbox_id"] == made["id"]
    assert details["fields"] == ([field] if field.startswith(name) else told)
    assert refused.json["message"].startswith(
        f"session key 'k' names a sandbox with {details['fields'][0]} {details['session'][0]}, not "
        f"{details['requested'][0]}"
    )
    assert b"a secret" not in refused.raw
    assert b"a new value" not in refused.raw
    assert (await daemon.ask("GET", f"/v1/sessions/{made['id']}")).json["status"] == "running"


async def test_a_restarted_daemon_compares_with_what_the_ledger_has(tmp_path):
    place = settings(ServerAddress(str(tmp_path / "data"), "local"))
    asked = {**ASKED, "backend": "local"}
    first = await open_engine(place)
    async with serving(first) as one:
        made = (await one.ask("POST", "/v1/sessions", asked)).json
    await first.aclose()
    second = await open_engine(place)
    await second.recover()
    async with serving(second) as one:
        again = await one.ask("POST", "/v1/sessions", asked)
        assert (again.status, again.json["id"]) == (201, made["id"])
        for name in ("env", "hostname", "limits", "pip_packages"):
            refused = await one.ask("POST", "/v1/sessions", {**asked, name: OTHER[name][0]})
            assert (refused.status, refused.json["code"]) == (409, "CONFLICT")
    await second.destroy(made["id"])
    await second.aclose()
