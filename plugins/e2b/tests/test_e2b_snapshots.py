"""Snapshots, forks and timeouts that pause, as E2B's protocol has them: limits and failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandkasten.errors import StoreUnusable
from sandkasten.model.journal_rows import StoredFile
from sandkasten_e2b import snapshot_store
from sandkasten_e2b.pause_schedule import PauseTime, open_schedule
from sandkasten_runtime.engine.clock import SystemClock
from tests.api.daemon_with_database import new_key
from tests.e2b_requests import E2b, another

SNAPSHOT = "snap_0123456789abcdef"


async def filled(e2b: E2b, content: bytes = b"kept") -> str:
    box = await e2b.create()
    octets = {"Content-Type": "application/octet-stream"}
    assert (await e2b.send(box, "/files?path=state", content, **octets))[0] == 200
    return box


async def read(e2b: E2b, box: str) -> bytes:
    info = await e2b.daemon.server.engine.files.read(box, "state")
    return bytes(info.data)


async def snapshot(e2b: E2b, box: str, name: str | None = None) -> str:
    status, made = await e2b.ask("POST", f"/sandboxes/{box}/snapshots", {"name": name})
    assert status == 201, made
    return str(made["snapshotID"])


async def listed(e2b: E2b, query: str = "") -> list[Any]:
    status, found = await e2b.ask("GET", f"/snapshots{query}")
    assert status == 200, found
    return [one["snapshotID"] for one in found]


@pytest.mark.promise("P79")
async def test_another_tenant_neither_sees_nor_uses_a_snapshot(e2b):
    made = await snapshot(e2b, await filled(e2b), "mine")
    other = await another(e2b)
    assert (await listed(e2b), await listed(other)) == ([made], [])
    for template in (made, "mine"):
        status, _ = await other.ask("POST", "/sandboxes", {"templateID": template})
        assert status in (403, 404)
        assert (await other.ask("DELETE", f"/templates/{template}"))[0] == 404
    assert await listed(e2b) == [made]


async def test_snapshots_need_the_scope_of_stored_files(e2b):
    box = await filled(e2b)
    made = await snapshot(e2b, box, "mine")
    headers = await new_key(e2b.daemon, name="no files", scopes=["sessions"])
    other = E2b(e2b.daemon, headers["Authorization"].removeprefix("Bearer "))
    for method, path in (
        ("POST", f"/sandboxes/{box}/snapshots"),
        ("GET", "/snapshots"),
        ("DELETE", f"/templates/{made}"),
    ):
        status, told = await other.ask(method, path)
        assert (status, "scope files" in told["message"]) == (403, True), path
    for template in (made, "mine"):
        assert (await other.ask("POST", "/sandboxes", {"templateID": template}))[0] in (403, 404)
    assert await listed(e2b) == [made]


@pytest.mark.parametrize("limits", ['{"cpu_limit": 1' + "0" * 400 + "}", "[" * 5000, "[]", "{"])
def test_a_stored_file_with_false_limits_is_not_a_snapshot(limits):
    told = {"name": "", "sandbox": "sbx", "image": "host", "profile": "x", "limits": limits}
    row = StoredFile(f"e2b/snapshots/{SNAPSHOT}", "default", 1, "", "", 0.0, None, told)
    assert snapshot_store._snapshot(row) is None


async def test_snapshots_are_listed_newest_first_with_filters_and_pages(e2b):
    boxes = [await filled(e2b), await filled(e2b)]
    made = [await snapshot(e2b, box, f"of-{n}") for n, box in enumerate(boxes)]
    assert await listed(e2b) == made[::-1]
    assert await listed(e2b, f"?sandboxID={boxes[0]}") == made[:1]
    assert await listed(e2b, "?name=of-1:default") == made[1:]
    url = f"{e2b.daemon.url}/e2b/snapshots"
    headers, pages = {"X-API-KEY": e2b.key}, []
    query = {"limit": "1"}
    while query:
        async with e2b.daemon.http.get(url, params=query, headers=headers) as found:
            pages += [one["snapshotID"] for one in await found.json()]
            token = found.headers.get("X-Next-Token")
            query = {} if token is None else {"limit": "1", "nextToken": token}
    assert pages == made[::-1]


async def test_a_name_that_is_a_path_or_an_option_is_refused(e2b):
    box = await e2b.create()
    for name in ("../x", "-x", "a b", "x" * 200):
        status, told = await e2b.ask("POST", f"/sandboxes/{box}/snapshots", {"name": name})
        assert (status, "name" in told["message"]) == (400, True)


async def test_content_that_is_not_a_snapshot_leaves_no_sandbox(e2b):
    store, tenant = e2b.daemon.server.stores.files, "default"

    async def content():
        yield b"not a tar"

    told = {"name": "", "sandbox": "", "image": "host", "profile": "hardened", "limits": "{}"}
    await store.put(tenant, f"e2b/snapshots/{SNAPSHOT}", content(), metadata=told)
    await store.put(tenant, "e2b/snapshots/other", content())
    assert await listed(e2b) == [SNAPSHOT]
    status, _ = await e2b.ask("POST", "/sandboxes", {"templateID": SNAPSHOT})
    assert status >= 400
    assert await e2b.daemon.server.engine.list(all=True) == []


@pytest.mark.promise("P79")
async def test_a_fork_that_fails_is_told_in_its_entry_and_leaves_nothing(e2b):
    box = await filled(e2b)
    status, made = await e2b.ask("POST", f"/sandboxes/{box}/fork", {"count": 2, "timeout": 60})
    assert status == 201
    forks = [one["sandbox"]["sandboxID"] for one in made]
    assert [await read(e2b, one) for one in forks] == [b"kept", b"kept"]
    status, made = await e2b.ask("POST", f"/sandboxes/{box}/fork", {"timeout": 10**8})
    assert (status, set(made[0]), made[0]["error"]["code"]) == (201, {"error"}, 400)
    living = {one.id for one in await e2b.daemon.server.engine.list()}
    assert living == {box, *forks}
    # The copy that forks are made of is not kept.
    assert list(await e2b.daemon.server.stores.files.list("default")) == []
    for count in (0, 101):
        assert (await e2b.ask("POST", f"/sandboxes/{box}/fork", {"count": count}))[0] == 422


async def test_a_backend_that_cannot_pause_refuses_and_leaves_no_sandbox(e2b):
    status, told = await e2b.ask(
        "POST", "/sandboxes", {"templateID": "base", "autoPause": True, "timeout": 60}
    )
    assert (status >= 400, "pause" in told["message"]) == (True, True)
    assert await e2b.daemon.server.engine.list(all=True) == []


async def test_times_to_pause_survive_the_daemon_and_a_damaged_file_is_named(tmp_path):
    path, clock = tmp_path / "pauses.json", SystemClock()
    time = PauseTime(1e10, 60, True)
    async with open_schedule(path, None, clock) as schedule:
        await schedule.put("sbx_0123456789abcdef", time)
    async with open_schedule(path, None, clock) as schedule:
        assert schedule.get("sbx_0123456789abcdef") == time
        assert schedule.get("sbx_other") is None
    for damaged in ("[]", "{", json.dumps({"sbx": {"at": "soon"}})):
        path.write_text(damaged)
        with pytest.raises(StoreUnusable, match=r"pauses\.json"):
            async with open_schedule(path, None, clock):
                pass
