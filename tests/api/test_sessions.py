"""Sessions over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from sandkasten_runtime.engine.lifecycle import sandboxes
from tests.api.daemon_in_process import serving
from tests.engine.injections import World
from tests.patience import PATIENCE_S


async def test_a_session_is_created_described_listed_and_destroyed(daemon):
    made = await daemon.ask("POST", "/v1/sessions", {"labels": {"a": "b"}})
    assert made.status == 201
    the_id = made.json["id"]
    assert made.json["sandbox_id"] == made.json["session_id"] == the_id
    described = await daemon.ask("GET", f"/v1/sessions/{the_id}")
    assert described.json["status"] == "running"
    assert [one["id"] for one in (await daemon.ask("GET", "/v1/sessions")).json] == [the_id]
    gone = await daemon.ask("DELETE", f"/v1/sessions/{the_id}")
    assert (gone.status, gone.json) == (200, {"ok": True})
    assert (await daemon.ask("GET", f"/v1/sessions/{the_id}")).status == 404


async def test_an_unknown_field_is_refused_with_its_name(daemon):
    reply = await daemon.ask("POST", "/v1/sessions", {"imagee": "x"})
    assert reply.status == 422
    assert reply.json["code"] == "INVALID_REQUEST"
    assert reply.json["details"] == {"field": "imagee"}


async def test_a_host_name_that_is_not_a_label_is_refused(daemon):
    for path, body in (("/v1/sessions", {}), ("/v1/run", {"code": "", "runtime": "sh"})):
        reply = await daemon.ask("POST", path, {**body, "hostname": "a.b"})
        assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")
        assert reply.json["details"] == {"field": "hostname"}
    assert (await daemon.ask("POST", "/v1/sessions", {"hostname": "box"})).status == 201


async def test_gpus_are_checked_and_need_the_operators_permission(daemon):
    for body in ({"gpus": 1}, {"gpus": "all"}, {"gpus": ["0"]}, {"limits": {"gpus": 1}}):
        reply = await daemon.ask("POST", "/v1/sessions", body)
        assert (reply.status, reply.json["details"]["rule"]) == (403, "policy.gpus")
    for wrong in (-1, 65, "a b", [], [1], True):
        reply = await daemon.ask("POST", "/v1/sessions", {"gpus": wrong})
        assert reply.status in (400, 422), wrong
    assert (await daemon.ask("POST", "/v1/sessions", {"gpus": 0})).json["gpus"] is None


async def test_a_foreign_host_and_a_foreign_origin_are_refused(daemon):
    assert (await daemon.ask("GET", "/healthz", headers={"Host": "evil.example"})).status == 421
    foreign = await daemon.ask("GET", "/healthz", headers={"Origin": "http://evil.example"})
    assert foreign.status == 403
    assert (await daemon.ask("GET", "/healthz")).json["status"] == "ok"


async def test_a_client_that_leaves_during_the_creation_leaves_no_sandbox(monkeypatch):
    # Not the engine's own deadline shall end it.
    monkeypatch.setattr(sandboxes, "CREATE_TIMEOUT_S", 2 * PATIENCE_S)
    world = World()
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    world.backend.gate.after_create = hang
    async with serving(world.engine) as daemon:
        creating = asyncio.create_task(daemon.ask("POST", "/v1/sessions", {}))
        await asyncio.wait_for(entered.wait(), PATIENCE_S)
        creating.cancel()
        with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
            await creating
        async with asyncio.timeout(PATIENCE_S):
            while await world.left() != ([], []):  # noqa: ASYNC110  (another task removes it)
                await asyncio.sleep(0.01)
        assert (await daemon.ask("GET", "/v1/sessions")).json == []
    await world.engine.aclose()
