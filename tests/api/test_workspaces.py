"""Named workspaces over HTTP, and their files through a session or a helper sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import io

import pytest

from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.journal_rows import KeyRow
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.lifecycle import workspace_loans
from sandkasten_server.api.request.authentication import Doorkeeper
from tests.api.daemon_in_process import serving
from tests.patience import PATIENCE_S

W = "/v1/workspaces"


async def test_a_workspace_is_created_described_copied_enlarged_and_deleted(daemon):
    made = await daemon.ask("POST", W, {"name": "w", "size_mb": 20})
    assert made.status == 201, made.raw
    assert (made.json["id"], made.json["name"]) == ("w", "w")
    assert made.json["size"] == made.json["size_bytes"] == 20 << 20
    assert (await daemon.ask("POST", W, {"id": "w"})).json["code"] == "CONFLICT"
    found = (await daemon.ask("GET", W)).json["workspaces"]
    assert [one["id"] for one in found] == ["w"]
    assert (await daemon.ask("POST", f"{W}/w/copy", {"name": "v"})).status == 201
    grown = await daemon.ask("POST", f"{W}/v/resize", {"size_mb": 30})
    assert (grown.status, grown.json["size_bytes"]) == (200, 30 << 20)
    assert (await daemon.ask("POST", f"{W}/v/resize", {"size_mb": 1})).status == 400
    assert (await daemon.ask("DELETE", f"{W}/v")).json == {"ok": True}
    gone = await daemon.ask("GET", f"{W}/v")
    assert (gone.status, gone.json["code"]) == (404, "WORKSPACE_NOT_FOUND")
    assert (await daemon.ask("POST", W, {})).status == 422
    assert (await daemon.ask("POST", W, {"name": "../x"})).status == 400


@pytest.mark.promise("P22")
async def test_workspace_files_are_written_and_read_without_a_session(daemon, engine):
    await daemon.ask("POST", W, {"name": "w"})
    fs = f"{W}/w/fs"
    for path in ("a/f", "/workspace/g", "/work/h"):
        assert (await daemon.ask("POST", f"{fs}/write", {"path": path, "text": path})).status == 200
    short = (await daemon.ask("GET", fs)).json["entries"]
    assert short == [
        {"name": "a", "is_dir": True},
        {"name": "g", "is_dir": False},
        {"name": "h", "is_dir": False},
    ]
    assert (await daemon.ask("GET", f"{fs}?path=a")).json["entries"][0]["name"] == "f"
    assert (await daemon.ask("GET", f"{fs}?path=/")).json["entries"] == short
    assert (await daemon.ask("GET", f"{fs}/read?path=a/f")).json["content"] == "a/f"
    assert (await daemon.ask("GET", f"{fs}/download?path=g")).raw == b"/workspace/g"
    assert (await daemon.ask("GET", f"{fs}/stat?path=h")).json["size_bytes"] == 7
    put = await daemon.ask("PUT", f"{fs}/file?path=big", data=io.BytesIO(b"x" * 3_000_000))
    assert put.json["size_bytes"] == 3_000_000
    moved = await daemon.ask("POST", f"{fs}/move", {"source": "big", "destination": "a/big"})
    assert moved.json["path"] == "/workspace/a/big"
    assert (await daemon.ask("POST", f"{fs}/mkdir", {"path": "m"})).status == 200
    assert (await daemon.ask("DELETE", f"{fs}?path=a&recursive=1")).json["removed"] == 3
    # Nothing of it shows, and a session finds the files at once.
    assert await engine.list() == []
    assert (await daemon.ask("GET", f"{W}/w")).json["used_by"] == []
    the_id = await daemon.session(workspace_id="w")
    found = await daemon.ask("GET", f"/v1/sessions/{the_id}/fs/read?path=g")
    assert found.json["content"] == "/workspace/g"
    assert [one.id for one in await engine.list(all=True)] == [the_id]


async def test_files_of_a_claimed_workspace_are_served_by_its_session(daemon, engine):
    the_id = await daemon.session(workspace_id="w")
    await engine.exec(the_id, ExecRequest("echo live > f"))
    read = await daemon.ask("GET", f"{W}/w/fs/read?path=f")
    assert read.json["content"] == "live\n"
    assert (await daemon.ask("POST", f"{W}/w/fs/write", {"path": "g", "text": "w"})).status == 200
    assert (await engine.exec(the_id, ExecRequest("cat g"))).stdout == b"w"
    assert len(await engine.list(all=True)) == 1
    assert (await daemon.ask("DELETE", f"{W}/w")).status == 409


OUTSIDE = ["/tmp/x", "/etc/hostname", "../x", "/workspace/../etc/x"]


async def test_only_workspace_paths_can_be_accessed(daemon):
    for path in OUTSIDE:
        await daemon.ask("POST", W, {"name": "w"})
        reply = await daemon.ask("GET", f"{W}/w/fs/read", params={"path": path})
        assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")
        written = await daemon.ask("POST", f"{W}/w/fs/write", {"path": path, "text": ""})
        assert written.status == 400


async def test_files_of_a_missing_workspace_are_not_found_and_create_nothing(daemon):
    for ask in (
        daemon.ask("GET", f"{W}/none/fs"),
        daemon.ask("GET", f"{W}/none/fs/read?path=x"),
        daemon.ask("POST", f"{W}/none/fs/write", {"path": "x", "text": ""}),
    ):
        reply = await ask
        assert (reply.status, reply.json["code"]) == (404, "WORKSPACE_NOT_FOUND")
    assert (await daemon.ask("GET", W)).json["workspaces"] == []


async def test_concurrent_requests_share_one_helper_sandbox(daemon, engine):
    await daemon.ask("POST", W, {"name": "w"})
    replies = await asyncio.gather(
        *(
            daemon.ask("POST", f"{W}/w/fs/write", {"path": f"f{n}", "text": str(n)})
            for n in range(20)
        )
    )
    assert {one.status for one in replies} == {200}
    assert len(await engine.list(all=True)) == 1


async def test_an_unused_helper_sandbox_is_removed(daemon, engine, monkeypatch):
    monkeypatch.setattr(workspace_loans, "IDLE_S", 0.1)
    await daemon.ask("POST", W, {"name": "w"})
    await daemon.ask("GET", f"{W}/w/fs")
    for _ in range(int(PATIENCE_S / 0.05)):
        if not await engine.list(all=True):
            break
        await asyncio.sleep(0.05)
    assert await engine.list(all=True) == []
    assert (await daemon.ask("GET", f"{W}/w/fs")).status == 200


@pytest.mark.promise("P22")
async def test_a_session_waits_for_a_transfer_and_gets_the_workspace(daemon, engine):
    await daemon.ask("POST", W, {"name": "w"})
    going, go = asyncio.Event(), asyncio.Event()

    async def slowly():
        yield b"first"
        going.set()
        await go.wait()
        yield b"last"

    sending = asyncio.create_task(daemon.ask("PUT", f"{W}/w/fs/file?path=f", data=slowly()))
    await going.wait()
    for _ in range(int(PATIENCE_S / 0.02)):
        if [one for one in await engine.list(all=True) if one.status == "running"]:
            break
        await asyncio.sleep(0.02)
    wanting = asyncio.create_task(engine.create(CreateRequest(SandboxOptions(workspace_id="w"))))
    await asyncio.sleep(0.3)
    assert not wanting.done()
    go.set()
    assert (await sending).status == 200
    info = await wanting
    assert (await engine.files.read(info.id, "f")).data == b"firstlast"


async def test_a_real_workspace_serves_its_files_and_is_free_afterwards(real_daemon):
    made = await real_daemon.ask("POST", W, {"name": "w", "size_mb": 20})
    assert made.status == 201
    written = await real_daemon.ask("POST", f"{W}/w/fs/write", {"path": "f", "text": "real"})
    assert written.status == 200, written.raw
    the_id = await real_daemon.session(workspace_id="w")
    found = await real_daemon.ask("GET", f"{W}/w/fs/read?path=f")
    assert found.json["content"] == "real"
    await real_daemon.ask("DELETE", f"/v1/sessions/{the_id}")
    read = await real_daemon.ask("GET", f"{W}/w/fs/download?path=f")
    assert read.raw == b"real"
    assert (await real_daemon.ask("DELETE", f"{W}/w")).status == 200


@pytest.mark.promise("P45")
async def test_workspaces_belong_to_their_tenant(engine):
    class Keys:
        def check(self, hashed, _now):
            tenant = "even" if hashed == hashlib.sha256(b"sk-even").digest() else "odd"
            return KeyRow(
                "k",
                tenant,
                "name",
                frozenset({"workspaces", "sessions"}),
                quota=TenantQuota(),
                created_at=0.0,
            )

    keeper = Doorkeeper(clock=SystemClock(), keys=Keys())  # type: ignore[arg-type]
    async with serving(engine, doorkeeper=keeper) as daemon:
        even, odd = ({"Authorization": f"Bearer {key}"} for key in ("sk-even", "sk-odd"))
        for headers, text in ((even, "e"), (odd, "o")):
            made = await daemon.ask("POST", W, {"name": "w"}, headers=headers)
            assert (made.status, made.json["id"]) == (201, "w")
            body = {"path": text, "text": text}
            wrote = await daemon.ask("POST", f"{W}/w/fs/write", body, headers=headers)
            assert wrote.status == 200, wrote.raw
        for headers, text in ((even, "e"), (odd, "o")):
            found = await daemon.ask("GET", f"{W}/w/fs", headers=headers)
            assert [one["name"] for one in found.json["entries"]] == [text]
            assert len((await daemon.ask("GET", W, headers=headers)).json["workspaces"]) == 1
        await daemon.ask("POST", W, {"name": "alone"}, headers=even)
        for ask in (
            daemon.ask("GET", f"{W}/alone", headers=odd),
            daemon.ask("GET", f"{W}/alone/fs", headers=odd),
            daemon.ask("DELETE", f"{W}/alone", headers=odd),
        ):
            assert (await ask).status == 404
