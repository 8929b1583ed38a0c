"""Measure the resource use of sandboxes: of one in detail, or of every one in a list.

For a list they are read from outside, a few at a time, in bounded time: that wakes none and extends
no life. The workspace's disk is only asked for while a command runs, because then the sandbox stays
alive anyway.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Conflict, SandkastenError
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.sandbox_values import Stats
from sandkasten.model.sandbox.usage import RunningCommand, SessionUsage
from sandkasten_runtime.engine.commands.execution import CALL_TIMEOUT_S
from sandkasten_runtime.engine.handles import is_paused
from sandkasten_runtime.engine.lifecycle.sandbox_info import disk_usages
from sandkasten_runtime.wire.messages import decode_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten.ports import Clock
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.engine.network_control import NetworkControl

_WORKERS: Final = 8
# A sandbox or an engine that does not answer must not delay the list.
_TIMEOUT_S: Final = 2.0
_MAX_COMMANDS: Final = 8
_MAX_COMMAND: Final = 200
_MEASURED: Final = frozenset({"running", "paused"})


class SessionUsages:
    def __init__(
        self, handles: Handles, history: ExecHistory, network: NetworkControl, clock: Clock
    ) -> None:
        self._handles = handles
        self._history = history
        self._network = network
        self._clock = clock

    async def stats(self, sandbox_id: str) -> Stats:
        try:
            handle, channel = await self._handles.connect(sandbox_id)
        except Conflict as exc:
            if not is_paused(exc):
                raise
            return await self._stats_of_paused(sandbox_id)
        usage = await handle.cell.usage()
        stats = decode_stats(await channel.call("stats", timeout_s=CALL_TIMEOUT_S))
        return Stats(
            usage=usage,
            uptime_ms=stats.uptime_ms,
            processes=stats.processes,
            running=stats.running,
            shells=stats.shells,
            connections=stats.connections,
            network=await self._network.usage(handle),
            disk=disk_usages(stats),
        )

    async def _stats_of_paused(self, sandbox_id: str) -> Stats:
        handle = await self._handles.get(sandbox_id)
        up_s = max(0.0, self._clock.boottime() - handle.record.created_boottime)
        return Stats(
            usage=await handle.cell.usage(),
            network=await self._network.usage(handle),
            uptime_ms=int(up_s * 1000),
            processes=None,
            running=None,
            shells=None,
            connections=None,
        )

    async def added(self, infos: Sequence[Info]) -> list[Info]:
        """Return the sandboxes with their usage; those that cannot be measured without."""
        measured = list(infos)
        indexes = iter(range(len(measured)))

        async def measure(numbers: Iterator[int]) -> None:
            for number in numbers:
                measured[number] = replace(
                    measured[number], usage=await self._bounded(measured[number])
                )
                # Reading the kernel's counters waits for nothing, so other requests get a turn.
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_WORKERS, len(measured))):
                group.create_task(measure(indexes))
        return measured

    async def _bounded(self, info: Info) -> SessionUsage | None:
        if info.status not in _MEASURED:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._of(info)
        except (SandkastenError, TimeoutError):
            return None

    async def _of(self, info: Info) -> SessionUsage:
        handle = await self._handles.look(info.id)
        usage = await handle.cell.usage()
        network = await self._network.usage(handle)
        rows = self._history.running(info.id)
        if rows:
            await self._look_at_disk(handle)
        disk = handle.disk
        return SessionUsage(
            memory_bytes=usage.memory_bytes,
            memory_limit_bytes=usage.memory_limit_bytes,
            cpu_usec=usage.cpu_usec,
            pids=usage.pids,
            pids_limit=usage.pids_limit,
            oom_kills=usage.oom_kills,
            disk_bytes=None if disk is None else disk.used_bytes,
            disk_limit_bytes=None if disk is None else disk.total_bytes,
            connections=network.connections,
            rx_bytes=network.rx_bytes,
            tx_bytes=network.tx_bytes,
            running=None if rows is None else len(rows),
            commands=tuple(
                RunningCommand(row.id, row.command[:_MAX_COMMAND], row.started_at)
                for row in (rows or [])[-_MAX_COMMANDS:]
            ),
        )

    async def _look_at_disk(self, handle: Handle) -> None:
        channel = handle.live
        if channel is None:
            return
        with suppress(SandkastenError):
            stats = decode_stats(await channel.call("stats", timeout_s=_TIMEOUT_S))
            for disk in disk_usages(stats):
                if disk.path == WORKSPACE:
                    handle.disk = disk
