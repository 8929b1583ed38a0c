"""What a replica does without a request, each part on its own: a daemon in this process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from sandkasten.model.access.tenancy import TenantQuota
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.lifecycle.tenant_quotas import Need
from sandkasten_server.daemon.daemon_assembly import open_daemon

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from benchmarks.scale.replicas import Replicas
    from sandkasten_runtime.engine.engine import Engine

_TENANT = "default"


async def measure(replicas: Replicas, data_dir: Path, limit_s: float) -> dict[str, dict[str, Any]]:
    """Return the cost of one of each, or of the part that is done within `limit_s`.

    The replicas should be stopped, or their statements and calls are counted too.
    """
    settings = load(flags={"config": str(replicas.config), "data_dir": str(data_dir)})
    costs = {}
    async with open_daemon(settings) as daemon:
        engine = daemon.engine
        await _alone(engine)
        for name, work in (
            ("watch, first round", engine._watch.round),
            ("watch, another round", engine._watch.round),
            ("reaper", engine._reaper.sweep),
            ("list of objects", engine._handles.backend("kubernetes").owned),
            ("quota", lambda: _admit(engine)),
        ):
            costs[name] = await _cost(replicas, work, limit_s)
    return costs


async def _alone(engine: Engine) -> None:
    """End what it does in the background."""
    await engine._recovery.aclose()
    for task in (*engine._watch._tasks, engine._sweeping):
        if task is not None:
            task.cancel()
    engine._handles.settle = None
    engine._recovery._left.clear()


async def _admit(engine: Engine) -> None:
    quota = TenantQuota(max_sessions=1_000_000)
    async with engine.quotas.admitted(_TENANT, quota, Need(sessions=1)):
        pass


async def _cost(
    replicas: Replicas, work: Callable[[], Awaitable[object]], limit_s: float
) -> dict[str, Any]:
    before, used_s, began = await replicas.use(), time.process_time(), time.monotonic()
    trouble = ""
    try:
        async with asyncio.timeout(limit_s):
            await work()
    except Exception as exc:  # noqa: BLE001  (it is a result)
        trouble = f"{type(exc).__name__}: {exc}"[:200]
    used_s, took_s = time.process_time() - used_s, time.monotonic() - began
    await asyncio.sleep(0.1)
    after = await replicas.use()
    load = after.database - before.database
    return {
        "wall_s": round(took_s, 3),
        "replica_s": round(used_s, 3),
        "database_s": round(load.processor_s, 3),
        "cluster_s": round(after.cluster_s - before.cluster_s, 3),
        "statements": load.statements,
        "rows": load.all_rows,
        "calls": after.calls_since(before),
        **({"trouble": trouble} if trouble else {}),
    }
