"""Sessions over HTTP: updates, filters, pages, quotas, and ended sessions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.request.authentication import Doorkeeper
from tests.api.daemon_in_process import serving
from tests.engine.test_journal import until
from tests.store.memory_store import MemoryJournal

FIELDS = {
    "id", "sandbox_id", "session_id", "session_key", "image", "backend", "status", "cwd",
    "workdir", "created", "acquire_source", "acquire_detail", "workspace_id", "workspace_shared",
    "snapshot",
    "usage", "created_at", "created_at_unix", "expires_at", "expires_at_unix", "ended_at", "reason",
    "ttl_seconds", "idle_timeout_seconds", "lifetime_seconds", "profile", "limits", "labels",
    "env_names", "gpus", "mounts", "unenforced", "warnings", "network", "tenant",
}  # fmt: skip


@pytest.fixture
async def journal():
    return MemoryJournal()


@pytest.fixture
async def journaled_daemon(tmp_path, journal):
    """A daemon with a journal."""
    place = settings(ServerAddress(str(tmp_path / "data"), "unisolated"))
    engine = await open_engine(place, journal=journal)
    await engine.recover()
    quota = TenantQuota(max_sessions=4, max_memory_bytes=4000 * MIB, max_disk_bytes=4000 * MIB)
    door = Doorkeeper(clock=SystemClock(), open_loopback=True, default_quota=quota)
    async with serving(engine, journal=journal, doorkeeper=door) as one:
        yield one
    for info in await engine.list(all=True):
        await engine.destroy(info.id)
    await engine.aclose()


def acme() -> dict[str, str]:
    return {"X-Sandkasten-Tenant": "acme"}


async def test_every_field_is_returned_and_times_are_utc_strings(journaled_daemon):
    body = {
        "labels": {"a": "1"},
        "env": {"A": "x"},
        "limits": {"mem_limit_mb": 64},
        "ttl_seconds": 60,
        "session_key": "k",
        "workspace_id": "w",
    }
    made = (await journaled_daemon.ask("POST", "/v1/sessions", body)).json
    assert set(made) == FIELDS
    assert (made["created"], made["session_key"], made["workspace_id"]) == (True, "k", "w")
    assert (made["labels"], made["env_names"], made["limits"]["mem_limit_mb"]) == (
        {"a": "1"},
        ["A"],
        64,
    )
    assert (made["ttl_seconds"], made["idle_timeout_seconds"], made["lifetime_seconds"]) == (
        60,
        60,
        14_400,
    )
    assert (made["profile"], made["network"], made["tenant"]) == ("hardened", "none", "default")
    assert made["created_at"].endswith("Z")
    for name in ("created_at", "expires_at"):
        moment = datetime.fromisoformat(made[name])
        assert moment.tzinfo == UTC
        assert abs(moment.timestamp() - made[f"{name}_unix"]) < 0.002
    again = await journaled_daemon.ask("POST", "/v1/sessions", body)
    assert (again.status, again.json["created"], again.json["id"]) == (201, False, made["id"])


async def test_a_live_session_can_be_updated(journaled_daemon, journal):
    the_id = await journaled_daemon.session(ttl_seconds=60, labels={"a": "1"})
    path = f"/v1/sessions/{the_id}"
    changed = await journaled_daemon.ask("PATCH", path, {"ttl_seconds": 90, "labels": {"b": "2"}})
    assert (changed.status, changed.json["ttl_seconds"], changed.json["labels"]) == (
        200,
        90,
        {"b": "2"},
    )
    assert (await journaled_daemon.ask("GET", path)).json["ttl_seconds"] == 90
    assert (await journaled_daemon.ask("PATCH", path, {"network": "none"})).status == 200
    assert (await journaled_daemon.ask("PATCH", path, {"network": "full"})).status == 422
    assert (await journaled_daemon.ask("PATCH", path, {"ttl_seconds": "90"})).status == 422
    assert (await journaled_daemon.ask("PATCH", path, {"ttl": 90})).json["details"] == {
        "field": "ttl"
    }
    assert (await journaled_daemon.ask("PATCH", path, {"lifetime_seconds": 0})).status == 400
    assert (await journaled_daemon.ask("PATCH", path, {}, headers=acme())).status == 404
    assert (await journal.session(the_id)).labels == {"b": "2"}
    short = await journaled_daemon.ask("PATCH", path, {"idle_timeout_seconds": 1})
    assert short.json["expires_at_unix"] - short.json["created_at_unix"] < 100


@pytest.mark.promise("P32")
@pytest.mark.parametrize("how", ["destroyed", "expired", "crashed"])
async def test_an_ended_session_answers_410_with_its_end(journaled_daemon, journal, how):
    the_id = await journaled_daemon.session(ttl_seconds=1 if how == "expired" else 600)
    if how == "destroyed":
        assert (await journaled_daemon.ask("DELETE", f"/v1/sessions/{the_id}")).status == 200
    elif how == "crashed":
        backend = journaled_daemon.server.engine._handles.backend("unisolated")
        await (await backend.attach(the_id)).crash()

    async def over() -> bool:
        # The journal has it first; the ledger when what was left of the sandbox is removed.
        return (await journaled_daemon.ask("GET", f"/v1/sessions/{the_id}")).status == 410

    await until(over)
    assert (await journal.session(the_id)).ended_at is not None
    for method, path in (
        ("GET", f"/v1/sessions/{the_id}"),
        ("PATCH", f"/v1/sessions/{the_id}"),
        ("DELETE", f"/v1/sessions/{the_id}"),
    ):
        gone = await journaled_daemon.ask(method, path, {} if method == "PATCH" else None)
        assert (gone.status, gone.json["code"]) == (410, "SESSION_EXPIRED")
        assert gone.json["details"]["status"] == how
        assert "reason" in gone.json["details"]
        foreign = await journaled_daemon.ask(
            method, path, {} if method == "PATCH" else None, headers=acme()
        )
        assert (foreign.status, foreign.json["code"]) == (404, "SESSION_NOT_FOUND")
        assert foreign.json["details"] == {}
    (row,) = (await journaled_daemon.ask("GET", f"/v1/sessions?status={how}")).json
    assert (row["id"], row["status"], set(row)) == (the_id, how, FIELDS)
    assert row["ended_at"] >= row["created_at"]
    assert (await journaled_daemon.ask("GET", "/v1/sessions")).json == []
    listed = await journaled_daemon.ask("GET", f"/v1/sessions?status={how}", headers=acme())
    assert listed.json == []


async def ids(daemon, query: str) -> list[str]:
    reply = await daemon.ask("GET", f"/v1/sessions{query}")
    assert reply.status == 200, reply.raw
    return [one["id"] for one in reply.json]


async def test_sessions_are_filtered_by_status_and_label(journaled_daemon):
    a = await journaled_daemon.session(labels={"team": "x", "env": "dev"})
    b = await journaled_daemon.session(labels={"team": "y", "note": "a=b"})
    assert await ids(journaled_daemon, "") == [a, b]
    assert await ids(journaled_daemon, "?label=team") == [a, b]
    assert await ids(journaled_daemon, "?label=team=x") == [a]
    assert await ids(journaled_daemon, "?label=team=x,env=dev") == [a]
    assert await ids(journaled_daemon, "?label=team=x,env=prod") == []
    assert await ids(journaled_daemon, "?label=note=a=b") == [b]
    assert await ids(journaled_daemon, "?status=running") == [a, b]
    assert await ids(journaled_daemon, "?status=paused") == []
    await journaled_daemon.ask("DELETE", f"/v1/sessions/{a}")
    assert await ids(journaled_daemon, "?status=destroyed&label=env") == [a]
    assert await ids(journaled_daemon, "?status=destroyed&label=team=y") == []


@pytest.mark.parametrize(
    "query",
    ["?status=dead", "?limit=0", "?limit=1001", "?limit=x", "?cursor=abc", "?cursor=%00", "?label=",
     "?label==x", "?cursor=Zm9vIGJhcg==", "?colour=red", "?limit=1&limit=2"],
)  # fmt: skip
async def test_an_invalid_query_is_refused(journaled_daemon, query):
    reply = await journaled_daemon.ask("GET", "/v1/sessions" + query)
    assert reply.status in (400, 422)
    assert reply.json["code"] == "INVALID_REQUEST"


@pytest.mark.promise("P32")
@pytest.mark.parametrize("status", ["", "destroyed"])
async def test_pages_contain_every_session_once(journaled_daemon, status):
    made = [await journaled_daemon.session(limits={"mem_limit_mb": 32}) for _ in range(4)]
    if status:
        for the_id in made:
            await journaled_daemon.ask("DELETE", f"/v1/sessions/{the_id}")
        made.reverse()
    seen: list[str] = []
    query = "?limit=3" + (f"&status={status}" if status else "")
    reply = await journaled_daemon.ask("GET", f"/v1/sessions{query}")
    while cursor := reply.headers.get("X-Next-Cursor"):
        seen += [one["id"] for one in reply.json]
        reply = await journaled_daemon.ask("GET", f"/v1/sessions{query}&cursor={cursor}")
    seen += [one["id"] for one in reply.json]
    assert seen == made


@pytest.mark.promise("P46")
async def test_an_exceeded_quota_is_429_or_507_with_its_name(journaled_daemon):
    too_much = await journaled_daemon.ask(
        "POST", "/v1/sessions", {"limits": {"mem_limit_mb": 4001}}
    )
    assert (too_much.status, too_much.json["code"]) == (429, "QUOTA_EXCEEDED")
    assert too_much.json["details"]["quota"] == "memory"
    assert "Retry-After" in too_much.headers
    too_large = await journaled_daemon.ask(
        "POST", "/v1/sessions", {"limits": {"workspace_mb": 4001}}
    )
    assert (too_large.status, too_large.json["details"]["quota"]) == (507, "disk")
    small = {"limits": {"mem_limit_mb": 32, "workspace_mb": 10}}
    replies = await asyncio.gather(
        *(journaled_daemon.ask("POST", "/v1/sessions", small) for _ in range(12))
    )
    assert sorted(one.status for one in replies) == [201] * 4 + [429] * 8
    refused = next(one for one in replies if one.status == 429)
    assert refused.json["details"] == {"quota": "sessions", "limit": 4, "used": 4}
