"""The agents of a daemon, opened on first use because importing them is slow.

They are also opened as soon as there is a run, because another process may have died with it. A
missing library is UnsupportedByBackend for the request, and a warning in the log otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, SandkastenError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sandkasten_agents.agent_service import AgentService
    from sandkasten_server.api.route_plugins import RouteRecords

log = logging.getLogger("sandkasten.daemon")
# Runs of a killed process are settled within a minute: half of it to find them, half to act.
_LOOK_EVERY_S: Final = 25.0


async def any_runs(data_dir: Path, records: RouteRecords | None = None) -> bool:
    """Return whether there is any run; most daemons never have one."""
    if records is not None:
        return await records.any_runs()
    try:
        return bool(os.listdir(data_dir / "runs"))
    except OSError:
        return False


class LazyAgents:
    def __init__(
        self,
        opened: Callable[[], AbstractAsyncContextManager[AgentService]],
        any_run: Callable[[], Awaitable[bool]],
    ) -> None:
        """`any_run` returns whether there is a run, which a dead process may have left."""
        self._opened = opened
        self._any_run = any_run
        self._opening = asyncio.Lock()
        self._held: AbstractAsyncContextManager[AgentService] | None = None
        self._service: AgentService | None = None
        self._soon: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> LazyAgents:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def open(self) -> AgentService:
        async with self._opening:
            if self._service is None:
                if self._closed:
                    raise Busy("the daemon is shutting down", hint="try again")
                context = self._opened()
                self._service = await context.__aenter__()
                self._held = context
            return self._service

    def begin(self) -> None:
        """Open as soon as there is a run."""
        self._soon = asyncio.get_running_loop().create_task(self._wait_for_runs())

    async def drain(self, deadline_s: float) -> None:
        if self._service is not None:
            await self._service.drain(deadline_s)

    async def aclose(self) -> None:
        """Twice is fine."""
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            await asyncio.wait([self._soon])
        async with self._opening:
            context, self._held = self._held, None
            if context is not None:
                await context.__aexit__(None, None, None)

    async def _wait_for_runs(self) -> None:
        # Runs are created by other processes, so there is no event to wait for.
        while True:
            with suppress(SandkastenError):
                if await self._any_run():
                    break
            await asyncio.sleep(_LOOK_EVERY_S)
        try:
            await self.open()
        except SandkastenError as exc:
            log.warning("agents.unavailable", extra={"sandkasten": {"error": exc.message}})
