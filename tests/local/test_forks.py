"""Forks on the real backends: what a copy has, when it is cut, and what a failure leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sandkasten import AsyncSandbox
from sandkasten.errors import (
    Busy,
    Conflict,
    InvalidRequest,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, ForkRequest
from sandkasten.model.sandbox.snapshot import SnapshotRules
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.engine.storage import snapshots
from sandkasten_server.api.request.authentication import Doorkeeper
from tests.api.daemon_in_process import serving
from tests.local import test_snapshots
from tests.local.test_snapshots import DISK, LIMITS

if TYPE_CHECKING:
    from sandkasten.model.audit_records import AuditRow

pytestmark = [pytest.mark.anyio, pytest.mark.root]
big_disk, site, each = test_snapshots.big_disk, test_snapshots.site, test_snapshots.each


@pytest.mark.promise("P132")
async def test_each_copy_has_the_files_of_one_moment_and_an_own_life(each):
    box = await each.create(env={"A": "one"}, hostname="named")
    await each.sh(box, "mkdir 'a b'; cd 'a b'; export C=2; echo home > ~/f; echo tmp > /tmp/f")
    loop = "i=0; while :; do i=$((i+1)); echo $i >> /workspace/n; done"
    await each.engine.exec_start(box, ExecRequest(command=("sh", "-c", loop)))
    await each.sh(box, "until [ -s /workspace/n ]; do sleep 0.01; done")
    forked = await each.engine.fork(box, ForkRequest(3))
    ids = [info.id for info in forked.results]
    assert len({box, *ids}) == 4
    assert (len(forked.not_kept.commands), each.left()) == (1, [])
    assert await each.engine.snapshots.list() == []
    seen = {await each.sh(the_id, "pwd; hostname; echo $A$C; cat ~/f") for the_id in ids}
    assert seen == {"/workspace/a b\nnamed\none2\nhome\n"}
    if each.backend != "gvisor":
        assert {await each.sh(the_id, "cat /tmp/f") for the_id in ids} == {"tmp\n"}
    counts = {int(await each.sh(the_id, "wc -l < /workspace/n")) for the_id in ids}
    assert len(counts) == 1
    await each.sh(ids[0], "echo mine > /workspace/own")
    assert await each.sh(ids[1], "ls /workspace/own 2>&1 | grep -c cannot") == "1\n"
    count = int(await each.sh(box, "wc -l < /workspace/n"))
    assert count >= counts.pop()
    wait = f"until [ $(wc -l < /workspace/n) -gt {count} ]; do sleep 0.01; done"
    await each.sh(box, wait)
    # A copy of a copy is one, too.
    (again,) = (await each.engine.fork(ids[0], ForkRequest())).results
    assert await each.sh(again.id, "cat /workspace/own") == "mine\n"


async def test_a_copy_has_what_its_source_has_where_the_request_names_nothing(site):
    box = await site.create(
        labels={"team": "x", "more": "y"}, ttl_seconds=700, lifetime_seconds=5000
    )
    source = await site.engine.get(box)
    (same,) = (await site.engine.fork(box, ForkRequest())).results
    has = ("image", "limits", "labels", "network", "idle_timeout_s", "lifetime_s", "profile")
    for name in has:
        assert getattr(same, name) == getattr(source, name), name
    assert (same.created, same.snapshot, same.acquire_source) == (True, None, "cold")
    request = ForkRequest(
        labels={"team": "z"}, idle_timeout_seconds=90, lifetime_seconds=3000, network="full"
    )
    (other,) = (await site.engine.fork(box, request)).results
    assert other.labels == {"team": "z", "more": "y"}
    assert (other.idle_timeout_s, other.lifetime_s) == (90, 3000)
    assert (other.network, source.network) == ("full", "none")
    # The row names the snapshot that the files come from, and that there is.
    snapshot = await site.snapshot(box)
    copy = await site.create(snapshot=snapshot.id)
    await site.engine.snapshots.remove(snapshot.id)
    (child,) = (await site.engine.fork(copy, ForkRequest())).results
    assert child.snapshot == snapshot.id


async def test_a_paused_source_is_forked_and_stays_paused(each):
    box = await each.create()
    await each.sh(box, "echo kept > f")
    await each.engine.pause(box)
    (copy,) = (await each.engine.fork(box, ForkRequest())).results
    assert (await each.engine.get(box)).status == "paused"
    assert (copy.status, await each.sh(copy.id, "cat f")) == ("running", "kept\n")


@pytest.mark.promise("P132")
async def test_a_copy_that_fails_leaves_the_others_and_counts_as_any_sandbox(site):
    box = await site.create(tenant="one")
    quota = TenantQuota(max_sessions=3, max_disk_bytes=3 * 64 * MIB)
    # The copy that they start from needs neither a snapshot's place nor the tenant's disk.
    strict = site.open(Policy(disk=DISK, snapshots=SnapshotRules(max_count=0)))
    forked = await strict.fork(box, ForkRequest(4), quota)
    errors = [result for result in forked.results if isinstance(result, SandkastenError)]
    assert [type(error) for error in errors] == [QuotaExceeded, QuotaExceeded]
    assert {error.details["quota"] for error in errors} == {"sessions"}
    assert len(await strict.list(tenant="one")) == 3
    assert site.left() == []
    little = site.open(Policy(disk=DISK, snapshots=SnapshotRules(max_total_bytes=1)))
    with pytest.raises(QuotaExceeded) as raised:
        await little.fork(box, ForkRequest())
    assert (raised.value.details["quota"], site.left()) == ("snapshots", [])
    for engine in (strict, little):
        await engine.aclose()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ForkRequest(0), "count"),
        (ForkRequest(21), "count"),
        (ForkRequest(labels={"": "x"}), "labels"),
        (ForkRequest(ttl_seconds=0.5), "ttl_seconds"),
    ],
)
async def test_an_invalid_request_does_not_stop_the_source(site, monkeypatch, request_, field):
    box = await site.create()
    monkeypatch.delattr(LaunchedCell, "pause")
    with pytest.raises(InvalidRequest) as raised:
        await site.engine.fork(box, request_)
    assert raised.value.details["field"] == field
    assert [info.id for info in await site.engine.list()] == [box]


@pytest.mark.promise("P132")
async def test_what_no_client_learns_of_is_removed(site, monkeypatch):
    box = await site.create()
    create = site.engine._sandboxes.create
    first, second, calls = asyncio.Event(), asyncio.Event(), iter(range(9))

    async def slow(*args, **kwargs):
        if next(calls) == 0:
            info = await create(*args, **kwargs)
            first.set()
            return info
        await first.wait()
        second.set()
        return await asyncio.Future()

    monkeypatch.setattr(site.engine._sandboxes, "create", slow)
    forking = asyncio.ensure_future(site.engine.fork(box, ForkRequest(2)))
    await second.wait()
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert [info.id for info in await site.engine.list()] == [box]
    assert (site.left(), await site.sh(box, "echo alive")) == ([], "alive\n")


async def test_a_tenant_has_one_copy_at_a_time_for_forks(site, monkeypatch):
    first, second = [await site.create(tenant="one") for _ in range(2)]
    other = await site.create(tenant="two")
    started, gate = asyncio.Event(), asyncio.Event()

    async def create(request, *_, **__):
        if request.tenant == "one":
            started.set()
            await gate.wait()
        raise Conflict("not now")

    monkeypatch.setattr(site.engine._sandboxes, "create", create)
    forking = asyncio.ensure_future(site.engine.fork(first, ForkRequest()))
    await started.wait()
    monkeypatch.setattr(snapshots, "_LOCK_WAIT_S", 0)
    with pytest.raises(Busy):
        await asyncio.wait_for(site.engine.fork(second, ForkRequest()), 20)
    assert len((await site.engine.fork(other, ForkRequest())).results) == 1
    gate.set()
    await forking
    assert len((await site.engine.fork(second, ForkRequest())).results) == 1


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from sandkasten_runtime.backends.launched_sandboxes import LaunchedSandboxes
from sandkasten.model.sandbox.sandbox_values import ForkRequest
from tests.local.test_snapshots import Site

make, calls = LaunchedSandboxes._make, []

def die(*args):
    cell = make(*args)
    calls.append(cell)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return cell

async def work():
    LaunchedSandboxes._make = die
    await Site(Path(sys.argv[1])).engine.fork(sys.argv[2], ForkRequest(3))
asyncio.run(work())
"""


@pytest.mark.promise("P132")
async def test_a_killed_process_leaves_nothing_that_no_row_owns(site):
    box = await site.create()
    await site.sh(box, "echo kept > f")
    words = [sys.executable, "-c", _KILLED, os.fspath(site.data_dir), box]
    died = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert site.left()[0].startswith(".making-snap_")
    await site.engine.recover()
    assert site.left() == []
    infos = await site.engine.list(all=True)
    assert {info.status for info in infos} == {"running"}
    cells = {path.name for path in (site.data_dir / "cells").glob("sbx_*")}
    assert cells == {info.id for info in infos}
    assert await site.sh(box, "cat f") == "kept\n"


async def test_the_warm_pool_does_not_serve_a_copy(site):
    pooled = site.open(pool=PoolRules(enabled=True))
    request = CreateRequest(SandboxOptions(image="host", limits=LIMITS))
    box = (await pooled.create(request)).id
    for _ in range(2):
        forked = await pooled.fork(box, ForkRequest(2))
        assert [info.acquire_source for info in forked.results] == ["cold", "cold"]
    await pooled.aclose()


async def test_a_backend_without_snapshots_refuses_by_name(site, monkeypatch):
    box = await site.create()
    handle = await site.engine._handles.get(box)
    monkeypatch.setattr(handle, "cell", object())
    with pytest.raises(UnsupportedByBackend) as raised:
        await site.engine.fork(box, ForkRequest())
    assert raised.value.details["backend"] == "local"
    monkeypatch.undo()
    assert not (site.data_dir / "snapshots").exists()


class _Rows:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []

    def record(self, row: AuditRow) -> None:
        self.rows.append(row)

    async def record_lasting(self, row: AuditRow) -> None:
        self.rows.append(row)


async def test_a_daemon_answers_with_a_session_or_an_error_for_each_copy(site):
    box = await site.create()
    path, rows = f"/v1/sessions/{box}/fork", _Rows()
    doorkeeper = Doorkeeper(
        clock=SystemClock(), open_loopback=True, default_quota=TenantQuota(max_sessions=3)
    )
    async with serving(site.engine, audit=rows, doorkeeper=doorkeeper) as daemon:
        other = {"X-Sandkasten-Tenant": "other"}
        reply = await daemon.ask("POST", path, {}, headers=other)
        assert (reply.status, reply.json["code"]) == (404, "SESSION_NOT_FOUND")
        reply = await daemon.ask("POST", path, {"count": 21})
        assert (reply.status, reply.json["details"]["field"]) == (422, "count")
        rows.rows.clear()
        reply = await daemon.ask("POST", path, {"count": 3, "labels": {"n": "1"}})
        assert reply.status == 201, reply.raw
        sessions = [result["session"] for result in reply.json["results"] if result["session"]]
        (error,) = [result["error"] for result in reply.json["results"] if result["error"]]
        assert (error["code"], error["details"]["quota"]) == ("QUOTA_EXCEEDED", "sessions")
        assert [session["labels"] for session in sessions] == [{"n": "1"}] * 2
        assert reply.json["not_kept"]["commands"] == []
        (row,) = [row for row in rows.rows if row.action == "session.fork"]
        assert (row.target, row.outcome) == (box, "ok")
        assert set(row.detail["created"].split()) == {session["id"] for session in sessions}
        for session in sessions:
            await site.engine.destroy(session["id"])
        source = await AsyncSandbox.attach(box, url=daemon.url)
        copies = await source.fork(3)
        assert [isinstance(copy, QuotaExceeded) for copy in copies].count(True) == 1
        for copy in copies:
            if isinstance(copy, AsyncSandbox):
                async with copy:
                    assert (await copy.exec("echo $((1+1))")).stdout == "2\n"
        assert [info.id for info in await site.engine.list()] == [box]
        assert (await source.exec("echo alive")).stdout == "alive\n"
