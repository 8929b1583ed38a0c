"""Updates of a live sandbox."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from sandkasten.errors import (
    InternalError,
    InvalidRequest,
    PolicyDenied,
    SessionExpired,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, UpdateRequest

pytestmark = pytest.mark.anyio


async def test_an_update_changes_only_times_and_labels(journaled):
    engine = journaled.engine
    info = await engine.create(
        CreateRequest(
            SandboxOptions(ttl_seconds=60, lifetime_seconds=600, labels={"a": "1", "b": "2"})
        )
    )
    changed = await engine.update(info.id, UpdateRequest(ttl_seconds=120, labels={"c": "3"}))
    assert (changed.idle_timeout_s, changed.lifetime_s, changed.labels) == (120, 600, {"c": "3"})
    assert info.created_at + 119 < changed.expires_at < journaled.clock.now() + 121
    changed = await engine.update(
        info.id, UpdateRequest(lifetime_seconds=100, idle_timeout_seconds=110)
    )
    assert (changed.idle_timeout_s, changed.lifetime_s) == (100, 100)
    assert (await journaled.another().get(info.id)).lifetime_s == 100
    assert (await journaled.journal.session(info.id)).labels == {"c": "3"}
    assert (await engine.update(info.id, UpdateRequest())).labels == {"c": "3"}


@pytest.mark.promise("P30")
async def test_the_runner_gets_the_new_lease(journaled):
    engine = journaled.engine
    info = await engine.create(CreateRequest())
    await engine.update(info.id, UpdateRequest(ttl_seconds=1))
    await journaled.backend.cells[info.id].real.ended()
    with pytest.raises(SessionExpired) as gone:
        await engine.exec(info.id, ExecRequest("true"))
    assert gone.value.details["status"] == "expired"
    said = b""
    # A busy machine may need all of it before the update: then a longer one.
    for ttl_s in (1, 8, 25):
        info = await engine.create(CreateRequest(SandboxOptions(ttl_seconds=ttl_s)))
        with suppress(SessionExpired):
            await engine.update(info.id, UpdateRequest(ttl_seconds=60))
            await asyncio.sleep(ttl_s + 0.3)
            said = (await engine.exec(info.id, ExecRequest("echo ok"))).stdout
            break
    assert said == b"ok\n"


async def test_a_lifetime_counts_from_creation(journaled):
    info = await journaled.engine.create(CreateRequest())
    journaled.clock.ahead_s = 100
    with pytest.raises(InvalidRequest, match=r"1\d\d s ago"):
        await journaled.engine.update(info.id, UpdateRequest(lifetime_seconds=99))
    changed = await journaled.engine.update(info.id, UpdateRequest(lifetime_seconds=150))
    assert info.created_at + 149 < changed.expires_at < info.created_at + 151


async def test_an_invalid_update_is_refused_and_changes_nothing(journaled):
    info = await journaled.engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))
    for request, error in (
        (UpdateRequest(ttl_seconds=0), InvalidRequest),
        (UpdateRequest(ttl_seconds=10**9), InvalidRequest),
        (UpdateRequest(ttl_seconds=30, network="full"), UnsupportedByBackend),
        (UpdateRequest(ttl_seconds=30, labels={"": "x"}), InvalidRequest),
    ):
        with pytest.raises(error):
            await journaled.engine.update(info.id, request)
    assert (await journaled.engine.get(info.id)).idle_timeout_s == 60
    await journaled.engine.update(info.id, UpdateRequest(network="none"))
    with pytest.raises(SessionNotFound):
        await journaled.engine.update("sbx_0123456789abcdef", UpdateRequest())


async def test_a_failed_write_restores_the_old_lease(journaled, monkeypatch):
    info = await journaled.engine.create(CreateRequest())

    async def fail(record):
        raise InternalError("no")

    with monkeypatch.context() as broken:
        broken.setattr(journaled.store, "put", fail)
        with pytest.raises(InternalError):
            await journaled.engine.update(info.id, UpdateRequest(ttl_seconds=1))
    await asyncio.sleep(1.3)
    assert (await journaled.engine.exec(info.id, ExecRequest("echo ok"))).stdout == b"ok\n"


async def test_a_key_cannot_keep_a_session_of_a_run_for_longer(journaled):
    engine = journaled.engine
    asked = CreateRequest(SandboxOptions(lifetime_seconds=600), session_key="agent:run_1:default")
    info = await engine.create(asked)
    with pytest.raises(PolicyDenied) as refused:
        await engine.update(info.id, UpdateRequest(lifetime_seconds=601, key_id="key_1"))
    assert refused.value.details["rule"] == "session_max_retain_seconds"
    # Its run, the operator, and sessions without a run are not bound by it.
    assert (await engine.update(info.id, UpdateRequest(lifetime_seconds=900))).lifetime_s == 900
    lower = UpdateRequest(lifetime_seconds=700, key_id="key_1")
    assert (await engine.update(info.id, lower)).lifetime_s == 700
    other = await engine.create(CreateRequest(SandboxOptions(lifetime_seconds=600)))
    higher = UpdateRequest(lifetime_seconds=700, key_id="key_1")
    assert (await engine.update(other.id, higher)).lifetime_s == 700
