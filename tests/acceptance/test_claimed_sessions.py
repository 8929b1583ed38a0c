"""A session of the warm pool on the real engine is what a new one with the same request is."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import SessionNotFound
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.confinement import posture
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_runtime.engine.engine import Engine

pytestmark = [pytest.mark.root, pytest.mark.promise("P94")]

LIMITS = {"memory_mb": 192, "pids_limit": 77, "cpu_limit": 0.5}
ENV = {"GREETING": "good morning", "EMPTY": "", "LANG": "de_DE.UTF-8"}
# What a program inside can see of how it is confined, and of whether anything ran here before.
LOOKS = {
    "environment": "env -0 | sort -z | tr '\\0' '\\n'",
    "limits": "cat /proc/self/limits",
    "confinement": "grep -E '^(Cap|Seccomp|NoNewPrivs|Uid|Gid|Groups|Umask|Sig)' /proc/self/status",
    "network": "tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/route /etc/resolv.conf 2>&1",
    "files": "find /workspace /home /tmp /dev/shm /run -xdev 2>/dev/null | sort",
    "sizes": "df -P /workspace /tmp /dev/shm | awk '{ print $2, $3, $6 }'",
    "host name": "uname -n",
}


@pytest.fixture
async def engine(fresh_data_dir: Path, tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine(load({"data_dir": str(fresh_data_dir)}, {}, tmp_path))
    yield opened
    for info in await opened.list():
        await opened.destroy(info.id)
    await opened.aclose()


def _request(tenant: str = "default", **options: Any) -> CreateRequest:
    return CreateRequest(SandboxOptions(**options), tenant=tenant)


async def _claimed(engine: Engine, request: CreateRequest) -> Info:
    """Create until the pool has one ready: on a busy machine it may have waited too long."""
    async with asyncio.timeout(PATIENCE_S):
        while (info := await engine.create(request)).acquire_source != "pool":
            await engine.destroy(info.id)
    return info


async def _spare(engine: Engine) -> Record:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for row in await engine._store.list():
                if row.acquired == "spare" and row.state.value == "running":
                    return row
            await asyncio.sleep(0.01)


def _first_process(data_dir: Path, the_id: str) -> int:
    return int((data_dir / "cells" / the_id / "pid").read_text().split()[0])


def _processes(data_dir: Path, the_id: str) -> list[str]:
    """Return the names of all processes of a sandbox, seen from the host."""
    pids = posture.processes_in(_first_process(data_dir, the_id))
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids)


def _group(the_id: str) -> dict[str, str]:
    """Return the values of every file of its cgroups that limits are written to."""
    writes = cgroups.plan(cgroups.detect(), the_id, Limits()).writes
    files = [Path(write.path) for write in writes]
    return {file.name: file.read_text().strip() for file in files if file.exists()}


async def _looks(engine: Engine, the_id: str) -> dict[str, str]:
    script = "; ".join(f"echo '--- {name}'; {look}" for name, look in LOOKS.items())
    done = await engine.exec(the_id, ExecRequest(("sh", "-c", script)))
    assert done.exit_code == 0
    found = {}
    for section in done.stdout.decode().split("--- ")[1:]:
        name, _, text = section.partition("\n")
        found[name] = text
    in_shell = await engine.exec(the_id, ExecRequest("env | sort"))
    return {**found, "environment of the shell": in_shell.stdout.decode()}


async def test_a_claimed_session_is_what_a_new_one_is(engine, fresh_data_dir):
    request = _request(env=ENV, limits=LIMITS)
    new = await engine.create(request)
    claimed = await _claimed(engine, request)
    ids = new.id, claimed.id
    # Seen before the first command: only what the runner needs is there.
    before = [_processes(fresh_data_dir, one) for one in ids]
    assert before[0] == before[1]
    assert _group(claimed.id) == _group(new.id)
    assert {str(192 * MIB), "77"} < set(_group(claimed.id).values())
    seen = [await _looks(engine, one) for one in ids]
    assert set(LOOKS) < set(seen[0])
    assert seen[0] == seen[1]
    assert "GREETING=good morning\n" in seen[1]["environment"]
    host = posture.read(os.getpid())
    first = [posture.read(_first_process(fresh_data_dir, one)) for one in ids]
    found = [posture.deviations(one, host, ids=None, capabilities=0) for one in first]
    assert found[0] == found[1]


async def test_a_pooled_sandbox_serves_one_claim_of_one_tenant(engine):
    for _ in range(2):
        await engine.destroy((await engine.create(_request("acme"))).id)
    row = await _spare(engine)
    # Without an owner it is unknown to every tenant.
    for tenant in ("acme", "other", "default"):
        with pytest.raises(SessionNotFound):
            await engine.check_owner(row.id, tenant)
    both = await asyncio.gather(*(_claimed(engine, _request(who)) for who in ("acme", "other")))
    assert both[0].id != both[1].id
    for info, owner, stranger in zip(both, ("acme", "other"), ("other", "acme"), strict=True):
        await engine.check_owner(info.id, owner)
        with pytest.raises(SessionNotFound):
            await engine.check_owner(info.id, stranger)
    # A stale record from before the claim cannot claim it again, and changes nothing in it.
    claimed = next(one for one in await engine._store.list() if one.id == both[0].id)
    stale = replace(claimed, acquired="spare")
    group = _group(claimed.id)
    plan = await engine._pool._planner.plan(_request("other", limits=LIMITS), sites=engine._sites)
    assert await engine._sandboxes.spares.claim(stale, plan, None) is None
    assert _group(claimed.id) == group
    assert await engine.owner(claimed.id) == "acme"
