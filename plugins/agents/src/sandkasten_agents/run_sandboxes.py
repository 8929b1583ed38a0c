"""Sandboxes of runs: destroy those of ended runs, renew those in use.

Decisions depend only on the ledger and the runs, so it does not matter which process created a
sandbox. Only session keys that contain a run id of this service count; sessions with other keys are
left alone. A run that ends normally removes its sandboxes in `call_sandboxes.py` of the tools; this
is for what is left after a crash.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, NotFound, SandkastenError
from sandkasten.model.runs.session_key import parse_session_key
from sandkasten.model.sandbox.sandbox_values import UpdateRequest

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandkasten.model.runs.run_values import RunRow
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten.ports.agent_ports import Runs
    from sandkasten_runtime.engine.engine import Engine

_RUN: Final = re.compile(r"run_[0-9a-f]{16}\Z")
# A sandbox that does not answer must not delay the renewal of the others.
_TOUCH_S: Final = 5.0


class RunSandboxes:
    def __init__(self, engine: Engine, runs: Runs) -> None:
        self._engine = engine
        self._runs = runs

    async def sweep(self) -> list[str]:
        """Destroy the sandboxes of ended or deleted runs; return their ids."""
        removed_ids: list[str] = []
        rows: dict[str, RunRow | None] = {}
        for info in await self._engine.list():
            run_id = run_of(info)
            if run_id is None:
                continue
            if run_id not in rows:
                rows[run_id] = await self._runs.get(run_id)
            row = rows[run_id]
            # What a run retained ends by itself.
            if row is not None and (not row.ended or info.id in row.retained.values()):
                continue
            try:
                await self._engine.destroy(info.id)
            except NotFound:
                continue
            except SandkastenError:
                # The next sweep comes soon, and the engine has its own reaper.
                continue
            removed_ids.append(info.id)
        return removed_ids

    async def renew(self, run_ids: Collection[str], by_s: float) -> None:
        """Extend the lifetime of the sandboxes of these runs, whether they are active or not."""
        if not run_ids:
            return
        matching = [info for info in await self._engine.list() if run_of(info) in run_ids]
        await asyncio.gather(*(self._renew(info, info.lifetime_s + by_s) for info in matching))

    async def adopt(self, run_id: str, idle_timeout_s: float, for_s: float, now: float) -> None:
        """Give the sandboxes of a resumed run the lifetimes that this process would have set."""
        most = self._engine.policy.lifetime_s
        for info in await self._engine.list():
            if run_of(info) == run_id:
                lifetime_s = min(max(0.0, now - info.created_at) + for_s, most)
                wanted = UpdateRequest(
                    idle_timeout_seconds=idle_timeout_s, lifetime_seconds=lifetime_s
                )
                with suppress(SandkastenError):
                    await self._engine.update(info.id, wanted)

    async def _renew(self, info: Info, lifetime_s: float) -> None:
        lifetime_s = min(lifetime_s, self._engine.policy.lifetime_s)
        with suppress(SandkastenError, TimeoutError):
            async with asyncio.timeout(_TOUCH_S):
                # A request to the sandbox counts as activity, so it also resets the idle time.
                await self._engine.update(info.id, UpdateRequest(lifetime_seconds=lifetime_s))


def run_of(info: Info) -> str | None:
    """Return the run a sandbox was opened in; None when it does not belong to a run."""
    if info.session_key is None:
        return None
    try:
        key = parse_session_key(info.session_key)
    except InvalidRequest:
        return None
    return key.id if _RUN.match(key.id) else None
